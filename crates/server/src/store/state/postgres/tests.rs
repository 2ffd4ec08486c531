//! What the pool of connections and the queries of this module do, seen from inside.
#![allow(clippy::unwrap_used)]

use super::connections::OF_ONE_TENANT;
use super::*;
use crate::jobs::spec::{JobSpec, RowBlob};
use crate::limits::caller::on_behalf_of;
use crate::store::state::BlobKind;
use crate::testing::suites::state::{QUOTA, complete, new_job, tenant};
use hetal_testkit::postgres::Postgres;
use std::sync::atomic::Ordering;
use std::sync::{Barrier, Mutex, mpsc};
use std::time::Instant;
use tokio_postgres::types::ToSql;

const MANY: Quota = Quota { bytes: 1 << 40, uploads: 10_000, jobs: 100, kept_jobs: 100 };

fn open(url: &str) -> PgState {
    PgState::open(PgSettings::new(url, None, None).unwrap()).unwrap()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn upload(n: u8) -> Upload {
    Upload { name: BlobName([n; 32]), kind: BlobKind::Keys, size: 1, complete: false }
}

/// A tenant whose requests all wait for each other keeps neither other tenants nor workers waiting.
#[test]
fn a_tenant_with_many_requests_waits_for_himself() {
    let Some(server) = Postgres::shared() else { return };
    let url = server.database();
    let state = &open(&url);
    let [ann, bob] = [&tenant("ann"), &tenant("bob")];
    complete(state, bob, [1, 2, 3]);
    state.create_job(bob, &new_job(1), &QUOTA, 0).unwrap();
    let claim = state.claim("worker", 0, 60_000).unwrap().unwrap();
    let blocker = open(&url);
    let (locked, is_locked) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        // A request of ann that takes long.
        scope.spawn(move || {
            let held = blocker.connections.once(|db| {
                db.batch("SET LOCAL idle_in_transaction_session_timeout = '1min'")?;
                lock_tenant(db, &tenant("ann"))?;
                locked.send(()).unwrap();
                let _ = ended.recv();
                Ok(())
            });
            held.unwrap();
        });
        is_locked.recv().unwrap();
        let begun: Vec<_> = (10..26)
            .map(|n| scope.spawn(move || on_behalf_of(ann, || state.begin_upload(ann, &upload(n), &MANY))))
            .collect();
        until("all his requests wait", || state.connections.held_by(ann) + state.connections.waiting() == 16);
        // In threads of their own, so that the test fails and does not wait if they do.
        let (served, answers) = mpsc::channel();
        let other = served.clone();
        scope.spawn(move || other.send(on_behalf_of(bob, || state.jobs(bob).map(|jobs| jobs.len() == 1))));
        let renew = move || state.renew(&claim.lease, &|| LeaseTimes { now: 0, until: 60_000 }).map(|cancel| !cancel);
        scope.spawn(move || served.send(renew()));
        let answered = [0; 2].map(|_| answers.recv_timeout(Duration::from_secs(4)));
        let held = state.connections.held_by(ann);
        end.send(()).unwrap();
        assert_eq!(answered, [Ok(Ok(true)), Ok(Ok(true))]);
        assert!(held <= OF_ONE_TENANT, "{held}");
        begun.into_iter().for_each(|request| _ = request.join().unwrap().unwrap());
    });
    assert_eq!(state.connections.held_by(ann), 0);
    assert_eq!(state.uploads(ann).unwrap().uploads.len(), 16);
}

