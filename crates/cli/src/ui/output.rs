//! Results on standard output, files, and warnings.

use crate::{Error, Result};
use hetal_durable::NewFile;
pub use hetal_experiments::report::output::print;
use std::io::Write;
use std::path::Path;

/// Writes a file for its owner's eyes, whole or not at all.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    write(path, NewFile::create, bytes)
}

/// Writes a file that others may read, whole or not at all.
pub fn write_public(path: &Path, bytes: &[u8]) -> Result<()> {
    write(path, NewFile::create_public, bytes)
}

/// Puts a new file in the place of an old one; a terminal, a pipe or another device is written to instead of being replaced.
fn write(path: &Path, create: fn(&Path) -> std::io::Result<NewFile>, bytes: &[u8]) -> Result<()> {
    let write = || {
        if path.metadata().is_ok_and(|there| !there.is_file()) {
            return std::fs::OpenOptions::new().write(true).open(path)?.write_all(bytes);
        }
        // A link stays one.
        create(&path.canonicalize().unwrap_or_else(|_| path.to_owned()))?.finish_with(bytes)
    };
    write().map_err(|e| Error::File { path: path.display().to_string(), reason: e.to_string() })
}

/// Says so where a secret lies open.
pub fn warn_if_others_read(what: &str, file: &Path) {
    #[cfg(unix)]
    if let Ok(metadata) = std::fs::metadata(file)
        && metadata.is_file()
        && std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o077 != 0
    {
        eprintln!("warning: others can read the {what} in {}: run chmod 600 on it", file.display());
    }
}

/// Says so where others can look into a folder of secrets that was there before this program.
pub fn warn_if_others_enter(folder: &Path) {
    #[cfg(unix)]
    if let Ok(metadata) = std::fs::metadata(folder)
        && std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o077 != 0
    {
        eprintln!("warning: others can look into the project folder {}: run chmod 700 on it", folder.display());
    }
}
