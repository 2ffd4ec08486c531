//! Schedules of random faults, and single scenarios.

use super::client::Client;
use super::disk::{SimDisk, SimDiskHandle};
use super::fault_injector::{FaultInjector, FaultRates, interleaved};
use super::machine::{Machine, env_number, server_awaiting_verdicts, simulate};
use super::server::{SimServer, root};
use super::toy_executor;
use super::{LEASE, QUOTA};
use crate::Error;
use crate::compute::device::ComputeDevice;
use crate::jobs::lifecycle::{cancel_job, delete_job};
use crate::jobs::verdict_timeout::VerdictTimeouts;
use crate::store::blobs::{BlobKey, Blobs, Namespace, name_of, read};
use crate::store::gc::collect_garbage;
use crate::store::staging::Staging;
use crate::store::state::{EventLimit, JobState, MAX_BACKOFF, MemoryState, SqliteState, State, Upload};
use crate::store::uploads::{Resumed, UploadProgress};
use crate::tenants::Tenant;
use crate::testing::suites::state::{complete, in_postgres, new_job};
use crate::worker::attempt::MIN_CONTENDED_WAIT;
use crate::worker::shutdown::{ShutdownReason, ShutdownSignal};
use hetal_learn::Verdict;
use hetal_testkit::postgres::Postgres;
use hetal_wire::v1;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn acknowledged_work_survives_thousands_of_random_faults() {
    let seeds = match env_number("HETAL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..env_number("HETAL_SCHEDULES").unwrap_or(10_000),
    };
    let count = seeds.clone().count() as u64;
    let totals = simulate(seeds, || Box::new(MemoryState::default()));
    println!("{count} schedules: {totals:?}");
    if count >= 1000 {
        // Faults occurred, and most jobs finished all the same.
        assert!(totals.lives > 3 * count && totals.cuts > count && totals.corrupted > count / 20, "{totals:?}");
        assert!(totals.finished > count && totals.failed > count / 1000 && totals.cancelled > count / 20, "{totals:?}");
        assert!(totals.rolled_back > count / 5, "servers ran ahead and went back: {totals:?}");
        assert!(totals.healed > count / 1000, "damaged uploads are sent again: {totals:?}");
    }
}

/// An interrupted sync is repaired by a copy. A full disk prevents the copy but not the start.
#[test]
fn an_interrupted_upload_stops_no_start_on_a_full_disk() {
    let faults = Arc::new(FaultInjector::new(7));
    let disk = SimDiskHandle(Arc::new(SimDisk::new(&faults, root())));
    let (staging, ann) = (root().join("staging"), Tenant::try_from("ann".to_owned()).unwrap());
    let (bytes, name) = (vec![5; 1000], name_of(&[5; 1000]));
    Staging::open(Arc::new(disk.clone()), &staging, 8).unwrap();
    crate::store::disk::Disk::make_folder(&disk, &staging.join("ann")).unwrap();
    for full in [false, true] {
        let syncing = staging.join(format!("ann/{name}.syncing"));
        crate::store::disk::Disk::append(&disk, &syncing).unwrap().write_all(&bytes).unwrap();
        if full {
            crate::store::disk::Disk::remove(&disk, &staging.join(format!("ann/{name}"))).unwrap();
            faults.fill_disk();
        }
        let opened = Staging::open(Arc::new(disk.clone()), &staging, 8).unwrap();
        let held = opened.received(&ann, name).unwrap();
        assert!(if full { held < 1000 } else { held == 1000 }, "{held}");
        assert!(disk.0.contents(&syncing).is_none(), "it takes no more room");
    }
}

