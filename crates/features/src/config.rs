//! The JSON files beside the weights.

use crate::{Error, Result, untrusted};
use serde::de::DeserializeOwned;
use std::ops::RangeInclusive;
use std::path::Path;

/// Larger files are no configurations; the largest are tokenizers, of 17 MiB for a hundred languages.
pub(crate) const MAX_BYTES: u64 = 64 << 20;

/// The sides of pictures that networks read.
pub(crate) const SIDES: RangeInclusive<usize> = 1..=2048;
/// The columns of features and of what is between layers.
pub(crate) const COLUMNS: RangeInclusive<usize> = 1..=1 << 16;
/// The layers of networks.
pub(crate) const LAYERS: RangeInclusive<usize> = 1..=1024;
/// The tokens or patches that a network reads at a time: a head of attention holds the square of them.
pub(crate) const TOKENS: RangeInclusive<usize> = 1..=1 << 14;
/// The tokens a tokenizer knows.
pub(crate) const WORDS: RangeInclusive<usize> = 1..=1 << 24;

/// A configuration that must be there.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    read_if_there(path)?.ok_or_else(|| Error::NoWeights { path: path.to_owned() })
}

/// A configuration that may be missing, but not wrong.
pub(crate) fn read_if_there<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    match untrusted::read(path, MAX_BYTES) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).map_err(|e| Error::file(path, e.to_string()))?)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(path)(e)),
    }
}

/// A configuration that says nothing where it is missing.
pub(crate) fn read_or_usual<T: DeserializeOwned + Default>(path: &Path) -> Result<T> {
    Ok(read_if_there(path)?.unwrap_or_default())
}

/// Sizes within their bounds, so that a made-up one is a sentence and not an allocation.
pub(crate) fn check_sizes(path: &Path, sizes: &[(&str, usize, RangeInclusive<usize>)]) -> Result<()> {
    match sizes.iter().find(|(_, size, bounds)| !bounds.contains(size)) {
        None => Ok(()),
        Some((name, size, bounds)) => {
            let (least, most) = (bounds.start(), bounds.end());
            Err(Error::file(path, format!("{name} is {size}; {least} to {most} are built in")))
        }
    }
}

/// What is added to a variance keeps roots real.
pub(crate) fn check_epsilon(path: &Path, epsilon: f64) -> Result<()> {
    match epsilon {
        0.0..1.0 => Ok(()),
        _ => Err(Error::file(path, format!("layer_norm_eps is {epsilon}, must be between 0 and 1"))),
    }
}

/// Heads must share the columns evenly.
pub(crate) fn check_heads(path: &Path, columns: usize, heads: usize) -> Result<()> {
    match columns.checked_rem(heads) {
        Some(0) if columns > 0 => Ok(()),
        _ => Err(Error::file(path, format!("{columns} columns cannot be shared by {heads} heads"))),
    }
}
