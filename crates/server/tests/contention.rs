//! Tenants who wait for each other: workers, connections and the database.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Process, TestClient, address, config, owner, wishes};
use hetal_client::rpc::{EventKind, JobId, Remote, TrainingRequest};
use hetal_learn::{AgreementLimits, KeyPlan, RowForm, Verdict, Wishes};
use hetal_server::job_spec::{JobSpec, RowBlob, TrainingSpec};
use hetal_server::state::{BlobKind, NewJob, Quota, SqliteState, State, Upload};
use hetal_server::tenants::{Fingerprint, Tenant};
use hetal_testkit::{TempDir, Watchdog};
use hetal_wire::{BlobName, v1};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A time limit far beyond the duration of a test.
const LONGEST: Duration = Duration::from_secs(300);

/// A training of one epoch with one batch.
fn short_training(remote: &Remote) -> TrainingRequest {
    let mut training = owner().upload(remote);
    training.batches.truncate(1);
    training.wishes = Wishes { max_epochs: Some(1), ..wishes() };
    training
}

/// Trains with prompt verdicts. Returns whether it ended within `longest`.
fn train(remote: &Remote, request: [u8; 16], training: &TrainingRequest, longest: Duration) -> bool {
    let started = Instant::now();
    let job = remote.train(request, "", training).unwrap();
    let mut watch = remote.watch(job.id, 0);
    loop {
        let state = remote.job(job.id).unwrap();
        if started.elapsed() > longest {
            return false;
        }
        if state.state == hetal_wire::JobState::Queued {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        match watch.next_event().unwrap().unwrap().kind {
            EventKind::Validation(v) => remote.judge(job.id, v.round, Verdict::Stop).unwrap(),
            EventKind::Finished(_) => return true,
            EventKind::Failed { reason } => panic!("{reason}"),
            _ => {}
        }
    }
}

/// Waits until a job asks for its first verdict.
fn await_question(remote: &Remote, job: JobId) {
    let mut watch = remote.watch(job, 0);
    while !matches!(watch.next_event().unwrap().unwrap().kind, EventKind::Validation(_)) {}
}

/// The waiting time of a second tenant while the owner of the first job does not answer.
#[test]
#[ignore = "a measurement"]
fn measure_waiting_behind_a_silent_owner() {
    let dir = TempDir::new();
    let running = hetal_server::start(config(dir.path())).unwrap();
    let [ann, bob] = [common::TOKEN, "another token"].map(|t| Remote::connect(&address(&running, t)).unwrap());
    let (silent, short) = (owner().upload(&ann), short_training(&bob));
    let alone = Instant::now();
    assert!(train(&bob, [1; 16], &short, LONGEST));
    println!("alone: {:.2?}", alone.elapsed());
    let job = ann.train([7; 16], "", &silent).unwrap();
    await_question(&ann, job.id);
    let since = Instant::now();
    let served = train(&bob, [2; 16], &short, Duration::from_secs(60));
    println!("behind a silent owner: served {served} after {:.2?}", since.elapsed());
    ann.cancel(job.id).unwrap();
}

/// Bytes that a process has read, from files and from the page cache.
fn bytes_read(process: &Process) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{}/io", process.child.id())).unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// 1,000 cancelled jobs of `mallory` that name one batch 4,095 times.
fn add_cancelled_jobs(folder: &Path) {
    let state = SqliteState::open(&folder.join("server/state.sqlite")).unwrap();
    let mallory = Tenant::try_from("mallory".to_owned()).unwrap();
    let quota = Quota { bytes: 1 << 40, uploads: 10_000, jobs: 16, kept_jobs: 1000 };
    for n in 1..=3 {
        let upload = Upload { name: BlobName([n; 32]), kind: BlobKind::Batch, size: 100, complete: false };
        state.begin_upload(&mallory, &upload, &quota).unwrap();
        state.complete_upload(&mallory, upload.name).unwrap();
    }
    let row_blob = |n| RowBlob { blob: BlobName([n; 32]), rows: 5 };
    let spec = JobSpec::Training(TrainingSpec {
        set: "insecure-toy11".to_owned(),
        features: 4,
        classes: 3,
        keys: BlobName([1; 32]),
        batches: vec![row_blob(2); 4095],
        validation: vec![row_blob(3)],
        agreement: AgreementLimits::default().defaults,
        form: RowForm::Slots,
        key_plan: KeyPlan::Fast,
    });
    for n in 0..1000u128 {
        let id = JobId(n.to_be_bytes());
        let new = NewJob { id, request: n.to_be_bytes(), body: [0; 32], label: String::new(), spec: spec.clone() };
        state.create_job(&mallory, &new, &quota, 1).unwrap();
        state.cancel_job(&mallory, id, 2).unwrap();
    }
}

/// Prints what a server costs while idle, and how it serves a tenant meanwhile: requests beside his
/// own training.
fn measure(folder: &Path, request: [u8; 16]) {
    let token = Fingerprint::of(b"token of mallory");
    let tables = format!("[[tenants]]\nname = \"mallory\"\ntoken = \"{token}\"\n");
    let process = Process::start(folder, "127.0.0.1:0", "workers = 2", &tables);
    let remote = Remote::connect(&process.reached_by(folder, common::TOKEN)).unwrap();
    let short = short_training(&remote);
    std::thread::sleep(Duration::from_secs(2));
    let (before, since) = (bytes_read(&process), Instant::now());
    std::thread::sleep(Duration::from_secs(10));
    let idle = (bytes_read(&process) - before) as f64 / since.elapsed().as_secs_f64() / 1e6;
    let over = AtomicBool::new(false);
    let (served, elapsed, mut times) = std::thread::scope(|scope| {
        let requests = scope.spawn(|| {
            let (mut times, since) = (Vec::new(), Instant::now());
            while !over.load(Ordering::Relaxed) || since.elapsed() < Duration::from_secs(20) {
                let start = Instant::now();
                remote.jobs().unwrap();
                times.push(start.elapsed());
                std::thread::sleep(Duration::from_millis(5));
            }
            times
        });
        let since = Instant::now();
        let own = Remote::connect(&process.reached_by(folder, common::TOKEN)).unwrap();
        let served = train(&own, request, &short, Duration::from_secs(200));
        let elapsed = since.elapsed();
        over.store(true, Ordering::Relaxed);
        (served, elapsed, requests.join().unwrap())
    });
    times.sort();
    let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
    let (count, p50, p99) = (times.len(), at(50), at(99));
    println!("idle reads {idle:.2} MB/s; {count} requests: p50 {p50:.2?}, p99 {p99:.2?}; job {served} {elapsed:.2?}");
}

/// What 1,000 cancelled jobs of one tenant cost the server and another tenant.
/// `HETAL_MEASURED_FOLDER` names a prepared folder, and `HETAL_SERVER_PROGRAM` another server.
#[test]
#[ignore = "a measurement"]
fn measure_many_cancelled_jobs() {
    if let Some(folder) = std::env::var_os("HETAL_MEASURED_FOLDER") {
        return measure(Path::new(&folder), [3; 16]);
    }
    let dir = TempDir::new();
    measure(dir.path(), [1; 16]);
    add_cancelled_jobs(dir.path());
    measure(dir.path(), [2; 16]);
}

/// A job whose owner does not answer keeps no other job waiting. It resumes with the verdict and
/// computes the same bytes.
#[test]
fn a_silent_owner_keeps_nobody_waiting() {
    let _watched = Watchdog::new(LONGEST);
    let dir = TempDir::new();
    let running = hetal_server::start(config(dir.path())).unwrap();
    let [ann, bob] = [common::TOKEN, "another token"].map(|t| Remote::connect(&address(&running, t)).unwrap());
    let job = ann.train([7; 16], "", &owner().upload(&ann)).unwrap();
    await_question(&ann, job.id);
    assert!(train(&bob, [1; 16], &short_training(&bob), LONGEST));
    assert_eq!(common::names(&common::follow(&ann, job.id, |_| {})), owner().reference());
}

/// Ids of requests, numbers of events and hyper-parameters that do not exist are refused.
#[test]
fn contradictory_requests_are_refused() {
    let dir = TempDir::new();
    let running = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&address(&running, common::TOKEN)).unwrap();
    let training = owner().upload(&remote);
    let job = remote.train([7; 16], "", &training).unwrap();
    assert_eq!(remote.train([7; 16], "", &training).unwrap().id, job.id);
    let other = TrainingRequest { wishes: Wishes { max_epochs: Some(2), ..wishes() }, ..training.clone() };
    let refused = remote.train([7; 16], "", &other).unwrap_err().to_string();
    assert!(refused.contains("request id"), "{refused}");
    let mut repeated = training.clone();
    repeated.batches.push(repeated.batches[0]);
    let refused = remote.train([8; 16], "", &repeated).unwrap_err().to_string();
    assert!(refused.contains("twice"), "{refused}");
    TestClient::with_token(common::TOKEN).talk(&running, async |mut rpc| {
        let request = v1::WatchRequest { job: job.id.to_vec().into(), after: 1_000_000 };
        let refused = rpc.watch(request).await.unwrap_err();
        assert!(refused.code() == tonic::Code::InvalidArgument && refused.message().contains("no event"), "{refused}");
        let rows = |row_blobs: &[hetal_client::rpc::RowBlob]| {
            let rows = |r: &hetal_client::rpc::RowBlob| v1::Rows { blob: r.blob.to_vec().into(), rows: r.rows as u32 };
            row_blobs.iter().map(rows).collect()
        };
        let message = v1::Training {
            set: training.set.to_vec().into(),
            features: training.features as u32,
            classes: training.classes as u32,
            keys: training.keys.to_vec().into(),
            batches: rows(&training.batches),
            validation: rows(&training.validation),
            wishes: Some(v1::Wishes { batch: Some(common::BATCH as u32), momentum: 99, ..v1::Wishes::default() }),
            weighted: false,
            form: v1::RowForm::Coefficients.into(),
            key_plan: v1::KeyPlan::Fast.into(),
        };
        let work = Some(v1::create_job_request::Work::Training(message));
        let request = v1::CreateJobRequest { request_id: vec![9; 16].into(), label: String::new(), work };
        let refused = rpc.create_job(request).await.unwrap_err();
        assert!(refused.message().contains("unknown momentum 99"), "{refused}");
    });
    remote.cancel(job.id).unwrap();
}

