//! The self-test as a user runs it.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn hetal(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hetal")).args(arguments).output().unwrap()
}

#[test]
fn vector_kernels_give_the_scalar_bytes() {
    let out = hetal(&["selftest", "--engine", "cpu", "--set", "insecure-toy11", "--json"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(report[0]["compared"].as_u64().unwrap() > 900, "{report}");
    assert_eq!(report[0]["differ"], serde_json::json!([]), "{report}");
}

#[test]
fn without_a_card_the_words_say_so() {
    let out = hetal(&["selftest", "--engine", "cuda", "--set", "insecure-toy11"]);
    let words = String::from_utf8_lossy(&out.stderr);
    if out.status.success() {
        println!("there is a card");
        return;
    }
    assert!(words.contains("no GPU") || words.contains("GPU found, NVRTC missing"), "{words}");
    assert!(!words.contains("panicked"), "{words}");
}

#[test]
fn a_plan_needs_no_card() {
    let shape = ["bench", "train", "--engine", "cuda", "--shape", "facemask", "--batches", "6", "--plan", "--json"];
    let out = hetal(&shape);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let gib = |name: &str| report[0][name].as_f64().unwrap();
    assert!(gib("device_remade_gib") > 8.0 && gib("device_remade_gib") < gib("device_resident_gib"), "{report}");
}
