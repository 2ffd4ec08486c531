//! Files that appear whole or not at all, readable by their owner only.

use hetal_ring::sampler::{OsSeeds, SeedSource};
use std::fs::{File, OpenOptions};
use std::io::{Result, Write};
use std::path::{Path, PathBuf};

#[cfg(unix)]
const OWNER_ONLY: u32 = 0o600;
/// What names of unfinished files end in: those that a killed program left may be removed.
pub const UNFINISHED: &str = ".unfinished";

/// A file being written beside its place. [`NewFile::finish`] puts it there, also against a power cut; dropped before, it
/// leaves nothing.
pub struct NewFile {
    file: File,
    temporary: PathBuf,
    place: PathBuf,
}

impl NewFile {
    /// Begins a file that will be at `place` and replace what is there.
    pub fn create(place: &Path) -> Result<Self> {
        let temporary = temporary_name(place);
        Ok(Self { file: create_new(&temporary)?, temporary, place: place.to_owned() })
    }

    /// Begins a file that others may read where the system's usual permissions say so.
    pub fn create_public(place: &Path) -> Result<Self> {
        let temporary = temporary_name(place);
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        Ok(Self { file, temporary, place: place.to_owned() })
    }

    /// Writes all that is to be in the file, and finishes it.
    pub fn finish_with(mut self, bytes: &[u8]) -> Result<()> {
        self.write_all(bytes)?;
        self.finish()
    }

    /// Waits until the bytes are on the disk, and gives the file its name.
    pub fn finish(self) -> Result<()> {
        self.file.sync_all()?;
        std::fs::rename(&self.temporary, &self.place)?;
        sync_folder(&self.place)
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
        // After a rename there is nothing of this name, and an unfinished file is worth nothing.
        let _ = std::fs::remove_file(&self.temporary);
    }
}

/// A file that was not there, readable by its owner only from its first moment on.
pub fn create_new(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, OWNER_ONLY);
    options.open(path)
}

/// Makes a new name in the folder of `path` last. Folders can be synced on unix only.
pub fn sync_folder(path: &Path) -> Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// A name next to `path` that nothing has.
fn temporary_name(path: &Path) -> PathBuf {
    let seed = OsSeeds.next_seed();
    let random = u64::from_le_bytes(std::array::from_fn(|k| seed.0[k]));
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{random:016x}{UNFINISHED}"));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hetal_testkit::TempDir;

    #[test]
    fn a_file_is_there_as_a_whole_or_not_at_all() {
        let folder = TempDir::new();
        let place = folder.path().join("x");
        let mut file = NewFile::create(&place).unwrap();
        file.write_all(b"half").unwrap();
        assert!(!place.exists());
        drop(file);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        for text in ["first", "second"] {
            let mut file = NewFile::create(&place).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file.finish().unwrap();
            assert_eq!(std::fs::read_to_string(&place).unwrap(), text);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}
