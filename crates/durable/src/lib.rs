#![doc = include_str!("../README.md")]

use std::fs::{File, OpenOptions};
use std::io::{Result, Write};
use std::path::{Path, PathBuf};

#[cfg(unix)]
const OWNER_ONLY: u32 = 0o600;
/// The suffix of unfinished files. Files with this suffix that a killed program left behind may be
/// removed.
pub const UNFINISHED: &str = ".unfinished";

/// A file that is written under a temporary name next to its final path.
///
/// [`NewFile::finish`] syncs it and renames it to the final path. A file that is dropped before is
/// removed.
pub struct NewFile {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
}

impl NewFile {
    /// Begins a private file that will replace whatever is at `path`.
    pub fn create(path: &Path) -> Result<Self> {
        let temporary = temporary_name(path)?;
        Ok(Self { file: create_new(&temporary)?, temporary, path: path.to_owned() })
    }

    /// Begins a file with the default permissions of the system, which others may read.
    pub fn create_public(path: &Path) -> Result<Self> {
        let temporary = temporary_name(path)?;
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        Ok(Self { file, temporary, path: path.to_owned() })
    }

    /// Writes `bytes` as the whole contents and finishes the file.
    pub fn finish_with(mut self, bytes: &[u8]) -> Result<()> {
        self.write_all(bytes)?;
        self.finish()
    }

    /// Syncs the contents to disk, renames the file to its final path and syncs the folder.
    pub fn finish(self) -> Result<()> {
        self.file.sync_all()?;
        std::fs::rename(&self.temporary, &self.path)?;
        sync_folder(&self.path)
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // After the rename the temporary name is free. Before it, the unfinished file has no value.
        let _ = std::fs::remove_file(&self.temporary);
    }
}

/// Creates a file that does not exist yet and that only its owner can read, from the start.
pub fn create_new(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, OWNER_ONLY);
    options.open(path)
}

/// Syncs the folder that contains `path`, so that a new name in it survives a power cut. Only
/// Unix can sync folders; elsewhere this does nothing.
pub fn sync_folder(path: &Path) -> Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// A random name next to `path`.
fn temporary_name(path: &Path) -> Result<PathBuf> {
    let random = getrandom::u64().map_err(|error| std::io::Error::other(error.to_string()))?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{random:016x}{UNFINISHED}"));
    Ok(path.with_file_name(name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_as_a_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let mut file = NewFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        assert!(!path.exists());
        drop(file);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        for text in ["first", "second"] {
            let mut file = NewFile::create(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file.finish().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}
