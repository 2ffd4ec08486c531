//! Blobs in a folder. A blob is written to a scratch file, synced and renamed, and its folder is
//! synced. It is stored completely or not at all.

use super::{BlobKey, Blobs, LocalFile, Namespace, PartStore, folder, name_of_bytes};
use crate::store::disk::{AppendFile, Disk, OsDisk};
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_wire::{BlobName, JobId};
use std::collections::{BTreeSet, HashSet};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The file that records the owner of the blobs.
const OWNER: &str = "owner";
/// The folder of blobs that are being written. Each server of a shared folder has its own.
const SCRATCH: &str = "scratch";
/// How often a blob is moved into a folder that another server deletes at the same moment.
const MOVES: usize = 3;

/// A blob store in a folder.
pub struct LocalBlobs {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) root: PathBuf,
    /// Folder for blobs that are being written, on the same file system.
    scratch: PathBuf,
    counter: AtomicU64,
    /// Folders whose directory entries are known to be synced. An existing folder may come from a
    /// process that was killed before it synced.
    lasting: Mutex<HashSet<PathBuf>>,
}

impl LocalBlobs {
    /// Opens the store in a folder and creates the folder if necessary. Deletes scratch files that
    /// a crash left behind.
    pub fn open(root: &Path) -> Result<Self> {
        std::fs::create_dir_all(root).map_err(|e| Error::file(root, e))?;
        Self::on(Arc::new(OsDisk), root)
    }

    /// Opens the store in a folder that other servers use too, for the server of this name.
    pub fn open_shared(root: &Path, server: &str) -> Result<Self> {
        std::fs::create_dir_all(root).map_err(|e| Error::file(root, e))?;
        Self::with_scratch(Arc::new(OsDisk), root, root.join(format!("{SCRATCH}-{server}")))
    }

    /// Opens the store on a given disk.
    pub(crate) fn on(disk: Arc<dyn Disk>, root: &Path) -> Result<Self> {
        Self::with_scratch(disk, root, root.join(SCRATCH))
    }

    fn with_scratch(disk: Arc<dyn Disk>, root: &Path, scratch: PathBuf) -> Result<Self> {
        disk.make_folder(&scratch).map_err(|e| Error::file(&scratch, e))?;
        for name in disk.names(&scratch).map_err(|e| Error::file(&scratch, e))? {
            let path = scratch.join(name);
            disk.remove(&path).map_err(|e| Error::file(&path, e))?;
        }
        disk.sync_folder(root).map_err(|e| Error::file(root, e))?;
        let lasting = Mutex::new(HashSet::from([root.to_owned()]));
        Ok(Self { disk, root: root.to_owned(), scratch, counter: AtomicU64::new(0), lasting })
    }

    /// A new path in the scratch folder.
    pub(super) fn scratch(&self) -> PathBuf {
        self.scratch.join(self.counter.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// Creates a file in the scratch folder. Another server may have deleted the folder of one that
    /// was suspended for days.
    pub(super) fn create(&self, scratch: &Path) -> std::io::Result<Box<dyn AppendFile>> {
        match self.disk.append(scratch) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                self.disk.make_folder(&self.scratch)?;
                self.disk.append(scratch)
            }
            file => file,
        }
    }

    /// The scratch folders of other servers.
    pub(super) fn foreign_scratch(&self) -> Result<Vec<PathBuf>> {
        let is_scratch = |name: &String| name.strip_prefix(SCRATCH).is_some_and(|rest| rest.starts_with('-'));
        let folders = self.names(&self.root)?.into_iter().filter(is_scratch).map(|name| self.root.join(name));
        Ok(folders.filter(|folder| *folder != self.scratch).collect())
    }

    /// Free disk space in bytes.
    pub(super) fn free(&self) -> Result<u64> {
        self.disk.free(&self.root).map_err(|e| Error::file(&self.root, e))
    }

