//! Authentication, isolation of tenants, and broken connections and uploads.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{RawClient, TOKEN, TestClient, address, config, owner, tenant};
use hetal_ckks::bytes::{KeySetReader, KeySetWriter};
use hetal_client::rpc::{Address, BlobKind, Credentials, Error, Remote, RowBlob};
use hetal_learn::Wishes;
use hetal_server::tenants::{Fingerprint, Tenant, TenantConfig};
use hetal_server::{Config, Server, start};
use hetal_testkit::TempDir;
use hetal_wire::v1;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A server with small limits.
fn server(folder: &Path) -> Server {
    start(config(folder)).unwrap()
}

fn quickly(running: &Server, token: &str) -> Address {
    Address { retry_timeout: Duration::from_secs(5), ..address(running, token) }
}

#[test]
fn only_known_credentials_get_in() {
    let dir = TempDir::new();
    let expired = TenantConfig { expires: Some(1), ..tenant("late", "expired") };
    let mut config = config(dir.path());
    config.tenants.push(expired);
    let running = start(config).unwrap();
    Remote::connect(&quickly(&running, TOKEN)).unwrap();
    for token in ["", "wrong", "expired", &format!("{TOKEN} "), &TOKEN[1..]] {
        let refused = Remote::connect(&quickly(&running, token)).err();
        // Whitespace around a token is ignored.
        assert_eq!(refused.is_none(), token.trim() == TOKEN, "{token:?}: {refused:?}");
        assert!(matches!(refused, None | Some(Error::Credentials { .. })), "{token:?}: {refused:?}");
    }
    // The client refuses a server with a certificate of another authority.
    let other = TempDir::new();
    let foreign = server(other.path());
    let address = Address { server: foreign.address().to_string(), ..quickly(&running, TOKEN) };
    assert!(matches!(Remote::connect(&address), Err(Error::Unreachable { .. })));
}

#[test]
fn certificates_stand_for_tenants() {
    let dir = TempDir::new();
    let authority = |name: &str| {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let (ours, theirs) = (authority("ours"), authority("theirs"));
    let certificate = |issuer: &CertifiedIssuer<'_, KeyPair>| {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["carol".to_owned()]).unwrap().signed_by(&key, issuer).unwrap();
        let fingerprint = Fingerprint::of(certificate.der());
        let chain = certificate.pem().into_bytes();
        (fingerprint, Credentials::Certificate { chain, key: key.serialize_pem().into_bytes().into() })
    };
    let (known, credentials) = certificate(&ours);
    let (_, unknown) = certificate(&ours);
    let (forged, forger) = certificate(&theirs);
    let authorities = dir.path().join("clients.pem");
    std::fs::write(&authorities, ours.pem()).unwrap();
    let carol = |certificate| TenantConfig { token: None, certificate: Some(certificate), ..tenant("carol", "") };
    let config = Config {
        client_authorities: Some(authorities),
        tenants: vec![
            tenant("ann", TOKEN),
            carol(known),
            TenantConfig { name: "mallory".to_owned().try_into().unwrap(), ..carol(forged) },
        ],
        ..config(&dir.path().join("server"))
    };
    let running = start(config).unwrap();
    let connect = |credentials| Remote::connect(&Address { credentials, ..quickly(&running, TOKEN) });
    connect(credentials).unwrap();
    connect(Credentials::Token(TOKEN.to_owned().into())).unwrap();
    assert!(matches!(connect(unknown), Err(Error::Credentials { .. })));
    // With a certificate of another authority, the TLS handshake fails.
    assert!(matches!(connect(forger), Err(Error::Unreachable { .. })));
}

#[test]
fn older_tls_is_refused() {
    let dir = TempDir::new();
    let running = server(dir.path());
    // A client hello of TLS 1.2: random bytes, one cipher suite of that version, no extensions.
    let mut hello = vec![0x03, 0x03];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0xc0, 0x2f, 1, 0]);
    let mut record = vec![22, 3, 1, 0, hello.len() as u8 + 4, 1, 0, 0, hello.len() as u8];
    record.extend(hello);
    let mut stream = TcpStream::connect(running.address()).unwrap();
    stream.write_all(&record).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    // A fatal alert about the version (70), or about an extension that TLS 1.3 requires (109).
    assert!(answer.len() == 7 && answer[0] == 21 && answer[5] == 2 && [70, 109, 40].contains(&answer[6]), "{answer:?}");
}

/// Requests in another protocol version.
fn raw<T>(running: &Server, version: &str, call: impl AsyncFnOnce(RawClient) -> T) -> T {
    TestClient { version: Some(version.to_owned()), ..TestClient::with_token(TOKEN) }.talk(running, call)
}