/// A checkpoint stores only what changed: the model, and not the weights that earlier checks left.
#[test]
fn a_checkpoint_stores_what_changed() {
    let mut cancelled = 0;
    for seed in 0..20 {
        let machine = Machine::new(seed, Box::new(MemoryState::default()));
        machine.faults.start(FaultRates::default(), None);
        let mut server = SimServer::start(&machine.faults, &machine.disk, &machine.state).unwrap();
        Arc::get_mut(&mut server.worker.core).unwrap().config.checkpoint_every = 1;
        while !machine.all_done() {
            machine.clients.iter().for_each(|client| client.borrow_mut().step(&server, &machine.corrupted));
            server.work();
        }
        let seen = |client: &RefCell<Client>, wanted: fn(&v1::event::What) -> bool| {
            client.borrow().seen.iter().filter(|event| event.what.as_ref().is_some_and(wanted)).count()
        };
        // Every checkpoint stores weights and momentum, and the end its outputs. What is kept of a
        // check was stored when it was opened.
        let model = 2 * toy_executor::PARTS;
        let rounds = |client| seen(client, |what| matches!(what, v1::event::What::Validation(_)));
        let most: usize = machine
            .clients
            .iter()
            .map(|client| (client.borrow().training.agreement.patience + 1) * toy_executor::PARTS)
            .sum();
        let checkpoints = server.worker.core.metrics.checkpoints.get() as usize;
        assert!(checkpoints >= machine.clients.iter().map(rounds).sum(), "seed {seed}");
        assert!(server.encoded.get() <= model * checkpoints + most, "seed {seed}: {} encoded", server.encoded.get());
        // However a job ended, it leaves no unreferenced blob.
        cancelled += machine.clients.iter().filter(|client| client.borrow().end == Some(JobState::Cancelled)).count();
        assert_eq!(collect_garbage(&*server.state, &*server.blobs, &server.uploads.staging).unwrap(), 0, "seed {seed}");
    }
    assert!(cancelled > 0);
}

/// An owner who answers every verdict, but slowly, delays others no longer than one who does not
/// answer: his waits add up.
#[test]
fn a_slow_owner_delays_others_only_once() {
    let machine = Machine::new(1, Box::new(MemoryState::default()));
    machine.faults.start(FaultRates::default(), None);
    let mut server = SimServer::start(&machine.faults, &machine.disk, &machine.state).unwrap();
    Arc::get_mut(&mut server.worker.core).unwrap().config.warm_seconds = 600;
    let mut owner = machine.clients[0].borrow_mut();
    let agreement = &mut owner.training.agreement;
    (agreement.patience, agreement.max_epochs, agreement.check_every) = (1000, 100, 1);
    while owner.job.is_none() {
        owner.step(&server, &machine.corrupted);
    }
    let (tenant, id, carol) = (owner.tenant.clone(), owner.job.unwrap(), Tenant::try_from("carol".to_owned()).unwrap());
    // Somebody else's job could run all the time.
    complete(&*machine.state, &carol, [1, 2, 3]);
    machine.state.create_job(&carol, &new_job(1), &QUOTA, machine.faults.now()).unwrap();
    let (state, core, over) = (Arc::clone(&machine.state), Arc::clone(&server.worker.core), AtomicBool::new(false));
    let answered = std::thread::scope(|scope| {
        let answers = scope.spawn(|| {
            let mut last = 0;
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
                let job = state.summary(&tenant, id).unwrap();
                if job.state == JobState::Waiting && job.round > last {
                    std::thread::sleep(SLOWLY);
                    state.judge(&tenant, id, job.round, Verdict::Continue).unwrap();
                    core.notifier.notify();
                    last = job.round;
                }
            }
            last
        });
        server.work();
        over.store(true, Ordering::Relaxed);
        answers.join().unwrap()
    });
    assert_eq!(state.summary(&tenant, id).unwrap().state, JobState::Waiting, "it gave way");
    assert!(SLOWLY * answered <= MIN_CONTENDED_WAIT + SLOWLY, "{answered} rounds");
}

/// How long the slow owner takes: less than the wait that one round alone may cost others.
const SLOWLY: Duration = Duration::from_millis(30);

