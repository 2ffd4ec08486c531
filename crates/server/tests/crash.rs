//! A server process that is killed without warning, again and again, and started again.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{TOKEN, judge, names, owner};
use hetal_client::remote::{Address, BlobKind, Credentials, Happening, Phase, Remote};
use hetal_server::tenants::Fingerprint;
use hetal_server::tls::authority_path;
use hetal_testkit::TempDir;
use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The program, in a process of its own.
struct Process {
    child: Child,
    address: String,
}

impl Process {
    fn start(folder: &Path, address: &str) -> Self {
        let config = folder.join("server.toml");
        let token = Fingerprint::of(TOKEN.as_bytes());
        let text = format!("checkpoint_every = 2\n[[tenants]]\nname = \"ann\"\ntoken = \"{token}\"\n");
        std::fs::write(&config, text).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_hetal-server"))
            .args(["--engine", "cpu", "--sets", "insecure-toy11", "--allow-insecure", "--log", "warn", "--log-json"])
            .arg("--config")
            .arg(&config)
            .args(["--address", address])
            .env("HETAL_FOLDER", folder.join("server"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { child, address: address.trim().to_owned() }
    }

    /// SIGKILL, and the next life at the same address.
    fn kill_and_start(&mut self, folder: &Path) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let address = self.address.clone();
        *self = Self::start(folder, &address);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(process: &Process, folder: &Path) -> Remote {
    Remote::connect(&Address {
        server: process.address.clone(),
        authorities: std::fs::read(authority_path(&folder.join("server"))).unwrap(),
        credentials: Credentials::Token(TOKEN.to_owned().into()),
        persistence: Duration::from_secs(60),
    })
    .unwrap()
}

/// Killed while keys are uploaded, in the middle of every epoch, and with a question open: the same weights to the last bit.
#[test]
fn a_server_killed_at_any_moment_ends_with_the_same_bytes() {
    let (owner, dir) = (owner(), TempDir::new());
    let process = RefCell::new(Process::start(dir.path(), "127.0.0.1:0"));
    let remote = connect(&process.borrow(), dir.path());
    let mut kills = 0;
    let uploaded = remote.upload(BlobKind::Keys, &owner.path("keys"), &mut |held, total| {
        if kills == 0 && held > total / 3 && held < total {
            kills += 1;
            process.borrow_mut().kill_and_start(dir.path());
        }
    });
    let uploaded = uploaded.unwrap();
    assert_eq!(kills, 1, "the upload ended before it was cut");
    // What had arrived before the kill was not sent again.
    assert!(uploaded.sent < uploaded.size + uploaded.size / 2, "{uploaded:?}");
    let job = remote.train([1; 16], "", &owner.upload(&remote)).unwrap();
    let mut watch = remote.watch(job.id, 0);
    let (mut last_iteration, mut last_round, mut attempts) = (0, 0, 0);
    let outputs = loop {
        match watch.next_event().unwrap().unwrap().what {
            Happening::Started { .. } => attempts += 1,
            Happening::Progress(p) if p.phase == Phase::Training && p.iterations > last_iteration => {
                last_iteration = p.iterations;
                kills += 1;
                process.borrow_mut().kill_and_start(dir.path());
            }
            Happening::Validation(validation) => {
                if validation.round == 2 && last_round < 2 {
                    kills += 1;
                    process.borrow_mut().kill_and_start(dir.path());
                }
                last_round = validation.round;
                judge(&remote, job.id, &validation);
            }
            Happening::Finished(outputs) => break outputs,
            Happening::Failed { reason } => panic!("{reason}"),
            _ => {}
        }
    };
    println!("{kills} kills, {attempts} attempts");
    assert!(kills >= 6 && attempts >= 5, "{kills} kills, {attempts} attempts");
    assert_eq!(names(&outputs), owner.reference());
}

/// SIGTERM: the process ends by itself, soon, and the job goes on in the next one.
#[test]
fn a_terminated_server_drains() {
    let (owner, dir) = (owner(), TempDir::new());
    let mut process = Process::start(dir.path(), "127.0.0.1:0");
    let remote = connect(&process, dir.path());
    let job = remote.train([1; 16], "", &owner.upload(&remote)).unwrap();
    let mut watch = remote.watch(job.id, 0);
    loop {
        if let Happening::Progress(p) = watch.next_event().unwrap().unwrap().what
            && p.iterations == 1
        {
            break;
        }
    }
    let id = process.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert!(process.child.wait().unwrap().success());
    let address = process.address.clone();
    process = Process::start(dir.path(), &address);
    let outputs = common::follow(&remote, job.id, |_| {});
    assert_eq!(names(&outputs), owner.reference());
    drop(process);
}
