//! The store against a server that speaks S3.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::store::blobs::{name_of, read};
use crate::store::ownership::tests as ownership;
use crate::store::state::SqliteState;
use crate::testing::suites;
use hetal_testkit::TempDir;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use object_store::aws::S3ConditionalPut;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, PutMultipartOptions, PutPayload,
    PutResult,
};
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;

/// An S3 server over a folder.
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

/// A bucket on a test server, with local folders for its users.
struct Bucket {
    dir: TempDir,
    runtime: Runtime,
    config: S3Config,
}

impl Bucket {
    fn new() -> Self {
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
        Self { dir, runtime, config }
    }

    fn open(&self, prefix: &str, local: &str) -> S3Blobs {
        self.open_with(prefix, local, 0, |builder| builder)
    }

    fn open_with(
        &self,
        prefix: &str,
        local: &str,
        reserve_bytes: u64,
        change: fn(AmazonS3Builder) -> AmazonS3Builder,
    ) -> S3Blobs {
        let config = S3Config { prefix: prefix.to_owned(), ..self.config.clone() };
        let builder = builder(&config).with_access_key_id("someone").with_secret_access_key("something");
        S3Blobs::of(change(builder), &config, &self.dir.path().join(local), reserve_bytes).unwrap()
    }

    /// Overwrites a blob with other bytes.
    fn damage(&self, blobs: &S3Blobs, key: &BlobKey) {
        self.runtime.block_on(blobs.store.put(&path(key), b"jello".to_vec().into())).unwrap();
    }
}

fn tenant(name: &str) -> Tenant {
    name.to_owned().try_into().unwrap()
}

#[test]
fn a_bucket_is_a_store() {
    let bucket = Bucket::new();
    let dir = bucket.dir.path();
    let blobs = bucket.open("some/where", "local");
    suites::blobs::check(&blobs, dir);
    // Other prefixes of the bucket are invisible.
    let others = bucket.open("some/where-else", "others");
    suites::blobs::check(&others, dir);
    let ann = tenant("ann");
    others.clear(&ann, Namespace::Uploads).unwrap();
    assert_eq!(blobs.list(&ann, Namespace::Uploads).unwrap().len(), 3);
    // Writing repairs a damaged blob.
    let key = BlobKey::new(&ann, Namespace::Uploads, name_of(b"hello"));
    bucket.damage(&blobs, &key);
    assert!(read(&blobs, &key, 5).is_err());
    blobs.put(&key, b"hello").unwrap();
    assert_eq!(read(&blobs, &key, 5).unwrap(), b"hello");
    // A blob of several parts is read back through a local file.
    let bytes: Vec<u8> = (0..3 * PART + 5).map(|i| (i * 7 % 251) as u8).collect();
    let file = dir.join("large");
    std::fs::write(&file, &bytes).unwrap();
    let key = BlobKey::new(&ann, Namespace::Uploads, name_of(&bytes));
    blobs.adopt(&key, &file).unwrap();
    assert!(read(&blobs, &key, bytes.len() as u64).unwrap() == bytes);
    assert!(std::fs::read(blobs.local(&key).unwrap().unwrap()).unwrap() == bytes);
}

/// Two databases, and copies of one, with the same prefix.
#[test]
fn a_bucket_belongs_to_one_copy_of_one_database() {
    let bucket = Bucket::new();
    ownership::check(&bucket.open("pair", "local"), &bucket.open("lonely", "other"), bucket.dir.path());
    // Local copies do not count as content of the bucket.
    let [ours, theirs] = ["ours", "theirs"].map(|name| SqliteState::open(&bucket.dir.path().join(name)).unwrap());
    let before = bucket.open("before", "kept");
    let key = ownership::upload(&before, &ours, "ann", b"rows");
    before.local(&key).unwrap().unwrap();
    ownership::refused(&bucket.open("nothing", "kept"), &ours, "knows of 1 uploads");
    ownership::upload(&bucket.open("after", "elsewhere"), &theirs, "bob", b"rows");
    let after = bucket.open("after", "kept");
    assert_eq!(after.tenants().unwrap(), BTreeSet::from([tenant("bob")]));
    ownership::refused(&after, &ours, "does not know (bob)");
}