/// A worker whose job ended or was deleted meanwhile removes what it stored.
#[test]
fn a_worker_that_lost_its_job_leaves_nothing() {
    for deleted in [false, true] {
        let (machine, server) = server_awaiting_verdicts(1, Box::new(MemoryState::default()));
        let client = machine.clients[0].borrow();
        let (tenant, id, now) = (&client.tenant, client.job.unwrap(), machine.faults.now());
        server.state.judge(tenant, id, 1, Verdict::Continue).unwrap();
        let claim = server.state.claim("local", now, now + 1000 * LEASE).unwrap().unwrap();
        let attempt = server.worker.begin_attempt(&claim);
        machine.faults.advance_clock(1000 * LEASE as i64 + 1);
        cancel_job(&*server.state, &*server.blobs, tenant, id, machine.faults.now()).unwrap();
        if deleted {
            delete_job(&*server.state, &*server.blobs, tenant, id).unwrap();
        }
        let told = server.blobs.list(tenant, Namespace::Job(id)).unwrap();
        server.blobs.put(&BlobKey::new(tenant, Namespace::Job(id), name_of(b"late")), b"late").unwrap();
        server.worker.record_end(&attempt, server.worker.next_state(&attempt, &Err(Error::Fenced))).unwrap();
        assert_eq!(server.blobs.list(tenant, Namespace::Job(id)).unwrap(), told);
        assert_eq!(told.is_empty(), deleted, "logits that were told of stay with the job");
    }
}

/// A failed GPU does not fail a job. Its checkpoint stays, its owner is told, and after the backoff
/// the next worker resumes it. Lack of memory never counts as an attempt; a GPU that fails at every
/// attempt does.
#[test]
fn a_lost_card_loses_no_job() {
    let (machine, server) = server_awaiting_verdicts(1, Box::new(MemoryState::default()));
    let client = machine.clients[0].borrow();
    let (tenant, id) = (&client.tenant, client.job.unwrap());
    server.state.judge(tenant, id, 1, Verdict::Continue).unwrap();
    let stored = server.blobs.list(tenant, Namespace::Job(id)).unwrap();
    let before = server.state.job(tenant, id).unwrap();
    assert!(before.checkpoint.is_some() && !stored.is_empty());
    let most = server.worker.core.config.bounds.attempts;
    let fails = |is_full, counted| {
        let claim = || {
            let now = machine.faults.now();
            server.state.claim("local", now, now + 1000 * LEASE).unwrap()
        };
        if server.state.job(tenant, id).unwrap().state == JobState::Queued {
            assert_eq!(claim(), None, "it rests");
            machine.faults.advance_clock(MAX_BACKOFF as i64);
        }
        let claim = claim().unwrap();
        let attempt = server.worker.begin_attempt(&claim);
        assert_eq!((claim.attempts, server.worker.check_runnable(&attempt).unwrap()), (counted, None));
        let lost = Err(Error::Device { reason: "an illegal address".to_owned(), is_full });
        server.worker.record_end(&attempt, server.worker.next_state(&attempt, &lost)).unwrap();
        server.state.job(tenant, id).unwrap()
    };
    let failures = (0..2 * most).map(|_| (true, 1)).chain((1..most).map(|attempt| (false, attempt)));
    for (is_full, attempt) in failures {
        let job = fails(is_full, attempt);
        assert_eq!((job.state, &job.checkpoint), (JobState::Queued, &before.checkpoint));
        let resting = v1::Progress { resting: true, ..before.progress.unwrap() };
        assert_eq!(job.progress, Some(resting), "its owner is told, and how far it was");
        assert_eq!(server.blobs.list(tenant, Namespace::Job(id)).unwrap(), stored);
    }
    assert_eq!(server.worker.core.metrics.device_failures.get(), u64::from(3 * most - 1));
    assert_eq!(fails(false, most).state, JobState::Failed);
}

/// A cancelled job does not wait for a failed GPU.
#[test]
fn a_lost_card_keeps_no_job_from_its_end() {
    let (machine, server) = server_awaiting_verdicts(1, Box::new(MemoryState::default()));
    let client = machine.clients[0].borrow();
    let (tenant, id, now) = (&client.tenant, client.job.unwrap(), machine.faults.now());
    server.state.judge(tenant, id, 1, Verdict::Continue).unwrap();
    server.state.claim("local", now, now + 1000 * LEASE).unwrap().unwrap();
    cancel_job(&*server.state, &*server.blobs, tenant, id, now).unwrap();
    server.state.release_worker("local").unwrap();
    let claim = server.state.claim("local", now, now + 1000 * LEASE).unwrap().unwrap();
    let lost = Err(Error::Device { reason: "an illegal address".to_owned(), is_full: false });
    let attempt = server.worker.begin_attempt(&claim);
    server.worker.record_end(&attempt, server.worker.next_state(&attempt, &lost)).unwrap();
    assert_eq!(server.state.job(tenant, id).unwrap().state, JobState::Cancelled);
}

