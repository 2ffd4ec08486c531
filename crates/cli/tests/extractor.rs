//! How `hetal` finds and starts `hetal-extract`.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use hetal_extract_api::BUILD_COMMAND;
use hetal_testkit::TempDir;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const EXTRACT: [&str; 7] = ["extract", "--model", "m", "--data", "d", "--out", "o"];

fn script(path: &Path, text: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn hetal_with(extractor: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hetal")).env("HETAL_EXTRACT", extractor).args(arguments).output().unwrap()
}

fn error(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A copy of the program in a folder that contains nothing else.
fn alone(folder: &Path) -> PathBuf {
    let (program, alone) = (env!("CARGO_BIN_EXE_hetal"), folder.join("hetal"));
    if std::fs::hard_link(program, &alone).is_err() {
        std::fs::copy(program, &alone).unwrap();
    }
    alone
}

#[test]
fn a_missing_extractor_says_how_to_build_it() {
    let folder = TempDir::new();
    let nowhere = folder.path().join("nowhere");
    let said = error(&hetal_with(&nowhere, &EXTRACT));
    assert!(said.contains(BUILD_COMMAND) && said.contains("HETAL_EXTRACT"), "{said}");
    assert!(said.contains(nowhere.to_str().unwrap()), "{said}");
    let program = alone(folder.path());
    let run = |path: &str| {
        Command::new(&program).args(EXTRACT).env_remove("HETAL_EXTRACT").env("PATH", path).output().unwrap()
    };
    let said = error(&run("/nowhere"));
    assert!(said.contains(BUILD_COMMAND) && said.contains("on the PATH"), "{said}");
    // The folder of the program comes before PATH.
    let bin = folder.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    script(&bin.join("hetal-extract"), "echo on the path >&2; exit 1");
    let path = format!("{}:/usr/bin:/bin", bin.display());
    assert!(error(&run(&path)).contains("on the path"));
    script(&folder.path().join("hetal-extract"), "echo beside it >&2; exit 1");
    assert!(error(&run(&path)).contains("beside it"));
}

#[test]
fn an_extractor_of_another_version_is_refused() {
    let folder = TempDir::new();
    let program = folder.path().join("other");
    for (line, expected) in [
        ("hetal-extract 0.0.1 (protocol 2)", "update hetal-extract"),
        ("hetal-extract 99.0.0 (protocol 2)", "update hetal "),
        ("something else", "is no hetal-extract"),
    ] {
        script(&program, &format!("echo '{line}'; echo ran > {}/ran", folder.path().display()));
        let said = error(&hetal_with(&program, &EXTRACT));
        assert!(said.contains(expected) && said.contains(BUILD_COMMAND), "{line}: {said}");
    }
    script(&program, "echo cannot load libcuda >&2; exit 127");
    assert!(error(&hetal_with(&program, &EXTRACT)).contains("cannot load libcuda"));
}

#[test]
fn arguments_streams_and_status_are_passed_on_and_secrets_are_not() {
    let folder = TempDir::new();
    let program = folder.path().join("extractor");
    let version = hetal_extract_api::protocol::version_line();
    script(&program, &format!("[ \"$1\" = --version ] && echo '{version}' && exit\nenv; echo \"$@\"; cat; exit 3"));
    let output = Command::new(env!("CARGO_BIN_EXE_hetal"))
        .env("HETAL_EXTRACT", &program)
        .env("HETAL_TOKEN", "a secret")
        .env("HETAL_PASSPHRASE", "a secret")
        .env("SHOWN", "no secret")
        .args(EXTRACT)
        .args(["--bad", "skip"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3));
    assert!(said.contains("--model m --data d --out o --bad skip\n"), "{said}");
    assert!(said.contains("SHOWN=no secret") && !said.contains("a secret"), "{said}");
    // Wrong arguments are found without the program.
    let said = error(&hetal_with(Path::new("/nowhere"), &["extract", "--model", "m", "--bad", "perhaps"]));
    assert!(said.contains("perhaps") && !said.contains(BUILD_COMMAND), "{said}");
}

#[test]
fn help_and_networks_need_no_extractor() {
    let nowhere = Path::new("/nowhere");
    let help = hetal_with(nowhere, &["extract", "--help"]);
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(help.status.success());
    for word in ["--model", "--memory-gib", "--stall-seconds", "all-mpnet-base-v2", "vit-large", "models"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let listed = hetal_with(nowhere, &["extract", "models", "--json"]);
    let networks: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let vit = networks.as_array().unwrap().iter().find(|network| network["name"] == "vit-base").unwrap();
    assert_eq!(
        (&vit["kind"], &vit["columns"], &vit["licence"]),
        (&"pictures".into(), &768.into(), &"Apache-2.0".into())
    );
    assert!(vit["sha256"].is_string() && vit["revision"].is_string());
    let text = String::from_utf8(hetal_with(nowhere, &["extract", "models"]).stdout).unwrap();
    assert!(
        text.contains("all-MiniLM-L6-v2\n  reads sentences, 384 columns") && text.contains("not known here"),
        "{text}"
    );
}
