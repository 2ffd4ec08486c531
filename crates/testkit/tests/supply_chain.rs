//! What is built into hetal: licences, sources and bans of `deny.toml`, and where `unsafe` may be.
#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn cargo(arguments: &[&str]) -> String {
    let cargo = std::env::var("CARGO").unwrap();
    let output = Command::new(cargo).args(arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Every package that is built here.
fn packages() -> Vec<Value> {
    let rustc = Command::new("rustc").arg("-vV").output().unwrap();
    let text = String::from_utf8(rustc.stdout).unwrap();
    let host = text.lines().find_map(|line| line.strip_prefix("host: ")).unwrap().to_owned();
    let metadata = cargo(&["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", &host]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// Whether a package is of this workspace.
fn is_ours(name: &str) -> bool {
    name == "hetal" || name.starts_with("hetal-")
}

fn deny() -> toml::Table {
    std::fs::read_to_string(root().join("deny.toml")).unwrap().parse().unwrap()
}

fn texts(value: &toml::Value) -> BTreeSet<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// Whether a licence expression can be met with allowed licences.
fn permits(expression: &str, allowed: &BTreeSet<String>) -> bool {
    // Before there was a grammar, a slash was an or.
    let expression = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<_> = expression.split_whitespace().collect();
    let (met, rest) = either(&words, allowed);
    assert!(rest.is_empty(), "{expression} is no licence expression");
    met
}

fn either<'a>(words: &'a [&'a str], allowed: &BTreeSet<String>) -> (bool, &'a [&'a str]) {
    let (mut met, mut rest) = both(words, allowed);
    while let Some((&"OR", after)) = rest.split_first() {
        let (other, left) = both(after, allowed);
        (met, rest) = (met | other, left);
    }
    (met, rest)
}

fn both<'a>(words: &'a [&'a str], allowed: &BTreeSet<String>) -> (bool, &'a [&'a str]) {
    let (mut met, mut rest) = one(words, allowed);
    while let Some((&"AND", after)) = rest.split_first() {
        let (other, left) = one(after, allowed);
        (met, rest) = (met & other, left);
    }
    (met, rest)
}

fn one<'a>(words: &'a [&'a str], allowed: &BTreeSet<String>) -> (bool, &'a [&'a str]) {
    match words {
        ["(", inner @ ..] => {
            let (met, rest) = either(inner, allowed);
            (met, rest.strip_prefix(&[")"]).expect("a bracket that is not closed"))
        }
        [name, "WITH", exception, rest @ ..] => (allowed.contains(&format!("{name} WITH {exception}")), rest),
        [name, rest @ ..] => (allowed.contains(*name), rest),
        [] => panic!("an empty licence expression"),
    }
}

#[test]
fn licence_expressions_are_understood() {
    let allowed: BTreeSet<String> = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
    for good in ["MIT", "GPL-3.0 OR MIT", "MIT/GPL-3.0", "(GPL-3.0 OR MIT) AND ISC", "Apache-2.0 WITH LLVM-exception"] {
        assert!(permits(good, &allowed), "{good}");
    }
    for bad in ["GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0", "MIT AND (GPL-3.0 OR Apache-2.0)", "GPL-3.0/LGPL-2.1"] {
        assert!(!permits(bad, &allowed), "{bad}");
    }
}

#[test]
fn every_package_has_an_allowed_licence_and_source() {
    let deny = deny();
    let allowed = texts(&deny["licenses"]["allow"]);
    let banned: Vec<_> = deny["bans"]["deny"].as_array().unwrap().iter().map(|b| b["name"].as_str().unwrap()).collect();
    let registries = texts(&deny["sources"]["allow-registry"]);
    let packages = packages();
    assert!(packages.len() > 100);
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let mut allowed = allowed.clone();
        for exception in deny["licenses"]["exceptions"].as_array().unwrap() {
            if exception["name"].as_str() == Some(name) {
                allowed.extend(texts(&exception["allow"]));
            }
        }
        let licence = package["license"].as_str().unwrap_or_else(|| panic!("{name} names no licence"));
        assert!(permits(licence, &allowed), "{name} has the licence {licence}, which deny.toml does not allow");
        assert!(!banned.contains(&name), "{name} is banned");
        match package["source"].as_str() {
            None => assert!(is_ours(name), "{name} is no package of ours and has no source"),
            Some(source) => {
                let registry = source.strip_prefix("registry+").unwrap_or(source);
                assert!(registries.contains(registry), "{name} comes from {source}");
            }
        }
    }
}

/// What has a licence that is not ours to pass on stays out of the product.
#[test]
fn exceptions_are_not_in_the_product() {
    let deny = deny();
    for exception in deny["licenses"]["exceptions"].as_array().unwrap() {
        let name = exception["name"].as_str().unwrap();
        for product in ["hetal-cli", "hetal-features", "hetal-python", "hetal-server"] {
            let tree =
                cargo(&["tree", "--locked", "--offline", "-e", "normal,build", "--prefix", "none", "-p", product]);
            assert!(!tree.lines().any(|line| line.split(' ').next() == Some(name)), "{product} links {name}");
        }
    }
}

/// The program that holds the secret key reads no pictures, sentences, networks or Parquet tables:
/// `hetal-extract` does.
#[test]
fn hetal_does_not_link_what_reads_the_files_of_others() {
    let tree = |package| cargo(&["tree", "--locked", "--offline", "-e", "normal", "--prefix", "none", "-p", package]);
    let has = |tree: &str, name: &str| tree.lines().any(|line| line.starts_with(name));
    let (hetal, python, extractor) = (tree("hetal-cli"), tree("hetal-python"), tree("hetal-features"));
    for name in ["candle-core ", "tract-onnx ", "tokenizers ", "png ", "zune-jpeg ", "parquet ", "arrow-ipc ", "zstd "]
    {
        assert!(has(&extractor, name), "hetal-extract links {name}");
        assert!(!has(&hetal, name), "hetal links {name}");
        assert!(!has(&python, name), "the Python package links {name}");
    }
    assert!(has(&hetal, "hetal-extract-api ") && !has(&hetal, "hetal-features "));
    for name in ["hetal-keys ", "hetal-client "] {
        assert!(!has(&extractor, name), "hetal-extract links {name}");
    }
}

/// Everything in the lock file has a checksum, but for our own packages.
#[test]
fn the_lock_file_pins_every_package() {
    let lock: toml::Table = std::fs::read_to_string(root().join("Cargo.lock")).unwrap().parse().unwrap();
    for package in lock["package"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        assert!(is_ours(name) || package.get("checksum").is_some(), "{name} has no checksum");
    }
}

/// What is built in CI is built from the lock file.
#[test]
fn builds_are_locked() {
    let script = std::fs::read_to_string(root().join(".ci/run")).unwrap();
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let test = readme.lines().map(str::trim).filter(|line| line.starts_with("cargo test"));
    let builds = ["cargo build", "cargo clippy", "cargo test", "cargo run"];
    let lines =
        script.lines().filter(|line| builds.iter().any(|b| line.contains(b) && !line.contains("sed "))).chain(test);
    let lines: Vec<_> = lines.collect();
    assert!(lines.len() >= 3, "{lines:?}");
    for line in lines {
        assert!(line.contains("--locked"), "{line}");
    }
}

/// The files that may contain `unsafe`: kernels, foreign functions, and what asks the operating
/// system.
const UNSAFE: [&str; 27] = [
    "crates/cuda/src/ffi/arguments.rs",
    "crates/cuda/src/ffi/driver.rs",
    "crates/cuda/src/ffi/driver/graph_recording.rs",
    "crates/cuda/src/ffi/driver/library.rs",
    "crates/cuda/src/ffi/driver/queries.rs",
    "crates/cuda/src/ffi/driver/staging.rs",
    "crates/cuda/src/ffi/emulator.rs",
    "crates/cuda/src/ffi/nvml.rs",
    "crates/cuda/src/ffi/nvrtc.rs",
    "crates/features/src/kernels.rs",
    "crates/keys/src/zeroing_allocator.rs",
    "crates/client/tests/zeroised.rs",
    "crates/keys/tests/zeroised.rs",
    "crates/ring/src/base_conversion/vector.rs",
    "crates/ring/src/buffer.rs",
    "crates/ring/src/kernels/vector.rs",
    "crates/ring/src/kernels/vector/sum.rs",
    "crates/ring/src/kernels/vector/tests.rs",
    "crates/ring/src/ntt/vector.rs",
    "crates/ring/src/ntt/vector/butterflies.rs",
    "crates/ring/src/ntt/vector/tests.rs",
    "crates/ring/src/packed.rs",
    "crates/ring/src/simd.rs",
    "crates/ring/src/simd/avx2.rs",
    "crates/ring/src/simd/avx512.rs",
    "crates/ring/src/simd/emulated.rs",
    "crates/testkit/src/allocation.rs",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Whether a line has the word as code: not in a comment, and not in a text.
fn has_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or(line);
    let outside: String = code.split('"').step_by(2).collect();
    outside.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
}

#[test]
fn unsafe_is_where_it_is_expected() {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    let with: BTreeSet<_> = files
        .iter()
        .filter(|path| std::fs::read_to_string(path).unwrap().lines().any(has_unsafe))
        .map(|path| path.strip_prefix(root()).unwrap().display().to_string())
        .collect();
    assert_eq!(with, UNSAFE.map(str::to_owned).into(), "files with unsafe code: {with:#?}");
}
