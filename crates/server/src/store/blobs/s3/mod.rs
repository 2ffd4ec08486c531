//! Blobs in an S3 bucket. Blobs that are needed as files are copied to a local folder.

mod parts;
mod reader;
#[cfg(all(test, feature = "s3-tests"))]
mod tests;

use super::{BlobKey, Blobs, LocalBlobs, LocalFile, Namespace, PartStore, folder, name_of_bytes};
use crate::tenants::Tenant;
use crate::{Error, Result};
use futures_util::TryStreamExt;
use hetal_wire::BlobName;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path as ObjectPath;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion, WriteMultipart};
use reader::RangeReader;
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;
use tokio::runtime::Runtime;

/// Bytes per request.
const PART: usize = 8 << 20;
/// Concurrent parts of an upload.
const PARTS_AT_ONCE: usize = 4;
/// The object that records the owner of the blobs. No tenant can have this name.
const OWNER: &str = "owner.txt";

/// The bucket. Credentials come from the environment (`AWS_ACCESS_KEY_ID`,
/// `AWS_SECRET_ACCESS_KEY`).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct S3Config {
    /// Its name.
    pub bucket: String,
    /// Its region.
    #[serde(default)]
    pub region: Option<String>,
    /// The address of a store other than Amazon's.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// Whether the address may use plain HTTP.
    #[serde(default)]
    pub allow_http: bool,
    /// Prefix of all object names, for buckets with several users.
    #[serde(default)]
    pub prefix: String,
}

/// Locks of the local copies that are made or used, so that one thread copies each blob.
type Copies = HashMap<BlobKey, Weak<Mutex<()>>>;

fn is_in_use(copies: &Copies, key: &BlobKey) -> bool {
    copies.get(key).is_some_and(|copy| copy.strong_count() > 0)
}

/// A blob store in an S3 bucket.
pub struct S3Blobs {
    store: Arc<dyn ObjectStore>,
    /// The whole bucket, for multipart uploads that several servers continue.
    bucket: AmazonS3,
    /// The prefix of the objects of `store`.
    prefix: ObjectPath,
    runtime: Arc<Runtime>,
    location: String,
    /// Local copies.
    local: LocalBlobs,
    /// Bytes of disk space that local copies leave free.
    reserve_bytes: u64,
    copies: Mutex<Copies>,
    /// Whether the store was seen to refuse a write whose condition fails.
    conditions_checked: AtomicBool,
}

impl S3Blobs {
    /// Opens a bucket. `folder` holds local copies, which leave `reserve_bytes` of disk space free.
    pub fn open(config: &S3Config, folder: &Path, reserve_bytes: u64) -> Result<Self> {
        Self::of(builder(config), config, folder, reserve_bytes)
    }

    fn of(builder: AmazonS3Builder, config: &S3Config, folder: &Path, reserve_bytes: u64) -> Result<Self> {
        // Another part of the process may have installed the same provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let store = builder.build().map_err(|e| Error::Config { reason: format!("S3: {e}") })?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime =
            runtime.map_err(|e| Error::System { what: "a thread for S3".to_owned(), reason: e.to_string() })?;
        let (bucket, prefix) = (store.clone(), ObjectPath::from(config.prefix.as_str()));
        let store = Arc::new(PrefixStore::new(store, prefix.clone()));
        let location = format!("bucket {} under {:?}", config.bucket, config.prefix);
        Ok(Self {
            store,
            bucket,
            prefix,
            runtime: Arc::new(runtime),
            location,
            local: LocalBlobs::open(folder)?,
            reserve_bytes,
            copies: Mutex::default(),
            conditions_checked: AtomicBool::new(false),
        })
    }

    /// The lock for copying a blob to a local file. While it exists the file is in use.
    fn copy_lock(&self, key: &BlobKey) -> Arc<Mutex<()>> {
        let mut copies = self.copies();
        copies.retain(|_, copy| copy.strong_count() > 0);
        if let Some(copy) = copies.get(key).and_then(Weak::upgrade) {
            return copy;
        }
        let copy = Arc::default();
        copies.insert(key.clone(), Arc::downgrade(&copy));
        copy
    }

