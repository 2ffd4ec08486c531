//! The files of a project. They are written atomically and only their owner can read them.

use crate::{Error, Result};
use hetal_durable::{NewFile, UNFINISHED};
use hetal_keys::locked_file::{self, FileSealer};
use hetal_keys::{Error as KeysError, Passphrase};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Write;
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
    let Some(mut bytes) = read_bytes(path)? else { return Ok(None) };
    if !locked_file::is_locked(&bytes) {
        return parsed(path, &bytes).map(Some);
    }
    let content = locked_file::unlock(path, std::mem::take(&mut *bytes), passphrase).map_err(|error| match error {
        KeysError::Format { path, error } => Error::Damaged { path, reason: error.to_string() },
        other => other.into(),
    })?;
    parsed(path, &content).map(Some)
}

fn read_bytes(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>> {
    match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(io_error("reading", path, &e)),
        Ok(metadata) if metadata.len() > MAX_STATE => Err(Error::Damaged {
            path: path.to_owned(),
            reason: format!("it has {} bytes, which is too much", metadata.len()),
        }),
        Ok(_) => {
            std::fs::read(path).map(|bytes| Some(Zeroizing::new(bytes))).map_err(|e| io_error("reading", path, &e))
        }
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

/// Writes a state file of decrypted values atomically, locked if there is a lock.
pub(crate) fn write_private<T: Serialize>(path: &Path, value: &T, lock: Option<&FileSealer>) -> Result<()> {
    let json = to_json(path, value)?;
    match lock {
        Some(lock) => write_bytes(path, &lock.lock(&json)?),
        None => write_bytes(path, &json),
    }
}

/// A value as JSON. Its length is counted first: a vector that grows leaves copies behind.
fn to_json<T: Serialize>(path: &Path, value: &T) -> Result<Zeroizing<Vec<u8>>> {
    let damaged = |e: serde_json::Error| Error::Damaged { path: path.to_owned(), reason: e.to_string() };
    let mut length = Length(0);
    serde_json::to_writer_pretty(&mut length, value).map_err(damaged)?;
    let mut json = Zeroizing::new(Vec::with_capacity(length.0));
    serde_json::to_writer_pretty(&mut *json, value).map_err(damaged)?;
    Ok(json)
}

/// Counts the bytes that are written.
struct Length(usize);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes a file atomically, readable for its owner only.
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    NewFile::create(path).and_then(|file| file.finish_with(bytes)).map_err(|e| io_error("writing", path, &e))
}