#[test]
fn other_versions_get_a_sentence() {
    let dir = TempDir::new();
    let running = server(dir.path());
    let hello = |oldest, newest| v1::HelloRequest { oldest, newest, program: String::new() };
    let (ours, next) = (hetal_wire::VERSION.to_string(), hetal_wire::VERSION + 1);
    let old = raw(&running, &ours, async |mut rpc| rpc.hello(hello(1, 1)).await.unwrap_err());
    assert!(old.code() == tonic::Code::FailedPrecondition && old.message().contains("update the client"), "{old:?}");
    let new = raw(&running, &ours, async |mut rpc| rpc.hello(hello(next, 9)).await.unwrap_err());
    assert!(new.message().contains("operator"), "{new:?}");
    // Every request states its version. A missing or different one is refused.
    for version in ["0", "1", &next.to_string(), "x"] {
        let refused = raw(&running, version, async |mut rpc| rpc.list_jobs(v1::ListJobsRequest {}).await.unwrap_err());
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{version}: {refused:?}");
    }
    raw(&running, &ours, async |mut rpc| rpc.list_jobs(v1::ListJobsRequest {}).await.unwrap());
}

#[test]
fn tenants_do_not_see_each_other() {
    let (owner, dir) = (owner(), TempDir::new());
    let running = server(dir.path());
    let ann = Remote::connect(&quickly(&running, TOKEN)).unwrap();
    let bob = Remote::connect(&quickly(&running, "another token")).unwrap();
    let training = owner.upload(&ann);
    let job = ann.train([1; 16], "secret project", &training).unwrap();
    let not_found = |error: Option<Error>| matches!(error, Some(Error::NotFound { .. }));
    assert!(bob.jobs().unwrap().is_empty());
    assert!(not_found(bob.job(job.id).err()));
    assert!(not_found(bob.cancel(job.id).err()));
    assert!(not_found(bob.delete(job.id).err()));
    assert!(not_found(bob.watch(job.id, 0).next_event().err()));
    assert!(not_found(bob.delete_upload(training.keys).err()));
    // An upload of ann is invisible to bob: he cannot train on it, and he must upload it himself.
    assert!(not_found(bob.train([2; 16], "", &training).err()));
    let sent = bob.upload(BlobKind::Features, &owner.path("validation"), &mut |_, _| {}).unwrap();
    assert_eq!(sent.sent, sent.size);
    // The response about a job of another tenant equals the response about a job that never
    // existed.
    let message = |id| match bob.job(id) {
        Err(Error::NotFound { sentence, .. }) => sentence.replace(&id.to_string(), "ID"),
        other => panic!("{other:?}"),
    };
    assert_eq!(message(job.id), message(hetal_client::rpc::JobId([9; 16])));
    ann.cancel(job.id).unwrap();
}