    /// Copies a blob to a file. The caller removes the file after an error.
    fn copy(&self, key: &BlobKey, to: &Path) -> Result<()> {
        let mut reader = self.open(key, 0)?.ok_or(Error::NoBlob { name: key.name() })?;
        let mut copy = || {
            let mut file = File::create_new(to)?;
            std::io::copy(&mut reader, &mut file)?;
            file.flush()?;
            file.sync_all()?;
            name_of_bytes(File::open(to)?)
        };
        let copied = copy().map_err(|e: std::io::Error| failed(key, e))?;
        if copied == key.name() { Ok(()) } else { Err(Error::Damaged { what: key.to_string() }) }
    }

    /// Copies a blob to its local file. Returns false if there is no such blob.
    fn fetch(&self, key: &BlobKey) -> Result<bool> {
        let Some(bytes) = self.len(key)? else { return Ok(false) };
        self.make_room(bytes)?;
        let scratch = self.local.scratch();
        let fetched = self.copy(key, &scratch).and_then(|()| self.local.adopt(key, &scratch));
        if fetched.is_err() {
            let _ = std::fs::remove_file(&scratch);
        }
        fetched.map(|()| true)
    }

    /// Deletes copies that nobody uses until another one fits, those that were used longest ago
    /// first.
    fn make_room(&self, bytes: u64) -> Result<()> {
        let wanted = bytes.saturating_add(self.reserve_bytes);
        if wanted <= self.local.free()? {
            return Ok(());
        }
        let mut unused = self.unused_copies()?;
        unused.sort();
        let most = unused.iter().fold(self.local.free()?, |sum, (_, bytes, _)| sum.saturating_add(*bytes));
        for (_, _, key) in unused.iter().filter(|_| wanted <= most) {
            if self.drop_unused(key)? && wanted <= self.local.free()? {
                return Ok(());
            }
        }
        let message = format!("the server has no disk space for {bytes} bytes of keys: try again later");
        Err(Error::Busy { message })
    }

    /// The local copies that nobody uses, with the times of their last uses and their sizes.
    fn unused_copies(&self) -> Result<Vec<(SystemTime, u64, BlobKey)>> {
        let mut unused = Vec::new();
        for (tenant, namespace) in self.local.namespaces()? {
            for name in self.local.list(&tenant, namespace)? {
                let key = BlobKey::new(&tenant, namespace, name);
                // It may be deleted meanwhile.
                let Ok(found) = std::fs::metadata(self.local.path(&key)) else { continue };
                if !is_in_use(&self.copies(), &key) {
                    unused.push((found.modified().unwrap_or(SystemTime::UNIX_EPOCH), found.len(), key));
                }
            }
        }
        Ok(unused)
    }

    /// Deletes a local copy, unless somebody uses it.
    fn drop_unused(&self, key: &BlobKey) -> Result<bool> {
        // Nobody begins to use it meanwhile.
        let copies = self.copies();
        if is_in_use(&copies, key) {
            return Ok(false);
        }
        self.local.delete(key).map(|()| true)
    }

