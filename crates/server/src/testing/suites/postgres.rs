//! What PostgreSQL adds: several servers, clocks that differ, connections that end, credentials.
#![allow(clippy::unwrap_used)]

use super::state::{QUOTA, complete, in_postgres, new_job, tenant};
use crate::Error;
use crate::store::state::*;
use hetal_learn::Verdict;
use hetal_testkit::postgres::{PASSWORD, Postgres};
use hetal_wire::{BlobName, JobId, v1};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const FIVE_MINUTES: Millis = 300_000;

fn open(url: &str) -> PgState {
    PgState::open(PgSettings::new(url, None, None).unwrap()).unwrap()
}

/// Queues jobs of one tenant.
fn queue(state: &dyn State, jobs: std::ops::RangeInclusive<u8>) {
    let quota = Quota { jobs: 100, kept_jobs: 100, ..QUOTA };
    complete(state, &tenant("ann"), [1, 2, 3]);
    jobs.for_each(|n| _ = state.create_job(&tenant("ann"), &new_job(n), &quota, 1).unwrap());
}

/// Waits until a condition holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Servers that start together make the tables once. An older server than the tables refuses.
#[test]
fn tables_are_made_once_and_never_by_an_older_server() {
    let Some(server) = Postgres::shared() else { return };
    let url = server.database();
    std::thread::scope(|scope| (0..4).for_each(|_| _ = scope.spawn(|| open(&url))));
    queue(&open(&url), 1..=1);
    assert_eq!(server.query(&url, "SELECT COUNT(*) FROM jobs"), "1");
    server.query(&url, "UPDATE schema_version SET version = 999");
    let refused = PgState::open(PgSettings::new(&url, None, None).unwrap()).err().unwrap();
    assert!(matches!(refused, Error::Config { .. }) && refused.to_string().contains("use a newer server"), "{refused}");
    // A server that acknowledges what it may lose is refused as well.
    let url = server.database();
    let name = server.query(&url, "SELECT current_database()");
    server.query(&url, &format!("ALTER DATABASE {name} SET synchronous_commit = off"));
    let refused = PgState::open(PgSettings::new(&url, None, None).unwrap()).err().unwrap().to_string();
    assert!(refused.contains("synchronous_commit is off"), "{refused}");
}

/// The database's clock alone decides about leases. Servers whose clocks are five minutes off
/// neither lose their jobs nor take those of others.
#[test]
fn wrong_clocks_of_servers_change_nothing() {
    let Some(server) = Postgres::shared() else { return };
    let url = server.database();
    let state = open(&url);
    queue(&state, 1..=1);
    let now = crate::clock::millis();
    let early = state.claim("early", now - FIVE_MINUTES, now - FIVE_MINUTES + 60_000).unwrap().unwrap();
    let (late, length) = (now + FIVE_MINUTES, 60_000);
    assert!(!state.has_claimable(late, late + length).unwrap());
    assert_eq!(state.claim("late", late, late + length).unwrap(), None, "its lease holds for a minute");
    let term = || LeaseTimes { now: now - FIVE_MINUTES, until: now - FIVE_MINUTES + 1000 };
    assert!(!state.renew(&early.lease, &term).unwrap());
    let left = "SELECT until - (EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint BETWEEN 1 AND 1000 FROM jobs";
    assert_eq!(server.query(&url, left), "t", "the lease was renewed for one second from now");
    let mut taken = None;
    until("the lease ends", || {
        taken = state.claim("late", late, late + length).unwrap();
        taken.is_some()
    });
    let taken = taken.unwrap();
    assert!(taken.lease.token > early.lease.token && taken.attempts == 2);
    let change = Change { state: Some(JobState::Finished), release: true, ..Change::default() };
    assert_eq!(state.commit(&early.lease, &change, now), Err(Error::Fenced));
    assert_eq!(state.renew(&early.lease, &term), Err(Error::Fenced));
    // Shown times are the database's too, and so is the end of a backoff.
    let backoff = Change { release: true, backoff: Some(60_000), ..Change::default() };
    state.commit(&taken.lease, &backoff, now - FIVE_MINUTES).unwrap();
    assert_eq!(state.claim("late", late, late + length).unwrap(), None, "it rests");
    let job = state.job(&tenant("ann"), JobId([1; 16])).unwrap();
    assert!(job.updated.abs_diff(now) < FIVE_MINUTES / 2, "{job:?}");
}

