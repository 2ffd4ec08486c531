//! Blobs in a folder. A blob is written under another name, synced, renamed, and its folder synced: it is there whole or not at all.

use super::{Blobs, Key, Shelf, folder};
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_wire::BlobName;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder of blobs.
pub struct LocalBlobs {
    root: PathBuf,
    /// Where blobs are written before they are whole; on the same file system.
    scratch: PathBuf,
    counter: AtomicU64,
}

impl LocalBlobs {
    /// The store in a folder, which is made if it is not there. What a sudden end left half written is removed.
    pub fn open(root: &Path) -> Result<Self> {
        let scratch = root.join("scratch");
        if scratch.exists() {
            fs::remove_dir_all(&scratch).map_err(|e| Error::file(&scratch, e))?;
        }
        fs::create_dir_all(&scratch).map_err(|e| Error::file(&scratch, e))?;
        sync_folder(root)?;
        Ok(Self { root: root.to_owned(), scratch, counter: AtomicU64::new(0) })
    }

    /// A name of its own in the folder of blobs that are not whole yet.
    pub(super) fn scratch(&self) -> PathBuf {
        self.scratch.join(self.counter.fetch_add(1, Ordering::Relaxed).to_string())
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.root.join("tenants").join(key.to_string())
    }

    /// Makes a synced file part of the store.
    fn settle(&self, key: &Key, file: &Path) -> Result<()> {
        let path = self.path(key);
        let parent = path.parent().unwrap_or(&self.root);
        create_folders(&self.root, parent)?;
        fs::rename(file, &path).map_err(|e| Error::file(&path, e))?;
        sync_folder(parent)
    }
}

impl Blobs for LocalBlobs {
    fn put(&self, key: &Key, bytes: &[u8]) -> Result<()> {
        if self.len(key)? == Some(bytes.len() as u64) {
            return Ok(());
        }
        let scratch = self.scratch();
        let write = || {
            let mut file = File::create_new(&scratch)?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        let written = write().map_err(|e| Error::file(&scratch, e)).and_then(|()| self.settle(key, &scratch));
        if written.is_err() {
            // A full disk should not fill up further with what could not be written.
            let _ = fs::remove_file(&scratch);
        }
        written
    }

    fn adopt(&self, key: &Key, file: &Path) -> Result<()> {
        self.settle(key, file)
    }

    fn open(&self, key: &Key, offset: u64) -> Result<Option<Box<dyn Read + Send>>> {
        let path = self.path(key);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::file(&path, e)),
        };
        file.seek(SeekFrom::Start(offset)).map_err(|e| Error::file(&path, e))?;
        Ok(Some(Box::new(file)))
    }

    fn len(&self, key: &Key) -> Result<Option<u64>> {
        let path = self.path(key);
        match fs::metadata(&path) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::file(&path, e)),
        }
    }

    fn local(&self, key: &Key) -> Result<Option<PathBuf>> {
        Ok(self.len(key)?.map(|_| self.path(key)))
    }

    fn delete(&self, key: &Key) -> Result<()> {
        let path = self.path(key);
        match fs::remove_file(&path) {
            Ok(()) => sync_folder(path.parent().unwrap_or(&self.root)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            Err(e) => Err(Error::file(&path, e)),
        }
    }

    fn list(&self, tenant: &Tenant, shelf: Shelf) -> Result<Vec<BlobName>> {
        let path = self.root.join("tenants").join(folder(tenant, shelf));
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Error::file(&path, e)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.map_err(|e| Error::file(&path, e))?.file_name();
            // Only what this store wrote is listed.
            names.extend(name.to_str().and_then(|n| n.parse::<BlobName>().ok()));
        }
        names.sort();
        Ok(names)
    }
}

/// Makes a folder below `root`, and syncs every folder that got a new entry.
fn create_folders(root: &Path, folder: &Path) -> Result<()> {
    if folder.is_dir() || folder == root {
        return Ok(());
    }
    let parent = folder.parent().unwrap_or(root);
    create_folders(root, parent)?;
    match fs::create_dir(folder) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(Error::file(folder, e)),
        _ => {}
    }
    sync_folder(parent)
}

/// Makes renames in a folder last.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(|e| Error::file(path, e))
}