    fn copies(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The namespaces of all objects in the bucket.
    fn object_namespaces(&self) -> Result<Vec<(Tenant, Namespace)>> {
        let found = self.runtime.block_on(self.store.list(None).try_collect::<Vec<_>>());
        let found = found.map_err(|e| Error::Blobs { key: "the bucket".to_owned(), reason: e.to_string() })?;
        Ok(found.iter().filter_map(|meta| namespace_of(meta.location.as_ref())).collect())
    }

    /// The recorded owner and its version.
    async fn read_owner(&self) -> object_store::Result<Option<(Vec<u8>, UpdateVersion)>> {
        match self.store.get(&ObjectPath::from(OWNER)).await {
            Ok(found) => {
                let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
                Ok(Some((found.bytes().await?.to_vec(), version)))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Records the owner if a condition holds. Returns whether it did.
    fn write_owner(&self, text: &str, condition: PutMode) -> Result<bool> {
        use object_store::Error::{AlreadyExists, Precondition};
        let (path, options) = (ObjectPath::from(OWNER), PutOptions::from(condition));
        match self.runtime.block_on(self.store.put_opts(&path, text.to_owned().into(), options)) {
            Ok(_) => Ok(true),
            Err(AlreadyExists { .. } | Precondition { .. }) => Ok(false),
            Err(e) => Err(Error::Blobs {
                key: OWNER.to_owned(),
                reason: format!("{e} (the store must support conditional writes with If-None-Match and If-Match)"),
            }),
        }
    }

    /// Checks once that the store refuses writes whose condition fails. Otherwise two servers could
    /// own the same blobs.
    fn check_conditional_writes(&self, text: &str) -> Result<()> {
        if self.conditions_checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let never = UpdateVersion { e_tag: Some("\"0\"".to_owned()), version: None };
        if self.write_owner(text, PutMode::Update(never))? {
            return Err(Error::Config {
                reason: format!(
                    "the store of {} ignores the conditions of writes (If-Match), so two servers could own the same blobs: use another \
                     store",
                    self.location
                ),
            });
        }
        self.conditions_checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn send(&self, key: &BlobKey, mut file: File) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let mut upload = WriteMultipart::new_with_chunk_size(self.store.put_multipart(&path(key)).await?, PART);
        if let Err(error) = fill(&mut upload, &mut file).await {
            // Parts of an unfinished upload appear in no listing and would never be deleted.
            let _ = upload.abort().await;
            return Err(error);
        }
        upload.finish().await?;
        Ok(())
    }
}

/// Uploads a file in parts.
async fn fill(upload: &mut WriteMultipart, file: &mut File) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(()),
            count => upload.write(&buffer[..count]),
        }
        upload.wait_for_capacity(PARTS_AT_ONCE).await?;
    }
}

fn builder(config: &S3Config) -> AmazonS3Builder {
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(&config.bucket).with_allow_http(config.allow_http);
    if let Some(region) = &config.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    builder
}

fn path(key: &BlobKey) -> ObjectPath {
    ObjectPath::from(key.to_string())
}

fn failed(key: &BlobKey, error: impl ToString) -> Error {
    Error::Blobs { key: key.to_string(), reason: error.to_string() }
}

impl Blobs for S3Blobs {
    fn put(&self, key: &BlobKey, bytes: &[u8]) -> Result<()> {
        // Overwrites an existing blob, which has the same content unless it is damaged. Comparing
        // would cost as much.
        let put = self.runtime.block_on(self.store.put(&path(key), bytes.to_vec().into()));
        put.map(|_| ()).map_err(|e| failed(key, e))
    }

    fn adopt(&self, key: &BlobKey, file: &Path) -> Result<()> {
        let opened = File::open(file).map_err(|e| Error::file(file, e))?;
        self.runtime.block_on(self.send(key, opened)).map_err(|e| failed(key, e))?;
        std::fs::remove_file(file).map_err(|e| Error::file(file, e))
    }

    fn confirm(&self, key: &BlobKey, size: u64) -> Result<bool> {
        if self.len(key)? != Some(size) {
            return Ok(false);
        }
        let Some(reader) = self.open(key, 0)? else { return Ok(false) };
        // A damaged local copy is fetched again when it is needed.
        if self.local.len(key)?.is_some() && !self.local.confirm(key, size)? {
            self.local.delete(key)?;
        }
        Ok(name_of_bytes(reader).map_err(|e| failed(key, e))? == key.name())
    }

    fn open(&self, key: &BlobKey, offset: u64) -> Result<Option<Box<dyn Read + Send>>> {
        let Some(len) = self.len(key)? else { return Ok(None) };
        let (store, runtime) = (Arc::clone(&self.store), Arc::clone(&self.runtime));
        Ok(Some(Box::new(RangeReader { store, runtime, path: path(key), offset, len, buffer: Vec::new(), used: 0 })))
    }

    fn len(&self, key: &BlobKey) -> Result<Option<u64>> {
        match self.runtime.block_on(self.store.head(&path(key))) {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(failed(key, e)),
        }
    }

    fn local(&self, key: &BlobKey) -> Result<Option<LocalFile>> {
        let in_use = self.copy_lock(key);
        let alone = in_use.lock().unwrap_or_else(PoisonError::into_inner);
        if self.local.len(key)?.is_none() && !self.fetch(key)? {
            return Ok(None);
        }
        drop(alone);
        let path = self.local.path(key);
        // The time says which copy was used last.
        let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Ok(Some(LocalFile { path, _in_use: Some(in_use) }))
    }

