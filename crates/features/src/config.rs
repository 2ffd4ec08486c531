//! The JSON files beside the weights.

use crate::{Error, Result};
use serde::de::DeserializeOwned;
use std::path::Path;

/// A configuration that must be there.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    read_if_there(path)?.ok_or_else(|| Error::NoWeights { path: path.to_owned() })
}

/// A configuration that may be missing, but not wrong.
pub(crate) fn read_if_there<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).map_err(|e| Error::file(path, e.to_string()))?)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(path)(e)),
    }
}

/// Heads must share the columns evenly.
pub(crate) fn check_heads(path: &Path, columns: usize, heads: usize) -> Result<()> {
    match columns.checked_rem(heads) {
        Some(0) if columns > 0 => Ok(()),
        _ => Err(Error::file(path, format!("{columns} columns cannot be shared by {heads} heads"))),
    }
}
