//! Blobs in an object store that speaks S3. Files that must be local are kept in a folder beside it.

use super::{Blobs, Key, LocalBlobs, Shelf, folder, name_of_bytes, owned};
use crate::tenants::Tenant;
use crate::{Error, Result};
use futures_util::TryStreamExt;
use hetal_wire::BlobName;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path as ObjectPath;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, WriteMultipart};
use serde::Deserialize;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Runtime;

/// Bytes that are asked for or sent at once.
const PART: usize = 8 << 20;
/// Parts of an upload on their way at once.
const PARTS_AT_ONCE: usize = 4;
/// The object with the name of the database; no tenant has such a name.
const OWNER: &str = "owner.txt";

/// Where the store is. Credentials come from the environment (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct S3Config {
    /// The bucket.
    pub bucket: String,
    /// Its region.
    #[serde(default)]
    pub region: Option<String>,
    /// The address of a store that is not Amazon's.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// Whether that address may be without TLS.
    #[serde(default)]
    pub allow_http: bool,
    /// What the names of this server's objects begin with, where others share the bucket.
    #[serde(default)]
    pub prefix: String,
}

/// A bucket of blobs.
pub struct S3Blobs {
    store: Arc<dyn ObjectStore>,
    runtime: Arc<Runtime>,
    place: String,
    /// Blobs that are needed as files.
    local: LocalBlobs,
}

impl S3Blobs {
    /// The bucket of a configuration; `folder` holds local copies.
    pub fn open(config: &S3Config, folder: &Path) -> Result<Self> {
        Self::of(builder(config), config, folder)
    }

    fn of(builder: AmazonS3Builder, config: &S3Config, folder: &Path) -> Result<Self> {
        // Another part of the process may have chosen the same one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let store = builder.build().map_err(|e| Error::Config { reason: format!("S3: {e}") })?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime =
            runtime.map_err(|e| Error::System { what: "a thread for S3".to_owned(), reason: e.to_string() })?;
        let store = Arc::new(PrefixStore::new(store, config.prefix.as_str()));
        let place = format!("bucket {} under {:?}", config.bucket, config.prefix);
        Ok(Self { store, runtime: Arc::new(runtime), place, local: LocalBlobs::open(folder)? })
    }

    async fn send(&self, key: &Key, mut file: File) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let mut upload = WriteMultipart::new_with_chunk_size(self.store.put_multipart(&path(key)).await?, PART);
        if let Err(error) = fill(&mut upload, &mut file).await {
            // Parts of what was never whole are in no list, and would be there for ever.
            let _ = upload.abort().await;
            return Err(error);
        }
        upload.finish().await?;
        Ok(())
    }
}

/// Sends the parts of a file.
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

fn path(key: &Key) -> ObjectPath {
    ObjectPath::from(key.to_string())
}

fn failed(key: &Key, error: impl ToString) -> Error {
    Error::Blobs { key: key.to_string(), reason: error.to_string() }
}

impl Blobs for S3Blobs {
    fn put(&self, key: &Key, bytes: &[u8]) -> Result<()> {
        // Over what may be there, which has the same bytes unless it was damaged: to compare them would cost as much.
        let put = self.runtime.block_on(self.store.put(&path(key), bytes.to_vec().into()));
        put.map(|_| ()).map_err(|e| failed(key, e))
    }

    fn adopt(&self, key: &Key, file: &Path) -> Result<()> {
        let opened = File::open(file).map_err(|e| Error::file(file, e))?;
        self.runtime.block_on(self.send(key, opened)).map_err(|e| failed(key, e))?;
        std::fs::remove_file(file).map_err(|e| Error::file(file, e))
    }

    fn confirm(&self, key: &Key, size: u64) -> Result<bool> {
        if self.len(key)? != Some(size) {
            return Ok(false);
        }
        let Some(reader) = self.open(key, 0)? else { return Ok(false) };
        Ok(name_of_bytes(reader).map_err(|e| failed(key, e))? == key.name())
    }