    fn delete(&self, key: &BlobKey) -> Result<()> {
        match self.runtime.block_on(self.store.delete(&path(key))) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => self.local.delete(key),
            Err(e) => Err(failed(key, e)),
        }
    }

    fn list(&self, tenant: &Tenant, namespace: Namespace) -> Result<Vec<BlobName>> {
        let prefix = ObjectPath::from(folder(tenant, namespace));
        let found = self.runtime.block_on(self.store.list(Some(&prefix)).try_collect::<Vec<_>>());
        let found = found.map_err(|e| Error::Blobs { key: prefix.to_string(), reason: e.to_string() })?;
        let mut names: Vec<BlobName> = found.iter().filter_map(|meta| meta.location.filename()?.parse().ok()).collect();
        // Local copies of deleted blobs must be listed too, so that they are deleted.
        names.extend(self.local.list(tenant, namespace)?);
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn clear(&self, tenant: &Tenant, namespace: Namespace) -> Result<()> {
        for name in self.list(tenant, namespace)? {
            self.delete(&BlobKey::new(tenant, namespace, name))?;
        }
        self.local.clear(tenant, namespace)
    }

    fn namespaces(&self) -> Result<Vec<(Tenant, Namespace)>> {
        let mut namespaces = self.object_namespaces()?;
        namespaces.extend(self.local.namespaces()?);
        namespaces.sort();
        namespaces.dedup();
        Ok(namespaces)
    }

    fn tenants(&self) -> Result<BTreeSet<Tenant>> {
        Ok(self.object_namespaces()?.into_iter().map(|(tenant, _)| tenant).collect())
    }

    fn owner(&self) -> Result<Option<String>> {
        let failed = |e: &dyn ToString| Error::Blobs { key: OWNER.to_owned(), reason: e.to_string() };
        let recorded = self.runtime.block_on(self.read_owner()).map_err(|e| failed(&e))?;
        recorded.map(|(bytes, _)| String::from_utf8(bytes).map_err(|e| failed(&e))).transpose()
    }

    fn set_owner(&self, before: Option<&str>, after: &str) -> Result<bool> {
        let recorded = self.runtime.block_on(self.read_owner());
        let recorded = recorded.map_err(|e| Error::Blobs { key: OWNER.to_owned(), reason: e.to_string() })?;
        // If two servers write at the same time, the store refuses the second.
        let condition = match (before, recorded) {
            (None, None) => PutMode::Create,
            (Some(before), Some((there, version))) if there == before.as_bytes() => PutMode::Update(version),
            _ => return Ok(false),
        };
        if !self.write_owner(after, condition)? {
            // If the response to a successful write was lost, the client library's retry is
            // refused.
            return Ok(self.owner()?.as_deref() == Some(after));
        }
        self.check_conditional_writes(after).map(|()| true)
    }

    fn location(&self) -> String {
        self.location.clone()
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn drop_copies(&self, is_needed: &dyn Fn(&Tenant, BlobName) -> Result<bool>) -> Result<usize> {
        let mut dropped = 0;
        for (tenant, namespace) in self.local.namespaces()? {
            for name in self.local.list(&tenant, namespace)? {
                if !is_needed(&tenant, name)? {
                    dropped += usize::from(self.drop_unused(&BlobKey::new(&tenant, namespace, name))?);
                }
            }
            self.local.remove_empty(&tenant, namespace);
        }
        Ok(dropped)
    }

    fn parts(&self) -> Option<&dyn PartStore> {
        Some(self)
    }
}

/// The namespace of an object.
fn namespace_of(key: &str) -> Option<(Tenant, Namespace)> {
    let mut words = key.split('/');
    let tenant = Tenant::try_from(words.next()?.to_owned()).ok()?;
    match words.next()? {
        "uploads" => Some((tenant, Namespace::Uploads)),
        "jobs" => Some((tenant, Namespace::Job(words.next()?.parse().ok()?))),
        _ => None,
    }
}