/// A removed tenant loses his open connections and streams, and others do not.
#[test]
fn connections_of_removed_tenants_are_closed() {
    let _watched = Watchdog::new(LONGEST);
    let dir = TempDir::new();
    let config = config(dir.path());
    let running = hetal_server::start(config.clone()).unwrap();
    let remote = Remote::connect(&address(&running, common::TOKEN)).unwrap();
    let job = remote.train([7; 16], "", &owner().upload(&remote)).unwrap();
    TestClient::with_token(common::TOKEN).talk(&running, async |mut rpc| {
        let mut watch =
            rpc.watch(v1::WatchRequest { job: job.id.to_vec().into(), after: 0 }).await.unwrap().into_inner();
        assert!(watch.message().await.unwrap().is_some());
        running.reload(&config.tenants[1..]).unwrap();
        // The stream breaks off, although the job waits for a verdict for hours.
        while let Ok(Some(_)) = watch.message().await {}
    });
    Remote::connect(&address(&running, "another token")).unwrap().jobs().unwrap();
}

/// The local addresses of established connections to a server.
fn connections_to(running: &hetal_server::Server) -> Vec<String> {
    let port = format!(":{:04X}", running.address().port());
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let fields = table.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    fields.filter(|fields| fields[2].ends_with(&port) && fields[3] == "01").map(|fields| fields[1].clone()).collect()
}

/// A connection without requests is closed, and the client connects again without notice.
#[test]
fn idle_connections_are_closed() {
    let _watched = Watchdog::new(LONGEST);
    let dir = TempDir::new();
    let mut config = config(dir.path());
    config.bounds.connection_idle_seconds = 1;
    let running = hetal_server::start(config).unwrap();
    let remote = Remote::connect(&address(&running, common::TOKEN)).unwrap();
    remote.jobs().unwrap();
    while !connections_to(&running).is_empty() {
        std::thread::sleep(Duration::from_millis(50));
    }
    remote.jobs().unwrap();
}

/// A connection that is always busy is replaced when it is old, without a failed request.
#[test]
fn old_connections_are_replaced() {
    let _watched = Watchdog::new(LONGEST);
    let dir = TempDir::new();
    let mut config = config(dir.path());
    config.bounds.connection_seconds = 1;
    let running = hetal_server::start(config).unwrap();
    let remote = Remote::connect(&address(&running, common::TOKEN)).unwrap();
    remote.jobs().unwrap();
    let first = connections_to(&running);
    while connections_to(&running).iter().any(|connection| first.contains(connection)) {
        remote.jobs().unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
}
