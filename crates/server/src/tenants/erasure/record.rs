//! Records of erasures that have begun: one file for each tenant, below `erasures` in the server's
//! folder.

use crate::store::disk::{Disk, OsDisk};
use crate::store::folder::{make_private, write_private};
use crate::tenants::Tenant;
use crate::{Error, Result};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The record of an erasure: the names of jobs and blobs to search for afterwards.
pub struct ErasureRecord {
    path: PathBuf,
    folder: PathBuf,
}

impl ErasureRecord {
    /// The record of a tenant's erasure.
    pub fn new(folder: &Path, tenant: &Tenant) -> Self {
        let folder = folder.join("erasures");
        Self { path: folder.join(format!("{tenant}.json")), folder }
    }

    /// The names that an interrupted erasure recorded; `None` if there was none.
    pub fn read(&self) -> Result<Option<Vec<Vec<u8>>>> {
        let text = match std::fs::read(&self.path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::file(&self.path, e)),
        };
        serde_json::from_slice(&text).map(Some).map_err(|e| Error::file(&self.path, e))
    }

    /// Writes the record durably.
    pub fn write(&self, names: &[Vec<u8>]) -> Result<()> {
        make_private(&self.folder)?;
        write_private(&self.path, &serde_json::to_vec(names).map_err(Error::failed)?)?;
        self.folder.parent().into_iter().chain([&*self.folder]).try_for_each(sync)
    }

    /// Removes the record after a complete erasure.
    pub fn remove(&self) -> Result<()> {
        OsDisk.remove(&self.path).map_err(|e| Error::file(&self.path, e))?;
        sync(&self.folder)
    }
}

fn sync(folder: &Path) -> Result<()> {
    OsDisk.sync_folder(folder).map_err(|e| Error::file(folder, e))
}

/// The tenants whose erasure was interrupted.
pub fn unfinished_erasures(folder: &Path) -> Result<Vec<String>> {
    let folder = folder.join("erasures");
    let names = OsDisk.names(&folder).map_err(|e| Error::file(&folder, e))?;
    Ok(names.iter().filter_map(|name| name.strip_suffix(".json")).map(str::to_owned).collect())
}
