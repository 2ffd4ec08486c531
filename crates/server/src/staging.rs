//! Uploads that are not whole yet: files that grow, each by one stream at a time.

use crate::blobs::name_of_file;
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_wire::BlobName;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The folder of begun uploads.
pub struct Staging {
    root: PathBuf,
    open: Arc<Mutex<HashSet<(Tenant, BlobName)>>>,
    most_per_tenant: usize,
}

impl Staging {
    /// The folder, which is made if it is not there.
    pub fn open(root: &Path, most_per_tenant: usize) -> Result<Self> {
        fs::create_dir_all(root).map_err(|e| Error::file(root, e))?;
        Ok(Self { root: root.to_owned(), open: Arc::default(), most_per_tenant })
    }

    fn path(&self, tenant: &Tenant, name: BlobName) -> PathBuf {
        self.root.join(tenant.as_str()).join(name.to_string())
    }

    /// Bytes that are there of an upload.
    pub fn held(&self, tenant: &Tenant, name: BlobName) -> Result<u64> {
        let path = self.path(tenant, name);
        match fs::metadata(&path) {
            Ok(metadata) => Ok(metadata.len()),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(0),
            Err(e) => Err(Error::file(&path, e)),
        }
    }

    /// Takes the file of an upload for one stream.
    pub fn enter(&self, tenant: &Tenant, name: BlobName) -> Result<Staged> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.iter().filter(|(other, _)| other == tenant).count() >= self.most_per_tenant {
            let sentence = format!("{} uploads at once are the most allowed", self.most_per_tenant);
            return Err(Error::Busy { sentence });
        }
        let key = (tenant.clone(), name);
        if !open.insert(key.clone()) {
            return Err(Error::Busy { sentence: format!("blob {name} is being uploaded by another stream") });
        }
        drop(open);
        Ok(Staged { path: self.path(tenant, name), key, open: Arc::clone(&self.open) })
    }
}

/// An upload's file, held by one stream.
pub struct Staged {
    path: PathBuf,
    key: (Tenant, BlobName),
    open: Arc<Mutex<HashSet<(Tenant, BlobName)>>>,
}

impl Staged {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens it to append to it; gives its length too.
    pub fn append(&self) -> Result<(File, u64)> {
        let folder = self.path.parent().unwrap_or(&self.path);
        fs::create_dir_all(folder).map_err(|e| Error::file(folder, e))?;
        let open = || {
            let file = File::options().create(true).append(true).open(&self.path)?;
            let len = file.metadata()?.len();
            Ok((file, len))
        };
        open().map_err(|e: std::io::Error| Error::file(&self.path, e))
    }

    /// Compares its bytes with its name; throws them away if they are others.
    pub fn verify(&self) -> Result<()> {
        if name_of_file(&self.path)? == self.key.1 {
            return Ok(());
        }
        self.discard()?;
        Err(Error::Damaged { what: format!("upload {}", self.key.1) })
    }

    /// Throws its bytes away.
    pub fn discard(&self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::file(&self.path, e)),
            _ => Ok(()),
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}