    fn open(&self, key: &Key, offset: u64) -> Result<Option<Box<dyn Read + Send>>> {
        let Some(len) = self.len(key)? else { return Ok(None) };
        let (store, runtime) = (Arc::clone(&self.store), Arc::clone(&self.runtime));
        Ok(Some(Box::new(Ranges { store, runtime, path: path(key), offset, len, buffer: Vec::new(), used: 0 })))
    }

    fn len(&self, key: &Key) -> Result<Option<u64>> {
        match self.runtime.block_on(self.store.head(&path(key))) {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(failed(key, e)),
        }
    }

    fn local(&self, key: &Key) -> Result<Option<PathBuf>> {
        if let Some(path) = self.local.local(key)? {
            return Ok(Some(path));
        }
        let Some(mut reader) = self.open(key, 0)? else { return Ok(None) };
        let scratch = self.local.scratch();
        let mut copy = || {
            let mut file = File::create_new(&scratch)?;
            std::io::copy(&mut reader, &mut file)?;
            file.flush()?;
            file.sync_all()
        };
        copy().map_err(|e: std::io::Error| failed(key, e))?;
        let copied = File::open(&scratch).and_then(name_of_bytes).map_err(|e| failed(key, e))?;
        if copied != key.name() {
            let _ = std::fs::remove_file(&scratch);
            return Err(Error::Damaged { what: key.to_string() });
        }
        self.local.adopt(key, &scratch)?;
        self.local.local(key)
    }

    fn delete(&self, key: &Key) -> Result<()> {
        match self.runtime.block_on(self.store.delete(&path(key))) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => self.local.delete(key),
            Err(e) => Err(failed(key, e)),
        }
    }

    fn list(&self, tenant: &Tenant, shelf: Shelf) -> Result<Vec<BlobName>> {
        let prefix = ObjectPath::from(folder(tenant, shelf));
        let found = self.runtime.block_on(self.store.list(Some(&prefix)).try_collect::<Vec<_>>());
        let found = found.map_err(|e| Error::Blobs { key: prefix.to_string(), reason: e.to_string() })?;
        let mut names: Vec<BlobName> = found.iter().filter_map(|meta| meta.location.filename()?.parse().ok()).collect();
        // Copies here of what is gone there are blobs that someone must remove.
        names.extend(self.local.list(tenant, shelf)?);
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn clear(&self, tenant: &Tenant, shelf: Shelf) -> Result<()> {
        for name in self.list(tenant, shelf)? {
            self.delete(&Key::new(tenant, shelf, name))?;
        }
        self.local.clear(tenant, shelf)
    }

    fn shelves(&self) -> Result<Vec<(Tenant, Shelf)>> {
        let found = self.runtime.block_on(self.store.list(None).try_collect::<Vec<_>>());
        let found = found.map_err(|e| Error::Blobs { key: "the bucket".to_owned(), reason: e.to_string() })?;
        let mut shelves: Vec<_> = found.iter().filter_map(|meta| shelf_of(meta.location.as_ref())).collect();
        shelves.extend(self.local.shelves()?);
        shelves.sort();
        shelves.dedup();
        Ok(shelves)
    }

    fn owner(&self) -> Result<Option<String>> {
        let failed = |e: &dyn ToString| Error::Blobs { key: OWNER.to_owned(), reason: e.to_string() };
        let get = || async { self.store.get(&ObjectPath::from(OWNER)).await?.bytes().await };
        match self.runtime.block_on(get()) {
            Ok(bytes) => String::from_utf8(bytes.to_vec()).map(Some).map_err(|e| failed(&e)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(failed(&e)),
        }
    }

    fn set_owner(&self, name: &str) -> Result<()> {
        // The store refuses the second of two servers that find no name at the same time.
        let mode = PutOptions::from(PutMode::Create);
        match self.runtime.block_on(self.store.put_opts(&ObjectPath::from(OWNER), name.to_owned().into(), mode)) {
            Ok(_) => Ok(()),
            Err(object_store::Error::AlreadyExists { .. }) => Err(owned(self)),
            Err(e) => Err(Error::Blobs { key: OWNER.to_owned(), reason: e.to_string() }),
        }
    }

    fn place(&self) -> String {
        self.place.clone()
    }
}

/// The shelf that a key, as text, stands on.
fn shelf_of(key: &str) -> Option<(Tenant, Shelf)> {
    let mut words = key.split('/');
    let tenant = Tenant::try_from(words.next()?.to_owned()).ok()?;
    match words.next()? {
        "uploads" => Some((tenant, Shelf::Uploads)),
        "jobs" => Some((tenant, Shelf::Job(words.next()?.parse().ok()?))),
        _ => None,
    }
}

/// Reads an object range by range.
struct Ranges {
    store: Arc<dyn ObjectStore>,
    runtime: Arc<Runtime>,
    path: ObjectPath,
    offset: u64,
    len: u64,
    buffer: Vec<u8>,
    used: usize,
}

impl Read for Ranges {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.used == self.buffer.len() && self.offset < self.len {
            let end = self.len.min(self.offset + PART as u64);
            let bytes = self.runtime.block_on(self.store.get_range(&self.path, self.offset..end));
            self.buffer = bytes.map_err(std::io::Error::other)?.to_vec();
            (self.used, self.offset) = (0, end);
        }
        let count = (&self.buffer[self.used..]).read(out)?;
        self.used += count;
        Ok(count)
    }
}

