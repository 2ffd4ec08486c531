//! A site of several processes on one PostgreSQL database and one folder of blobs: they are killed,
//! suspended and stopped, and every job ends with the bytes of a lone run.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::proxy::{Proxy, Weather};
use common::site::{BEFORE, Member, Site, name_of, results, wait_for_iterations};
use common::{VERDICTS, follow, names, owner};
use hetal_client::rpc::{BlobKind, EventKind, JobId, Remote, Validation};
use hetal_testkit::postgres::{PASSWORD, Postgres};
use hetal_testkit::{Random, SetOnDrop, Watchdog};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// A time limit far beyond the duration of these tests.
const LONGEST: Duration = Duration::from_secs(1800);

/// Several jobs, while random processes are killed and started again.
fn killed_at_random_moments(workers: usize, jobs: u8, kills: usize, seed: u64) {
    let _watched = Watchdog::new(LONGEST);
    let Some(site) = Site::new() else { return };
    let mut members: Vec<_> =
        ["gateway 1", "gateway 2"].iter().map(|name| site.start(name, "gateway", &site.url)).collect();
    members.extend((0..workers).map(|n| site.start(&format!("worker {n}"), "worker", &site.url)));
    let gateways: Vec<&Member> = members[..2].iter().collect();
    let remotes: Vec<Remote> = (0..jobs).map(|_| site.connect(&gateways)).collect();
    let (members, over, done) = (Mutex::new(members), AtomicBool::new(false), AtomicUsize::new(0));
    let uploaded = OnceLock::new();
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        scope.spawn(|| {
            let mut random = Random(seed);
            while !over.load(Ordering::SeqCst) && done.load(Ordering::SeqCst) < kills {
                std::thread::sleep(Duration::from_millis(random.below(1500) as u64));
                let mut members = members.lock().unwrap();
                let count = members.len();
                let member = &mut members[random.below(count)];
                member.kill();
                member.run();
                done.fetch_add(1, Ordering::SeqCst);
            }
        });
        let training = uploaded.get_or_init(|| owner().upload(&remotes[0]));
        let done = &done;
        // A verdict is given when the share of its round is over.
        let run = move |n: u8, remote: Remote| {
            let job = remote.train([n; 16], "", training).unwrap();
            let outputs = follow(&remote, job.id, |event| {
                let EventKind::Validation(Validation { round, .. }) = &event.kind else { return };
                while done.load(Ordering::SeqCst) < kills * (*round as usize).min(VERDICTS.len()) / VERDICTS.len() {
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            names(&outputs)
        };
        let all: Vec<_> =
            remotes.into_iter().enumerate().map(|(n, remote)| scope.spawn(move || run(n as u8, remote))).collect();
        for one in all {
            assert_eq!(one.join().unwrap(), owner().reference());
        }
    });
    println!("{} kills of {} processes, {jobs} jobs", done.load(Ordering::SeqCst), members.lock().unwrap().len());
    assert_eq!(done.load(Ordering::SeqCst), kills);
}

#[test]
fn a_site_whose_processes_are_killed_ends_with_the_same_bytes() {
    killed_at_random_moments(2, 2, 8, 1);
}

#[test]
#[ignore = "takes minutes: cargo test -p hetal-server --test site -- --ignored 50_kills"]
fn a_site_with_50_kills_ends_with_the_same_bytes() {
    killed_at_random_moments(3, 8, 50, 2);
}

/// A worker is suspended beyond its lease, and another one takes its job. When it goes on, it finds
/// that it lost the job and writes nothing.
/// Suspends the worker that trains a job, and returns the job, its number, this worker and the
/// other one. A short training may wait for a verdict before it is suspended: then the next job.
fn suspend_a_training<'a>(site: &Site, remote: &Remote, workers: &'a [Member; 2]) -> (JobId, u8, [&'a Member; 2]) {
    let training = owner().upload(remote);
    for number in 1..=20 {
        let of_job = |what: &str| site.query(&format!("SELECT {what} FROM jobs WHERE number = {number}"));
        let job = remote.train([number; 16], "", &training).unwrap().id;
        site.wait(&format!("SELECT COUNT(*) FROM checkpoints WHERE number = {number}"), "1");
        let holder = of_job("worker");
        for [holding, other] in [[&workers[0], &workers[1]], [&workers[1], &workers[0]]] {
            if holding.name() != holder {
                continue;
            }
            holding.signal("STOP");
            if of_job("state = 1 AND worker IS NOT NULL") == "t" {
                return (job, number, [holding, other]);
            }
            holding.signal("CONT");
        }
        assert_eq!(results(remote, job), owner().reference());
    }
    panic!("no training was suspended");
}

#[test]
fn a_suspended_worker_is_fenced() {
    let _watched = Watchdog::new(LONGEST);
    let Some(site) = Site::new() else { return };
    let gateway = site.start("gateway", "gateway", &site.url);
    let workers = ["worker 1", "worker 2"].map(|name| site.start(name, "worker", &site.url));
    // Every write with a token that is not the newest is recorded.
    site.query(
        "CREATE TABLE stale (token BIGINT);
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.token < OLD.token THEN INSERT INTO stale VALUES (NEW.token); END IF; RETURN NEW; END $$;
        CREATE TRIGGER note AFTER UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION note();",
    );
    let remote = site.connect(&[&gateway]);
    let (job, number, [stopped, other]) = suspend_a_training(&site, &remote, &workers);
    let of_job = |what: &str| format!("SELECT {what} FROM jobs WHERE number = {number}");
    let token: u64 = site.query(&of_job("token")).parse().unwrap();
    site.wait(&of_job(&format!("worker = '{}' AND token > {token}", other.name())), "t");
    let events = site.query("SELECT COUNT(*) FROM events");
    stopped.signal("CONT");
    assert_eq!(results(&remote, job), owner().reference());
    let begun = std::time::Instant::now();
    while !stopped.log().contains("Fenced") {
        assert!(begun.elapsed() < Duration::from_secs(120), "it was not fenced: {}", stopped.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(site.query("SELECT COUNT(*) FROM stale"), "0");
    assert!(site.query("SELECT COUNT(*) FROM events").parse::<u64>().unwrap() > events.parse().unwrap());
    assert_eq!(site.query(&of_job("state")), "3");
}

/// The library of Debian's package `faketime`.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// Starts a member whose clock is wrong.
fn with_clock(site: &mut Site, name: &str, role: &'static str, offset: &'static str) -> Member {
    assert!(std::path::Path::new(FAKETIME).exists(), "apt-get install faketime");
    site.environment = vec![("LD_PRELOAD", FAKETIME), ("FAKETIME", offset), ("DONT_FAKE_MONOTONIC", "1")];
    let member = site.start(name, role, &site.url);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", member.id())).unwrap();
    assert!(maps.contains(FAKETIME), "the clock of {name} is right");
    member
}

#[test]
#[ignore = "needs Debian's package faketime: cargo test -p hetal-server --test site -- --ignored clocks"]
fn clocks_that_are_off_by_five_minutes_change_nothing() {
    let _watched = Watchdog::new(LONGEST);
    let Some(mut site) = Site::new() else { return };
    let gateways =
        [with_clock(&mut site, "gateway 1", "gateway", "+5m"), with_clock(&mut site, "gateway 2", "gateway", "-5m")];
    // A worker with a fast clock must not take a job whose lease holds.
    site.query(
        "CREATE TABLE stolen (worker TEXT);
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.worker <> OLD.worker AND OLD.until > EXTRACT(EPOCH FROM clock_timestamp()) * 1000
            THEN INSERT INTO stolen VALUES (NEW.worker); END IF; RETURN NEW; END $$;
        CREATE TRIGGER note AFTER UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION note();",
    );
    let mut workers =
        [with_clock(&mut site, "worker 1", "worker", "-5m"), with_clock(&mut site, "worker 2", "worker", "+5m")];
    let remotes = [0, 1].map(|n| site.connect(&[&gateways[n], &gateways[1 - n]]));
    let training = owner().upload(&remotes[0]);
    let jobs = [0, 1].map(|n| remotes[n].train([n as u8; 16], "", &training).unwrap().id);
    // Leases are taken over by workers of either clock.
    for n in [0, 1, 0, 1] {
        let held = format!("SELECT COUNT(*) > 0 FROM jobs WHERE worker = '{}'", workers[n].name());
        site.wait(&held, "t");
        workers[n].kill();
        workers[n].run();
    }
    for (remote, job) in remotes.iter().zip(jobs) {
        assert_eq!(results(remote, job), owner().reference());
    }
    assert_eq!(site.query("SELECT COUNT(*) FROM stolen"), "0");
}

#[test]
fn members_that_stop_are_missed_by_nobody() {
    let _watched = Watchdog::new(LONGEST);
    let Some(site) = Site::new() else { return };
    let [mut first, second] = ["gateway 1", "gateway 2"].map(|name| site.start(name, "gateway", &site.url));
    let mut worker = site.start("worker 1", "worker", &site.url);
    let remote = site.connect(&[&first, &second]);
    let job = remote.train([1; 16], "", &owner().upload(&remote)).unwrap();
    wait_for_iterations(&remote, job.id, 1);
    let _other = site.start("worker 2", "worker", &site.url);
    worker.signal("TERM");
    first.signal("TERM");
    assert!(worker.ended() && first.ended());
    assert_eq!(results(&remote, job.id), owner().reference());
}

/// Uploads a blob whose gateway is killed in the middle, through two gateways.
fn upload_through_a_dying_gateway(bytes: u64) {
    let _watched = Watchdog::new(LONGEST);
    let Some(site) = Site::new() else { return };
    let [first, second] = ["gateway 1", "gateway 2"].map(|name| site.start(name, "gateway", &site.url));
    let remote = site.connect(&[&first, &second]);
    let path = site.large_file(bytes, 9);
    let mut killed = false;
    let mut first = first;
    let uploaded = remote.upload(BlobKind::Keys, &path, &mut |held, size| {
        if !killed && held > size / 2 && held < size {
            killed = true;
            first.kill();
        }
    });
    let uploaded = uploaded.unwrap();
    println!("{} bytes, {} of them sent twice", uploaded.size, uploaded.sent - uploaded.size);
    assert!(killed, "the upload ended before it was cut");
    assert!(uploaded.sent - uploaded.size < 64 << 20, "{uploaded:?}");
    let stored = remote.uploads().unwrap();
    assert!(stored.uploads.iter().any(|upload| upload.name == uploaded.name && upload.complete));
    let blob = site.dir.path().join("blobs/tenants/ann/uploads").join(uploaded.name.to_string());
    assert_eq!(name_of(&blob), uploaded.name);
}

#[test]
fn an_upload_survives_its_gateway() {
    upload_through_a_dying_gateway(160 << 20);
}

#[test]
#[ignore = "writes 6 GB: cargo test -p hetal-server --test site -- --ignored large_upload"]
fn a_large_upload_survives_its_gateway() {
    upload_through_a_dying_gateway(2 << 30);
}

/// The worker that has a job, and then a gateway, cannot reach the database for longer than a
/// lease: jobs wait or go on elsewhere.
#[test]
fn partitions_cost_nothing_but_time() {
    let _watched = Watchdog::new(LONGEST);
    let Some(postgres) = Postgres::shared() else { return };
    let ([url, _], port) = (postgres.network_database(), postgres.port());
    let site = Site::on(postgres, url.clone());
    let through = |proxy: &Proxy| url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port));
    let [near, far] = [Proxy::to(port), Proxy::to(port)];
    let gateways = [site.start("gateway 1", "gateway", &through(&far)), site.start("gateway 2", "gateway", &url)];
    let workers = [site.start("worker 1", "worker", &through(&near)), site.start("worker 2", "worker", &url)];
    let remote = site.connect(&[&gateways[0], &gateways[1]]);
    let training = owner().upload(&remote);
    for (n, weather) in
        [Weather::Cut, Weather::DeafServer, Weather::DeafClient, Weather::Silence].into_iter().enumerate()
    {
        let job = remote.train([n as u8; 16], "", &training).unwrap();
        wait_for_iterations(&remote, job.id, 1);
        let proxy = if n % 2 == 0 { &near } else { &far };
        proxy.set(weather);
        std::thread::sleep(Duration::from_secs(5));
        proxy.set(Weather::Fair);
        assert_eq!(results(&remote, job.id), owner().reference(), "{weather:?}");
    }
    // Nothing of this named the password of the database.
    for member in gateways.iter().chain(&workers) {
        let words = std::fs::read_to_string(format!("/proc/{}/cmdline", member.id())).unwrap();
        assert!(!words.contains(PASSWORD) && !member.log().contains(PASSWORD));
    }
    assert!(workers[0].log().contains("state database"), "it met the faults: {}", workers[0].log());
}

/// The primary of the database is cut off in the middle of trainings, and its standby takes over.
#[test]
fn a_site_survives_its_database() {
    let _watched = Watchdog::new(LONGEST);
    let Some(mut postgres) = Postgres::start() else { return };
    postgres.add_standby();
    let url = postgres.replicated_database();
    let Some(shared) = Postgres::shared() else { return };
    let site = Site::on(shared, url.clone());
    let gateway = site.start("gateway", "gateway", &url);
    let _workers = ["worker 1", "worker 2"].map(|name| site.start(name, "worker", &url));
    let remote = site.connect(&[&gateway]);
    let training = owner().upload(&remote);
    let job = remote.train([1; 16], "", &training).unwrap();
    wait_for_iterations(&remote, job.id, 2);
    postgres.fail_over();
    assert_eq!(results(&remote, job.id), owner().reference());
}

/// A server of the version before makes the tables, and newer ones join it and add to them. It goes
/// on, is restarted, and leaves its job to them.
#[test]
#[ignore = "needs the program of the version before: HETAL_SERVER_BEFORE=PROGRAM cargo test -p hetal-server --test site -- --ignored two_versions"]
fn two_versions_work_side_by_side() {
    let _watched = Watchdog::new(LONGEST);
    let Some(site) = Site::new() else { return };
    let site = Site { blobs: "before/server/blobs", ..site };
    let mut before = site.start("before", BEFORE, &site.url);
    let remote = site.connect(&[&before]);
    let training = owner().upload(&remote);
    let first = remote.train([1; 16], "", &training).unwrap();
    wait_for_iterations(&remote, first.id, 1);
    let columns = "SELECT COUNT(*) FROM information_schema.columns WHERE table_name = 'uploads'";
    let known = site.query(columns);
    let gateway = site.start("gateway", "gateway", &site.url);
    let _worker = site.start("worker", "worker", &site.url);
    assert_ne!(site.query(columns), known, "the newer ones added nothing");
    let newer = site.connect(&[&gateway]);
    let second = newer.train([2; 16], "", &training).unwrap();
    before.kill();
    before.run();
    let third = site.connect(&[&before]).train([3; 16], "", &training).unwrap();
    assert_eq!(results(&newer, first.id), owner().reference());
    before.signal("TERM");
    assert!(before.ended());
    for job in [second, third] {
        assert_eq!(results(&newer, job.id), owner().reference());
    }
}
