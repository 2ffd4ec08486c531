//! The server cannot decrypt: it does not link the crate of the secret key.
#![allow(clippy::unwrap_used)]

use std::process::Command;

/// The crates that a package links, with these flags of features.
fn linked(package: &str, features: &[&str]) -> Vec<String> {
    let cargo = std::env::var("CARGO").unwrap();
    let arguments = ["tree", "--locked", "--offline", "-e", "normal,build", "--prefix", "none", "-p", package];
    let output = Command::new(cargo).args(arguments).args(features).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn the_server_does_not_link_the_secret_key() {
    let server = linked("hetal-server", &["--all-features"]);
    assert!(server.iter().any(|name| name == "hetal-ckks"));
    assert!(!server.iter().any(|name| name == "hetal-keys" || name == "hetal-client"), "{server:?}");
    // The same look at the program that may, as it is usually built: nobody downloads the crates of its other features.
    assert!(linked("hetal-cli", &[]).iter().any(|name| name == "hetal-keys"));
}
