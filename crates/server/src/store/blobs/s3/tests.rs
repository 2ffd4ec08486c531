//! The store against a server that speaks S3.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::store::blobs::{name_of, read};
use crate::store::disk::OsDisk;
use crate::store::ownership::tests as ownership;
use crate::store::parts::{STORED_PART_BYTES, StoredPart, hash_of_part, name_of_parts};
use crate::store::state::SqliteState;
use crate::testing::suites::hooked_disk::HookedDisk;
use crate::testing::suites::shared::{Site, begin, content, finish, resume, send, shared};
use crate::testing::{s3_server, suites};
use hetal_testkit::TempDir;
use object_store::aws::S3ConditionalPut;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, PutMultipartOptions, PutPayload,
    PutResult,
};

/// A bucket on a test server, with local folders for its users.
struct Bucket {
    dir: TempDir,
    runtime: Runtime,
    /// With the prefix of everything that this test does.
    config: S3Config,
    /// Those of another server are in the environment.
    credentials: Option<[&'static str; 2]>,
}

impl Bucket {
    fn new() -> Self {
        let (dir, runtime) = (TempDir::new(), runtime());
        let address = s3_server::start(&runtime, &dir.path().join("s3"));
        let config = S3Config {
            bucket: s3_server::BUCKET.to_owned(),
            region: Some("nowhere-1".to_owned()),
            endpoint: Some(format!("http://{address}")),
            allow_http: true,
            prefix: String::new(),
        };
        let credentials = Some([s3_server::ACCESS_KEY_ID, s3_server::SECRET_ACCESS_KEY]);
        Self { dir, runtime, config, credentials }
    }

    /// Room in the bucket that the environment names.
    fn of_environment() -> Self {
        let named = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
        let mut random = [0; 8];
        getrandom::fill(&mut random).unwrap();
        let config = S3Config {
            bucket: named("HETAL_TEST_S3_BUCKET"),
            region: None,
            endpoint: Some(named("HETAL_TEST_S3_ENDPOINT")),
            allow_http: true,
            prefix: format!("hetal-test-{:016x}", u64::from_le_bytes(random)),
        };
        Self { dir: TempDir::new(), runtime: runtime(), config, credentials: None }
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
        let prefix = format!("{}/{prefix}", self.config.prefix).trim_matches('/').to_owned();
        let config = S3Config { prefix, ..self.config.clone() };
        let mut builder = builder(&config);
        if let Some([id, secret]) = self.credentials {
            builder = builder.with_access_key_id(id).with_secret_access_key(secret);
        }
        S3Blobs::of(change(builder), &config, &self.dir.path().join(local), reserve_bytes).unwrap()
    }

