//! The files of a project. They are written atomically and only their owner can read them.

use crate::{Error, Result};
use hetal_durable::{NewFile, UNFINISHED};
use hetal_keys::{Passphrase, locked_file};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;
use zeroize::Zeroizing;

/// The largest state file in bytes. A model of 128 classes and 2048 features has 6 MB.
const MAX_STATE: u64 = 64 << 20;

/// Checks that a name is a safe file name: 1 to 64 letters, digits, `-`, `_` and `.`, not hidden.
pub(crate) fn checked_name(name: &str) -> Result<&str> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(good) {
        return Err(Error::Name { name: name.to_owned() });
    }
    Ok(name)
}

pub(crate) fn io_error(operation: &'static str, path: &Path, error: &std::io::Error) -> Error {
    Error::Io { operation, path: path.to_owned(), message: error.to_string() }
}

pub(crate) fn remove_if_there(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io_error("removing", path, &e)),
        _ => Ok(()),
    }
}

/// Creates a folder that only its owner can enter.
pub(super) fn make_private_folder(folder: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|e| io_error("creating", folder, &e))
}

/// Removes files that a killed process did not finish.
pub(super) fn remove_unfinished(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with(UNFINISHED) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Reads a state file; `None` if there is none.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    read_bytes(path)?.map(|bytes| parsed(path, &bytes)).transpose()
}

/// Reads a state file of decrypted values, which may be locked with a passphrase.
pub(crate) fn read_private<T: DeserializeOwned>(path: &Path, passphrase: Option<&Passphrase>) -> Result<Option<T>> {
    let Some(bytes) = read_bytes(path)? else { return Ok(None) };
    if !locked_file::is_locked(&bytes) {
        return parsed(path, &bytes).map(Some);
    }
    parsed(path, &locked_file::unlock(path, bytes, passphrase)?).map(Some)
}

fn read_bytes(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(io_error("reading", path, &e)),
        Ok(metadata) if metadata.len() > MAX_STATE => Err(Error::Damaged {
            path: path.to_owned(),
            reason: format!("it has {} bytes, which is too much", metadata.len()),
        }),
        Ok(_) => std::fs::read(path).map(Some).map_err(|e| io_error("reading", path, &e)),
    }
}

fn parsed<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T> {
    let damaged = |e: serde_json::Error| Error::Damaged { path: path.to_owned(), reason: e.to_string() };
    serde_json::from_slice(bytes).map_err(damaged)
}

/// Writes a state file atomically.
pub(crate) fn write<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    write_bytes(path, &to_json(path, value)?)
}

/// Writes a state file of decrypted values atomically, locked if there is a passphrase.
pub(crate) fn write_private<T: Serialize>(path: &Path, value: &T, passphrase: Option<&Passphrase>) -> Result<()> {
    let json = Zeroizing::new(to_json(path, value)?);
    match passphrase {
        Some(passphrase) => write_bytes(path, &locked_file::lock(&json, passphrase)?),
        None => write_bytes(path, &json),
    }
}

fn to_json<T: Serialize>(path: &Path, value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(value).map_err(|e| Error::Damaged { path: path.to_owned(), reason: e.to_string() })
}

/// Writes a file atomically, readable for its owner only.
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    NewFile::create(path).and_then(|file| file.finish_with(bytes)).map_err(|e| io_error("writing", path, &e))
}