#[test]
fn nonsense_is_refused_before_it_costs_anything() {
    let (owner, dir) = (owner(), TempDir::new());
    let mut config = config(dir.path());
    config.hide_hyperparameters = true;
    config.bounds.blob_bytes = 1 << 28;
    config.bounds.batches = 3;
    let running = start(config).unwrap();
    let remote = Remote::connect(&quickly(&running, TOKEN)).unwrap();
    assert_eq!((remote.offer().bounds.rate, remote.offer().defaults.rate), (None, None));
    let file = dir.path().join("file");
    let upload = |kind, bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        remote.upload(kind, &file, &mut |_, _| {})
    };
    let refused = |error: Option<Error>| matches!(error, Some(Error::Refused { .. }));
    let batch = std::fs::read(owner.path("batch0")).unwrap();
    assert!(refused(upload(BlobKind::Batch, b"short").err()));
    assert!(refused(upload(BlobKind::Batch, &[7; 100]).err()));
    assert!(refused(upload(BlobKind::Keys, &batch).err()));
    // A ciphertext of a parameter set that is not accepted.
    let mut foreign = batch.clone();
    foreign[24] ^= 1;
    assert!(refused(upload(BlobKind::Batch, &foreign).err()));
    let mut training = owner.upload(&remote);
    let attempt = |change: &dyn Fn(&mut hetal_client::rpc::TrainingRequest)| {
        let mut changed = training.clone();
        change(&mut changed);
        remote.train([3; 16], "", &changed).err()
    };
    assert!(refused(attempt(&|t| t.set[0] ^= 1)));
    assert!(refused(attempt(&|t| t.classes = 1)));
    assert!(refused(attempt(&|t| t.features = 4_000_000_000)));
    assert!(refused(attempt(&|t| t.batches.clear())));
    assert!(refused(attempt(&|t| t.batches[0].rows = 65)));
    assert!(refused(attempt(&|t| t.batches[0].rows = 0)));
    assert!(refused(attempt(&|t| t.validation = vec![t.batches[0]])));
    assert!(refused(attempt(&|t| t.keys = t.batches[0].blob)));
    assert!(matches!(attempt(&|t| t.batches = vec![t.batches[0]; 3]), Some(Error::Limit { .. })));
    assert!(matches!(attempt(&|t| t.keys.0[0] ^= 1), Some(Error::NotFound { .. })));
    // Keys for another number of classes.
    assert!(refused(attempt(&|t| t.classes = 5)));
    // Keys of a version that needed fewer of them.
    let whole = std::fs::read(owner.path("keys")).unwrap();
    let (codec, mut input, mut fewer) = (owner.client.codec(), &whole[..], Vec::new());
    let mut reader = KeySetReader::new(&codec, &mut input).unwrap();
    let mut names: Vec<_> = reader.remaining().collect();
    names.pop();
    let mut writer = KeySetWriter::new(&codec, &names, &mut fewer).unwrap();
    names.iter().for_each(|_| writer.write(&reader.read().unwrap().unwrap()).unwrap());
    writer.finish().unwrap();
    let keys = upload(BlobKind::Keys, &fewer).unwrap().name;
    let old = attempt(&|t| t.keys = keys);
    assert!(matches!(&old, Some(Error::Refused { sentence, .. }) if sentence.contains("hetal keygen")), "{old:?}");
    // Bounds of hidden hyper-parameters are hidden too.
    let rate = attempt(&|t| t.wishes = Wishes { rate: Some(1e9), ..common::wishes() });
    assert!(matches!(&rate, Some(Error::Refused { sentence, .. }) if !sentence.contains(" to ")), "{rate:?}");
    let alpha = attempt(&|t| t.wishes = Wishes { alpha: Some(0.9), ..common::wishes() });
    assert!(matches!(&alpha, Some(Error::Refused { sentence, .. }) if !sentence.contains("0.")), "{alpha:?}");
    // An accepted job with invalid content fails with a reason, and affects no other job.
    let mut damaged = batch.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let blob = upload(BlobKind::Batch, &damaged).unwrap().name;
    training.batches[1] = RowBlob { blob, rows: 50 };
    let job = remote.train([4; 16], "", &training).unwrap();
    let mut watch = remote.watch(job.id, 0);
    let last = std::iter::from_fn(|| watch.next_event().unwrap()).last().unwrap();
    assert!(
        matches!(&last.kind, hetal_client::rpc::EventKind::Failed { reason } if reason.contains("checksum")),
        "{last:?}"
    );
}

/// Forwards connections, and cuts the first one after a number of bytes from the client.
fn cutting_proxy(server: std::net::SocketAddr, after: u64) -> (std::net::SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, connections) = (listener.local_addr().unwrap(), Arc::new(AtomicU64::new(0)));
    let counter = Arc::clone(&connections);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
            let left = if counter.fetch_add(1, Ordering::SeqCst) == 0 { after } else { u64::MAX };
            let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || forward(from, to, left));
            std::thread::spawn(move || forward(server, client, u64::MAX));
        }
    });
    (address, connections)
}

fn forward(mut from: TcpStream, mut to: TcpStream, mut left: u64) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 || left < count as u64 || to.write_all(&buffer[..count]).is_err() {
            break;
        }
        left -= count as u64;
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn an_upload_that_is_cut_goes_on_where_it_stopped() {
    let (owner, dir) = (owner(), TempDir::new());
    let running = server(dir.path());
    let size = std::fs::metadata(owner.path("keys")).unwrap().len();
    let (proxy, connections) = cutting_proxy(running.address(), size / 2);
    let remote = Remote::connect(&Address { server: proxy.to_string(), ..address(&running, TOKEN) }).unwrap();
    let uploaded = remote.upload(BlobKind::Keys, &owner.path("keys"), &mut |_, _| {}).unwrap();
    assert_eq!(connections.load(Ordering::SeqCst), 2);
    // Some parts were in transit when the connection was cut. Starting over would have sent half of
    // the upload again.
    assert!(uploaded.sent > size && uploaded.sent < size + size / 3, "{uploaded:?}");
    // It is not sent a third time.
    assert_eq!(remote.upload(BlobKind::Keys, &owner.path("keys"), &mut |_, _| {}).unwrap().sent, 0);
}

