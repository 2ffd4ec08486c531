//! Where the bytes are: uploads, checkpoints and results, each written once and named by its hash.

mod local;
mod memory;
#[cfg(feature = "s3")]
mod s3;

pub use local::LocalBlobs;
pub use memory::MemoryBlobs;
#[cfg(feature = "s3")]
pub use s3::{S3Blobs, S3Config};

use crate::config::Config;
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_wire::{BlobName, JobId};
use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What a folder of blobs is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Namespace {
    /// What a client sent.
    Uploads,
    /// What a job made.
    Job(JobId),
}

/// Where a blob is: `tenant/uploads/name` or `tenant/jobs/id/name`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    tenant: Tenant,
    namespace: Namespace,
    name: BlobName,
}

impl Key {
    /// A blob of a tenant.
    pub fn new(tenant: &Tenant, namespace: Namespace, name: BlobName) -> Self {
        Self { tenant: tenant.clone(), namespace, name }
    }

    /// What is said where it is not there.
    pub fn missing(&self) -> Error {
        match self.namespace {
            Namespace::Uploads => Error::NoBlob { name: self.name },
            Namespace::Job(_) => Error::NoOutput { name: self.name },
        }
    }

    /// The hash it is named by.
    pub fn name(&self) -> BlobName {
        self.name
    }
}

/// The folder of a shelf.
pub(crate) fn folder(tenant: &Tenant, namespace: Namespace) -> String {
    match namespace {
        Namespace::Uploads => format!("{tenant}/uploads"),
        Namespace::Job(id) => format!("{tenant}/jobs/{id}"),
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", folder(&self.tenant, self.namespace), self.name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A store of blobs. What was put survives the machine's sudden end; nothing is ever there in part.
pub trait Blobs: Send + Sync {
    /// Stores bytes. A blob that is there already stays as it is, unless it was damaged.
    fn put(&self, key: &Key, bytes: &[u8]) -> Result<()>;

    /// Takes over a file that its owner is done with, and that has been synced.
    fn adopt(&self, key: &Key, file: &Path) -> Result<()>;

    /// Whether a blob is there with the bytes it is named after, of this number; if so, it stays whatever happens.
    fn confirm(&self, key: &Key, size: u64) -> Result<bool>;

    /// The bytes from an offset; `None` if there is no such blob.
    fn open(&self, key: &Key, offset: u64) -> Result<Option<Box<dyn Read + Send>>>;

    /// The length of a blob, if there is one.
    fn len(&self, key: &Key) -> Result<Option<u64>>;

    /// A local file with the blob's bytes, which stays while the blob does.
    fn local(&self, key: &Key) -> Result<Option<PathBuf>>;

    /// Removes a blob; it need not be there.
    fn delete(&self, key: &Key) -> Result<()>;

    /// The names on a shelf, in order.
    fn list(&self, tenant: &Tenant, namespace: Namespace) -> Result<Vec<BlobName>>;

    /// Removes a shelf and everything on it.
    fn clear(&self, tenant: &Tenant, namespace: Namespace) -> Result<()>;

    /// All shelves there are, of all tenants.
    fn namespaces(&self) -> Result<Vec<(Tenant, Namespace)>>;

    /// Tenants who have blobs in it; copies that are kept beside it do not count.
    fn tenants(&self) -> Result<BTreeSet<Tenant>>;

    /// Whose the blobs are, in words of `pairing`, once that is written down.
    fn owner(&self) -> Result<Option<String>>;

    /// Writes that down in place of `before`; gives whether it did: not where something else is there by now.
    fn set_owner(&self, before: Option<&str>, after: &str) -> Result<bool>;

    /// Where it is, in words.
    fn location(&self) -> String;
}

/// The store that a configuration asks for.
pub(crate) fn open(config: &Config) -> Result<std::sync::Arc<dyn Blobs>> {
    let folder = config.folder.join("blobs");
    #[cfg(feature = "s3")]
    if let Some(s3) = &config.s3 {
        return Ok(std::sync::Arc::new(S3Blobs::open(s3, &folder, config.bounds.spare_bytes)?));
    }
    Ok(std::sync::Arc::new(LocalBlobs::open(&folder)?))
}

/// All bytes of a blob of at most `most` bytes, after comparing them with its name.
pub fn read(blobs: &dyn Blobs, key: &Key, most: u64) -> Result<Vec<u8>> {
    let reader = blobs.open(key, 0)?.ok_or_else(|| key.missing())?;
    let mut bytes = Vec::new();
    let count = reader.take(most + 1).read_to_end(&mut bytes);
    let count = count.map_err(|e| Error::Blobs { key: key.to_string(), reason: e.to_string() })?;
    if count as u64 > most || name_of(&bytes) != key.name {
        return Err(Error::Damaged { what: key.to_string() });
    }
    Ok(bytes)
}

/// The name of all bytes that a reader gives.
pub(crate) fn name_of_bytes(reader: impl Read) -> std::io::Result<BlobName> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(reader)?;
    Ok(BlobName(*hasher.finalize().as_bytes()))
}

/// The name of some bytes.
pub fn name_of(bytes: &[u8]) -> BlobName {
    BlobName(*blake3::hash(bytes).as_bytes())
}