    /// Deletes the folders of a tenant's blobs, as far as they are empty.
    #[cfg(feature = "s3")]
    pub(super) fn remove_empty(&self, tenant: &Tenant, namespace: Namespace) {
        let mut lasting = self.lasting.lock().unwrap_or_else(PoisonError::into_inner);
        for folder in self.namespace(tenant, namespace).ancestors().take_while(|folder| !folder.ends_with("tenants")) {
            lasting.remove(folder);
            // Fails if it is not empty.
            let _ = self.disk.remove_folder(folder);
        }
    }

    pub(super) fn path(&self, key: &BlobKey) -> PathBuf {
        self.root.join("tenants").join(key.to_string())
    }

    fn namespace(&self, tenant: &Tenant, namespace: Namespace) -> PathBuf {
        self.root.join("tenants").join(folder(tenant, namespace))
    }

    /// Moves a synced file into the store.
    fn move_into_place(&self, key: &BlobKey, file: &Path) -> Result<()> {
        self.move_to(&self.path(key), file)
    }

    /// Moves a synced file to a place below the root.
    pub(super) fn move_to(&self, path: &Path, file: &Path) -> Result<()> {
        let parent = path.parent().unwrap_or(&self.root);
        for attempt in 1.. {
            let moved = self.make_folders(parent).and_then(|()| self.disk.rename(file, path));
            match moved.and_then(|()| self.disk.sync_folder(parent)) {
                // Another server has deleted the empty folder meanwhile.
                Err(e) if e.kind() == ErrorKind::NotFound && attempt < MOVES => {
                    self.lasting.lock().unwrap_or_else(PoisonError::into_inner).retain(|known| *known == self.root);
                }
                moved => return moved.map_err(|e| Error::file(path, e)),
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Creates a folder below the root and syncs its directory entry.
    fn make_folders(&self, folder: &Path) -> std::io::Result<()> {
        if self.lasting.lock().unwrap_or_else(PoisonError::into_inner).contains(folder) {
            return Ok(());
        }
        let parent = folder.parent().unwrap_or(&self.root);
        self.make_folders(parent)?;
        self.disk.make_folder(folder)?;
        self.disk.sync_folder(parent)?;
        self.lasting.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned());
        Ok(())
    }

    fn sync(&self, folder: &Path) -> Result<()> {
        self.disk.sync_folder(folder).map_err(|e| Error::file(folder, e))
    }

    /// As [`Self::sync`], if the folder still exists. Another server may have deleted it.
    fn sync_deletion(&self, folder: &Path) -> Result<()> {
        match self.disk.sync_folder(folder) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            synced => synced.map_err(|e| Error::file(folder, e)),
        }
    }

    pub(super) fn names(&self, folder: &Path) -> Result<Vec<String>> {
        self.disk.names(folder).map_err(|e| Error::file(folder, e))
    }
}

impl Blobs for LocalBlobs {
    fn put(&self, key: &BlobKey, bytes: &[u8]) -> Result<()> {
        if self.confirm(key, bytes.len() as u64)? {
            return Ok(());
        }
        let scratch = self.scratch();
        let write = || {
            let mut file = self.create(&scratch)?;
            file.write_all(bytes)?;
            file.sync()
        };
        let written = write().map_err(|e| Error::file(&scratch, e)).and_then(|()| self.move_into_place(key, &scratch));
        if written.is_err() {
            // Do not fill the disk further with a file that could not be written.
            let _ = self.disk.remove(&scratch);
        }
        written
    }

    fn adopt(&self, key: &BlobKey, file: &Path) -> Result<()> {
        self.move_into_place(key, file)
    }

    fn confirm(&self, key: &BlobKey, size: u64) -> Result<bool> {
        let path = self.path(key);
        if self.len(key)? != Some(size) {
            return Ok(false);
        }
        let Some(reader) = self.open(key, 0)? else { return Ok(false) };
        if name_of_bytes(reader).map_err(|e| Error::file(&path, e))? != key.name() {
            return Ok(false);
        }
        // The rename may come from a process that was killed before it synced the folder.
        let parent = path.parent().unwrap_or(&self.root);
        self.make_folders(parent).map_err(|e| Error::file(parent, e))?;
        self.sync(parent)?;
        Ok(true)
    }

    fn open(&self, key: &BlobKey, offset: u64) -> Result<Option<Box<dyn Read + Send>>> {
        let path = self.path(key);
        self.disk.read(&path, offset).map_err(|e| Error::file(&path, e))
    }

