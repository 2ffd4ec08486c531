//! Shell completions and manual pages describe every command.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use common::{error, hetal, text};
use hetal_testkit::TempDir;

/// Every command that `hetal --help` lists.
fn commands() -> Vec<String> {
    let help = String::from_utf8(hetal(&["--help"]).stdout).unwrap();
    let list = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    // Descriptions that wrap are indented further.
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn completions_know_every_command() {
    let commands = commands();
    assert!(commands.len() > 10, "{commands:?}");
    for shell in ["bash", "zsh", "fish"] {
        let output = hetal(&["completions", shell]);
        assert!(output.status.success());
        let script = String::from_utf8(output.stdout).unwrap();
        for command in &commands {
            assert!(script.contains(command.as_str()), "{shell}: {command}");
        }
        // Also the flags of a command.
        assert!(script.contains("label-column"), "{shell}");
    }
    assert!(error(&["completions", "tcsh"]).contains("bash, zsh, fish"));
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = TempDir::new();
    assert!(hetal(&["man", "--out", text(folder.path())]).status.success());
    let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(page("hetal.1").contains(".TH"));
    for command in commands().iter().filter(|command| *command != "help") {
        assert!(page(&format!("hetal-{command}.1")).contains(".SH NAME"), "{command}");
    }
    let file = folder.path().join("hetal.1");
    assert!(error(&["man", "--out", text(&file)]).contains("hetal.1"));
}
