//! Weights of rows and classes and L2 on the command line, at a toy parameter set.
#![allow(clippy::unwrap_used)]

mod common;

use common::{SET, Server, error, hetal, json, text};
use hetal_client::Model;
use hetal_client::data::tables::npy;
use hetal_testkit::TempDir;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ROWS: usize = 150;

/// A CSV table of three clusters of different sizes, with a column of weights.
fn table() -> String {
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 31) as f64 - 0.5
    };
    let mut lines = String::from("a,b,c,w,d,kind\n");
    for row in 0..ROWS {
        let class = [0, 0, 0, 1, 0, 2, 0, 0, 1, 0][row % 10];
        let mut value = |j: usize| f64::from(u8::from(j % 3 == class)) * 1.5 + next();
        let weight = 0.5 * (row % 7) as f64;
        lines += &format!("{:.4},{:.4},{:.4},{weight},{:.4},", value(0), value(1), value(2), value(3));
        lines += &format!("{}\n", ["ant", "bee", "cat"][class]);
    }
    lines
}

fn rows<'a>(features: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let rows = ["--set", SET, "--features", features, "--label-column", "kind", "--batch", "64", "--epochs", "2"];
    [&rows[..], &["--rate", "2", "--check-every", "1"], more].concat()
}

fn training<'a>(dir: &'a str, server: &'a [String], rows: &[&'a str]) -> Vec<&'a str> {
    let server: Vec<&str> = server.iter().map(String::as_str).collect();
    [&["train", "--json", "--verify", "--dir", dir, "--verdict-delay-ms", "0"], rows, &server].concat()
}

fn job(dir: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(dir.join("jobs/model/job.json")).ok()?).ok()
}

