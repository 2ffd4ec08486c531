//! Staging: files of incomplete uploads. One stream at a time appends to a file.

use crate::store::blobs::name_of_bytes;
use crate::store::disk::{AppendFile, Disk};
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_wire::BlobName;
use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Suffix of a file while it is synced.
const SYNCING: &str = ".syncing";

/// The folder of incomplete uploads.
pub struct Staging {
    disk: Arc<dyn Disk>,
    root: PathBuf,
    open: Arc<Mutex<HashSet<(Tenant, BlobName)>>>,
    /// Files that must be deleted but could not be.
    to_delete: Arc<Mutex<HashSet<PathBuf>>>,
    max_open_per_tenant: usize,
}

impl Staging {
    /// Opens the folder and creates it if necessary.
    pub fn open(disk: Arc<dyn Disk>, root: &Path, max_open_per_tenant: usize) -> Result<Self> {
        disk.make_folder(root).map_err(|e| Error::file(root, e))?;
        let staging =
            Self { disk, root: root.to_owned(), open: Arc::default(), to_delete: Arc::default(), max_open_per_tenant };
        staging.recover()?;
        Ok(staging)
    }

    /// Recovers files whose sync was interrupted by a crash. After a failed sync, the system may
    /// consider bytes as written that are not. A copy writes them again.
    fn recover(&self) -> Result<()> {
        for tenant in self.names(&self.root)? {
            let folder = self.root.join(tenant);
            for name in self.names(&folder)? {
                let Some(whole) = name.strip_suffix(SYNCING) else { continue };
                let (syncing, whole) = (folder.join(&name), folder.join(whole));
                if let Err(error) = self.copy(&syncing, &whole) {
                    // For example on a full disk. The bytes were not acknowledged, so the client
                    // sends the missing ones again.
                    tracing::warn!(file = %syncing.display(), %error, "could not recover an incomplete upload completely");
                }
                self.disk.remove(&syncing).map_err(|e| Error::file(&syncing, e))?;
            }
        }
        Ok(())
    }

    /// Copies a file, unless the target exists: then the target holds newer bytes or the beginning
    /// of an earlier copy.
    fn copy(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        if self.disk.len(to)?.is_some() {
            return Ok(());
        }
        let Some(mut reader) = self.disk.read(from, 0)? else { return Ok(()) };
        std::io::copy(&mut reader, &mut self.disk.append(to)?).map(|_| ())
    }

    fn names(&self, folder: &Path) -> Result<Vec<String>> {
        self.disk.names(folder).map_err(|e| Error::file(folder, e))
    }

    fn path(&self, tenant: &Tenant, name: BlobName) -> PathBuf {
        self.root.join(tenant.as_str()).join(name.to_string())
    }

    /// The number of bytes received so far.
    pub fn received(&self, tenant: &Tenant, name: BlobName) -> Result<u64> {
        let path = self.path(tenant, name);
        Ok(self.disk.len(&path).map_err(|e| Error::file(&path, e))?.unwrap_or(0))
    }

    /// Free disk space in bytes.
    pub fn free(&self) -> Result<u64> {
        self.disk.free(&self.root).map_err(|e| Error::file(&self.root, e))
    }

