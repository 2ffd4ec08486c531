//! A server process that is killed and started again, many times.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Process, TOKEN, judge, names, owner};
use hetal_client::rpc::{BlobKind, EventKind, Phase, Remote};
use hetal_testkit::{Random, SetOnDrop, TempDir, Watchdog};
use std::cell::RefCell;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const WORDS: &str = "checkpoint_every = 2";
/// A time limit far beyond the duration of these tests.
const LONGEST: Duration = Duration::from_secs(900);

fn start(folder: &Path, address: &str) -> Process {
    // A process that is killed often makes many attempts.
    Process::start(folder, address, WORDS, "[bounds]\nattempts = 10000\n")
}

/// The next process at the same address.
fn kill_and_start(process: &mut Process, folder: &Path) {
    process.kill();
    let address = process.address.clone();
    *process = start(folder, &address);
}

fn connect(process: &Process, folder: &Path) -> Remote {
    Remote::connect(&process.reached_by(folder, TOKEN)).unwrap()
}

/// Killed during the upload of keys, after every iteration, and while verdicts are open: the
/// weights are the same to the last bit.
#[test]
fn a_server_killed_at_any_moment_ends_with_the_same_bytes() {
    let _watched = Watchdog::new(LONGEST);
    let (owner, dir) = (owner(), TempDir::new());
    let process = RefCell::new(start(dir.path(), "127.0.0.1:0"));
    let remote = connect(&process.borrow(), dir.path());
    let mut kills = 0;
    // Progress is reported now and then. On a fast machine an upload may end between two reports,
    // and is repeated.
    let uploaded = (0..50).find_map(|_| {
        let uploaded = remote.upload(BlobKind::Keys, &owner.path("keys"), &mut |held, total| {
            if kills == 0 && held > total / 3 && held < total {
                kills += 1;
                kill_and_start(&mut process.borrow_mut(), dir.path());
            }
        });
        let uploaded = uploaded.unwrap();
        if kills == 0 {
            remote.delete_upload(uploaded.name).unwrap();
        }
        (kills == 1).then_some(uploaded)
    });
    let uploaded = uploaded.expect("every upload ended before it was cut");
    // What had arrived before the kill was not sent again.
    assert!(uploaded.sent < uploaded.size + uploaded.size / 2, "{uploaded:?}");
    let job = remote.train([1; 16], "", &owner.upload(&remote)).unwrap();
    let mut watch = remote.watch(job.id, 0);
    let (mut last_iteration, mut last_round, mut attempts) = (0, 0, 0);
    let outputs = loop {
        match watch.next_event().unwrap().unwrap().kind {
            EventKind::Started { .. } => attempts += 1,
            EventKind::Progress(p) if p.phase == Phase::Training && p.iterations > last_iteration => {
                last_iteration = p.iterations;
                kills += 1;
                kill_and_start(&mut process.borrow_mut(), dir.path());
            }
            EventKind::Validation(validation) => {
                if validation.round == 2 && last_round < 2 {
                    kills += 1;
                    kill_and_start(&mut process.borrow_mut(), dir.path());
                }
                last_round = validation.round;
                judge(&remote, job.id, &validation);
            }
            EventKind::Finished(outputs) => break outputs,
            EventKind::Failed { reason } => panic!("{reason}"),
            _ => {}
        }
    };
    println!("{kills} kills, {attempts} attempts");
    assert!(kills >= 4 && attempts >= 3, "{kills} kills, {attempts} attempts");
    assert_eq!(names(&outputs), owner.reference());
}

/// A job whose server is killed at random moments: a quarter of them during uploads, the rest
/// spread over the rounds. The server starts, receives uploads, loads keys, trains, saves, runs
/// ahead, goes back or waits. A verdict is given when the share of its round is over.
fn killed_at_random_moments(kills: usize, seed: u64) {
    let (owner, dir) = (owner(), TempDir::new());
    let mut process = start(dir.path(), "127.0.0.1:0");
    let remote = connect(&process, dir.path());
    let share = |round: usize| kills / 4 + (kills - kills / 4) * round / common::VERDICTS.len();
    let (done, allowed, ended) = (AtomicUsize::new(0), AtomicUsize::new(share(0)), AtomicBool::new(false));
    let _watched = Watchdog::new(LONGEST);
    let outputs = std::thread::scope(|scope| {
        // The other thread ends in any case, also after a panic.
        let _over = SetOnDrop(&ended);
        let (done, allowed, ended, folder) = (&done, &allowed, &ended, dir.path());
        scope.spawn(move || {
            let mut random = Random(seed);
            while !ended.load(Ordering::SeqCst) {
                let kill = done.load(Ordering::SeqCst);
                if kill == allowed.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
                // Uploads take less time than epochs.
                let most = if kill < share(0) { 150 } else { 2500 };
                std::thread::sleep(Duration::from_millis(random.below(most) as u64));
                kill_and_start(&mut process, folder);
                done.fetch_add(1, Ordering::SeqCst);
            }
        });
        let training = owner.upload(&remote);
        println!("{} kills while uploading", done.load(Ordering::SeqCst));
        let job = remote.train([1; 16], "", &training).unwrap();
        allowed.store(share(1), Ordering::SeqCst);
        let outputs = common::follow(&remote, job.id, |event| {
            if let EventKind::Validation(validation) = &event.kind
                && common::verdict_on(validation).is_some()
            {
                println!("check {} reached: {} kills", validation.round, done.load(Ordering::SeqCst));
                while done.load(Ordering::SeqCst) < share(validation.round as usize) {
                    std::thread::sleep(Duration::from_millis(10));
                }
                allowed.store(share(validation.round as usize + 1).min(kills), Ordering::SeqCst);
            }
        });
        assert_eq!(done.load(Ordering::SeqCst), kills);
        outputs
    });
    assert_eq!(names(&outputs), owner.reference());
}

#[test]
fn a_server_killed_at_12_random_moments_ends_with_the_same_bytes() {
    killed_at_random_moments(12, 5);
}

#[test]
#[ignore = "takes minutes: .ci/run runs it"]
fn a_server_killed_at_50_random_moments_ends_with_the_same_bytes() {
    killed_at_random_moments(50, 6);
}

/// After SIGTERM the process ends soon, and the next one continues the job.
#[test]
fn a_terminated_server_drains() {
    let _watched = Watchdog::new(LONGEST);
    let (owner, dir) = (owner(), TempDir::new());
    let mut process = start(dir.path(), "127.0.0.1:0");
    let remote = connect(&process, dir.path());
    let job = remote.train([1; 16], "", &owner.upload(&remote)).unwrap();
    let mut watch = remote.watch(job.id, 0);
    loop {
        if let EventKind::Progress(p) = watch.next_event().unwrap().unwrap().kind
            && p.iterations >= 1
        {
            break;
        }
    }
    let id = process.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert!(process.child.wait().unwrap().success());
    let address = process.address.clone();
    process = start(dir.path(), &address);
    let outputs = common::follow(&remote, job.id, |_| {});
    assert_eq!(names(&outputs), owner.reference());
    drop(process);
}
