//! MNIST's idx files and CIFAR-10's binary batches.

use super::{Found, Pictures, Sample, Source, first_there};
use crate::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CIFAR10: [&str; 10] = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// The four idx files, unpacked, under either of their common names.
pub(crate) fn mnist(folder: &Path) -> Result<Found> {
    let part = |name: &str| -> Result<Vec<Sample>> {
        let images = find(folder, &[&format!("{name}-images-idx3-ubyte"), &format!("{name}-images.idx3-ubyte")])?;
        let labels = find(folder, &[&format!("{name}-labels-idx1-ubyte"), &format!("{name}-labels.idx1-ubyte")])?;
        let (shape, bytes) = idx::<3>(&images)?;
        let (_, classes) = idx::<1>(&labels)?;
        let pictures = Pictures { width: shape[2], height: shape[1], channels: 1, planar: false, bytes };
        samples(name, pictures, &classes, 10, &labels)
    };
    let classes = (0..10).map(|digit| digit.to_string()).collect();
    Ok(Found { classes, parts: [Some(part("train")?), None, Some(part("t10k")?)] })
}

fn find(folder: &Path, names: &[&str]) -> Result<PathBuf> {
    first_there(folder, names).ok_or_else(|| {
        Error::dataset(folder, format!("has no {} in it (unpack the .gz file if there is one)", names.join(" or ")))
    })
}

/// An idx file of bytes with `N` dimensions.
fn idx<const N: usize>(path: &Path) -> Result<([usize; N], Vec<u8>)> {
    let bytes = std::fs::read(path).map_err(Error::io(path))?;
    let no = || Error::dataset(path, format!("is no idx file of bytes with {N} dimensions, or is truncated"));
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

/// `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`.
pub(crate) fn cifar10(folder: &Path) -> Result<Found> {
    let part = |name: &str, files: Vec<String>| -> Result<Vec<Sample>> {
        let (mut bytes, mut labels) = (Vec::new(), Vec::new());
        let mut last = folder.to_owned();
        for file in files {
            last = find(folder, &[&file])?;
            let batch = std::fs::read(&last).map_err(Error::io(&last))?;
            if batch.is_empty() || !batch.len().is_multiple_of(3073) {
                return Err(Error::dataset(&last, format!("has {} bytes, no multiple of 3073", batch.len())));
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
    Ok(Found { classes: CIFAR10.map(str::to_owned).to_vec(), parts })
}

/// Samples of stored pictures with a label each.
pub(crate) fn samples(
    part: &str,
    pictures: Pictures,
    labels: &[u8],
    classes: usize,
    path: &Path,
) -> Result<Vec<Sample>> {
    let pictures = Arc::new(pictures);
    if pictures.count() != labels.len() {
        return Err(Error::dataset(path, format!("has {} labels for {} pictures", labels.len(), pictures.count())));
    }
    let sample = |(index, &label): (usize, &u8)| match usize::from(label) {
        label if label < classes => Ok(Sample {
            name: format!("{part} picture {index}"),
            label,
            source: Source::Stored(pictures.clone(), index),
        }),
        label => Err(Error::dataset(path, format!("label {label} of picture {index} is not below {classes}"))),
    };
    labels.iter().enumerate().map(sample).collect()
}