    /// Overwrites a blob with other bytes.
    fn damage(&self, blobs: &S3Blobs, key: &BlobKey) {
        self.runtime.block_on(blobs.store.put(&path(key), b"jello".to_vec().into())).unwrap();
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn tenant(name: &str) -> Tenant {
    name.to_owned().try_into().unwrap()
}

#[test]
fn a_bucket_is_a_store() {
    check_store(&Bucket::new());
}

#[test]
fn a_bucket_receives_parts() {
    check_parts(&Bucket::new());
}

#[test]
fn copies_go_with_their_uploads() {
    check_copies(&Bucket::new());
}

#[test]
fn a_bucket_belongs_to_one_copy_of_one_database() {
    check_ownership(&Bucket::new());
}

#[test]
fn a_tenant_who_leaves_is_gone_from_a_bucket() {
    check_erasure(&Bucket::new());
}

#[test]
fn a_blob_is_copied_once() {
    check_copying(&Bucket::new());
}

/// All of these against any server that speaks S3, for example moto:
///
/// ```text
/// python3 -m venv moto && moto/bin/pip install 'moto[server]==5.2.5'
/// moto/bin/moto_server -H 127.0.0.1 -p 5999 & sleep 5; curl -X PUT http://127.0.0.1:5999/bucket
/// export HETAL_TEST_S3_ENDPOINT=http://127.0.0.1:5999 HETAL_TEST_S3_BUCKET=bucket
/// export AWS_REGION=us-east-1 AWS_ACCESS_KEY_ID=someone AWS_SECRET_ACCESS_KEY=something
/// cargo test -p hetal-server --features s3-tests --lib -- --ignored another_server
/// ```
#[test]
#[ignore = "needs a bucket, which environment variables name: see its documentation"]
fn a_bucket_of_another_server_is_a_store() {
    let checks = [check_store, check_parts, check_copies, check_ownership, check_erasure, check_copying];
    for check in checks {
        check(&Bucket::of_environment());
    }
}

fn check_store(bucket: &Bucket) {
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

/// A blob arrives in parts through one server and goes on through another. Parts that are no longer
/// there are not joined.
fn check_parts(bucket: &Bucket) {
    let (first, second) = (bucket.open("some/where", "first"), bucket.open("some/where", "second"));
    let bytes: Vec<u8> = (0..2 * STORED_PART_BYTES + 77).map(|i| (i * 7 % 251) as u8).collect();
    let key = BlobKey::new(&tenant("ann"), Namespace::Uploads, name_of(&bytes));
    let id = PartStore::begin(&first, &key).unwrap();
    let mut parts = Vec::new();
    for (number, part) in bytes.chunks(STORED_PART_BYTES as usize).enumerate() {
        let server = if number == 0 { &first } else { &second };
        let receipt = server.put_part(&key, &id, number, part.to_vec()).unwrap().unwrap();
        let hash = hash_of_part(part, number as u64 * STORED_PART_BYTES, bytes.len() as u64);
        parts.push(StoredPart { size: part.len() as u64, hash, receipt, head: Vec::new() });
    }
    assert_eq!(first.len(&key).unwrap(), None, "not before it is whole");
    assert_eq!(name_of_parts(&parts).unwrap(), key.name());
    let confirm = || Ok(());
    let refuse = || Err(Error::Fenced);
    assert_eq!(second.join(&key, &id, &parts, &refuse), Err(Error::Fenced));
    assert!(second.join(&key, &id, &parts, &confirm).unwrap());
    assert!(read(&first, &key, bytes.len() as u64).unwrap() == bytes);
    // Some stores answer 404 then, others 403. Some say yes again while the blob is there.
    if first.join(&key, &id, &parts, &confirm).unwrap() {
        assert!(read(&first, &key, bytes.len() as u64).unwrap() == bytes);
        first.delete(&key).unwrap();
        assert_eq!(first.join(&key, &id, &parts, &confirm), Ok(false), "the parts are gone");
    }
    assert_eq!(first.put_part(&key, &id, 0, b"a part".to_vec()), Ok(None));
    let id = PartStore::begin(&first, &key).unwrap();
    first.put_part(&key, &id, 0, b"a part".to_vec()).unwrap();
    second.discard(&key, &id).unwrap();
    second.discard(&key, &id).unwrap();
    assert_eq!(first.join(&key, &id, &parts, &confirm), Ok(false));
    // A server that may not write at all does not take its parts for lost.
    let stranger = bucket.open_with("some/where", "third", 0, |builder| builder.with_secret_access_key("wrong"));
    assert!(matches!(stranger.put_part(&key, &id, 0, b"a part".to_vec()), Err(Error::Blobs { .. })));
}

/// A store that no longer knows the parts of an upload: a rule of the bucket removed them, before
/// another part comes or before they are joined, or a server that was killed while it deleted the
/// upload. The client sends the bytes again.
#[test]
fn an_upload_whose_parts_are_gone_begins_again() {
    let Some(site) = Site::new() else { return };
    let bucket = Bucket::new();
    let server = site.uploads("first", Arc::new(bucket.open("some/where", "first")), Arc::new(OsDisk));
    let (bytes, name) = (content(0), name_of(&content(0)));
    let key = BlobKey::new(&tenant("ann"), Namespace::Uploads, name);
    let lose_parts = || {
        let id = site.query("SELECT store_id FROM uploads");
        server.blobs.parts().unwrap().discard(&key, &id).unwrap();
    };
    let sent = STORED_PART_BYTES as usize + 5;
    let begin_again = || {
        let (mut writer, held) = resume(&server, &bytes);
        assert_eq!(held, 0);
        send(&server, &mut writer, &bytes[..sent]).unwrap();
        writer
    };
    let is_damaged = |refused: Error| assert!(matches!(refused, Error::Damaged { .. }), "{refused}");
    let mut writer = begin_again();
    lose_parts();
    is_damaged(send(&server, &mut writer, &bytes[sent..]).unwrap_err());
    drop(writer);
    let mut writer = begin_again();
    send(&server, &mut writer, &bytes[sent..]).unwrap();
    lose_parts();
    is_damaged(finish(&server, writer).unwrap_err());
    drop(begin_again());
    let id = shared(&site.database()).revoke_upload(&tenant("ann"), name).unwrap().unwrap();
    server.blobs.parts().unwrap().discard(&key, &id).unwrap();
    let mut writer = begin_again();
    send(&server, &mut writer, &bytes[sent..]).unwrap();
    finish(&server, writer).unwrap();
    assert!(begin(&server, &bytes).complete);
    server.delete(&tenant("ann"), name).unwrap();
    assert_eq!(server.blobs.len(&key).unwrap(), None);
}

/// Copies of key sets make room for another one: the one that was used longest ago first, and none
/// that is in use.
#[test]
fn copies_make_room_for_others() {
    let bucket = Bucket::new();
    let (mut blobs, folder) = (bucket.open_with("", "local", 1000, |builder| builder), bucket.dir.path().join("local"));
    let disk = Arc::new(HookedDisk::new());
    blobs.local = LocalBlobs::on(Arc::<HookedDisk>::clone(&disk), &folder).unwrap();
    disk.set_capacity(1000 + 3 * 4000);
    let keys = [1, 2, 3, 4, 5].map(|seed| {
        let bytes = [seed; 4000];
        let key = BlobKey::new(&tenant("ann"), Namespace::Uploads, name_of(&bytes));
        blobs.put(&key, &bytes).unwrap();
        key
    });
    let copied =
        |wanted: [bool; 5]| assert_eq!(keys.clone().map(|key| blobs.local.len(&key).unwrap().is_some()), wanted);
    let used = blobs.local(&keys[0]).unwrap().unwrap();
    for key in [1, 2, 1] {
        blobs.local(&keys[key]).unwrap().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    copied([true, true, true, false, false]);
    let fourth = blobs.local(&keys[3]).unwrap().unwrap();
    copied([true, true, false, true, false]);
    let second = blobs.local(&keys[1]).unwrap().unwrap();
    // Three are in use, so there is no room.
    assert!(matches!(blobs.local(&keys[4]), Err(Error::Busy { .. })));
    drop(fourth);
    // The one that is not in use would not make room enough.
    disk.set_capacity(3 * 4000);
    assert!(matches!(blobs.local(&keys[4]), Err(Error::Busy { .. })));
    copied([true, true, false, true, false]);
    drop(second);
    disk.set_capacity(1000 + 3 * 4000);
    blobs.local(&keys[4]).unwrap().unwrap();
    copied([true, true, false, false, true]);
    assert_eq!(std::fs::read(&used).unwrap(), [1; 4000]);
}

/// A key set that another server deleted does not stay on this one's disk.
fn check_copies(bucket: &Bucket) {
    let (first, second) = (bucket.open("", "first"), bucket.open("", "second"));
    let keys = [&b"hello"[..], b"world"].map(|bytes| {
        let key = BlobKey::new(&tenant("ann"), Namespace::Uploads, name_of(bytes));
        first.put(&key, bytes).unwrap();
        (key.clone(), second.local(&key).unwrap().unwrap().to_path_buf())
    });
    first.delete(&keys[0].0).unwrap();
    let is_needed = |_: &Tenant, name| Ok(name == keys[1].0.name());
    assert_eq!(second.drop_copies(&is_needed).unwrap(), 1);
    assert!(!keys[0].1.exists() && keys[1].1.exists());
    assert!(second.len(&keys[1].0).unwrap().is_some(), "only copies go");
    // Nor does the name of a tenant who is forgotten.
    assert_eq!(second.drop_copies(&|_, _| Ok(false)).unwrap(), 1);
    assert_eq!(std::fs::read_dir(bucket.dir.path().join("second/tenants")).unwrap().count(), 0);
}

/// What a proxy does with a connection to the store.
#[derive(Clone, Copy)]
enum Fault {
    None,
    /// Answers a request with the status 503.
    Busy,
    /// Closes the connection in the middle of an answer.
    Cut,
}

/// A proxy whose connections have faults in turn, and are slow.
fn faulty(store: std::net::SocketAddr, faults: &'static [Fault]) -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (client, fault) in listener.incoming().flatten().zip(faults.iter().cycle()) {
            std::thread::spawn(move || serve_badly(client, store, *fault));
        }
    });
    address
}

fn serve_badly(mut client: std::net::TcpStream, store: std::net::SocketAddr, fault: Fault) -> std::io::Result<()> {
    std::thread::sleep(std::time::Duration::from_millis(20));
    if matches!(fault, Fault::Busy) {
        let _ = client.read(&mut [0; 1 << 16])?;
        client.write_all(b"HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")?;
        return client.shutdown(std::net::Shutdown::Both);
    }
    let mut server = std::net::TcpStream::connect(store)?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    let most = if matches!(fault, Fault::Cut) { 300_000 } else { u64::MAX };
    std::io::copy(&mut Read::take(&mut server, most), &mut client)?;
    client.shutdown(std::net::Shutdown::Both)
}

/// A store that is busy, slow and breaks off: everything is tried again, and no byte is missing.
#[test]
fn faults_of_a_store_are_tried_again() {
    let mut bucket = Bucket::new();
    let sound = bucket.open("", "sound");
    let store = bucket.config.endpoint.clone().unwrap().trim_start_matches("http://").parse().unwrap();
    let faults = &[Fault::Busy, Fault::None, Fault::Cut, Fault::Busy, Fault::Cut];
    bucket.config.endpoint = Some(format!("http://{}", faulty(store, faults)));
    let blobs = bucket.open("", "local");
    for seed in 0..4u64 {
        let bytes: Vec<u8> = (0..PART as u64 + 99_999).map(|i| ((i + seed) * 7 % 251) as u8).collect();
        let key = BlobKey::new(&tenant("ann"), Namespace::Uploads, name_of(&bytes));
        blobs.put(&key, &bytes).unwrap();
        assert!(read(&sound, &key, 1 << 30).unwrap() == bytes, "what is stored");
        // A read that fails is a fault that passes.
        let whole = (0..50).find_map(|_| match read(&blobs, &key, 1 << 30) {
            Ok(read) => Some(read),
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                None
            }
        });
        assert!(whole.unwrap() == bytes, "what is read");
        let local = (0..50).find_map(|_| blobs.local(&key).ok().flatten()).unwrap();
        assert!(std::fs::read(local).unwrap() == bytes);
    }
}

/// A store that sends fewer bytes than were asked for is not believed.
#[test]
fn a_short_answer_is_not_believed() {
    let bucket = Bucket::new();
    let mut blobs = bucket.open("", "local");
    let bytes = vec![7; 3 * PART];
    let key = BlobKey::new(&tenant("ann"), Namespace::Uploads, name_of(&bytes));
    blobs.put(&key, &bytes).unwrap();
    blobs.store = Arc::new(UnconditionalStore { store: blobs.store, is_short: true });
    for failed in [read(&blobs, &key, 1 << 30).map(|_| ()), blobs.local(&key).map(|_| ())] {
        let error = failed.unwrap_err();
        assert!(error.is_transient() && error.to_string().contains("bytes"), "{error}");
    }
}

/// Two databases, and copies of one, with the same prefix.
fn check_ownership(bucket: &Bucket) {
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

fn check_erasure(bucket: &Bucket) {
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
fn check_copying(bucket: &Bucket) {
    let blobs = bucket.open("some/where", "local");
    let key = BlobKey::new(&tenant("ann"), Namespace::Uploads, name_of(b"hello"));
    let half = || std::fs::read_dir(bucket.dir.path().join("local/scratch")).unwrap().count();
    bucket.damage(&blobs, &key);
    assert_eq!(blobs.local(&key).err(), Some(Error::Damaged { what: key.to_string() }));
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
    unconditional.store = Arc::new(UnconditionalStore { store: unconditional.store, is_short: false });
    let refused = unconditional.set_owner(None, "0123").unwrap_err().to_string();
    assert!(refused.contains("ignores the conditions"), "{refused}");
}

/// A store that ignores the conditions of writes, and may leave out the ends of answers.
#[derive(Debug)]
struct UnconditionalStore {
    store: Arc<dyn ObjectStore>,
    is_short: bool,
}

impl std::fmt::Display for UnconditionalStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.store.fmt(f)
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
        self.store.put_opts(path, bytes, PutOptions { mode: PutMode::Overwrite, ..options }).await
    }
    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(path, options).await
    }
    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> object_store::Result<GetResult> {
        let mut answer = self.store.get_opts(path, options).await?;
        if self.is_short {
            let (range, meta, attributes) = (answer.range.clone(), answer.meta.clone(), answer.attributes.clone());
            let bytes = answer.bytes().await?;
            let short = bytes.slice(..bytes.len().saturating_sub(9));
            let payload = object_store::GetResultPayload::Stream(Box::pin(futures_util::stream::iter([Ok(short)])));
            answer = GetResult { payload, range, meta, attributes, extensions: Default::default() };
        }
        Ok(answer)
    }
    fn delete_stream(&self, paths: Stream<ObjectPath>) -> Stream<ObjectPath> {
        self.store.delete_stream(paths)
    }
    fn list(&self, prefix: Option<&ObjectPath>) -> Stream<ObjectMeta> {
        self.store.list(prefix)
    }
    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> object_store::Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }
    async fn copy_opts(&self, from: &ObjectPath, to: &ObjectPath, options: CopyOptions) -> object_store::Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}
