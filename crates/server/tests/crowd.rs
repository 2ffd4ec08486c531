//! Many clients at once, and many hostile ones.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Process, TestClient, names, owner, wishes};
use hetal_client::rpc::{BlobName, EventKind, Remote, TrainingRequest};
use hetal_learn::{Verdict, Wishes};
use hetal_server::authority_path;
use hetal_server::tenants::Fingerprint;
use hetal_testkit::{SetOnDrop, TempDir, Watchdog};
use hetal_wire::v1;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

const CLIENTS: usize = 32;
const HOSTILE: usize = 200;
/// Memory of the server at the toy set: two jobs with keys and batches, and all connections.
const MEMORY_KIB: u64 = 1 << 20;

/// A time limit far beyond the duration of the test.
const LONGEST: Duration = Duration::from_secs(900);

/// Counts when it is dropped, also by a panic.
struct CountOnDrop<'a>(&'a AtomicUsize);

impl Drop for CountOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn token(client: usize) -> String {
    format!("token of client {client}")
}

fn tables() -> String {
    let tenant = |name: &str, token: &str| {
        format!("[[tenants]]\nname = \"{name}\"\ntoken = \"{}\"\n", Fingerprint::of(token.as_bytes()))
    };
    let clients: String = (0..CLIENTS).map(|n| tenant(&format!("client-{n}"), &token(n))).collect();
    format!("{clients}{}[bounds]\nidle_seconds = 5\n", tenant("mallory", "token of mallory"))
}

/// A training of one epoch with one batch.
fn training(remote: &Remote) -> TrainingRequest {
    let mut training = owner().upload(remote);
    training.batches.truncate(1);
    training.wishes = Wishes { max_epochs: Some(1), ..wishes() };
    training
}

/// A value of the server's metrics.
fn metric(address: SocketAddr, name: &str) -> u64 {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Trains. Returns the names of the weights and the number of iterations the server did meanwhile
/// for all tenants.
fn train(remote: &Remote, training: &TrainingRequest, metrics: SocketAddr) -> (Vec<(usize, BlobName)>, u64) {
    let before = metric(metrics, "hetal_iterations_total");
    let job = remote.train([7; 16], "", training).unwrap();
    let mut watch = remote.watch(job.id, 0);
    loop {
        match watch.next_event().unwrap().unwrap().kind {
            EventKind::Validation(v) => remote.judge(job.id, v.round, Verdict::Stop).unwrap(),
            EventKind::Finished(outputs) => {
                return (names(&outputs), metric(metrics, "hetal_iterations_total") - before);
            }
            EventKind::Failed { reason } => panic!("{reason}"),
            _ => {}
        }
    }
}

/// Connects again and again and does something useless: garbage, silence after TCP, or an upload
/// that never ends.
fn annoy(number: usize, server: SocketAddr, authority: &[u8], over: &AtomicBool, met: &AtomicU64) {
    while !over.load(Ordering::Relaxed) {
        met.fetch_add(1, Ordering::Relaxed);
        match number % 3 {
            0 => {
                let Ok(mut stream) = TcpStream::connect(server) else { continue };
                let garbage: Vec<u8> = (0..5000).map(|i| (i * 37 + number) as u8).collect();
                let _ = stream.write_all(&garbage);
                let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
                let _ = stream.read(&mut [0; 64]);
            }
            1 => {
                let Ok(mut stream) = TcpStream::connect(server) else { continue };
                let _ = stream.set_read_timeout(Some(Duration::from_secs(8)));
                // Until the server closes it.
                let _ = stream.read(&mut [0; 64]);
            }
            _ => never_finish(number, server, authority),
        }
    }
}

/// As an authenticated tenant: begins an upload and sends a byte now and then, until the server
/// ends it.
fn never_finish(number: usize, server: SocketAddr, authority: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _ = runtime.block_on(async {
        let mut rpc = TestClient::with_token("token of mallory").connect(server, authority);
        let name = vec![number as u8; 32];
        let (kind, size) = (v1::BlobKind::Batch.into(), 1 << 20);
        let begin = v1::BeginUploadRequest { name: name.clone().into(), kind, size };
        let held = rpc.begin_upload(begin).await?.into_inner().held;
        let (sender, parts) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            let mut offset = held;
            while sender.send(v1::UploadPart { name: name.clone().into(), offset, data: vec![1].into() }).await.is_ok()
            {
                offset += 1;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        rpc.upload(tokio_stream::wrappers::ReceiverStream::new(parts)).await
    });
}

/// The peak memory of a process, in KiB.
fn peak(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn start(folder: &Path) -> (Process, SocketAddr) {
    // Finds a free port for the metrics.
    let metrics = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let words = format!("workers = 2\nprepared_gib = 0.1\nmetrics = \"{metrics}\"\n");
    (Process::start(folder, "127.0.0.1:0", &words, &tables()), metrics)
}

#[test]
fn a_crowd_of_clients_is_served_whoever_else_is_there() {
    let dir = TempDir::new();
    let (process, metrics) = start(dir.path());
    let server: SocketAddr = process.address.parse().unwrap();
    let authority = std::fs::read(authority_path(&dir.path().join("server"))).unwrap();
    let (over, met, ready) = (AtomicBool::new(false), AtomicU64::new(0), AtomicUsize::new(0));
    let _watched = Watchdog::new(LONGEST);
    let (results, alone) = std::thread::scope(|scope| {
        // The other threads end in any case, also after a panic.
        let _over = SetOnDrop(&over);
        for number in 0..HOSTILE {
            let (authority, over, met) = (&authority, &over, &met);
            scope.spawn(move || annoy(number, server, authority, over, met));
        }
        let client = |number: usize| {
            let (process, dir, ready, over) = (&process, &dir, &ready, &over);
            scope.spawn(move || {
                // A thread that fails early does not keep the others waiting.
                let arrived = CountOnDrop(ready);
                let remote = Remote::connect(&process.reached_by(dir.path(), &token(number))).unwrap();
                let training = training(&remote);
                drop(arrived);
                while ready.load(Ordering::SeqCst) < CLIENTS && !over.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                train(&remote, &training, metrics)
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        let results: Vec<_> = clients.into_iter().map(|thread| thread.join()).collect();
        over.store(true, Ordering::Relaxed);
        let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
        let remote = Remote::connect(&process.reached_by(dir.path(), common::TOKEN)).unwrap();
        (results, train(&remote, &training(&remote), metrics).0)
    });
    assert!(results.iter().all(|(weights, _)| *weights == alone && !alone.is_empty()), "wrong weights in the crowd");
    let mut waited: Vec<_> = results.iter().map(|(_, iterations)| *iterations).collect();
    waited.sort();
    let (median, slowest, peak) = (waited[CLIENTS / 2], waited[CLIENTS - 1], peak(&process));
    println!("iterations of everyone until one's own job was done: median {median}, slowest {slowest}");
    println!("{} hostile connections, {} MiB at most", met.load(Ordering::Relaxed), peak >> 10);
    assert!(slowest <= 3 * median, "someone starved: {waited:?}");
    assert!(peak < MEMORY_KIB, "{peak} KiB");
}
