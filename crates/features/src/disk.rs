//! Files that are whole or not there, also after a power cut.

use crate::{Error, Result};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes a file under another name, brings it to the disk and gives it its own name: a reader finds the old one or the new one. What is
/// made of someone's pictures and sentences is for its owner's eyes.
pub(crate) fn write(path: &Path, pieces: &[&[u8]]) -> Result<()> {
    let part = unfinished(path);
    // One that was left from before keeps the mode it had.
    remove(&part)?;
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&part).map_err(Error::io(&part))?;
    pieces.iter().try_for_each(|piece| file.write_all(piece)).map_err(Error::io(&part))?;
    publish(&file, path)
}

/// The name a file has until it is whole.
pub(crate) fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    path.with_file_name(name)
}

/// Gives a file that was written under its unfinished name its own one.
pub(crate) fn publish(file: &File, path: &Path) -> Result<()> {
    let part = unfinished(path);
    file.sync_all().map_err(Error::io(&part))?;
    rename(&part, path)
}

/// Gives a file another name in its folder, for good.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to).map_err(Error::io(to))?;
    sync_folder(to.parent().unwrap_or(Path::new("")))
}

/// Removes a file, if it is there, for good.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path)(e)),
        _ => sync_folder(path.parent().unwrap_or(Path::new(""))),
    }
}

/// Names in a folder reach the disk by the folder's own sync.
fn sync_folder(folder: &Path) -> Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::io(folder))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_is_written_is_its_owner_s() {
        let folder = hetal_testkit::TempDir::new();
        let path = folder.path().join("features_train.npy");
        std::fs::write(unfinished(&path), b"left from before, and open").unwrap();
        write(&path, &[b"ab", b"c"]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"abc");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
