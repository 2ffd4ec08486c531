//! MNIST's idx files and CIFAR-10's binary batches.

use super::{FoundSamples, Pictures, Sample, SampleSource, first_there};
use crate::{Error, Result, untrusted};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CIFAR10: [&str; 10] = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// Files that are not packed may have this many bytes.
const MAX_BYTES: u64 = 4 << 30;

/// Whether the folder holds MNIST's training pictures.
pub(crate) fn is_mnist(folder: &Path) -> bool {
    find(folder, &idx_names("train-images", 3)).is_ok()
}

/// The common names of an idx file, packed or not.
fn idx_names(stem: &str, dimensions: usize) -> [String; 4] {
    let end = format!("idx{dimensions}-ubyte");
    [format!("{stem}-{end}"), format!("{stem}.{end}"), format!("{stem}-{end}.gz"), format!("{stem}.{end}.gz")]
}

/// Reads MNIST's four idx files.
pub(crate) fn mnist(folder: &Path) -> Result<FoundSamples> {
    let part = |name: &str| -> Result<Vec<Sample>> {
        let images = find(folder, &idx_names(&format!("{name}-images"), 3))?;
        let labels = find(folder, &idx_names(&format!("{name}-labels"), 1))?;
        let (shape, bytes) = idx::<3>(&images)?;
        let (_, classes) = idx::<1>(&labels)?;
        let pictures = Pictures { width: shape[2], height: shape[1], channels: 1, planar: false, bytes };
        samples(name, pictures, &classes, 10, &labels)
    };
    let classes = (0..10).map(|digit| digit.to_string()).collect();
    Ok(FoundSamples { classes, notes: vec![], parts: [Some(part("train")?), None, Some(part("t10k")?)] })
}

fn find(folder: &Path, names: &[String]) -> Result<PathBuf> {
    let places: Vec<&str> = names.iter().map(String::as_str).collect();
    first_there(folder, &places).ok_or_else(|| Error::dataset(folder, format!("has no {} in it", names.join(" or "))))
}

/// The bytes of a file, unpacked where its name ends in `.gz`.
fn unpacked(path: &Path) -> Result<Vec<u8>> {
    if path.extension().is_none_or(|extension| extension != "gz") {
        return untrusted::read(path, MAX_BYTES).map_err(Error::io(path));
    }
    let file = untrusted::open(path).map_err(Error::io(path))?;
    let most = untrusted::unpacked_limit(file.metadata().map_err(Error::io(path))?.len());
    untrusted::read_all(flate2::read::MultiGzDecoder::new(file), most)
        .map_err(|e| Error::dataset(path, format!("cannot be unpacked: {e}; get the file again")))
}

/// Reads an idx file of bytes with `N` dimensions: its shape and its values.
fn idx<const N: usize>(path: &Path) -> Result<([usize; N], Vec<u8>)> {
    let bytes = unpacked(path)?;
    let no =
        || Error::dataset(path, format!("is no idx file of bytes with {N} dimensions, or is truncated; get it again"));
    let (magic, mut rest) = bytes.split_first_chunk::<4>().ok_or_else(no)?;
    if *magic != [0, 0, 8, N as u8] {
        return Err(no());
    }
    let mut shape = [0; N];
    for size in &mut shape {
        let (number, later) = rest.split_first_chunk::<4>().ok_or_else(no)?;
        *size = u32::from_be_bytes(*number) as usize;
        rest = later;
    }
    let expected = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n)).filter(|&n| n > 0);
    if expected != Some(rest.len()) {
        return Err(no());
    }
    Ok((shape, rest.to_vec()))
}

/// Reads CIFAR-10: `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`.
pub(crate) fn cifar10(folder: &Path) -> Result<FoundSamples> {
    let part = |name: &str, files: Vec<String>| -> Result<Vec<Sample>> {
        let (mut bytes, mut labels) = (Vec::new(), Vec::new());
        let mut last = folder.to_owned();
        for file in files {
            last = find(folder, &[file])?;
            let batch = unpacked(&last)?;
            if batch.is_empty() || !batch.len().is_multiple_of(3073) {
                return Err(Error::dataset(
                    &last,
                    format!("has {} bytes, no multiple of 3073; get it again", batch.len()),
                ));
            }
            for record in batch.chunks_exact(3073) {
                labels.push(record[0]);
                bytes.extend(&record[1..]);
            }
        }
        samples(name, Pictures { width: 32, height: 32, channels: 3, planar: true, bytes }, &labels, 10, &last)
    };
    let train = (1..=5).map(|batch| format!("data_batch_{batch}.bin")).collect();
    let parts = [Some(part("train", train)?), None, Some(part("test", vec!["test_batch.bin".to_owned()])?)];
    Ok(FoundSamples { classes: CIFAR10.map(str::to_owned).to_vec(), notes: vec![], parts })
}

/// Makes a sample of each picture, with its label.
pub(crate) fn samples(
    part: &str,
    pictures: Pictures,
    labels: &[u8],
    classes: usize,
    path: &Path,
) -> Result<Vec<Sample>> {
    let pictures = Arc::new(pictures);
    if pictures.count() != labels.len() {
        return Err(Error::dataset(
            path,
            format!("has {} labels for {} pictures; get the files of one data set", labels.len(), pictures.count()),
        ));
    }
    let sample = |(index, &label): (usize, &u8)| match usize::from(label) {
        label if label < classes => Ok(Sample {
            name: format!("{part} picture {index}"),
            label,
            source: SampleSource::Stored(pictures.clone(), index),
        }),
        label => Err(Error::dataset(
            path,
            format!("label {label} of picture {index} is not below {classes}; get the file again"),
        )),
    };
    labels.iter().enumerate().map(sample).collect()
}
