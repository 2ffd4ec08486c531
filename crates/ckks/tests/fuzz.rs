//! Hostile bytes, a few seconds of them here; `cargo test --release -p hetal-ckks --test fuzz --
//! --ignored --nocapture fuzz_long` makes a million of each kind with a seed of its own.

#![allow(clippy::unwrap_used)]

use hetal_ckks::bytes::ObjectKind;
use hetal_testkit::fuzz;
use hetal_testkit::samples::Samples;
use std::time::{SystemTime, UNIX_EPOCH};

#[test]
fn hostile_bytes_give_typed_errors() {
    let samples = Samples::new();
    let before = samples.client.ring.pool_bytes();
    let tally = fuzz::run(&samples, 1, 4000);
    println!("{tally:?}");
    // Every error that bytes can cause was caused: the mutations reach all checks.
    for reached in [
        "accepted",
        "Truncated",
        "Magic",
        "Version",
        "ObjectKind",
        "Params",
        "Length",
        "TrailingBytes",
        "Reserved",
        "Checksum",
        "Residue",
        "Scale",
        "Primes",
        "Rounded",
        "Purpose",
        "Digits",
        "Count",
        "KeyOrder",
        "Text",
        "InvalidParams",
    ] {
        assert!(tally.contains_key(reached), "no mutation led to {reached}: {tally:?}");
    }
    assert_eq!(samples.client.ring.pool_bytes(), before, "one object at a time fits the pool it was made in");
}

/// Master keys and sets with them: whole ones derive keys, damaged ones are refused, and sets whose
/// numbers are others derive keys of noise.
#[test]
fn hostile_master_keys_give_typed_errors() {
    let samples = Samples::of_master_keys();
    samples.derive(samples.of(ObjectKind::KeySet)).unwrap();
    let tally = fuzz::run(&samples, 3, 3000);
    println!("{tally:?}");
    for reached in ["accepted", "Primes", "Purpose", "Digits", "KeyOrder", "Residue", "Checksum"] {
        assert!(tally.contains_key(reached), "no mutation led to {reached}: {tally:?}");
    }
}

/// As many mutations of each kind as `HETAL_FUZZ_RUNS` says, a million without it.
#[test]
#[ignore = "takes many minutes"]
fn fuzz_long() {
    let kinds = [Samples::new(), Samples::of_master_keys()];
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let (runs, at_once) = (fuzz::runs(1_000_000), 2000);
    println!("from seed {seed}");
    for batch in 0..runs.div_ceil(at_once) {
        let tally = fuzz::run(&kinds[batch % 2], seed.wrapping_add(batch as u64), at_once);
        if batch % 25 == 24 || batch + 1 == runs.div_ceil(at_once) {
            println!("{} mutations of each kind from seed {seed}, the last: {tally:?}", (batch + 1) * at_once);
        }
    }
}
