//! Runs every example as a user would, at its default toy set.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::PathBuf;
use std::process::Command;

/// The folder of built examples, next to the folder that this test was built into.
fn folder() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("examples")
}

/// Runs an example, fails if it fails, and returns what it printed.
fn run(name: &str) -> String {
    let program = folder().join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(program.is_file(), "{} is not built: run `cargo test -p hetal` without --test", program.display());
    let output = Command::new(&program).output().unwrap();
    let (text, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} ended with {}:\n{text}\n{errors}", output.status);
    text
}

#[test]
fn arithmetic() {
    let text = run("01_arithmetic");
    assert!(text.contains("INSECURE") && text.contains("(exact 8)"), "{text}");
}

#[test]
fn rotations_and_sums() {
    let text = run("02_rotations_and_sums");
    assert!(text.contains("takes 10 rotations"), "{text}");
}

#[test]
fn bootstrap() {
    let text = run("03_bootstrap");
    assert!(text.contains("2 bootstraps are needed"), "{text}");
}

#[test]
fn softmax() {
    let text = run("04_softmax");
    assert!(text.contains("[2.0, 1.0, 0.1] -> "), "{text}");
}

#[test]
fn train_in_the_clear() {
    let text = run("05_train_in_the_clear");
    assert!(text.contains("step 10: accuracy 100.0 %"), "{text}");
}

#[test]
fn client_and_server() {
    let text = run("06_client_and_server");
    assert!(text.contains("weights differ from plaintext training by"), "{text}");
}

#[test]
fn gpu() {
    let text = run("07_gpu");
    assert!(text.contains("no GPU: ") || text.contains("the bytes are the same"), "{text}");
}

/// Every file of the folder is an example that is run above.
#[test]
fn no_example_is_forgotten() {
    let examples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let tests = include_str!("examples.rs");
    for entry in std::fs::read_dir(examples).unwrap() {
        let name = entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(tests.contains(&format!("run(\"{name}\")")), "{name} has no test");
    }
}
