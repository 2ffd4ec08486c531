//! Compares the CPU and a GPU on networks of real size with made-up weights: the difference of the
//! features, and the speed.
//!
//!     cargo run --release -p hetal-features --features cuda --example devices -- FOLDER
//!
//! The networks (800 MB) stay in FOLDER, for example for `hetal extract --model FOLDER/mpnet`.
#![allow(clippy::unwrap_used, reason = "the helpers are the tests'")]

#[path = "../tests/common/mod.rs"]
mod networks;

use hetal_features::device::DeviceChoice;
use hetal_features::picture::Picture;
use hetal_features::{Extractor, Result};
use std::path::Path;
use std::time::Instant;

/// The largest accepted difference: values have magnitude 1, single precision has 7 digits.
const BOUND: f32 = 1e-4;
const SENTENCES: usize = 512;
const PICTURES: usize = 64;
/// Repetitions on a GPU, so that the time can be measured.
const TIMES: usize = 16;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: devices FOLDER")?;
    let folder = Path::new(&folder);
    let (mpnet, vit, lite0) = (folder.join("mpnet"), folder.join("vit"), folder.join("lite0.safetensors"));
    for path in [&mpnet, &vit] {
        std::fs::create_dir_all(path)?;
    }
    networks::write_sentence_model_of(&mpnet, "mpnet", &networks::BASE);
    networks::write_vit_of(&vit, "", &networks::BASE);
    networks::write_lite0(&lite0);
    let texts: Vec<String> = (0..SENTENCES).map(sentence).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let pictures: Vec<Picture> = (0..PICTURES).filter_map(picture).collect();
    let mut apart = compare(&mpnet, &texts, Extractor::extract_texts)?;
    for path in [&vit, &lite0] {
        apart = apart.max(compare(path, &pictures, Extractor::extract_pictures)?);
    }
    if apart <= BOUND { Ok(()) } else { Err(format!("apart by {apart:e}, more than {BOUND:e}").into()) }
}

/// Prints a line for a network; returns the difference of its features.
fn compare<T: Clone>(path: &Path, inputs: &[T], extract: fn(&Extractor, &[T]) -> Result<Vec<Vec<f32>>>) -> Result<f32> {
    let (cpu, card) = (Extractor::open_on(path, DeviceChoice::Cpu)?, Extractor::open_on(path, DeviceChoice::Cuda)?);
    let timed = |extractor: &Extractor, inputs: &[T]| {
        let start = Instant::now();
        extract(extractor, inputs).map(|rows| (rows, inputs.len() as f64 / start.elapsed().as_secs_f64()))
    };
    let (expected, cpu_rate) = timed(&cpu, inputs)?;
    // The first run loads the kernels.
    let found = extract(&card, inputs)?;
    let (_, card_rate) = timed(&card, &vec![inputs; TIMES].concat())?;
    let pairs = || found.iter().flatten().zip(expected.iter().flatten());
    let apart = pairs().map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let size = pairs().map(|(_, b)| b.abs()).fold(0.0, f32::max);
    println!(
        "{}: max difference {apart:.1e} of values up to {size:.2}, cpu {cpu_rate:.1}/s, cuda {card_rate:.1}/s",
        cpu.identity().architecture
    );
    Ok(apart)
}

/// Words the made-up tokenizer knows, 1 to 30 of them.
fn sentence(index: usize) -> String {
    const WORDS: [&str; 7] = ["play", "some", "jazz", "the", "weather", "in", "table"];
    let words: Vec<&str> = (0..1 + index * 7 % 30).map(|place| WORDS[(index + place * place) % WORDS.len()]).collect();
    words.join(" ")
}

fn picture(index: usize) -> Option<Picture> {
    let side = networks::BASE.sides[0];
    let value = |place: usize| ((place * 37 + place / 7 * (101 + index) + place / (3 * side) * 59) % 256) as u8;
    Picture::from_rgb(side, side, (0..3 * side * side).map(value).collect())
}
