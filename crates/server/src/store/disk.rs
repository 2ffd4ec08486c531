//! File system operations of the server, as a trait, so that tests can simulate crashes.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// A file system. Content survives a power cut after the file was synced, and a name after its
/// folder was synced.
pub trait Disk: Send + Sync {
    /// Opens a file for appending, and creates it if necessary.
    fn append(&self, path: &Path) -> io::Result<Box<dyn AppendFile>>;

    /// Reads a file from an offset; `None` if there is no such file.
    fn read(&self, path: &Path, offset: u64) -> io::Result<Option<Box<dyn Read + Send>>>;

    /// The length of a file, if it exists.
    fn len(&self, path: &Path) -> io::Result<Option<u64>>;

    /// Renames a file and replaces an existing target.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Deletes a file, if it exists.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Creates a folder in an existing folder, unless it exists.
    fn make_folder(&self, path: &Path) -> io::Result<()>;

    /// Deletes an empty folder, if it exists.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;

    /// The names in a folder, sorted; empty if there is no such folder.
    fn names(&self, folder: &Path) -> io::Result<Vec<String>>;

    /// Free space in bytes on the file system of a path.
    fn free(&self, path: &Path) -> io::Result<u64>;
}

/// A file open for appending.
pub trait AppendFile: Write + Send {
    /// Makes the content durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// The file system of the machine.
pub struct OsDisk;

impl AppendFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// Converts "not found" to `None`.
fn if_found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

impl Disk for OsDisk {
    fn append(&self, path: &Path) -> io::Result<Box<dyn AppendFile>> {
        Ok(Box::new(File::options().create(true).append(true).open(path)?))
    }

    fn read(&self, path: &Path, offset: u64) -> io::Result<Option<Box<dyn Read + Send>>> {
        let Some(mut file) = if_found(File::open(path))? else { return Ok(None) };
        file.seek(SeekFrom::Start(offset))?;
        Ok(Some(Box::new(file)))
    }

    fn len(&self, path: &Path) -> io::Result<Option<u64>> {
        Ok(if_found(fs::metadata(path))?.map(|metadata| metadata.len()))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        if_found(fs::remove_file(path)).map(|_| ())
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        match fs::create_dir(path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(e),
            _ => Ok(()),
        }
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        if_found(fs::remove_dir(path)).map(|_| ())
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        let Some(entries) = if_found(fs::read_dir(folder))? else { return Ok(Vec::new()) };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }

    fn free(&self, path: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}
