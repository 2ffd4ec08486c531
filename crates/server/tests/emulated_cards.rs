//! A server with two emulated GPUs, each with a process of its own: the fault of one leaves the job
//! of the other alone.
//!
//! `cargo test --release -p hetal-server --features emulator --test emulated_cards`
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::site::Site;
use common::{config, follow, names, owner};
use hetal_client::rpc::{JobId, Remote};
use hetal_testkit::{TempDir, Watchdog};
use std::time::Duration;

/// A time limit far beyond the duration of this test.
const LONGEST: Duration = Duration::from_secs(1800);

/// Queues a training of one epoch of two batches, because emulated kernels are slow.
fn train(remote: &Remote, n: u8) -> JobId {
    let mut training = owner().upload(remote);
    training.wishes.max_epochs = Some(1);
    remote.train([n; 16], "", &training).unwrap().id
}

#[test]
fn the_fault_of_one_card_leaves_the_jobs_of_others_alone() {
    let _watched = Watchdog::new(LONGEST);
    if !hetal_cuda::emulated::is_present() {
        return;
    }
    let Some(site) = Site::new() else { return };
    let dir = TempDir::new();
    let cpu = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&common::address(&cpu, common::TOKEN)).unwrap();
    let expected = names(&follow(&remote, train(&remote, 1), |_| {}));
    cpu.stop();

    let server = site.start("server", "all", &site.url);
    let remote = site.connect(&[&server]);
    let jobs = [1, 2].map(|n| train(&remote, n));
    // Both compute, each on its card.
    site.wait("SELECT COUNT(DISTINCT worker) FROM jobs WHERE progress IS NOT NULL", "2");
    site.wait("SELECT COUNT(*) FROM events WHERE sequence = 2", "2");
    let lost = server.name_of_card(0);
    let tokens = format!("SELECT token FROM jobs WHERE last_worker <> '{lost}'");
    let before = site.query(&tokens);
    server.lose_card(0);
    for job in jobs {
        assert_eq!(names(&follow(&remote, job, |_| {})), expected);
    }
    assert!(server.log().contains("the worker of a GPU has ended"), "{}", server.log());
    let other = server.name_of_card(1);
    let kept = format!("SELECT COUNT(*) FROM jobs WHERE last_worker = '{other}' AND token = {before}");
    assert_eq!(site.query(&kept), "1", "the other job kept its lease");
}