/// Many workers of several servers claim at once: each job goes to one of them, and none is left.
#[test]
fn each_job_goes_to_one_worker() {
    let Some(server) = Postgres::shared() else { return };
    let url = server.database();
    queue(&open(&url), 1..=24);
    let claimed: Vec<_> = std::thread::scope(|scope| {
        let claim_all = |worker: usize, url: &str| {
            let state = open(url);
            let mut mine = Vec::new();
            while let Some(claim) = state.claim(&worker.to_string(), 0, 60_000).unwrap() {
                mine.push(claim.lease.job.0[0]);
            }
            mine
        };
        let url = &url;
        let workers: Vec<_> = (0..6).map(|worker| scope.spawn(move || claim_all(worker, url))).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let mut sorted = claimed.clone();
    sorted.sort();
    assert_eq!(sorted, (1..=24).collect::<Vec<_>>(), "claimed in the order {claimed:?}");
}

/// A verdict that is recorded while the job is about to fail for the lack of it wins.
#[test]
fn a_verdict_in_the_last_moment_counts() {
    let Some(server) = Postgres::shared() else { return };
    let url = server.database();
    let state = open(&url);
    queue(&state, 1..=1);
    let claim = state.claim("worker", 0, 60_000).unwrap().unwrap();
    let waiting = Change { state: Some(JobState::Waiting), round: Some(1), release: true, ..Change::default() };
    state.commit(&claim.lease, &waiting, 0).unwrap();
    std::thread::scope(|scope| {
        // What `judge` does, slowly.
        let judged = "BEGIN; SELECT 1 FROM jobs FOR UPDATE; INSERT INTO verdicts SELECT id, 1, 0 FROM jobs;
            SELECT pg_sleep(1); COMMIT";
        scope.spawn(|| server.query(&url, judged));
        let held = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_sleep(1); COMMIT'";
        until("the verdict is about to be recorded", || server.query(&url, held) == "1");
        assert_eq!(state.expire(claim.lease.job, 1, "late", 0, 60_000).unwrap(), None);
    });
    assert_eq!(state.verdict(claim.lease.job, 1).unwrap(), Some(Verdict::Continue));
    assert!(state.has_claimable(0, 60_000).unwrap());
}

/// A connection that ends is replaced within the same call. A database that is down is a passing
/// fault, and what it acknowledged is there when it is back.
#[test]
fn a_lost_database_is_a_passing_fault() {
    let Some(mut server) = Postgres::start() else { return };
    let url = server.database();
    let state = open(&url);
    queue(&state, 1..=2);
    let claim = state.claim("worker", 0, 60_000).unwrap().unwrap();
    let end_all = "SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    for _ in 0..3 {
        assert_ne!(server.query(&url, end_all), "0");
        state.commit(&claim.lease, &Change { spent: 1, ..Change::default() }, 0).unwrap();
        assert_ne!(server.query(&url, end_all), "0");
        assert_eq!(state.jobs(&tenant("ann")).unwrap().len(), 2);
    }
    server.cut();
    for _ in 0..3 {
        let down = state.commit(&claim.lease, &Change::default(), 0).unwrap_err();
        assert!(matches!(down, Error::State { .. }) && down.is_transient() && down.is_storage_fault(), "{down}");
        assert!(state.claim("other", 0, 60_000).unwrap_err().is_transient());
    }
    server.restart();
    state.commit(&claim.lease, &Change { spent: 4, ..Change::default() }, 0).unwrap();
    assert_eq!(state.job(&tenant("ann"), claim.lease.job).unwrap().spent, 7);
}

/// A process that is suspended in the middle of a transaction does not stop the others for long.
#[test]
fn a_suspended_claim_ends_by_itself() {
    let Some(server) = Postgres::shared() else { return };
    let url = server.database();
    let state = open(&url);
    queue(&state, 1..=1);
    let settings: Vec<_> = ["idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout"]
        .map(|name| state.setting(name).unwrap())
        .into();
    assert_eq!(settings, ["10s", "10s", "20s"]);
}

/// A damaged row fails its job or is skipped. It blocks neither other jobs nor the start.
#[test]
fn one_damaged_row_of_postgres_stops_nobody() {
    let Some(server) = Postgres::shared() else { return };
    let damages = [
        ("jobs", "tenant = 'No Tenant'"),
        ("specs", "work = 'x'"),
        ("jobs", "progress = '\\xff'"),
        ("jobs", "round = -1"),
        ("jobs", "state = 1, sequence = -1"),
    ];
    for (table, damage) in damages {
        let url = server.database();
        let state = open(&url);
        queue(&state, 1..=2);
        server.query(&url, &format!("UPDATE {table} SET {damage} WHERE number = 1"));
        state.release_worker("worker").unwrap();
        let claimed = state.claim("worker", 0, 60_000).unwrap().unwrap();
        assert_eq!(claimed.job.id, JobId([2; 16]), "{damage}");
        assert_eq!(state.claim("worker", 0, 60_000).unwrap(), None, "{damage}");
        assert_eq!(state.count_jobs().unwrap(), [(JobState::Running, 1), (JobState::Failed, 1)], "{damage}");
        server.query(&url, "UPDATE jobs SET state = 99 WHERE number = 1");
        assert_eq!(state.count_jobs().unwrap(), [(JobState::Running, 1)]);
        drop(open(&url));
    }
}

/// A worker that was suspended when its job was found damaged does not bring it back.
#[test]
fn a_job_that_failed_as_damaged_stays_failed() {
    let Some(server) = Postgres::shared() else { return };
    let url = server.database();
    let state = open(&url);
    queue(&state, 1..=1);
    let claim = state.claim("worker", 0, 60_000).unwrap().unwrap();
    server.query(&url, "UPDATE specs SET work = 'x'; UPDATE jobs SET until = 0");
    assert_eq!(state.claim("other", 0, 60_000).unwrap(), None);
    let running = Change { state: Some(JobState::Running), ..Change::default() };
    assert_eq!(state.commit(&claim.lease, &running, 0), Err(Error::Fenced));
    assert_eq!(server.query(&url, "SELECT state, worker IS NULL, until FROM jobs"), "4|t|0");
}

/// A worker that starts again ends the backoffs of its own jobs. Those of others stay, however
/// often it starts.
#[test]
fn a_start_of_one_worker_leaves_the_jobs_of_others_alone() {
    let Some(server) = Postgres::shared() else { return };
    let url = server.database();
    let state = open(&url);
    queue(&state, 1..=3);
    let rest = |worker: &str, uncounted| {
        let claim = state.claim(worker, 0, 60_000).unwrap().unwrap();
        let progress = Some(v1::Progress { resting: true, ..v1::Progress::default() });
        let rest = Change { release: true, backoff: Some(60_000), uncounted, progress, ..Change::default() };
        state.commit(&claim.lease, &rest, 0).unwrap();
    };
    rest("first", false);
    rest("first", true);
    rest("second", false);
    let jobs = || server.query(&url, "SELECT number, not_before, rests, progress FROM jobs ORDER BY number");
    let before = jobs();
    state.release_worker("third").unwrap();
    assert_eq!(jobs(), before);
    state.release_worker("first").unwrap();
    let (after, resting) = (jobs(), |n| state.job(&tenant("ann"), JobId([n; 16])).unwrap().progress.unwrap().resting);
    assert_eq!(after.lines().last(), before.lines().last(), "the job of the second worker");
    assert_eq!([1, 2, 3].map(resting), [false, false, true]);
    assert_eq!(server.query(&url, "SELECT COUNT(*) FROM jobs WHERE not_before = 0 AND rests = 0"), "2");
}

/// Neither a refused login nor an error of the database names the password.
#[test]
fn the_password_is_in_no_message() {
    let Some(server) = Postgres::shared() else { return };
    let [with, without] = server.network_database();
    open(&with);
    PgState::open(PgSettings::new(&without, Some(PASSWORD), None).unwrap()).map(|_| ()).unwrap();
    for (url, password) in [
        (without.replace("hetal@", "nobody@"), Some(PASSWORD)),
        (without.replace("127.0.0.1", "127.0.0.9"), Some(PASSWORD)),
        (format!("{without}x"), Some(PASSWORD)),
        (without.clone(), Some("wrong-wrong-wrong")),
        (without, None),
    ] {
        let refused = PgState::open(PgSettings::new(&url, password, None).unwrap()).err().unwrap().to_string();
        assert!(refused.starts_with("state database: PostgreSQL"), "{refused}");
        assert!(!refused.contains(PASSWORD) && !refused.contains("wrong-"), "{refused}");
    }
}

/// Nothing of an erased tenant stays in the files of the database's tables.
#[test]
fn an_erased_tenant_leaves_the_tables() {
    let Some(server) = Postgres::shared() else { return };
    let url = server.database();
    let state = open(&url);
    queue(&state, 1..=1);
    let claim = state.claim("worker", 0, 60_000).unwrap().unwrap();
    assert!(matches!(state.forget_tenant(&tenant("ann")), Err(Error::Precondition { .. })), "a worker has the job");
    let ended = Change { state: Some(JobState::Failed), release: true, ..Change::default() };
    state.commit(&claim.lease, &ended, 0).unwrap();
    state
        .begin_upload(
            &tenant("bob"),
            &Upload { name: BlobName([9; 32]), kind: BlobKind::Keys, size: 1, complete: false },
            &QUOTA,
        )
        .unwrap();
    // A transaction of another database that is older than the deletion delays the vacuum.
    let elsewhere = server.database();
    std::thread::scope(|scope| {
        scope.spawn(|| server.query(&elsewhere, "BEGIN; SELECT pg_current_xact_id(), pg_sleep(1); COMMIT"));
        let begun = "SELECT COUNT(*) FROM pg_stat_activity WHERE query LIKE '%pg_current_xact_id(), pg_sleep(1)%'
            AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()";
        until("another transaction is older", || server.query(&url, begun) == "1");
        assert_eq!(state.forget_tenant(&tenant("ann")).unwrap(), TenantTotals { jobs: 1, uploads: 3 });
    });
    let sizes = "SELECT relname, pg_relation_size(oid) FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0 ORDER BY relname";
    let left = server.query(&url, sizes);
    assert_eq!(left, "identity|8192\nschema_version|8192\nuploads|8192", "only bob's upload is left");
    let page = "SELECT position('ann'::bytea IN pg_read_binary_file(pg_relation_filepath('uploads')))";
    assert_eq!(server.query(&url, page), "0");
}

/// Changes that count what a tenant has happen one after the other.
#[test]
fn a_quota_holds_for_requests_at_the_same_time() {
    let Some(state) = in_postgres() else { return };
    let ann = tenant("ann");
    let begin = &|n: u8| {
        let upload = Upload { name: BlobName([n; 32]), kind: BlobKind::Keys, size: 1, complete: false };
        usize::from(state.begin_upload(&tenant("ann"), &upload, &QUOTA).is_ok())
    };
    let begun: usize = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|n| scope.spawn(move || begin(n))).collect();
        all.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!((begun as u64, state.uploads(&ann).unwrap().uploads.len() as u64), (QUOTA.uploads, QUOTA.uploads));
}

