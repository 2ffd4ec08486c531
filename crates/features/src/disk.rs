//! Writes files atomically and durably: after a power cut, a file is complete or missing.

use crate::{Error, Result};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes a file under a temporary name, syncs it and renames it, so that a reader finds the old
/// file or the new one. Only the owner can read it, because features are derived from private data.
pub(crate) fn write(path: &Path, pieces: &[&[u8]]) -> Result<()> {
    let part = unfinished(path);
    // A file that an earlier run left would keep its mode.
    remove(&part)?;
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&part).map_err(Error::io(&part))?;
    pieces.iter().try_for_each(|piece| file.write_all(piece)).map_err(Error::io(&part))?;
    publish(&file, path)
}

/// The temporary name of a file.
pub(crate) fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    path.with_file_name(name)
}

/// Syncs a file that was written under its temporary name, and gives it its final name.
pub(crate) fn publish(file: &File, path: &Path) -> Result<()> {
    let part = unfinished(path);
    file.sync_all().map_err(Error::io(&part))?;
    rename(&part, path)
}

/// Renames a file within its folder, durably.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to).map_err(Error::io(to))?;
    sync_folder(to.parent().unwrap_or(Path::new("")))
}

/// Removes a file if it exists, durably.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path)(e)),
        _ => sync_folder(path.parent().unwrap_or(Path::new(""))),
    }
}

/// Syncs a folder, so that names in it are durable.
fn sync_folder(folder: &Path) -> Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::io(folder))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn written_files_are_readable_by_their_owner_only() {
        let folder = hetal_testkit::TempDir::new();
        let path = folder.path().join("features_train.npy");
        std::fs::write(unfinished(&path), b"left from before, and open").unwrap();
        write(&path, &[b"ab", b"c"]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"abc");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