#[test]
fn a_download_that_was_cut_goes_on_and_is_checked() {
    let (owner, dir) = (owner(), TempDir::new());
    let running = server(dir.path());
    let remote = Remote::connect(&address(&running, TOKEN)).unwrap();
    let job = remote.train([1; 16], "", &owner.upload(&remote)).unwrap();
    let mut watch = remote.watch(job.id, 0);
    let output = loop {
        if let hetal_client::rpc::EventKind::Validation(validation) = watch.next_event().unwrap().unwrap().kind {
            break validation.logits[0];
        }
    };
    let path = dir.path().join("logits");
    let download = || remote.download(job.id, &output, owner.logits_len(), &path, &mut |_, _| {});
    download().unwrap();
    let whole = std::fs::read(&path).unwrap();
    assert_eq!(blake3::hash(&whole).as_bytes(), &output.blob.0);
    let part = dir.path().join("logits.part");
    // Half of the upload, and half of another.
    for start in [&whole[..whole.len() / 2], &vec![7; whole.len() / 2]] {
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&part, start).unwrap();
        download().unwrap();
        assert!(std::fs::read(&path).unwrap() == whole && !part.exists());
    }
    let asked = |blob: &[u8], offset| {
        let (job, blob) = (job.id.to_vec().into(), blob.to_vec().into());
        let request = v1::DownloadRequest { job, blob, offset };
        TestClient::with_token(TOKEN).talk(&running, async |mut rpc| {
            let mut parts = rpc.download(request).await?.into_inner();
            parts.message().await.map(|part| part.map_or(0, |part| part.data.len()))
        })
    };
    let len = whole.len() as u64;
    assert_eq!((asked(&output.blob.0, len).unwrap(), asked(&output.blob.0, len - 7).unwrap()), (0, 7));
    for offset in [len + 1, 1 << 63, u64::MAX] {
        assert_eq!(asked(&output.blob.0, offset).unwrap_err().code(), tonic::Code::InvalidArgument, "{offset}");
    }
    let none = asked(&[9; 32], 0).unwrap_err();
    assert!(none.code() == tonic::Code::NotFound && none.message().contains("not found in that job"), "{none:?}");
    let wrong = remote.download(job.id, &output, owner.logits_len() + 1, &path, &mut |_, _| {});
    assert!(matches!(wrong, Err(Error::Size { .. })));
    remote.cancel(job.id).unwrap();
}

fn get(running: &Server, path: &str) -> String {
    get_of("localhost", running, path)
}

/// Asks for a path of a host.
fn get_of(host: &str, running: &Server, path: &str) -> String {
    let mut stream = TcpStream::connect(running.metrics_address().unwrap()).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn health_and_metrics_are_served() {
    let (owner, dir) = (owner(), TempDir::new());
    let running = start(Config { metrics: Some("127.0.0.1:0".parse().unwrap()), ..config(dir.path()) }).unwrap();
    assert!(get(&running, "/healthz").starts_with("HTTP/1.1 200") && get(&running, "/readyz").contains("ready"));
    let remote = Remote::connect(&address(&running, TOKEN)).unwrap();
    let sent = remote.upload(BlobKind::Batch, &owner.path("batch0"), &mut |_, _| {}).unwrap().sent;
    let metrics = get(&running, "/metrics");
    assert!(metrics.contains(&format!("hetal_received_bytes_total {sent}\n")), "{metrics}");
    assert!(metrics.contains("hetal_requests_total 3\n"), "{metrics}");
    let (head, body) = metrics.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("\r\ncontent-type: text/plain; version=0.0.4\r\n"), "{head}");
    hetal_testkit::exposition::parse(body).unwrap();
    assert!(get(&running, "/none").starts_with("HTTP/1.1 404"));
    // A page of another site whose name was resolved to the loopback address.
    for path in ["/", "/metrics"] {
        let answer = get_of("evil.example:9443", &running, path);
        assert!(answer.starts_with("HTTP/1.1 421") && !answer.contains("ann"), "{answer}");
    }
    assert!(metrics.contains(&format!("hetal_upload_bytes_sum{{tenant=\"ann\"}} {sent}\n")), "{metrics}");
    let page = get(&running, "/");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("text/html") && page.contains("The server is healthy."));
    // What each tenant stores against his bound, also of one who never came.
    let [used, nothing] = [sent, 0].map(|bytes| format!("<data value=\"{bytes}\">"));
    let bound = format!("<data value=\"{}\">", 128u64 << 30);
    for (tenant, used) in [("ann", used), ("bob", nothing)] {
        let row = page.split("<bdi>").find(|row| row.starts_with(tenant)).unwrap();
        assert!(row.contains(&used) && row.contains(&bound), "{tenant}: {row}");
    }
    // No GPU: nothing is said of memory and temperature, and no gauge is zero.
    assert!(!page.contains("temperature") && !metrics.contains("hetal_gpu_memory_bytes{"), "{page}");

    // Histograms agree with the audit log, which has whole milliseconds.
    let log = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
    for request in ["Hello", "BeginUpload", "Upload"] {
        let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let times: Vec<u64> =
            lines.filter(|line| line["request"] == request).map(|line| line["millis"].as_u64().unwrap()).collect();
        let value = |kind: &str| -> f64 {
            let name = format!("hetal_request_seconds_{kind}{{request=\"{request}\"}} ");
            metrics.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
        };
        assert_eq!(value("count"), times.len() as f64, "{request}");
        let logged = times.iter().sum::<u64>() as f64 / 1e3;
        let sum = value("sum");
        assert!((logged..=logged + 1e-3 * times.len() as f64).contains(&sum), "{request}: {sum} and {logged}");
    }
}