    /// Locks the file of an upload for one stream.
    pub fn lock(&self, tenant: &Tenant, name: BlobName) -> Result<Staged> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.iter().filter(|(other, _)| other == tenant).count() >= self.max_open_per_tenant {
            let message = format!("too many uploads: at most {} at once are allowed", self.max_open_per_tenant);
            return Err(Error::Busy { message });
        }
        let key = (tenant.clone(), name);
        if !open.insert(key.clone()) {
            return Err(Error::Busy { message: format!("blob {name} is being uploaded in another stream") });
        }
        drop(open);
        let (disk, open, to_delete) = (Arc::clone(&self.disk), Arc::clone(&self.open), Arc::clone(&self.to_delete));
        let staged = Staged { disk, path: self.path(tenant, name), key, open, to_delete };
        if staged.must_be_deleted() {
            staged.discard()?;
        }
        Ok(staged)
    }

    /// Deletes the folders of tenants that are empty, and in which nobody is about to write.
    pub fn remove_empty(&self) -> Result<()> {
        let names = self.names(&self.root)?;
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names.iter().filter(|name| open.iter().all(|(tenant, _)| tenant.as_str() != *name)) {
            // Fails if it is not empty.
            let _ = self.disk.remove_folder(&self.root.join(name));
        }
        Ok(())
    }

    /// All files of all tenants.
    pub fn files(&self) -> Result<Vec<(Tenant, BlobName)>> {
        let mut files = Vec::new();
        for name in self.names(&self.root)? {
            let folder = self.names(&self.root.join(&name))?;
            let Ok(tenant) = Tenant::try_from(name) else { continue };
            files.extend(folder.iter().filter_map(|name| name.parse().ok()).map(|name| (tenant.clone(), name)));
        }
        Ok(files)
    }

    /// Deletes the empty folder of a tenant.
    pub fn remove_tenant(&self, tenant: &Tenant) -> Result<()> {
        let path = self.root.join(tenant.as_str());
        self.disk.remove_folder(&path).map_err(|e| Error::file(&path, e))
    }
}

/// The file of an upload, locked by one stream.
pub struct Staged {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    key: (Tenant, BlobName),
    open: Arc<Mutex<HashSet<(Tenant, BlobName)>>>,
    to_delete: Arc<Mutex<HashSet<PathBuf>>>,
}

impl Staged {
    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file for appending. Also returns its length.
    pub fn append(&self) -> Result<(Box<dyn AppendFile>, u64)> {
        let folder = self.path.parent().unwrap_or(&self.path);
        let open = || {
            self.disk.make_folder(folder)?;
            let file = self.disk.append(&self.path)?;
            Ok((file, self.disk.len(&self.path)?.unwrap_or(0)))
        };
        open().map_err(|e: std::io::Error| Error::file(&self.path, e))
    }

    /// Makes the bytes durable. During the sync the file has another name, because after a failed
    /// sync the system may consider bytes as written that are not. A file found under that name is
    /// not trusted.
    pub fn sync(&self, file: &mut dyn AppendFile) -> Result<()> {
        let mut name = self.path.clone().into_os_string();
        name.push(SYNCING);
        let syncing = PathBuf::from(name);
        let rename = |from: &Path, to: &Path| self.disk.rename(from, to).map_err(|e| Error::file(from, e));
        rename(&self.path, &syncing)?;
        if let Err(e) = file.sync() {
            // If the file cannot be deleted either, the next upload replaces it.
            let _ = self.disk.remove(&syncing);
            return Err(Error::file(&self.path, e));
        }
        rename(&syncing, &self.path)
    }

    /// Reads the file.
    pub fn read(&self) -> Result<Box<dyn Read + Send>> {
        let reader = self.disk.read(&self.path, 0).map_err(|e| Error::file(&self.path, e))?;
        reader.ok_or(Error::NoBlob { name: self.key.1 })
    }

    /// Verifies the hash. Deletes the file if it does not match.
    pub fn verify(&self) -> Result<()> {
        if name_of_bytes(self.read()?).map_err(|e| Error::file(&self.path, e))? == self.key.1 {
            return Ok(());
        }
        self.discard()?;
        Err(Error::Damaged { what: format!("upload {}", self.key.1) })
    }

    /// Deletes the file now, or before its next use if that fails.
    pub fn discard(&self) -> Result<()> {
        self.to_delete.lock().unwrap_or_else(PoisonError::into_inner).insert(self.path.clone());
        self.disk.remove(&self.path).map_err(|e| Error::file(&self.path, e))?;
        self.to_delete.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.path);
        Ok(())
    }

    fn must_be_deleted(&self) -> bool {
        self.to_delete.lock().unwrap_or_else(PoisonError::into_inner).contains(&self.path)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}
