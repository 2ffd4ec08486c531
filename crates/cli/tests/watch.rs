//! `hetal ui`: pages of trainings, for whoever knows the token and for nobody else.
#![allow(clippy::unwrap_used)]

mod common;

use common::{SET, Server, json, text};
use hetal_testkit::TempDir;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running `hetal ui`.
struct Ui {
    child: Child,
    host: String,
    base: String,
}

impl Ui {
    fn start(folders: &[&str]) -> Self {
        let folders = folders.iter().flat_map(|folder| ["--dir", folder]);
        let arguments = ["ui", "--json"].into_iter().chain(folders);
        let mut child =
            Command::new(env!("CARGO_BIN_EXE_hetal")).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = serde_json::from_str::<Value>(&line).unwrap()["url"].as_str().unwrap().to_owned();
        let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
        Self { child, host: host.to_owned(), base: format!("/{}", path.trim_end_matches('/')) }
    }

    /// Sends a request, and returns the head and the body of the answer.
    fn ask(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    /// The body of a page behind the token.
    fn get(&self, path: &str) -> String {
        let (head, body) = self.ask(&format!("GET {}{path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.base, self.host));
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
        body
    }

    fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.get(&format!("{path}?json"))).unwrap()
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Rows of two classes that overlap, so that a training takes several epochs.
fn table(rows: usize) -> String {
    let mut text = String::from("a,b,kind\n");
    for row in 0..rows {
        let noise = |k: usize| ((row * 7919 + k * 104_729) % 1000) as f64 / 500.0 - 1.0;
        writeln!(text, "{:.4},{:.4},{}", (row % 2) as f64 + noise(0), noise(1), ["ant", "bee"][row % 2]).unwrap();
    }
    text
}

fn trained_project(folder: &Path, dir: &str, name: &str, server: &Server) {
    let features = folder.join("train.csv");
    std::fs::write(&features, table(300)).unwrap();
    let server = server.arguments();
    let server: Vec<&str> = server.iter().map(String::as_str).collect();
    let arguments = ["train", "--json", "--dir", dir, "--set", SET, "--features", text(&features), "--name", name];
    let rest = ["--label-column", "kind", "--epochs", "2", "--batch", "64", "--verdict-delay-ms", "0"];
    json(&[&arguments[..], &rest, &server].concat());
}

#[test]
fn strangers_see_nothing_and_trainings_are_watched_to_their_end() {
    let folder = TempDir::new();
    let project = folder.path().join("project");
    let dir = text(&project);
    let server = Server::start(folder.path());
    trained_project(folder.path(), dir, "ants", &server);
    let ui = Ui::start(&[dir]);

    // Without the token, from another origin, by another name, with another method.
    let (host, base) = (&ui.host, &ui.base);
    let hosts = format!("Host: {host}\r\n");
    for (request, status) in [
        (format!("GET / HTTP/1.1\r\n{hosts}\r\n"), "403"),
        (format!("GET /0/ants HTTP/1.1\r\n{hosts}\r\n"), "403"),
        (format!("GET /{:032}/ HTTP/1.1\r\n{hosts}\r\n", 0), "403"),
        (format!("GET {base}/ HTTP/1.1\r\n{hosts}Origin: http://evil.example\r\n\r\n"), "403"),
        (format!("GET {base}/ HTTP/1.1\r\n{hosts}Sec-Fetch-Site: cross-site\r\n\r\n"), "403"),
        (format!("GET {base}/ HTTP/1.1\r\nHost: evil.example\r\n\r\n"), "421"),
        (format!("GET {base}/ HTTP/1.1\r\n\r\n"), "421"),
        (format!("POST {base}/ HTTP/1.1\r\n{hosts}\r\n"), "405"),
        (format!("GET {base}/0/none HTTP/1.1\r\n{hosts}\r\n"), "404"),
        (format!("GET {base}/7/first HTTP/1.1\r\n{hosts}\r\n"), "404"),
        (format!("GET {base}/0/../ants HTTP/1.1\r\n{hosts}\r\n"), "404"),
        ("nonsense\r\n\r\n".to_owned(), "400"),
    ] {
        let (head, body) = ui.ask(&request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {head}");
        // Whoever knows the token may be told what is missing.
        assert!(status == "404" || !body.contains("ants") && !body.contains('<'), "{request}: {body}");
    }
    let (head, _) = ui.ask(&format!("GET {base}/ HTTP/1.1\r\n{hosts}\r\n"));
    for header in ["default-src 'none'", "frame-ancestors 'none'", "no-store", "no-referrer", "nosniff", "same-origin"]
    {
        assert!(head.contains(header), "{header}: {head}");
    }

    let page = ui.get("/");
    assert!(page.contains(&format!("href=\"{base}/0/ants\"")), "{page}");
    let record = json(&["report", "ants", "--dir", dir, "--json"]);
    assert_eq!(ui.json("/")["projects"][0]["models"][0], record);
    assert_eq!(ui.json("/0/ants"), record);
    assert!(ui.get("/0/ants").contains("Which classes are taken for which"));
    assert!(ui.get("/style.css").contains("--paper") && ui.get("/watch.js").contains("replaceChildren"));

    // Another training appears, and is watched until it has ended.
    let features = folder.path().join("train.csv");
    let mut child = Command::new(env!("CARGO_BIN_EXE_hetal"))
        .args(["train", "--dir", dir, "--features", text(&features), "--label-column", "kind", "--name", "second"])
        .args(["--epochs", "6", "--batch", "32", "--rate", "0.05", "--verdict-delay-ms", "300"])
        .args(server.arguments())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut phases, mut most) = (Vec::new(), 0);
    let end = Instant::now() + Duration::from_secs(120);
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "the training does not end");
        if let Some(record) = ui.json("/")["projects"][0]["unfinished"].as_array().unwrap().first() {
            assert_eq!((&record["name"], &record["state"]), (&"second".into(), &"running".into()));
            phases.push(record["progress"]["phase"].as_str().unwrap_or_default().to_owned());
            let checks = ui.json("/0/second")["checks"].as_array().map_or(0, Vec::len);
            assert!(checks >= most, "{checks} after {most}");
            most = checks;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    phases.dedup();
    assert!(phases.iter().any(|phase| phase == "server: training"), "{phases:?}");
    assert!(most > 1, "{most} checks");
    let all = ui.json("/");
    assert_eq!(all["projects"][0]["unfinished"], Value::Array(Vec::new()));
    assert_eq!(all["projects"][0]["models"][0]["name"], "second");
}

#[test]
fn an_interrupted_training_says_so() {
    let folder = TempDir::new();
    let project = folder.path().join("project");
    let dir = text(&project);
    let server = Server::start(folder.path());
    let features = folder.path().join("train.csv");
    std::fs::write(&features, table(300)).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_hetal"))
        .args(["train", "--dir", dir, "--set", SET, "--features", text(&features), "--label-column", "kind"])
        .args(["--epochs", "50", "--batch", "32", "--verdict-delay-ms", "5000"])
        .args(server.arguments())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(120);
    while !project.join("jobs/model/best.json").exists() {
        assert!(Instant::now() < end && child.try_wait().unwrap().is_none(), "no check");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let ui = Ui::start(&[dir]);
    let record = ui.json("/0/model");
    assert_eq!(record["state"], "interrupted");
    assert!(ui.get("/0/model").contains("The same command continues it"));
    assert!(ui.get("/").contains("interrupted: the same command continues it"));
}