#[test]
fn a_tenant_who_leaves_is_gone_from_a_bucket() {
    let bucket = Bucket::new();
    let (folder, blobs) = (bucket.dir.path().join("server"), bucket.open("", "server/blobs"));
    let config = crate::Config { folder: folder.clone(), ..crate::Config::default() };
    let state = SqliteState::open(&folder.join("state.sqlite")).unwrap();
    let anns = ownership::upload(&blobs, &state, "ann", b"rows");
    let bobs = ownership::upload(&blobs, &state, "bob", b"other rows");
    drop(state);
    let copy = blobs.local(&anns).unwrap().unwrap();
    blobs.local(&bobs).unwrap().unwrap();
    let gone = crate::tenants::erasure::erase_from(&config, &tenant("ann"), &blobs).unwrap();
    assert!(gone.found_in.is_empty() && gone.blobs == 1 && gone.uploads == 1, "{gone:?}");
    assert!(!copy.exists() && blobs.len(&anns).unwrap().is_none());
    assert_eq!(blobs.tenants().unwrap(), BTreeSet::from([tenant("bob")]));
    assert_eq!(read(&blobs, &bobs, 10).unwrap(), b"other rows");
}

/// Concurrent requests for a local file copy the blob once. A failed copy leaves no file.
#[test]
fn a_blob_is_copied_once() {
    let bucket = Bucket::new();
    let blobs = bucket.open("some/where", "local");
    let key = BlobKey::new(&tenant("ann"), Namespace::Uploads, name_of(b"hello"));
    let half = || std::fs::read_dir(bucket.dir.path().join("local/scratch")).unwrap().count();
    bucket.damage(&blobs, &key);
    assert_eq!(blobs.local(&key), Err(Error::Damaged { what: key.to_string() }));
    assert_eq!(half(), 0);
    blobs.put(&key, b"hello").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| assert_eq!(std::fs::read(blobs.local(&key).unwrap().unwrap()).unwrap(), b"hello"));
        }
    });
    // The failed copy had the scratch name 0, the successful one 1.
    assert!(blobs.local.scratch().ends_with("2"));
    assert_eq!(half(), 0);
    let other = bucket.open("some/where", "other");
    drop(other.copy_lock(&key));
    other.copy_lock(&BlobKey::new(&tenant("bob"), Namespace::Uploads, key.name()));
    assert_eq!(other.copies.lock().unwrap().len(), 1, "who is done is forgotten");
    let full = bucket.open_with("some/where", "full", u64::MAX, |builder| builder);
    assert!(matches!(full.local(&key), Err(Error::Busy { .. })));
}

#[test]
fn a_store_without_conditional_writes_is_refused() {
    let bucket = Bucket::new();
    let disable = |builder: AmazonS3Builder| builder.with_conditional_put(S3ConditionalPut::Disabled);
    let refused = bucket.open_with("", "local", 0, disable).set_owner(None, "0123").unwrap_err().to_string();
    assert!(refused.contains("If-None-Match"), "{refused}");
    let mut unconditional = bucket.open("", "local");
    unconditional.store = Arc::new(UnconditionalStore(unconditional.store));
    let refused = unconditional.set_owner(None, "0123").unwrap_err().to_string();
    assert!(refused.contains("ignores the conditions"), "{refused}");
}

/// A store that ignores the conditions of writes.
#[derive(Debug)]
struct UnconditionalStore(Arc<dyn ObjectStore>);

impl std::fmt::Display for UnconditionalStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

type Stream<T> = futures_util::stream::BoxStream<'static, object_store::Result<T>>;

#[tonic::async_trait]
impl ObjectStore for UnconditionalStore {
    async fn put_opts(
        &self,
        path: &ObjectPath,
        bytes: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.0.put_opts(path, bytes, PutOptions { mode: PutMode::Overwrite, ..options }).await
    }
    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(path, options).await
    }
    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> object_store::Result<GetResult> {
        self.0.get_opts(path, options).await
    }
    fn delete_stream(&self, paths: Stream<ObjectPath>) -> Stream<ObjectPath> {
        self.0.delete_stream(paths)
    }
    fn list(&self, prefix: Option<&ObjectPath>) -> Stream<ObjectMeta> {
        self.0.list(prefix)
    }
    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> object_store::Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }
    async fn copy_opts(&self, from: &ObjectPath, to: &ObjectPath, options: CopyOptions) -> object_store::Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}
