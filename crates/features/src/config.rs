//! The JSON files of a network, and the bounds that their numbers must keep.

use crate::{Error, Result, untrusted};
use serde::de::DeserializeOwned;
use std::ops::RangeInclusive;
use std::path::Path;

/// Larger files are refused. The largest are tokenizers: 17 MiB for a hundred languages.
pub(crate) const MAX_BYTES: u64 = 64 << 20;

/// Sides of pictures, in pixels.
pub(crate) const SIDES: RangeInclusive<usize> = 1..=2048;
/// Columns of features and of layers.
pub(crate) const COLUMNS: RangeInclusive<usize> = 1..=1 << 16;
/// Layers of a network.
pub(crate) const LAYERS: RangeInclusive<usize> = 1..=1024;
/// Tokens or patches of one input. The memory of an attention head grows with their square.
pub(crate) const TOKENS: RangeInclusive<usize> = 1..=1 << 14;
/// Tokens of a vocabulary.
pub(crate) const WORDS: RangeInclusive<usize> = 1..=1 << 24;

/// Reads a file that must exist.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    read_if_there(path)?.ok_or_else(|| Error::NoWeights { path: path.to_owned() })
}

/// Reads a file that may be missing; a file that is there must be valid.
pub(crate) fn read_if_there<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    read_bytes(path)?.map(|bytes| parse(path, &bytes)).transpose()
}

/// The bytes of a file, if it exists.
pub(crate) fn read_bytes(path: &Path) -> Result<Option<Vec<u8>>> {
    match untrusted::read(path, MAX_BYTES) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(path)(e)),
    }
}

/// Parses the bytes of a file.
pub(crate) fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T> {
    let invalid = |e: serde_json::Error| Error::file(path, format!("is not a valid configuration: {e}; get it again"));
    serde_json::from_slice(bytes).map_err(invalid)
}

/// Reads a file, or takes the default values if it is missing.
pub(crate) fn read_or_default<T: DeserializeOwned + Default>(path: &Path) -> Result<T> {
    Ok(read_if_there(path)?.unwrap_or_default())
}

/// Checks sizes against their bounds before anything is allocated for them.
pub(crate) fn check_sizes(path: &Path, sizes: &[(&str, usize, RangeInclusive<usize>)]) -> Result<()> {
    match sizes.iter().find(|(_, size, bounds)| !bounds.contains(size)) {
        None => Ok(()),
        Some((name, size, bounds)) => {
            let (least, most) = (bounds.start(), bounds.end());
            Err(Error::file(path, format!("{name} is {size}, must be {least} to {most}; get the network again")))
        }
    }
}

/// Checks the number that is added to a variance before its root is taken.
pub(crate) fn check_epsilon(path: &Path, epsilon: f64) -> Result<()> {
    match epsilon {
        0.0..1.0 => Ok(()),
        _ => Err(Error::file(
            path,
            format!("layer_norm_eps is {epsilon}, must be at least 0 and below 1; get the network again"),
        )),
    }
}

/// Checks that the heads share the columns evenly.
pub(crate) fn check_heads(path: &Path, columns: usize, heads: usize) -> Result<()> {
    match columns.checked_rem(heads) {
        Some(0) if columns > 0 => Ok(()),
        _ => Err(Error::file(
            path,
            format!("hidden_size {columns} is no multiple of num_attention_heads {heads}; get the network again"),
        )),
    }
}
