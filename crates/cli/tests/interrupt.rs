//! Ctrl-C.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use hetal_testkit::TempDir;
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpListener;
use std::process::{Command, Stdio};

/// A server that never answers: the training waits for it until Ctrl-C.
#[test]
fn ctrl_c_says_how_to_continue_a_training() {
    let folder = TempDir::new();
    let rows: String = (0..40).map(|i| format!("{i},{},{}\n", i * 7 % 5, ["a", "b"][i % 2])).collect();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("rows.csv"), format!("x,y,kind\n{rows}")).unwrap();
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(path("ca.pem"), issued.cert.pem()).unwrap();
    std::fs::write(path("token"), "a token of some length").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("localhost:{}", listener.local_addr().unwrap().port());
    let child = Command::new(env!("CARGO_BIN_EXE_hetal"))
        .args(["train", "--set", "insecure-toy11", "--dir", &path("project"), "--server", &server])
        .args(["--authority", &path("ca.pem"), "--token-file", &path("token")])
        .args(["--features", &path("rows.csv"), "--label-column", "kind"])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let connection = listener.accept().unwrap();
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(connection);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("hetal: interrupted: run the same command again to continue"), "{said}");
}
