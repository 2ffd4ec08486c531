//! Mutation fuzzing of decoders and parsers: each input is accepted or refused with an error, and
//! nothing panics or takes too much memory.
//!
//! Inputs are valid objects with small changes, which reach further into a decoder than random
//! bytes. Most of them get correct checksums again, so that the code behind the checksum is tested.

use crate::allocation::peak_of;
use crate::random::Random;
use crate::samples::{Samples, fix_checksums};
use hetal_ckks::bytes::{FormatError, HEADER_LEN, ObjectKind};
use std::collections::BTreeMap;

/// Feeds bytes to the decoder of a kind. Accepted bytes must be exactly what the encoder writes for
/// the decoded object, so every object has one encoding.
pub fn fuzz_one(samples: &Samples, kind: ObjectKind, bytes: &[u8]) -> Result<(), FormatError> {
    let rewritten = samples.read(kind, bytes)?;
    assert!(rewritten == bytes, "{kind} has two encodings");
    if kind == ObjectKind::KeySet {
        // Whatever keys a set has, a derivation with them ends.
        let _ = samples.derive(bytes);
    }
    Ok(())
}

/// How many inputs of a run were accepted (under "accepted"), and how many gave each error.
pub type Tally = BTreeMap<String, usize>;

/// Feeds `runs` mutations to every decoder. The same seed gives the same bytes.
pub fn run(samples: &Samples, seed: u64, runs: usize) -> Tally {
    let mut tally = Tally::new();
    for kind in ObjectKind::ALL {
        let mut random = Random(seed ^ (kind as u64) << 56);
        for run in 0..runs {
            let current = CurrentMutation { seed, kind, run };
            let bytes = mutated(samples, kind, &mut random);
            let outcome = match fuzz_one(samples, kind, &bytes) {
                Ok(()) => "accepted".to_owned(),
                Err(error) => variant(&error),
            };
            *tally.entry(outcome).or_default() += 1;
            drop(current);
        }
    }
    tally
}

/// Prints the mutation that made a decoder panic, so that the run can be repeated.
struct CurrentMutation {
    seed: u64,
    kind: ObjectKind,
    run: usize,
}

impl Drop for CurrentMutation {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("fuzz: seed {}, {}, mutation {}", self.seed, self.kind, self.run);
        }
    }
}

/// The name of an error's variant.
fn variant(error: &FormatError) -> String {
    let text = format!("{error:?}");
    text.split([' ', '{', '(']).next().unwrap_or_default().to_owned()
}

/// An object of a kind with one to three changes. Three in four have correct checksums.
fn mutated(samples: &Samples, kind: ObjectKind, random: &mut Random) -> Vec<u8> {
    let mut bytes = samples.of(kind).to_vec();
    for _ in 0..=random.below(3) {
        mutate(samples, &mut bytes, random);
    }
    if random.below(4) > 0 {
        if random.below(2) == 0 && bytes.len() >= HEADER_LEN + 32 {
            // The length in the header is made correct, too.
            let body = (bytes.len() - HEADER_LEN - 32) as u64;
            bytes[16..24].copy_from_slice(&body.to_le_bytes());
        }
        fix_checksums(kind, &mut bytes);
    }
    bytes
}

fn mutate(samples: &Samples, bytes: &mut Vec<u8>, random: &mut Random) {
    let len = bytes.len().max(1);
    // Most of an object is residues; most fields that are checked stand before them.
    let front = len.min(if random.below(2) == 0 { 2 * HEADER_LEN + 64 } else { len });
    let at = random.below(front).min(bytes.len());
    match random.below(8) {
        0 => (0..=random.below(8)).for_each(|_| flip(bytes, random.below(8 * len))),
        1 => overwrite(bytes, at, &[random.next() as u8]),
        2 => bytes.truncate(random.below(len)),
        3 => bytes.extend((0..=random.below(64)).map(|k| k as u8)),
        4 => {
            let (_, other) = &samples.bytes[random.below(samples.bytes.len())];
            let start = random.below(other.len());
            let end = start + random.below(other.len() - start);
            overwrite(bytes, if random.below(2) == 0 { start } else { at }, &other[start..end]);
        }
        5 => drop(bytes.drain(at..bytes.len().min(at + random.below(64)))),
        6 => overwrite(bytes, 16, &random.number().to_le_bytes()),
        _ => {
            let number = random.number().to_le_bytes();
            overwrite(bytes, at & !3, &number[..4 << random.below(2)]);
        }
    }
}