#[test]
fn a_folder_serves_one_server() {
    let dir = TempDir::new();
    let running = server(dir.path());
    let second = start(config(dir.path())).err().unwrap();
    assert!(second.to_string().contains("another server"), "{second}");
    running.stop();
    server(dir.path());
    // Insecure sets must be allowed explicitly.
    let secure = Config { allow_insecure: false, ..config(&dir.path().join("other")) };
    assert!(start(secure).err().unwrap().to_string().contains("--allow-insecure"));
}

#[test]
fn tenants_come_and_go_while_the_server_runs() {
    let dir = TempDir::new();
    let running = server(dir.path());
    let (ann, carol) = (quickly(&running, TOKEN), quickly(&running, "a third token"));
    let connected = Remote::connect(&ann).unwrap();
    assert!(matches!(Remote::connect(&carol), Err(Error::Credentials { .. })));
    running.reload(&[tenant("carol", "a third token")]).unwrap();
    Remote::connect(&carol).unwrap();
    // Also on an existing connection.
    assert!(matches!(connected.jobs(), Err(Error::Credentials { .. })));
    // Two tenants with one token: the reload is refused.
    assert!(running.reload(&[tenant("ann", TOKEN), tenant("bob", TOKEN)]).is_err());
    Remote::connect(&carol).unwrap();
}

#[test]
fn connections_and_uploads_of_a_tenant_are_counted() {
    let dir = TempDir::new();
    let mut config = config(dir.path());
    config.bounds.tenant_connections = 2;
    let running = start(config).unwrap();
    let (first, _second) =
        (Remote::connect(&quickly(&running, TOKEN)).unwrap(), Remote::connect(&quickly(&running, TOKEN)).unwrap());
    assert!(matches!(Remote::connect(&quickly(&running, TOKEN)), Err(Error::Limit { .. })));
    // Existing connections and other tenants are not affected.
    first.jobs().unwrap();
    Remote::connect(&quickly(&running, "another token")).unwrap();
}

/// Whether the server closes a silent connection before its time limit.
fn is_ended(connection: &mut TcpStream, patience: Duration) -> bool {
    connection.set_read_timeout(Some(patience)).unwrap();
    match connection.read(&mut [0; 1]) {
        Ok(count) => count == 0,
        Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    }
}

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);

#[test]
fn strangers_of_an_address_are_counted() {
    let dir = TempDir::new();
    let mut config = config(dir.path());
    config.bounds.strangers = 2;
    let running = start(config).unwrap();
    let [mut first, mut second, mut third] = [0; 3].map(|_| TcpStream::connect(running.address()).unwrap());
    // The oldest makes room for the newest, and an authenticated connection needs none.
    assert!(is_ended(&mut first, LONG), "silent connections lock others out");
    assert!(!is_ended(&mut second, SHORT) && !is_ended(&mut third, SHORT));
    let connect = || Remote::connect(&address(&running, TOKEN)).unwrap();
    let _known = [0; 3].map(|_| connect());
}

#[test]
fn strangers_leave_places_to_others() {
    let dir = TempDir::new();
    let mut config = config(dir.path());
    config.bounds.connections = 8;
    let running = start(config).unwrap();
    let mut strangers = [0; 3].map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        TcpStream::connect(running.address()).unwrap()
    });
    assert!(is_ended(&mut strangers[0], LONG), "the oldest of too many stays");
    assert!(!is_ended(&mut strangers[1], SHORT) && !is_ended(&mut strangers[2], SHORT));
    // Also with many more connections: authenticated tenants do not wait.
    let _more = [0; 40].map(|_| TcpStream::connect(running.address()).unwrap());
    Remote::connect(&quickly(&running, TOKEN)).unwrap().jobs().unwrap();
}

