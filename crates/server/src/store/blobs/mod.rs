//! Blob storage: uploads, checkpoints and results. A blob is immutable and named by its hash.

mod local;
mod local_parts;
mod memory;
#[cfg(feature = "s3")]
mod s3;

pub use local::LocalBlobs;
pub use memory::MemoryBlobs;
#[cfg(feature = "s3")]
pub use s3::{S3Blobs, S3Config};

use crate::config::Config;
use crate::store::parts::StoredPart;
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_wire::{BlobName, JobId};
use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Who a blob belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Namespace {
    /// A tenant's uploads.
    Uploads,
    /// The outputs of a job.
    Job(JobId),
}

/// The location of a blob: `tenant/uploads/name` or `tenant/jobs/id/name`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobKey {
    tenant: Tenant,
    namespace: Namespace,
    name: BlobName,
}

impl BlobKey {
    /// Creates the key of a tenant's blob.
    pub fn new(tenant: &Tenant, namespace: Namespace, name: BlobName) -> Self {
        Self { tenant: tenant.clone(), namespace, name }
    }

    /// The error for a missing blob.
    pub fn missing(&self) -> Error {
        match self.namespace {
            Namespace::Uploads => Error::NoBlob { name: self.name },
            Namespace::Job(_) => Error::NoOutput { name: self.name },
        }
    }

    /// The blob's name: its hash.
    pub fn name(&self) -> BlobName {
        self.name
    }

    /// Which of the tenant's blobs it is among.
    pub(crate) fn namespace(&self) -> Namespace {
        self.namespace
    }

    /// Whose blob it is.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }
}

/// The folder of a namespace.
pub(crate) fn folder(tenant: &Tenant, namespace: Namespace) -> String {
    match namespace {
        Namespace::Uploads => format!("{tenant}/uploads"),
        Namespace::Job(id) => format!("{tenant}/jobs/{id}"),
    }
}

impl fmt::Display for BlobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", folder(&self.tenant, self.namespace), self.name)
    }
}

impl fmt::Debug for BlobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A local file with the content of a blob. The store makes no room by deleting it while this
/// exists.
#[derive(Debug)]
pub struct LocalFile {
    path: PathBuf,
    /// Marks a copy as in use.
    _in_use: Option<Arc<Mutex<()>>>,
}

impl LocalFile {
    /// A file that exists as long as the blob.
    fn lasting(path: PathBuf) -> Self {
        Self { path, _in_use: None }
    }
}

impl Deref for LocalFile {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<Path> for LocalFile {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// A blob store. Stored blobs survive a power cut, and a blob is never stored in part.
pub trait Blobs: Send + Sync {
    /// Stores bytes. An existing blob stays as it is, unless it is damaged.
    fn put(&self, key: &BlobKey, bytes: &[u8]) -> Result<()>;

    /// Moves a synced file into the store.
    fn adopt(&self, key: &BlobKey, file: &Path) -> Result<()>;

    /// Whether the blob is stored with the right content and size. If so, it is durable.
    fn confirm(&self, key: &BlobKey, size: u64) -> Result<bool>;

    /// Reads a blob from an offset; `None` if there is no such blob.
    fn open(&self, key: &BlobKey, offset: u64) -> Result<Option<Box<dyn Read + Send>>>;

    /// The size of a blob, if it exists.
    fn len(&self, key: &BlobKey) -> Result<Option<u64>>;

    /// A local file with the content of a blob.
    fn local(&self, key: &BlobKey) -> Result<Option<LocalFile>>;

    /// Deletes a blob, if it exists.
    fn delete(&self, key: &BlobKey) -> Result<()>;

    /// The names in a namespace, sorted.
    fn list(&self, tenant: &Tenant, namespace: Namespace) -> Result<Vec<BlobName>>;

    /// Deletes a namespace with all its blobs.
    fn clear(&self, tenant: &Tenant, namespace: Namespace) -> Result<()>;

    /// All namespaces of all tenants.
    fn namespaces(&self) -> Result<Vec<(Tenant, Namespace)>>;

    /// Tenants with blobs in the store. Local copies do not count.
    fn tenants(&self) -> Result<BTreeSet<Tenant>>;