/// A job counts as started when its keys are available. Fetching them may take days on a full disk.
#[test]
fn a_job_begins_when_its_keys_are_here() {
    let machine = Machine::new(1, Box::new(MemoryState::default()));
    machine.faults.start(FaultRates::default(), None);
    let server = SimServer::start(&machine.faults, &machine.disk, &machine.state).unwrap();
    let mut client = machine.clients[0].borrow_mut();
    client.training.set = "insecure-toy11".to_owned();
    while client.job.is_none() {
        client.step(&server, &machine.corrupted);
    }
    let (tenant, now) = (client.tenant.clone(), machine.faults.now());
    server.blobs.delete(&BlobKey::new(&tenant, Namespace::Uploads, client.training.keys)).unwrap();
    let claim = server.state.claim("local", now, now + 1000 * LEASE).unwrap().unwrap();
    server.worker.run_attempt(&claim, ComputeDevice::Cpu);
    let events = server.state.events(&tenant, client.job.unwrap(), 0, EventLimit::PAGE).unwrap();
    let whats: Vec<_> = events.into_iter().filter_map(|event| event.what).collect();
    assert!(matches!(&whats[..], [v1::event::What::Queued(_), v1::event::What::Failed(_)]), "{whats:?}");
    // The failure names the upload, which is asked for again.
    let (keys, reason) = (client.training.keys, server.state.job(&tenant, client.job.unwrap()).unwrap().reason);
    assert!(reason.contains(&keys.to_string()), "{reason}");
    assert!(!server.state.upload(&tenant, keys).unwrap().unwrap().complete);
}

/// An upload whose blob is missing or has another size is asked for again, also before any job
/// reads it. So is one that a job found damaged.
#[test]
fn a_damaged_upload_is_asked_for_again() {
    let (machine, server) = server_awaiting_verdicts(1, Box::new(MemoryState::default()));
    let client = machine.clients[0].borrow();
    let (kind, bytes) = &client.files[1];
    let (name, size) = (name_of(bytes), bytes.len() as u64);
    let wanted = Upload { name, kind: *kind, size, complete: false };
    let begin = || server.uploads.begin(&client.tenant, &wanted, &QUOTA).unwrap();
    let key = BlobKey::new(&client.tenant, Namespace::Uploads, name);
    assert!(begin().complete);
    let send = || {
        let Ok(Resumed::Partial(mut writer)) = server.uploads.resume(&client.tenant, name, 0) else {
            panic!("the upload is not asked for again");
        };
        server.uploads.add(&mut writer, bytes).unwrap();
        server.uploads.finish(&client.tenant, writer, |_, _| Ok(())).unwrap();
        assert!(begin().complete && read(&*server.blobs, &key, size).unwrap() == *bytes);
    };
    server.blobs.delete(&key).unwrap();
    assert_eq!(begin(), UploadProgress { received: 0, complete: false });
    send();
    let replace = |content: &[u8]| {
        let path = super::client::path(&client.tenant, Namespace::Uploads, name);
        crate::store::disk::Disk::remove(&machine.disk, &path).unwrap();
        crate::store::disk::Disk::append(&machine.disk, &path).unwrap().write_all(content).unwrap();
    };
    replace(&bytes[1..]);
    assert_eq!(begin(), UploadProgress { received: 0, complete: false });
    send();
    // Damage of the same size is found by the job that reads the blob.
    replace(&vec![0; bytes.len()]);
    assert!(begin().complete);
    assert_eq!(server.uploads.distrust(&client.tenant, name), Error::DamagedUpload { name });
    assert_eq!(begin(), UploadProgress { received: 0, complete: false });
    send();
    // An upload that was distrusted without reason is not sent again.
    server.uploads.distrust(&client.tenant, name);
    assert!(begin().complete);
}