#[test]
fn streams_and_uploads_at_once_are_counted() {
    let (owner, dir) = (owner(), TempDir::new());
    let mut config = config(dir.path());
    (config.bounds.streams, config.bounds.open_uploads) = (1, 1);
    let running = start(config).unwrap();
    let remote = Remote::connect(&address(&running, TOKEN)).unwrap();
    let job = remote.train([1; 16], "", &owner.upload(&remote)).unwrap();
    TestClient::with_token(TOKEN).talk(&running, async |mut rpc| {
        let request = || v1::WatchRequest { job: job.id.to_vec().into(), after: 0 };
        let first = rpc.watch(request()).await.unwrap();
        assert_eq!(rpc.watch(request()).await.unwrap_err().code(), tonic::Code::ResourceExhausted);
        drop(first);
        let again = async {
            while rpc.watch(request()).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LONG, again).await.expect("a place that was given back is gone");
    });
    let part = |n: u8| v1::UploadPart { name: vec![n; 32].into(), offset: 0, data: vec![1; 10].into() };
    let (begun, begins) = std::sync::mpsc::channel();
    let (parts, stream) = tokio::sync::mpsc::channel(1);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            TestClient::with_token(TOKEN).talk(&running, async |mut rpc| {
                for n in [1, 2] {
                    let (name, kind) = (vec![n; 32].into(), v1::BlobKind::Batch.into());
                    rpc.begin_upload(v1::BeginUploadRequest { name, kind, size: 1000 }).await.unwrap();
                }
                begun.send(()).unwrap();
                let held = rpc.upload(tokio_stream::wrappers::ReceiverStream::new(stream)).await;
                held.unwrap().into_inner().held
            })
        });
        begins.recv().unwrap();
        parts.blocking_send(part(1)).unwrap();
        let until = Instant::now() + LONG;
        // Until the first part arrives, another upload is possible.
        let staged = dir.path().join("staging/ann").join("01".repeat(32));
        while !std::fs::metadata(&staged).is_ok_and(|file| file.len() == 10) {
            assert!(Instant::now() < until, "no part comes");
            std::thread::sleep(Duration::from_millis(20));
        }
        let second = TestClient::with_token(TOKEN).talk(&running, async |mut rpc| {
            rpc.upload(tokio_stream::iter([part(2)])).await.map(|answer| answer.into_inner())
        });
        assert_eq!(second.unwrap_err().code(), tonic::Code::Aborted, "two uploads at once");
        drop(parts);
        assert_eq!(first.join().unwrap(), 10);
    });
    remote.cancel(job.id).unwrap();
}

/// A watcher does not prevent the server from stopping, and resumes with the next one.
#[test]
fn a_stop_ends_the_streams() {
    let (owner, dir) = (owner(), TempDir::new());
    let running = server(dir.path());
    let remote = Remote::connect(&address(&running, TOKEN)).unwrap();
    let job = remote.train([1; 16], "", &owner.upload(&remote)).unwrap();
    let mut watch = remote.watch(job.id, 0);
    // From then on the job waits, and no event follows.
    while !matches!(watch.next_event().unwrap().unwrap().kind, hetal_client::rpc::EventKind::Validation(_)) {}
    let (begun, begins) = std::sync::mpsc::channel();
    let (server, authority) = (running.address(), std::fs::read(running.authority().unwrap()).unwrap());
    let watcher = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut rpc = TestClient::with_token(TOKEN).connect(server, &authority);
            let request = v1::WatchRequest { job: job.id.to_vec().into(), after: 0 };
            let mut events = rpc.watch(request).await.unwrap().into_inner();
            begun.send(()).unwrap();
            while let Some(_event) = events.message().await? {}
            Ok::<_, tonic::Status>(())
        })
    });
    begins.recv().unwrap();
    let start = Instant::now();
    assert!(running.stop());
    let took = start.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}: streams were waited for");
    watcher.join().unwrap().expect("its stream broke off");
}

#[test]
fn a_full_disk_takes_no_uploads() {
    let (owner, dir) = (owner(), TempDir::new());
    let mut config = config(dir.path());
    config.bounds.spare_bytes = u64::MAX / 2;
    let running = start(config).unwrap();
    let remote = Remote::connect(&quickly(&running, TOKEN)).unwrap();
    let refused = remote.upload(BlobKind::Batch, &owner.path("batch0"), &mut |_, _| {}).err();
    assert!(
        matches!(&refused, Some(Error::Limit { sentence, .. }) if sentence.contains("no disk space")),
        "{refused:?}"
    );
}

#[test]
fn a_verdict_that_does_not_come_ends_the_job() {
    let (owner, dir) = (owner(), TempDir::new());
    let mut config = Config { warm_seconds: 0, ..config(dir.path()) };
    config.bounds.verdict_seconds = 1;
    let running = start(config).unwrap();
    let remote = Remote::connect(&address(&running, TOKEN)).unwrap();
    let job = remote.train([1; 16], "", &owner.upload(&remote)).unwrap();
    let mut watch = remote.watch(job.id, 0);
    let last = std::iter::from_fn(|| watch.next_event().unwrap()).last().unwrap();
    assert!(
        matches!(&last.kind, hetal_client::rpc::EventKind::Failed { reason } if reason.contains("no verdict")),
        "{last:?}"
    );
}