    /// The recorded owner of the blobs, in the format of `ownership`.
    fn owner(&self) -> Result<Option<String>>;

    /// Replaces the recorded owner `before` by `after`. Returns false if another owner is recorded.
    fn set_owner(&self, before: Option<&str>, after: &str) -> Result<bool>;

    /// The location of the store, for messages.
    fn location(&self) -> String;

    /// Whether a look at a blob crosses a network, which may be slow or down.
    fn is_remote(&self) -> bool {
        false
    }

    /// Deletes local copies of uploads that are no longer needed. Returns their number.
    fn drop_copies(&self, _is_needed: &dyn Fn(&Tenant, BlobName) -> Result<bool>) -> Result<usize> {
        Ok(0)
    }

    /// How the store receives blobs in parts; `None` if it does not.
    fn parts(&self) -> Option<&dyn PartStore> {
        None
    }
}

/// A store that receives a blob in parts, from one server after the other.
pub trait PartStore: Send + Sync {
    /// Begins a blob. Returns the store's name for it.
    fn begin(&self, key: &BlobKey) -> Result<String>;

    /// Stores a part durably. Returns a receipt; `None` if the store no longer knows the blob.
    fn put_part(&self, key: &BlobKey, id: &str, number: usize, bytes: Vec<u8>) -> Result<Option<String>>;

    /// Makes a blob of its parts, if `confirm` succeeds right before. Returns false if the store no
    /// longer has them as they were.
    fn join(&self, key: &BlobKey, id: &str, parts: &[StoredPart], confirm: &dyn Fn() -> Result<()>) -> Result<bool>;

    /// Deletes the parts of a blob that is not joined.
    fn discard(&self, key: &BlobKey, id: &str) -> Result<()>;

    /// Blobs with parts, as far as the store lists them.
    fn unfinished(&self) -> Result<Vec<BlobKey>>;

    /// Deletes what servers that are gone were writing. They have written nothing for longer than
    /// `age`. Returns the number of files.
    fn delete_scratch(&self, _age: Duration) -> Result<usize> {
        Ok(0)
    }

    /// Free space in bytes, if the store knows.
    fn free(&self) -> Result<Option<u64>>;
}

/// Opens the configured blob store. A server that shares it with others has a name.
pub(crate) fn open(config: &Config, server: Option<&str>) -> Result<Arc<dyn Blobs>> {
    let folder = config.folder.join("blobs");
    #[cfg(feature = "s3")]
    if let Some(s3) = &config.s3 {
        return Ok(Arc::new(S3Blobs::open(s3, &folder, config.bounds.spare_bytes)?));
    }
    let folder = config.blobs.clone().unwrap_or(folder);
    Ok(Arc::new(match server {
        Some(server) => LocalBlobs::open_shared(&folder, server)?,
        None => LocalBlobs::open(&folder)?,
    }))
}

/// Reads a blob of at most `max_bytes` bytes and verifies its hash.
pub fn read(blobs: &dyn Blobs, key: &BlobKey, max_bytes: u64) -> Result<Vec<u8>> {
    let reader = blobs.open(key, 0)?.ok_or_else(|| key.missing())?;
    let mut bytes = Vec::new();
    let count = reader.take(max_bytes + 1).read_to_end(&mut bytes);
    let count = count.map_err(|e| Error::Blobs { key: key.to_string(), reason: e.to_string() })?;
    if count as u64 > max_bytes || name_of(&bytes) != key.name {
        return Err(Error::Damaged { what: key.to_string() });
    }
    Ok(bytes)
}

/// Hashes the content of a reader.
pub(crate) fn name_of_bytes(reader: impl Read) -> std::io::Result<BlobName> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(reader)?;
    Ok(BlobName(*hasher.finalize().as_bytes()))
}

/// Whether a file has the content that a name stands for. A missing file has not.
pub(crate) fn has_content(path: &Path, name: BlobName) -> Result<bool> {
    match std::fs::File::open(path).and_then(name_of_bytes) {
        Ok(found) => Ok(found == name),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::file(path, e)),
    }
}

/// Hashes bytes.
pub fn name_of(bytes: &[u8]) -> BlobName {
    BlobName(*blake3::hash(bytes).as_bytes())
}
