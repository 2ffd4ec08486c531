//! Blobs in memory, for tests.

use super::{BlobKey, Blobs, LocalFile, Namespace, name_of};
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_wire::BlobName;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A blob store in memory. Files for [`Blobs::local`] are written to a folder.
pub struct MemoryBlobs {
    blobs: Mutex<BTreeMap<BlobKey, Arc<[u8]>>>,
    owner: Mutex<Option<String>>,
    folder: PathBuf,
}

impl MemoryBlobs {
    /// Creates an empty store.
    pub fn new(folder: &Path) -> Self {
        Self { blobs: Mutex::default(), owner: Mutex::default(), folder: folder.to_owned() }
    }

    fn get(&self, key: &BlobKey) -> Option<Arc<[u8]>> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }
}

impl Blobs for MemoryBlobs {
    fn put(&self, key: &BlobKey, bytes: &[u8]) -> Result<()> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), bytes.into());
        Ok(())
    }

    fn adopt(&self, key: &BlobKey, file: &Path) -> Result<()> {
        self.put(key, &std::fs::read(file).map_err(|e| Error::file(file, e))?)?;
        std::fs::remove_file(file).map_err(|e| Error::file(file, e))
    }

    fn confirm(&self, key: &BlobKey, size: u64) -> Result<bool> {
        Ok(self.get(key).is_some_and(|bytes| bytes.len() as u64 == size && name_of(&bytes) == key.name()))
    }

    fn open(&self, key: &BlobKey, offset: u64) -> Result<Option<Box<dyn Read + Send>>> {
        Ok(self.get(key).map(|bytes| {
            let mut cursor = Cursor::new(bytes);
            cursor.set_position(offset);
            Box::new(cursor) as Box<dyn Read + Send>
        }))
    }

    fn len(&self, key: &BlobKey) -> Result<Option<u64>> {
        Ok(self.get(key).map(|bytes| bytes.len() as u64))
    }

    fn local(&self, key: &BlobKey) -> Result<Option<LocalFile>> {
        let Some(bytes) = self.get(key) else { return Ok(None) };
        let path = self.folder.join(key.name().to_string());
        std::fs::write(&path, bytes).map_err(|e| Error::file(&path, e))?;
        Ok(Some(LocalFile::lasting(path)))
    }

    fn delete(&self, key: &BlobKey) -> Result<()> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        Ok(())
    }

    fn list(&self, tenant: &Tenant, namespace: Namespace) -> Result<Vec<BlobName>> {
        let blobs = self.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(blobs.keys().filter(|key| key.tenant == *tenant && key.namespace == namespace).map(BlobKey::name).collect())
    }

    fn clear(&self, tenant: &Tenant, namespace: Namespace) -> Result<()> {
        let mut blobs = self.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        blobs.retain(|key, _| key.tenant != *tenant || key.namespace != namespace);
        Ok(())
    }

    fn namespaces(&self) -> Result<Vec<(Tenant, Namespace)>> {
        let blobs = self.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        let all: BTreeSet<_> = blobs.keys().map(|key| (key.tenant.clone(), key.namespace)).collect();
        Ok(all.into_iter().collect())
    }

    fn tenants(&self) -> Result<BTreeSet<Tenant>> {
        Ok(self.namespaces()?.into_iter().map(|(tenant, _)| tenant).collect())
    }

    fn owner(&self) -> Result<Option<String>> {
        Ok(self.owner.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn set_owner(&self, before: Option<&str>, after: &str) -> Result<bool> {
        let mut owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        let is_so = owner.as_deref() == before;
        if is_so {
            *owner = Some(after.to_owned());
        }
        Ok(is_so)
    }

    fn location(&self) -> String {
        "this process".to_owned()
    }
}