/// A job of 4,096 blobs takes as many statements as a small one.
#[test]
fn a_large_job_takes_few_statements() {
    let Some(server) = Postgres::shared() else { return };
    let url = server.database();
    let (state, ann) = (open(&url), tenant("ann"));
    server.query(
        &url,
        "INSERT INTO uploads (tenant, name, kind, size, complete)
            SELECT 'ann', decode(lpad(to_hex(n), 64, '0'), 'hex'), 1, 1, TRUE FROM generate_series(1, 4097) AS n",
    );
    let name = |n: u32| {
        let mut bytes = [0; 32];
        bytes[28..].copy_from_slice(&n.to_be_bytes());
        BlobName(bytes)
    };
    let job_of = |n: u8, blobs: std::ops::RangeInclusive<u32>| {
        let mut job = new_job(n);
        let JobSpec::Training(training) = &mut job.spec else { panic!("a training") };
        training.keys = name(4097);
        training.validation = vec![RowBlob { blob: name(4096), rows: 1 }];
        training.batches = blobs.map(|n| RowBlob { blob: name(n), rows: 1 }).collect();
        job
    };
    let statements_of = |job: &NewJob| {
        let before = state.connections.round_trips.load(Ordering::Relaxed);
        let created = state.create_job(&ann, job, &MANY, 0);
        (created.map(|job| job.id), state.connections.round_trips.load(Ordering::Relaxed) - before)
    };
    // The first one prepares the statements.
    statements_of(&job_of(1, 1..=1)).0.unwrap();
    let [small, large] = [job_of(2, 1..=1), job_of(3, 1..=4095)].map(|job| statements_of(&job));
    assert_eq!((small.0, large.0), (Ok(JobId([2; 16])), Ok(JobId([3; 16]))));
    assert_eq!(small.1, large.1);
    assert_eq!(server.query(&url, "SELECT COUNT(*) FROM uses"), (3 + 3 + 4097).to_string());
    // So does the check of its request.
    let names: Vec<_> = (1..=4097).chain(9000..=9001).map(name).collect();
    let before = state.connections.round_trips.load(Ordering::Relaxed);
    assert_eq!(state.find_uploads(&ann, &names).unwrap().len(), 4097);
    assert!(state.connections.round_trips.load(Ordering::Relaxed) - before <= 2);
    // One that is missing or incomplete is named.
    server.query(&url, "UPDATE uploads SET complete = FALSE WHERE name = decode(lpad('0a', 64, '0'), 'hex')");
    assert_eq!(statements_of(&job_of(4, 1..=20)).0, Err(Error::NoBlob { name: name(10) }));
    assert_eq!(statements_of(&job_of(4, 5000..=5001)).0, Err(Error::NoBlob { name: name(5000) }));
}

/// What changes nothing wakes no server.
#[test]
fn repeated_requests_wake_nobody() {
    let Some(server) = Postgres::shared() else { return };
    let url = server.database();
    let [listening, state] = [open(&url), open(&url)];
    let ann = tenant("ann");
    let (woken, heard) = mpsc::channel();
    listening.watch(Box::new(move |_| _ = woken.send(()))).unwrap();
    heard.recv_timeout(Duration::from_secs(60)).unwrap();
    complete(&state, &ann, [1, 2, 3]);
    state.create_job(&ann, &new_job(1), &QUOTA, 0).unwrap();
    let claim = state.claim("worker", 0, 60_000).unwrap().unwrap();
    state.commit(&claim.lease, &Change { announced: Some(1), ..Change::default() }, 0).unwrap();
    let judge = || state.judge(&ann, claim.lease.job, 1, Verdict::Continue).unwrap();
    assert!(judge());
    state.cancel_job(&ann, claim.lease.job, 0).unwrap();
    // Notifications come in the order of their transactions.
    (0..4).for_each(|_| heard.recv_timeout(Duration::from_secs(60)).unwrap());
    for _ in 0..3 {
        assert!(!judge());
        state.cancel_job(&ann, claim.lease.job, 0).unwrap();
        state.create_job(&ann, &new_job(1), &QUOTA, 0).unwrap();
    }
    state.commit(&claim.lease, &Change::default(), 0).unwrap();
    heard.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(heard.try_recv().is_err(), "somebody was woken for nothing");
}