/// A weighted training with L2 whose client is killed after a round: it resumes, matches the
/// plaintext reference with the same weights, and takes the bytes that were planned.
#[test]
fn a_weighted_training_with_l2_resumes_and_matches_the_reference() {
    let folder = TempDir::new();
    let server = Server::start(folder.path());
    let (dir, features) = (folder.path().join("p"), folder.path().join("rows.csv"));
    std::fs::write(&features, table()).unwrap();
    let (features, to_server) = (text(&features), server.arguments());
    let weights = ["--weight-column", "w", "--class-weight", "balanced", "--alpha", "0.02"];
    let plan = json(&[&["plan", "--json"], &rows(features, &weights)[..]].concat());
    assert_eq!((&plan["weighted"], &plan["alpha"], &plan["features"]), (&json!(true), &json!(0.02), &json!(4)));
    assert_eq!(plan["weights"]["rows"], "column w");
    let of_class = |class: &str| plan["weights"]["classes"][class].as_f64().unwrap();
    assert!(of_class("cat") > of_class("bee") && of_class("bee") > of_class("ant"), "{}", plan["weights"]);

    let arguments = training(text(&dir), &to_server, &rows(features, &weights));
    let mut child = Command::new(env!("CARGO_BIN_EXE_hetal"))
        .args(&arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while job(&dir).is_none_or(|record| record["job"]["judged"].as_u64().unwrap_or(0) == 0) {
        assert!(child.try_wait().unwrap().is_none() && start.elapsed() < Duration::from_secs(300), "no round");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let sent = job(&dir).unwrap()["batches"].clone();
    // With other weights it is another training, and is not resumed by accident.
    let other = training(text(&dir), &to_server, &rows(features, &["--weight-column", "w", "--alpha", "0.02"]));
    assert!(error(&other).contains("--replace"));
    let trained = json(&arguments);
    assert_eq!(job(&dir).unwrap()["batches"], sent, "rows are encrypted once");
    assert!(trained["reference_difference_bound"].as_f64().unwrap() < 1e-3, "{trained}");
    assert_eq!((&trained["weighted"], &trained["alpha"]), (&json!(true), &json!(0.02)));
    assert_eq!((&trained["upload_bytes"], &trained["key_bytes"]), (&plan["upload_bytes"], &plan["key_bytes"]));

    let shown = json(&["model", "show", "--json", "--dir", text(&dir)]);
    assert_eq!((&shown["training"]["weighted"], &shown["training"]["alpha"]), (&json!(true), &json!(0.02)));
    let said = hetal(&["model", "show", "--dir", text(&dir)]).stdout;
    assert!(String::from_utf8_lossy(&said).contains("L2 with alpha 0.02, rows with weights"));
    // The column of weights is no feature, so a table that still has it can be classified.
    let predicted = |more: &[&str]| {
        let predict = ["predict", "--json", "--dir", text(&dir), "--features", features, "--label-column", "kind"];
        json(&[&predict[..], more].concat())["predictions"].clone()
    };
    assert_eq!(predicted(&["--remote"]), predicted(&[]));
}

/// Equal weights give the bytes of a training without weights, from the same rows.
#[test]
fn equal_weights_give_the_bytes_of_none() {
    let folder = TempDir::new();
    let server = Server::start(folder.path());
    let (dir, features) = (folder.path().join("p"), folder.path().join("rows.csv"));
    let (ones, classes) = (folder.path().join("ones.npy"), folder.path().join("classes.json"));
    std::fs::write(&features, table()).unwrap();
    std::fs::write(&ones, npy::write_doubles(&[ROWS], &[0.3; ROWS])).unwrap();
    std::fs::write(&classes, r#"{"ant": 2, "bee": 2, "cat": 2}"#).unwrap();
    let (features, to_server) = (text(&features), server.arguments());
    let model = || Model::load(&dir.join("models/model.json")).unwrap();
    json(&training(text(&dir), &to_server, &rows(features, &[])));
    let plain = model();
    // With a prior only the biases differ.
    let prior = json(&training(text(&dir), &to_server, &rows(features, &["--replace", "--prior", "0.5"])));
    let shifted = model();
    let shift = shifted.prior.clone().unwrap().shift;
    assert_eq!((prior["prior"]["share"].as_f64(), &shifted.weights), (Some(0.5), &plain.weights));
    assert!(shift[0] > 0.0 && shift[2] < shift[1], "{shift:?}");
    let near = |k: usize| (shifted.bias[k] + shift[k] - plain.bias[k]).abs() < 1e-12;
    assert!((0..3).all(near), "{:?} {:?}", shifted.bias, plain.bias);
    let predicted = |more: &[&str]| {
        let predict = ["predict", "--json", "--dir", text(&dir), "--features", features, "--label-column", "kind"];
        json(&[&predict[..], more].concat())["predictions"].clone()
    };
    assert_eq!(predicted(&["--remote"]), predicted(&[]));
    let equal = ["--sample-weight", text(&ones), "--class-weight", text(&classes), "--replace"];
    let output = hetal(&training(text(&dir), &to_server, &rows(features, &equal)));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("all training rows have the same weight"), "{said}");
    let again = model();
    assert!(!again.training.weighted && again.training.job != plain.training.job);
    // The name of the encrypted weights is the hash of their bytes.
    assert_eq!(again.training.weights, plain.training.weights);
    assert_eq!((again.weights, again.bias), (plain.weights, plain.bias));
}

/// What is wrong with weights is said before anything is encrypted.
#[test]
fn wrong_weights_are_refused_by_name() {
    let folder = TempDir::new();
    let features = folder.path().join("rows.csv");
    std::fs::write(&features, table()).unwrap();
    let features = text(&features);
    let path = |name: &str| folder.path().join(name);
    let refused = |more: &[&str]| error(&[&["plan"], &rows(features, more)[..]].concat());
    std::fs::write(path("few.npy"), npy::write_doubles(&[3], &[1.0; 3])).unwrap();
    std::fs::write(path("zero.npy"), npy::write_doubles(&[ROWS], &[0.0; ROWS])).unwrap();
    std::fs::write(path("negative.npy"), npy::write_doubles(&[ROWS], &[-1.0; ROWS])).unwrap();
    std::fs::write(path("unknown.json"), r#"{"dog": 2}"#).unwrap();
    std::fs::write(path("bad.json"), r#"{"ant": -2}"#).unwrap();
    for (option, file, said) in [
        ("--sample-weight", "few.npy", "3 weights for 150 rows"),
        ("--sample-weight", "zero.npy", "all training rows have weight 0"),
        ("--sample-weight", "negative.npy", "row 1: its weight is -1"),
        ("--class-weight", "unknown.json", "\"dog\" has a weight"),
        ("--class-weight", "bad.json", "class \"ant\": its weight is -2"),
        ("--class-weight", "missing.json", "give the word balanced"),
    ] {
        let refusal = refused(&[option, text(&path(file))]);
        assert!(refusal.contains(said), "{file}: {refusal}");
    }
    assert!(refused(&["--weight-column", "nothing"]).contains("column nothing not found"));
    assert!(refused(&["--weight-column", "kind"]).contains("name two columns"));
    assert!(refused(&["--alpha", "3"]).contains("alpha"));
    let conflict = refused(&["--weight-column", "w", "--sample-weight", "x.npy"]);
    assert!(conflict.contains("cannot be used with"), "{conflict}");
}
