//! Hostile bytes for the file of the secret key, mostly with a checksum that fits them: some
//! seconds here, as many as `HETAL_FUZZ_RUNS` says where it is set.
#![allow(clippy::unwrap_used)]

use hetal_keys::{Passphrase, SecretKey, secret_file};
use hetal_ring::sampler::TestSeeds;
use hetal_testkit::allocation::CountingAllocator;
use hetal_testkit::fuzz::{feed, runs};
use hetal_testkit::{TempDir, tiny_params};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Beyond what grows with the input: the bytes of a whole key, text of an error.
const MEMORY: usize = 16 << 10;

#[test]
fn hostile_key_files_are_refused_or_understood() {
    let (params, folder) = (tiny_params(), TempDir::new());
    let secret = SecretKey::generate(&params, &mut TestSeeds::insecure(1));
    let passphrase = Passphrase::new("a b c".to_owned().into()).unwrap();
    let saved = |name: &str, passphrase: Option<&Passphrase>| {
        let path = folder.path().join(name);
        secret.save(&params, &path, passphrase).unwrap();
        std::fs::read(path).unwrap()
    };
    let (open, locked) = (saved("open", None), saved("locked", Some(&passphrase)));
    assert!(secret_file::understands(&params, &open) && !secret_file::understands(&params, &locked));
    let parser = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        // Two of three get a checksum that fits: those whose length leaves it so.
        if !bytes.len().is_multiple_of(3)
            && let Some((rest, checksum)) = bytes.split_last_chunk_mut::<32>()
        {
            *checksum = *blake3::hash(rest).as_bytes();
        }
        secret_file::understands(&params, &bytes)
    };
    let runs = runs(20_000);
    let understood = feed("secret key", &[open, locked], 13, runs, MEMORY, parser);
    println!("secret key: {runs} mutations, {understood} understood");
    assert!(understood > 0 && understood < runs, "{understood} of {runs}");
}