/// Every request is in the audit log with tenant, subject, address and result. No token is.
#[test]
fn requests_are_written_down() {
    let dir = TempDir::new();
    let running = server(dir.path());
    let remote = Remote::connect(&quickly(&running, TOKEN)).unwrap();
    let unknown = hetal_client::rpc::JobId([9; 16]);
    assert!(remote.job(unknown).is_err());
    assert!(Remote::connect(&quickly(&running, "wrong token")).is_err());
    let (text, lines) = log(dir.path(), "audit.log");
    let words = |line: &serde_json::Value| {
        ["tenant", "request", "object", "outcome"].map(|key| line[key].as_str().unwrap_or("-").to_owned())
    };
    assert_eq!(words(&lines[0]), ["ann", "Hello", "-", "ok"]);
    assert_eq!(words(&lines[1]), ["ann", "GetJob", &unknown.to_string(), "not found"]);
    // Unauthenticated requests have a log of their own.
    let (strangers, refused) = log(dir.path(), "strangers.log");
    assert_eq!(words(&refused[0]), ["-", "Hello", "-", "unknown credentials"]);
    assert!(lines.len() == 2 && refused.len() == 1);
    for line in lines.iter().chain(&refused) {
        assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    }
    assert!(!(text + &strangers).contains("token"));
}

/// A log and its lines.
fn log(folder: &Path, name: &str) -> (String, Vec<serde_json::Value>) {
    let text = std::fs::read_to_string(folder.join(name)).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (text, lines)
}

/// A request whose client disconnects is logged too.
#[test]
fn requests_that_are_broken_off_are_written_down() {
    let dir = TempDir::new();
    let running = server(dir.path());
    let name = vec![9; 32];
    TestClient::with_token(TOKEN).talk(&running, async |mut rpc| {
        let begin =
            v1::BeginUploadRequest { name: name.clone().into(), kind: v1::BlobKind::Batch.into(), size: 1 << 20 };
        rpc.begin_upload(begin).await.unwrap();
        // One part, and then nothing: the request is active when its stream is reset.
        let (parts, stream) = tokio::sync::mpsc::channel(1);
        parts.send(v1::UploadPart { name: name.clone().into(), offset: 0, data: vec![1; 10].into() }).await.unwrap();
        let upload = rpc.upload(tokio_stream::wrappers::ReceiverStream::new(stream));
        assert!(tokio::time::timeout(Duration::from_millis(500), upload).await.is_err(), "it was answered");
    });
    let broken = || {
        let (_, lines) = log(dir.path(), "audit.log");
        lines.into_iter().find(|line| line["request"] == "Upload" && line["outcome"] == "broken off")
    };
    let line = (0..100).find_map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        broken()
    });
    let line = line.expect("no line for the request that was reset");
    assert!(line["tenant"] == "ann" && line["object"] == "09".repeat(32), "{line}");
}

/// A client that only sends refused requests is disconnected.
#[test]
fn a_connection_of_refusals_ends() {
    let dir = TempDir::new();
    let running = server(dir.path());
    let (refused, broken) = TestClient::with_token("wrong").talk(&running, async |mut rpc| {
        let (mut refused, mut broken) = (0, 0);
        for _ in 0..50 {
            let status = rpc.list_jobs(v1::ListJobsRequest {}).await.unwrap_err();
            if status.code() == tonic::Code::Unauthenticated { refused += 1 } else { broken += 1 }
        }
        (refused, broken)
    });
    let (_, lines) = log(dir.path(), "strangers.log");
    let peers: std::collections::BTreeSet<_> = lines.iter().map(|line| line["peer"].to_string()).collect();
    assert!(peers.len() >= 5 && refused + broken == 50, "{refused} refused, {broken} broken off, by {}", peers.len());
    // An authenticated client is not limited.
    TestClient::with_token(TOKEN).talk(&running, async |mut rpc| {
        for _ in 0..50 {
            rpc.list_jobs(v1::ListJobsRequest {}).await.unwrap();
        }
    });
    let (_, lines) = log(dir.path(), "audit.log");
    assert_eq!(lines.iter().map(|line| line["peer"].to_string()).collect::<std::collections::BTreeSet<_>>().len(), 1);
}

/// Blobs of another database are noticed before anything changes.
#[test]
fn blobs_and_database_belong_together() {
    let dir = TempDir::new();
    server(dir.path()).stop();
    server(dir.path()).stop();
    for file in ["state.sqlite", "state.sqlite-wal", "state.sqlite-shm"] {
        let _ = std::fs::remove_file(dir.path().join(file));
    }
    let refused = start(config(dir.path())).err().unwrap().to_string();
    assert!(refused.contains("another database"), "{refused}");
    // Tenants are not erased there either.
    let refused = hetal_server::forget_tenant(&config(dir.path()), &"ann".to_owned().try_into().unwrap(), true);
    assert!(refused.unwrap_err().to_string().contains("another database"));
}

