//! Results on standard output and in files, and warnings about permissions.

use crate::{Error, Result};
use hetal_durable::NewFile;
use hetal_extract_api::{escape_json, sanitize_lines};
use serde_json::Value;
use std::io::Write;
use std::path::Path;

/// Prints a result: one line of JSON, or the text. Names of classes and files may come from anyone,
/// so nothing in them reaches the terminal as a control character.
///
/// A reader that closes the pipe early (`| head`) is no error.
pub fn print(json: bool, value: &Value, text: &str) {
    let shown = if json { escape_json(&value.to_string()) } else { sanitize_lines(text.trim_end()) };
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{shown}").and_then(|()| out.flush())
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        eprintln!("hetal: standard output: {error}");
    }
}

/// Writes a file atomically; only its owner can read it.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    write(path, NewFile::create, bytes)
}

/// Writes a file atomically; others can read it.
pub fn write_public(path: &Path, bytes: &[u8]) -> Result<()> {
    write(path, NewFile::create_public, bytes)
}

/// Replaces a file by a new one. Writes into a terminal, a pipe or another device instead.
fn write(path: &Path, create: fn(&Path) -> std::io::Result<NewFile>, bytes: &[u8]) -> Result<()> {
    let write = || {
        if path.metadata().is_ok_and(|there| !there.is_file()) {
            return std::fs::OpenOptions::new().write(true).open(path)?.write_all(bytes);
        }
        // A symbolic link stays: its target is replaced.
        create(&path.canonicalize().unwrap_or_else(|_| path.to_owned()))?.finish_with(bytes)
    };
    write().map_err(|e| Error::File { path: path.display().to_string(), reason: e.to_string() })
}

/// Warns if others can read a file with a secret.
pub fn warn_if_others_read(what: &str, file: &Path) {
    #[cfg(unix)]
    if let Ok(metadata) = std::fs::metadata(file)
        && metadata.is_file()
        && std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o077 != 0
    {
        eprintln!("warning: others can read the {what} in {}: run chmod 600 on it", file.display());
    }
}

/// Warns if others can read the project folder.
pub fn warn_if_others_enter(folder: &Path) {
    #[cfg(unix)]
    if let Ok(metadata) = std::fs::metadata(folder)
        && std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o077 != 0
    {
        eprintln!("warning: others can read the project folder {}: run chmod 700 on it", folder.display());
    }
}
