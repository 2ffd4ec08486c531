//! Helpers: the program and a server in this process.
#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "helpers of tests fail like tests, and each program uses its own part"
)]

use hetal_server::Config;
use hetal_server::tenants::{Fingerprint, TenantConfig};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub const SET: &str = "insecure-toy11";
const TOKEN: &str = "a token for tests only";

pub fn hetal(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hetal")).args(arguments).output().unwrap()
}

/// Runs a command that succeeds and returns its JSON.
pub fn json(arguments: &[&str]) -> Value {
    let output = hetal(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a command that fails and returns its error.
pub fn error(arguments: &[&str]) -> String {
    let output = hetal(arguments);
    assert!(!output.status.success(), "{arguments:?} should fail");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A server in this process, and the credentials of a client.
pub struct Server {
    running: hetal_server::Server,
    authority: PathBuf,
    token: PathBuf,
}

impl Server {
    pub fn start(folder: &Path) -> Self {
        Self::start_with(folder, |_| ())
    }

    pub fn start_with(folder: &Path, change: impl FnOnce(&mut Config)) -> Self {
        let tenant = TenantConfig {
            name: "test".to_owned().try_into().unwrap(),
            token: Some(Fingerprint::of(TOKEN.as_bytes())),
            certificate: None,
            expires: None,
        };
        let mut config = Config {
            folder: folder.join("server"),
            address: "127.0.0.1:0".parse().unwrap(),
            tenants: vec![tenant],
            sets: vec![SET.to_owned()],
            allow_insecure: true,
            engine: hetal_server::config::EngineChoice::Cpu,
            ..Config::default()
        };
        change(&mut config);
        let running = hetal_server::start(config).unwrap();
        let token = folder.join("token");
        std::fs::write(&token, TOKEN).unwrap();
        Self { authority: running.authority().unwrap().to_owned(), running, token }
    }

    pub fn arguments(&self) -> Vec<String> {
        let server = format!("127.0.0.1:{}", self.running.address().port());
        ["--server", &server, "--authority", text(&self.authority), "--token-file", text(&self.token)]
            .map(str::to_owned)
            .to_vec()
    }
}