/// A database restored from a backup beside newer blobs: the blobs stay until the first start
/// without the flag.
#[test]
fn a_backup_of_the_database_does_not_cost_later_blobs() {
    let (owner, dir, backup) = (owner(), TempDir::new(), TempDir::new());
    let running = server(dir.path());
    let database = dir.path().join("state.sqlite");
    let copy = backup.path().join("copy.sqlite");
    let sql = format!("VACUUM INTO '{}'", copy.display());
    rusqlite::Connection::open(&database).unwrap().execute_batch(&sql).unwrap();
    let remote = Remote::connect(&quickly(&running, TOKEN)).unwrap();
    let sent = remote.upload(BlobKind::Features, &owner.path("validation"), &mut |_, _| {}).unwrap();
    let blob = dir.path().join(format!("blobs/tenants/ann/uploads/{}", sent.name));
    running.stop();
    for file in ["state.sqlite-wal", "state.sqlite-shm"] {
        let _ = std::fs::remove_file(dir.path().join(file));
    }
    std::fs::copy(&copy, &database).unwrap();
    let refused = || {
        let error = start(config(dir.path())).err().unwrap().to_string();
        assert!(error.contains("--take-over"), "{error}");
    };
    refused();
    // A failed start takes nothing over, whether its address, the metrics' address or its
    // certificate is the cause.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taking = || Config { take_over: true, ..config(dir.path()) };
    let address = taken.local_addr().unwrap();
    assert!(start(Config { address, ..taking() }).is_err());
    assert!(start(Config { metrics: Some(address), ..taking() }).is_err());
    let missing = Some(dir.path().join("nowhere.pem"));
    assert!(start(Config { certificate: missing.clone(), key: missing, ..taking() }).is_err());
    refused();
    // Nothing is deleted while the flag is given.
    for _ in 0..2 {
        start(taking()).unwrap().stop();
        assert!(blob.exists());
    }
    server(dir.path()).stop();
    assert!(!blob.exists(), "now it is known to be rubbish");
}

/// Erasure of a tenant: nothing of his is found afterwards, and nothing of others is missing.
#[test]
fn a_tenant_who_leaves_is_gone() {
    let (owner, dir) = (owner(), TempDir::new());
    let running = server(dir.path());
    let ann = Remote::connect(&address(&running, TOKEN)).unwrap();
    let bob = Remote::connect(&address(&running, "another token")).unwrap();
    let kept = bob.upload(BlobKind::Batch, &owner.path("batch0"), &mut |_, _| {}).unwrap();
    let training = owner.upload(&ann);
    let job = ann.train([1; 16], "a label", &training).unwrap();
    let mut watch = ann.watch(job.id, 0);
    while !matches!(watch.next_event().unwrap().unwrap().kind, hetal_client::rpc::EventKind::Validation(_)) {}
    drop(watch);
    let [name, misspelt] = ["ann", "anne"].map(|name| Tenant::try_from(name.to_owned()).unwrap());
    let forget =
        |name: &Tenant, even_if_configured| hetal_server::forget_tenant(&config(dir.path()), name, even_if_configured);
    // Erasure is refused while the server runs, for a tenant who is still configured, and for a
    // name that nobody has.
    assert!(forget(&name, true).is_err());
    running.stop();
    let refused = forget(&name, false).unwrap_err().to_string();
    assert!(refused.contains("still configured"), "{refused}");
    let refused = forget(&misspelt, false).unwrap_err().to_string();
    assert!(refused.contains("nothing is stored"), "{refused}");
    let gone = forget(&name, true).unwrap();
    assert!(gone.found_in.is_empty() && gone.jobs == 1 && gone.uploads == 4 && gone.blobs > 4, "{gone:?}");
    let state = std::fs::read(dir.path().join("state.sqlite")).unwrap();
    for trace in [&job.id.0[..], &training.keys.0, b"a label", training.keys.to_string().as_bytes()] {
        assert!(!state.windows(trace.len()).any(|window| window == trace), "{trace:?}");
    }
    assert!(!dir.path().join("blobs/tenants/ann").exists() && !dir.path().join("staging/ann").exists());
    let running = server(dir.path());
    let bob = Remote::connect(&address(&running, "another token")).unwrap();
    assert_eq!(bob.upload(BlobKind::Batch, &owner.path("batch0"), &mut |_, _| {}).unwrap().sent, 0);
    assert!(kept.sent > 0 && Remote::connect(&address(&running, TOKEN)).unwrap().jobs().unwrap().is_empty());
}
