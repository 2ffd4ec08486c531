//! The file system, as far as a server needs one: a trait, so that tests can pull the plug.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// A file system. What is written survives the machine's sudden end once the file was synced, and its name once its folder was.
pub trait Disk: Send + Sync {
    /// Opens a file to write at its end; makes it if it is not there.
    fn append(&self, path: &Path) -> io::Result<Box<dyn AppendFile>>;

    /// The bytes of a file from an offset; `None` if there is no such file.
    fn read(&self, path: &Path, offset: u64) -> io::Result<Option<Box<dyn Read + Send>>>;

    /// The length of a file, if there is one.
    fn len(&self, path: &Path) -> io::Result<Option<u64>>;

    /// Gives a file another name, in place of what had it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file; it need not be there.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes a folder in one that is there; it may be there already.
    fn make_folder(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty folder; it need not be there.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a folder last.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;

    /// The names in a folder, in order; none if there is no such folder.
    fn names(&self, folder: &Path) -> io::Result<Vec<String>>;

    /// Bytes that can still be written where a path is.
    fn free(&self, path: &Path) -> io::Result<u64>;
}

/// A file that is written at its end.
pub trait AppendFile: Write + Send {
    /// Makes the bytes last.
    fn sync(&mut self) -> io::Result<()>;
}

/// The machine's own file system.
pub struct OsDisk;

impl AppendFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// `None` where something is not there.
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