fn flip(bytes: &mut [u8], bit: usize) {
    if let Some(byte) = bytes.get_mut(bit / 8) {
        *byte ^= 1 << (bit % 8);
    }
}

/// Overwrites bytes from `at` on, without changing the length.
fn overwrite(bytes: &mut [u8], at: usize, new: &[u8]) {
    bytes.iter_mut().skip(at).zip(new).for_each(|(old, new)| *old = *new);
}

/// Words that parsers of text often handle wrongly.
const WORDS: [&str; 24] = [
    "-1",
    "0",
    "1e999",
    "-0.0",
    "NaN",
    "18446744073709551616",
    "4294967296",
    "9223372036854775808",
    "\"",
    "\\u0000",
    "\\ud800",
    "[",
    "[[[[[[[[",
    "{\"a\":",
    "]",
    "}",
    ",",
    "null",
    "true",
    "\n[",
    "= ",
    "\'\'\'",
    "\u{feff}",
    "\u{202e}",
];

/// Feeds `runs` mutations of samples to a parser; gives how many of them it understood. A parser
/// may refuse what it is given or understand it, and nothing else, and may not take more than
/// `memory` bytes beyond 64 times what it is given. (The memory is counted in programs that have
/// [`crate::allocation::CountingAllocator`].)
pub fn feed(
    name: &str,
    samples: &[Vec<u8>],
    seed: u64,
    runs: usize,
    memory: usize,
    parser: impl Fn(&[u8]) -> bool,
) -> usize {
    let mut random = Random(seed);
    let mut understood = 0;
    for run in 0..runs {
        let current = CurrentRun { name, seed, run };
        let mut bytes = samples[random.below(samples.len())].clone();
        for _ in 0..=random.below(4) {
            change(&mut bytes, samples, &mut random);
        }
        let mut accepted = false;
        let peak = peak_of(|| accepted = parser(&bytes));
        let most = memory + 64 * bytes.len();
        assert!(peak <= most, "{peak} bytes of memory for {} bytes of {name}", bytes.len());
        understood += usize::from(accepted);
        drop(current);
    }
    understood
}

/// One change to bytes that are text, or messages, or anything.
fn change(bytes: &mut Vec<u8>, samples: &[Vec<u8>], random: &mut Random) {
    let len = bytes.len();
    let at = random.below(len + 1);
    match random.below(8) {
        0 => flip(bytes, random.below(8 * len)),
        1 => bytes.truncate(at),
        2 => drop(bytes.drain(at..len.min(at + random.below(40)))),
        3 => drop(bytes.splice(at..at, WORDS[random.below(WORDS.len())].bytes())),
        4 => {
            // A number in place of the digits that are there.
            let end = at + bytes[at..].iter().take_while(|b| b.is_ascii_digit()).count();
            drop(bytes.splice(at..end, random.number().to_string().into_bytes()));
        }
        5 => {
            let other = &samples[random.below(samples.len())];
            let from = random.below(other.len());
            let piece = other[from..other.len().min(from + random.below(200))].to_vec();
            drop(bytes.splice(at..at, piece));
        }
        6 => {
            // The same again, many times.
            let piece = bytes[at..len.min(at + 1 + random.below(16))].to_vec();
            drop(bytes.splice(at..at, piece.repeat(random.below(64))));
        }
        _ => overwrite(bytes, at, &random.number().to_le_bytes()),
    }
}

/// Prints the mutation that made a parser panic, so that the run can be repeated.
struct CurrentRun<'a> {
    name: &'a str,
    seed: u64,
    run: usize,
}

impl Drop for CurrentRun<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("fuzz: {}, seed {}, mutation {}", self.name, self.seed, self.run);
        }
    }
}

/// How many mutations a test makes: `HETAL_FUZZ_RUNS`, or few.
pub fn runs(few: usize) -> usize {
    std::env::var("HETAL_FUZZ_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(few)
}