/// A server hears of the changes of others, also after its connection was lost, and not of its own.
#[test]
fn changes_wake_other_servers() {
    let Some(server) = Postgres::shared() else { return };
    let url = server.database();
    let [listening, changing] = [open(&url), open(&url)];
    let changes = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&changes);
    listening.watch(Box::new(move |job| noted.lock().unwrap().push(job))).unwrap();
    let heard = || changes.lock().unwrap().len();
    until("it listens", || heard() == 1);
    queue(&changing, 1..=1);
    until("a job was queued", || heard() == 2);
    let claim = listening.claim("worker", 0, 60_000).unwrap().unwrap();
    listening.commit(&claim.lease, &Change::default(), 0).unwrap();
    changing.cancel_job(&tenant("ann"), claim.lease.job, 0).unwrap();
    until("it was cancelled", || heard() == 3);
    let job = Some(claim.lease.job);
    assert_eq!(*changes.lock().unwrap(), [None, job, job]);
    server.query(&url, "NOTIFY hetal, '7'");
    until("a server of the version before changed something", || heard() == 4);
    assert_eq!(changes.lock().unwrap().last(), Some(&None));
    let end_all = "SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    server.query(&url, end_all);
    until("it listens again", || heard() >= 6);
    let before = heard();
    changing.commit(&claim.lease, &Change { release: true, ..Change::default() }, 0).unwrap();
    until("it was released", || heard() > before);
}

