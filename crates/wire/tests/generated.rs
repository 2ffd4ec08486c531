//! The generated module is that of the protocol.

#[allow(dead_code)]
#[path = "../examples/generate.rs"]
mod generator;

#[test]
fn the_generated_module_matches_the_protocol() {
    let folder = tempfile::tempdir().unwrap();
    generator::generate(folder.path()).unwrap();
    let fresh = std::fs::read_to_string(folder.path().join("hetal.v1.rs")).unwrap();
    let stored = include_str!("../src/generated/hetal.v1.rs");
    assert!(fresh == stored, "the protocol changed: run `cargo run -p hetal-wire --example generate`");
}
