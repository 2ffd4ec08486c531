//! The server cannot decrypt: no feature and no platform makes it link the crate of the secret key.
//!
//! The test reads the manifests of the workspace, so it needs no crate that this build did not
//! download. A crate of a registry cannot depend on a crate of the workspace (its manifest names
//! registry crates only, and the lock file pins its checksum), so following the workspace's own
//! crates is enough. `.ci/run` asks cargo the same question for all features.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Direct dependencies of every workspace crate that are linked or run when it is built.
fn manifests() -> BTreeMap<String, BTreeSet<String>> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders = std::fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path());
    let read = |folder: &Path| {
        let manifest: toml::Table = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap().parse().unwrap();
        (manifest["package"]["name"].as_str().unwrap().to_owned(), dependencies(&manifest))
    };
    folders.filter(|folder| folder.join("Cargo.toml").exists()).map(|folder| read(&folder)).collect()
}

/// The packages of `[dependencies]` and `[build-dependencies]`, optional ones included, on all
/// platforms.
fn dependencies(manifest: &toml::Table) -> BTreeSet<String> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let platforms = targets.into_iter().flat_map(toml::Table::values).map(|t| t.as_table().unwrap());
    let tables = std::iter::once(manifest).chain(platforms);
    let kinds = ["dependencies", "build-dependencies"];
    let entries = tables
        .flat_map(|table| kinds.iter().filter_map(|kind| table.get(*kind)))
        .flat_map(|entries| entries.as_table().unwrap());
    // `name = { package = "other" }` links the other.
    let package = |(name, value): (&String, &toml::Value)| {
        value.get("package").and_then(toml::Value::as_str).unwrap_or(name).to_owned()
    };
    entries.map(package).collect()
}

/// Every crate of the workspace that a package links, itself included.
fn linked<'a>(manifests: &'a BTreeMap<String, BTreeSet<String>>, package: &'a str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::from([package]);
    let mut open = vec![package];
    while let Some(name) = open.pop() {
        for dependency in &manifests[name] {
            if manifests.contains_key(dependency) && found.insert(dependency) {
                open.push(dependency);
            }
        }
    }
    found
}

#[test]
fn the_server_does_not_link_the_secret_key() {
    let manifests = manifests();
    let server = linked(&manifests, "hetal-server");
    assert!(server.contains("hetal-ckks"));
    assert!(!server.contains("hetal-keys") && !server.contains("hetal-client"), "{server:?}");
    // The same look at the program that may.
    assert!(linked(&manifests, "hetal-cli").contains("hetal-keys"));
}

/// A renamed dependency would hide from the names above.
#[test]
fn workspace_crates_keep_their_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let root: toml::Table = std::fs::read_to_string(root).unwrap().parse().unwrap();
    for (name, value) in root["workspace"]["dependencies"].as_table().unwrap() {
        assert!(value.get("package").is_none(), "{name} is renamed in [workspace.dependencies]");
    }
    assert!(root.get("patch").is_none(), "a patch can replace a registry crate by a local one");
}

#[test]
fn dependencies_of_all_kinds_are_seen() {
    let manifest = r#"
        [dependencies]
        a = "1"
        renamed = { package = "b", version = "1", optional = true }
        [build-dependencies]
        c = "1"
        [dev-dependencies]
        d = "1"
        [target.'cfg(unix)'.dependencies]
        e = { workspace = true }
    "#;
    let expected = ["a", "b", "c", "e"].map(str::to_owned).into();
    assert_eq!(dependencies(&manifest.parse().unwrap()), expected);
}