/// A file of the server, readable by the server alone, through its own shell.
fn write_beside_data(server: &Postgres, database: &str, name: &str, content: &str) {
    let lines = format!("unnest(string_to_array('{}', E'\\n'))", content.trim_end());
    server.query(database, &format!("COPY (SELECT {lines}) TO PROGRAM 'umask 077; cat > {name}'"));
}

/// The connection is encrypted for a database that proves its name, and refused for every other.
#[test]
fn tls_connects_to_the_named_database_only() {
    let Some(server) = Postgres::start() else { return };
    let dir = hetal_testkit::TempDir::new();
    let config =
        crate::Config { folder: dir.path().to_owned(), names: vec!["127.0.0.1".to_owned()], ..Default::default() };
    crate::net::certificates::acceptor(&config).unwrap();
    let read = |name: &str| std::fs::read_to_string(dir.path().join("tls").join(name)).unwrap();
    let database = server.database();
    let [_, url] = server.network_database();
    let authority = dir.path().join("tls/authority.pem");
    let connect = |url: &str, authority: &std::path::Path| {
        PgState::open(PgSettings::new(url, Some(PASSWORD), Some(authority)).unwrap())
    };
    let plain = connect(&url, &authority).err().unwrap();
    assert!(plain.to_string().contains("TLS"), "the database does not encrypt: {plain}");
    write_beside_data(&server, &database, "server.key", &read("server.key"));
    write_beside_data(&server, &database, "server.crt", &read("server.pem"));
    server.query(&database, "ALTER SYSTEM SET ssl = on");
    server.query(&database, "SELECT pg_reload_conf()");
    until("the database encrypts", || connect(&url, &authority).is_ok());
    let state = connect(&url, &authority).unwrap();
    queue(&state, 1..=1);
    let encrypted = "SELECT bool_and(ssl) AND COUNT(*) > 0 FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
        WHERE a.application_name = 'hetal-server'";
    assert_eq!(server.query(&database, encrypted), "t");
    // The certificate is for 127.0.0.1, and this authority signed it.
    let other = hetal_testkit::TempDir::new();
    crate::net::certificates::acceptor(&crate::Config { folder: other.path().to_owned(), ..config.clone() }).unwrap();
    for (url, authority) in [
        (url.replace("127.0.0.1", "localhost"), authority.clone()),
        (url.clone(), other.path().join("tls/authority.pem")),
    ] {
        let refused = connect(&url, &authority).err().unwrap().to_string();
        assert!(refused.contains("certificate") && !refused.contains(PASSWORD), "{refused}");
    }
}