/// A job that waits for its verdict gives its worker up if another job can run, after the time that
/// its keys took to load, and resumes with the verdict.
#[test]
fn a_waiting_job_gives_way() {
    let seed = (0..).find(|&seed| Machine::new(seed, Box::new(MemoryState::default())).clients.len() > 1).unwrap();
    let machine = Machine::new(seed, Box::new(MemoryState::default()));
    machine.faults.start(FaultRates::default(), None);
    let mut server = SimServer::start(&machine.faults, &machine.disk, &machine.state).unwrap();
    let _watched = hetal_testkit::Watchdog::new(Duration::from_secs(300));
    // Far longer than the test may take.
    Arc::get_mut(&mut server.worker.core).unwrap().config.warm_seconds = 3600;
    let [first, second] = [&machine.clients[0], &machine.clients[1]];
    for client in [first, second] {
        while client.borrow().job.is_none() {
            client.borrow_mut().step(&server, &machine.corrupted);
        }
    }
    let state = |client: &RefCell<Client>| {
        let client = client.borrow();
        server.state.job(&client.tenant, client.job.unwrap()).unwrap().state
    };
    server.work();
    let waiting = [first, second].map(state).iter().filter(|state| **state == JobState::Waiting).count();
    assert_eq!(waiting, 1, "the first job waits for its verdict without its worker");
    let now = machine.faults.now();
    assert!(server.state.has_claimable(now, now + 1000 * LEASE).unwrap());
    // Nobody else can run now, so the next job would keep its worker: its owner answers.
    Arc::get_mut(&mut server.worker.core).unwrap().config.warm_seconds = 0;
    while !machine.all_done() {
        machine.clients.iter().for_each(|client| client.borrow_mut().step(&server, &machine.corrupted));
        server.work();
    }
    assert!([first, second].iter().all(|client| client.borrow().end.is_some()));
}

/// A full disk only delays a job, and a cancelled job ends at once.
#[test]
fn a_full_disk_loses_no_job() {
    let (machine, server) = server_awaiting_verdicts(1, Box::new(MemoryState::default()));
    let client = machine.clients[0].borrow();
    let (tenant, id) = (&client.tenant, client.job.unwrap());
    server.state.judge(tenant, id, 1, Verdict::Continue).unwrap();
    let checkpoint = server.state.job(tenant, id).unwrap().checkpoint;
    let fails = |attempt| {
        machine.faults.advance_clock(MAX_BACKOFF as i64);
        let now = machine.faults.now();
        let claim = server.state.claim("local", now, now + 1000 * LEASE).unwrap().unwrap();
        assert_eq!((claim.attempts, claim.backoffs), (1, attempt));
        let full = Error::System { what: "a blob".to_owned(), reason: "no space left".to_owned() };
        let attempt = server.worker.begin_attempt(&claim);
        server.worker.record_end(&attempt, server.worker.next_state(&attempt, &Err(full))).unwrap();
        server.state.job(tenant, id).unwrap()
    };
    for attempt in 0..100 {
        let job = fails(attempt);
        assert_eq!((job.state, &job.checkpoint), (JobState::Queued, &checkpoint));
    }
    let job = cancel_job(&*server.state, &*server.blobs, tenant, id, machine.faults.now()).unwrap();
    assert_eq!(job.state, JobState::Cancelled);
}

/// A server that is stopped keeps every iteration, including the last of an epoch, and the attempt
/// does not count.
#[test]
fn a_stopped_server_loses_no_iteration() {
    let (mut after_an_epoch, mut released) = (0, 0);
    for seed in 0..200 {
        let machine = Machine::new(seed, Box::new(MemoryState::default()));
        machine.faults.start(FaultRates::default(), None);
        let mut server = SimServer::start(&machine.faults, &machine.disk, &machine.state).unwrap();
        Arc::get_mut(&mut server.worker.core).unwrap().config.checkpoint_every = u64::MAX;
        let client = &machine.clients[0];
        while client.borrow().job.is_none() {
            client.borrow_mut().step(&server, &machine.corrupted);
        }
        let (tenant, id) = (client.borrow().tenant.clone(), client.borrow().job.unwrap());
        let server = Rc::new(server);
        let (other, mut left) = (Rc::clone(&server), machine.faults.below(5));
        let stop = move || {
            left = left.saturating_sub(1);
            other.worker.draining.store(left == 0, Ordering::Relaxed);
        };
        interleaved(stop, || server.work());
        let job = server.state.without_faults().job(&tenant, id).unwrap();
        let done = server.worker.core.metrics.iterations.get();
        let stored = job.checkpoint.as_ref().map(|text| serde_json::from_str::<serde_json::Value>(text).unwrap());
        assert_eq!(stored.map_or(0, |stored| stored["iterations"].as_u64().unwrap()), done, "seed {seed}");
        if job.state == JobState::Queued {
            released += 1;
            after_an_epoch += u32::from(done == client.borrow().training.batches.len() as u64);
            let now = machine.faults.now();
            let claim = server.state.without_faults().claim("local", now, now + 1000 * LEASE).unwrap().unwrap();
            assert_eq!((claim.job.id, claim.attempts), (id, 1), "seed {seed}");
        }
    }
    assert!(released > 20 && after_an_epoch > 5, "{released} {after_an_epoch}");
}