    fn len(&self, key: &BlobKey) -> Result<Option<u64>> {
        let path = self.path(key);
        self.disk.len(&path).map_err(|e| Error::file(&path, e))
    }

    fn local(&self, key: &BlobKey) -> Result<Option<LocalFile>> {
        Ok(self.len(key)?.map(|_| LocalFile::lasting(self.path(key))))
    }

    fn delete(&self, key: &BlobKey) -> Result<()> {
        let path = self.path(key);
        if self.len(key)?.is_none() {
            return Ok(());
        }
        self.disk.remove(&path).map_err(|e| Error::file(&path, e))?;
        self.sync_deletion(path.parent().unwrap_or(&self.root))
    }

    fn list(&self, tenant: &Tenant, namespace: Namespace) -> Result<Vec<BlobName>> {
        // Foreign files are ignored.
        let names = self.names(&self.namespace(tenant, namespace))?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    fn clear(&self, tenant: &Tenant, namespace: Namespace) -> Result<()> {
        let path = self.namespace(tenant, namespace);
        let parent = path.parent().unwrap_or(&self.root);
        let own = path.file_name().unwrap_or_default();
        if !self.names(parent)?.iter().any(|name| own == name.as_str()) {
            return Ok(());
        }
        for name in self.list(tenant, namespace)? {
            let blob = path.join(name.to_string());
            self.disk.remove(&blob).map_err(|e| Error::file(&blob, e))?;
        }
        // Sync even if the folder is empty: the process that deleted its files may have been killed
        // before it synced.
        self.sync_deletion(&path)?;
        self.lasting.lock().unwrap_or_else(PoisonError::into_inner).remove(&path);
        self.disk.remove_folder(&path).map_err(|e| Error::file(&path, e))?;
        self.sync_deletion(parent)
    }

    fn namespaces(&self) -> Result<Vec<(Tenant, Namespace)>> {
        let mut namespaces = Vec::new();
        let tenants = self.root.join("tenants");
        for name in self.names(&tenants)? {
            let jobs = self.names(&tenants.join(&name).join("jobs"))?;
            let Ok(tenant) = Tenant::try_from(name) else { continue };
            let jobs = jobs.iter().filter_map(|id| id.parse::<JobId>().ok()).map(Namespace::Job);
            namespaces.extend(jobs.chain([Namespace::Uploads]).map(|namespace| (tenant.clone(), namespace)));
        }
        Ok(namespaces)
    }

    fn tenants(&self) -> Result<BTreeSet<Tenant>> {
        let mut holders = BTreeSet::new();
        for (tenant, namespace) in self.namespaces()? {
            // An erased tenant may have an empty folder.
            if !self.list(&tenant, namespace)?.is_empty() {
                holders.insert(tenant);
            }
        }
        Ok(holders)
    }

    fn owner(&self) -> Result<Option<String>> {
        let path = self.root.join(OWNER);
        let read = || {
            let Some(mut reader) = self.disk.read(&path, 0)? else { return Ok(None) };
            let mut name = String::new();
            reader.read_to_string(&mut name).map(|_| Some(name))
        };
        read().map_err(|e: std::io::Error| Error::file(&path, e))
    }

    /// `folder/lock` excludes other processes, or the database does, so nobody writes between the
    /// check and the rename.
    fn set_owner(&self, before: Option<&str>, after: &str) -> Result<bool> {
        if self.owner()?.as_deref() != before {
            return Ok(false);
        }
        let (path, scratch) = (self.root.join(OWNER), self.scratch());
        let write = || {
            let mut file = self.create(&scratch)?;
            file.write_all(after.as_bytes())?;
            file.sync()?;
            self.disk.rename(&scratch, &path)
        };
        if let Err(error) = write() {
            let _ = self.disk.remove(&scratch);
            return Err(Error::file(&path, error));
        }
        self.sync(&self.root).map(|()| true)
    }

    fn location(&self) -> String {
        self.root.display().to_string()
    }

    fn parts(&self) -> Option<&dyn PartStore> {
        Some(self)
    }
}
