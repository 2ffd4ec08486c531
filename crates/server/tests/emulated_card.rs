//! A server on an emulated GPU: it computes the same bytes as the CPU, and a lost or full GPU only
//! costs time.
//!
//! `cargo test --release -p hetal-server --features emulator --test emulated_card`
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{address, config, follow, names, owner};
use hetal_client::rpc::{EventKind, JobInfo, JobProgress, JobState, Phase, Remote};
use hetal_cuda::emulated;
use hetal_server::config::EngineChoice;
use hetal_server::{Config, Server, ShutdownReason};
use hetal_testkit::TempDir;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A time limit far beyond the duration of these tests.
const PATIENCE: Duration = Duration::from_secs(600);

fn start(folder: &Path, engine: EngineChoice) -> (Server, Arc<Remote>) {
    let running = hetal_server::start(Config { engine, ..config(folder) }).unwrap();
    let remote = Remote::connect(&address(&running, common::TOKEN)).unwrap();
    (running, Arc::new(remote))
}

/// One epoch of two batches, because emulated kernels are slow.
fn train(remote: &Remote) -> JobInfo {
    let mut training = owner().upload(remote);
    training.wishes.max_epochs = Some(1);
    remote.train([1; 16], "a training", &training).unwrap()
}

/// Waits for a certain kind of progress.
fn wait(remote: &Arc<Remote>, job: &JobInfo, wanted: fn(&JobProgress) -> bool) {
    let (remote, id) = (Arc::clone(remote), job.id);
    let (seen, news) = mpsc::channel();
    // Watching a queued job never ends, so a silent server must not block the test.
    std::thread::spawn(move || {
        let mut watch = remote.watch(id, 0);
        while let Some(event) = watch.next_event().unwrap() {
            match event.kind {
                EventKind::Progress(progress) if wanted(&progress) => return seen.send(()).unwrap(),
                EventKind::Failed { reason } => panic!("{reason}"),
                _ => {}
            }
        }
        panic!("the job ended");
    });
    news.recv_timeout(PATIENCE).unwrap();
}

fn end_of(running: &Server) -> ShutdownReason {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, running.fatal_condition()).await.unwrap() })
}

#[test]
fn a_card_that_is_full_or_lost_costs_nothing_but_time() {
    if !emulated::is_present() {
        return;
    }
    let (dir, other) = (TempDir::new(), TempDir::new());
    let (cpu, remote) = start(other.path(), EngineChoice::Cpu);
    let expected = names(&follow(&remote, train(&remote).id, |_| {}));
    cpu.stop();

    // Enough to open the GPU, but not for a training.
    emulated::install(24 << 20);
    let (running, remote) = start(dir.path(), EngineChoice::Cuda);
    let job = train(&remote);
    let failed = follow_to_failure(&remote, &job);
    assert!(failed.contains("the job needs") && failed.contains("GiB of GPU memory"), "{failed}");
    remote.delete(job.id).unwrap();
    running.stop();

    let launches = emulated::install(usize::MAX);
    let (running, remote) = start(dir.path(), EngineChoice::Cuda);
    let job = train(&remote);
    wait(&remote, &job, |progress| progress.phase == Phase::Training && progress.iterations >= 1);
    launches.store(0, Ordering::Relaxed);
    wait(&remote, &job, |progress| progress.resting);
    let rests = remote.job(job.id).unwrap();
    assert_eq!((rests.state, rests.progress.map(|p| p.resting)), (JobState::Queued, Some(true)));
    let ShutdownReason::GpuLost { reason } = end_of(&running) else { panic!("another end") };
    assert!(reason.contains("the emulated card is lost"), "{reason}");
    assert_eq!(running.device_fault(), reason);
    running.stop();

    // Another process would have another GPU.
    emulated::install(usize::MAX);
    let (running, remote) = start(dir.path(), EngineChoice::Auto);
    let mut rested = false;
    let outputs = follow(&remote, job.id, |event| {
        rested |= matches!(event.kind, EventKind::Progress(JobProgress { resting: true, .. }));
    });
    assert!(!rested, "it goes on at once");
    assert_eq!(names(&outputs), expected);
    running.stop();
}

fn follow_to_failure(remote: &Remote, job: &JobInfo) -> String {
    let mut watch = remote.watch(job.id, 0);
    while let Some(event) = watch.next_event().unwrap() {
        if let EventKind::Failed { reason } = event.kind {
            return reason;
        }
    }
    panic!("it did not fail");
}