/// A GPU that does not respond ends the process. A slow CPU does not, nor does a wait before the
/// GPU is used.
#[test]
fn a_card_that_hangs_is_not_waited_for() {
    let (machine, server) = server_awaiting_verdicts(1, Box::new(MemoryState::default()));
    let client = machine.clients[0].borrow();
    let now = machine.faults.now();
    server.state.judge(&client.tenant, client.job.unwrap(), 1, Verdict::Continue).unwrap();
    let claim = server.state.claim("local", now, now + 1000 * LEASE).unwrap().unwrap();
    let attempt = server.worker.begin_attempt(&claim);
    for (device, turned, ends) in [
        (ComputeDevice::Cpu, false, None),
        (ComputeDevice::Gpu(0), false, None),
        (ComputeDevice::Cpu, true, None),
        (ComputeDevice::Gpu(0), true, Some(ShutdownReason::GpuHung { seconds: 0 })),
    ] {
        if turned {
            attempt.start_device_watch();
        }
        let shutdown = ShutdownSignal::default();
        std::thread::scope(|scope| {
            let (working, stopped) = std::sync::mpsc::channel();
            let watch = scope.spawn(|| attempt.renew_lease(stopped, device, &shutdown));
            if ends.is_none() {
                std::thread::sleep(Duration::from_millis(2500));
                drop(working);
                watch.join().unwrap();
            } else {
                let until = std::time::Instant::now() + Duration::from_secs(20);
                while !watch.is_finished() && std::time::Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(20));
                }
                drop(working);
            }
        });
        assert_eq!(shutdown.reason(), ends.as_ref());
    }
}

/// A row with a damaged tenant ends too, and does not block other jobs.
#[test]
fn an_unreadable_job_keeps_no_other_waiting() {
    let dir = hetal_testkit::TempDir::new();
    let path = dir.path().join("state.sqlite");
    let seed = (0..).find(|&seed| Machine::new(seed, Box::new(MemoryState::default())).clients.len() > 1).unwrap();
    let (machine, server) = server_awaiting_verdicts(seed, Box::new(SqliteState::open(&path).unwrap()));
    let ids: Vec<_> = machine.clients.iter().map(|client| client.borrow().job.unwrap()).collect();
    let broken = "UPDATE jobs SET tenant = 'No Tenant' WHERE id = ?1";
    rusqlite::Connection::open(&path).unwrap().execute(broken, [&ids[0].0[..]]).unwrap();
    VerdictTimeouts::new(0, None).expire_overdue(&server.worker).unwrap();
    let now = machine.faults.now();
    assert_eq!(server.state.waiting(now, now + 1000 * LEASE).unwrap(), []);
    for (client, id) in machine.clients.iter().zip(&ids).skip(1) {
        assert_eq!(server.state.job(&client.borrow().tenant, *id).unwrap().state, JobState::Failed);
    }
}

/// The same with the production database.
#[test]
fn acknowledged_work_survives_in_the_database() {
    let totals = simulate(1_000_000..1_000_100, || Box::new(SqliteState::in_memory().unwrap()));
    println!("{totals:?}");
}

/// The same with PostgreSQL.
#[test]
fn acknowledged_work_survives_in_postgres() {
    if Postgres::shared().is_some() {
        let totals = simulate(2_000_000..2_000_010, || Box::new(in_postgres().unwrap()));
        println!("{totals:?}");
    }
}