#[cfg(all(test, feature = "s3-tests"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hetal_testkit::TempDir;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use hyper_util::server::conn::auto::Builder;
    use s3s::auth::SimpleAuth;
    use s3s::service::S3ServiceBuilder;

    /// A server that speaks S3, over a folder.
    fn server(runtime: &Runtime, folder: &Path) -> std::net::SocketAddr {
        std::fs::create_dir_all(folder.join("bucket")).unwrap();
        let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder).unwrap());
        builder.set_auth(SimpleAuth::from_single("someone", "something"));
        let service = builder.build();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = service.clone();
                tokio::spawn(async move {
                    let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        address
    }

    #[test]
    fn a_bucket_is_a_store() {
        let dir = TempDir::new();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let address = server(&runtime, &dir.path().join("s3"));
        let config = S3Config {
            bucket: "bucket".to_owned(),
            region: Some("nowhere-1".to_owned()),
            endpoint: Some(format!("http://{address}")),
            allow_http: true,
            prefix: String::new(),
        };
        let open = |prefix: &str, local: &str| {
            let config = S3Config { prefix: prefix.to_owned(), ..config.clone() };
            let builder = builder(&config).with_access_key_id("someone").with_secret_access_key("something");
            S3Blobs::of(builder, &config, &dir.path().join(local)).unwrap()
        };
        let blobs = open("some/where", "local");
        super::super::suite::check(&blobs, dir.path());
        // Others in the bucket are out of sight.
        let others = open("some/where-else", "others");
        super::super::suite::check(&others, dir.path());
        let ann = "ann".to_owned().try_into().unwrap();
        others.clear(&ann, Shelf::Uploads).unwrap();
        assert_eq!(blobs.list(&ann, Shelf::Uploads).unwrap().len(), 3);
        // What was damaged there is put right.
        let key = Key::new(&ann, Shelf::Uploads, super::super::name_of(b"hello"));
        runtime.block_on(blobs.store.put(&path(&key), b"jello".to_vec().into())).unwrap();
        assert!(super::super::read(&blobs, &key, 5).is_err());
        blobs.put(&key, b"hello").unwrap();
        assert_eq!(super::super::read(&blobs, &key, 5).unwrap(), b"hello");
        // A blob of several parts comes back through a file of its own.
        let bytes: Vec<u8> = (0..3 * PART + 5).map(|i| (i * 7 % 251) as u8).collect();
        let file = dir.path().join("large");
        std::fs::write(&file, &bytes).unwrap();
        let key = Key::new(&"ann".to_owned().try_into().unwrap(), Shelf::Uploads, super::super::name_of(&bytes));
        blobs.adopt(&key, &file).unwrap();
        assert!(super::super::read(&blobs, &key, bytes.len() as u64).unwrap() == bytes);
        assert!(std::fs::read(blobs.local(&key).unwrap().unwrap()).unwrap() == bytes);
    }
}