/// A call that panics loses neither its place in the pool nor the transaction of the next one.
#[test]
fn a_panic_costs_no_connection() {
    let Some(server) = Postgres::shared() else { return };
    let state = open(&server.database());
    for _ in 0..20 {
        let panics = || state.write(|db| db.batch("SELECT 1").map(|()| panic!("in a transaction")));
        let panicked: std::thread::Result<Result<()>> = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
        assert!(panicked.is_err());
    }
    state.check_writable().unwrap();
}

/// A place that a tenant may not take goes to the next one who waits.
#[test]
fn a_free_place_goes_to_whoever_may_take_it() {
    let Some(server) = Postgres::shared() else { return };
    let state = &open(&server.database());
    let ann = &tenant("ann");
    let in_use = &Barrier::new(9);
    let (end_first, first_ended) = mpsc::channel::<()>();
    let (end_others, others_ended) = mpsc::channel::<()>();
    let (first_ended, others_ended) = (&Mutex::new(first_ended), &Mutex::new(others_ended));
    std::thread::scope(|scope| {
        // Three of a tenant and five of the server, one of which ends before the others.
        for n in 0..8 {
            let hold = move || {
                let held = state.connections.once(|db| {
                    db.batch("SET LOCAL idle_in_transaction_session_timeout = '1min'")?;
                    in_use.wait();
                    let ended = if n == 7 { first_ended } else { others_ended };
                    let _ = ended.lock().unwrap().recv();
                    Ok(())
                });
                held.unwrap();
            };
            scope.spawn(move || if n < OF_ONE_TENANT { on_behalf_of(ann, hold) } else { hold() });
        }
        in_use.wait();
        scope.spawn(|| on_behalf_of(ann, || state.check_writable().unwrap()));
        until("the tenant waits", || state.connections.waiting() == 1);
        let own = scope.spawn(|| state.check_writable());
        until("the server waits", || state.connections.waiting() == 2);
        end_first.send(()).unwrap();
        let served = own.join().unwrap();
        drop(end_others);
        assert_eq!(served, Ok(()));
    });
}

/// Queries that workers and requests repeat read no rows of ended jobs, or an index alone.
#[test]
fn ended_jobs_cost_the_queue_of_postgres_nothing() {
    let Some(server) = Postgres::shared() else { return };
    let url = server.database();
    let (state, ann) = (open(&url), tenant("ann"));
    complete(&state, &ann, [1, 2, 3]);
    state.create_job(&ann, &new_job(1), &QUOTA, 0).unwrap();
    server.query(
        &url,
        "INSERT INTO jobs (id, tenant, request, body, label, state, created, updated)
            SELECT id, 'tenant' || n % 100, id, id, 'an ended job', 3, n, n
            FROM (SELECT n, convert_to(lpad(n::text, 16, '0'), 'UTF8') AS id FROM generate_series(1, 20000) AS n) AS s",
    );
    server.query(&url, "VACUUM ANALYZE jobs");
    let plan = |sql: &str, values: connections::SqlValues<'_>| {
        let lines = state.read(|db| db.all(&format!("EXPLAIN {sql}"), values)).unwrap();
        lines.iter().map(|line| line.get::<_, String>(0) + "\n").collect::<String>()
    };
    let times: [i64; 3] = [1, 60_000, MAX_BACKOFF as i64];
    let [now, length, rest] = times.each_ref().map(|time| time as &(dyn ToSql + Sync));
    let claimable = format!("SELECT EXISTS (SELECT 1 FROM jobs j WHERE {CLAIMABLE})");
    for (sql, values, index) in [
        (&next_job()[..], vec![now, length, rest, &"worker"], "jobs_open"),
        (&claimable, vec![now, length, rest], "jobs_open"),
        (&jobs_of_tenant(), vec![&"tenant7"], "jobs_listed"),
        (COUNT_JOBS, vec![], "Index Only Scan using jobs_states"),
    ] {
        let plan = plan(sql, &values);
        assert!(plan.contains(index) && !plan.contains("Seq Scan on jobs"), "{sql}: {plan}");
    }
}
