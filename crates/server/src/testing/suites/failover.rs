//! The loss of a database whose standby has every acknowledged change.
#![allow(clippy::unwrap_used)]

use super::state::{QUOTA, complete, new_job, tenant};
use crate::Error;
use crate::store::state::*;
use hetal_learn::Verdict;
use hetal_testkit::postgres::Postgres;
use hetal_wire::{BlobName, JobId, v1};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What was acknowledged.
#[derive(Default)]
struct Acknowledged {
    uploads: Vec<BlobName>,
    events: u64,
    verdicts: u32,
}

/// Repeats a change until it is acknowledged, as clients and workers do.
fn insist<T>(change: impl Fn() -> crate::Result<T>) -> T {
    loop {
        match change() {
            Ok(done) => return done,
            Err(error) => assert!(matches!(error, Error::State { .. }), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn upload(n: u64) -> Upload {
    let mut name = [0; 32];
    name[..8].copy_from_slice(&n.to_le_bytes());
    Upload { name: BlobName(name), kind: BlobKind::Keys, size: 1, complete: false }
}

/// Acts until it is over.
fn repeat(over: &AtomicBool, act: impl Fn(u64)) {
    (0..).take_while(|_| !over.load(Ordering::SeqCst)).for_each(act);
}

/// Changes go on while the primary is cut off and its standby takes over. Whatever was acknowledged
/// is there, and the connections find the new primary by themselves.
#[test]
fn what_was_acknowledged_survives_the_primary() {
    let Some(mut server) = Postgres::start() else { return };
    server.add_standby();
    let url = server.replicated_database();
    let state = PgState::open(PgSettings::new(&url, None, None).unwrap()).unwrap();
    let (ann, quota) = (tenant("ann"), Quota { uploads: 1_000_000, bytes: 1 << 40, ..QUOTA });
    complete(&state, &ann, [1, 2, 3]);
    let job = state.create_job(&ann, &new_job(1), &quota, 0).unwrap().id;
    let claim = state.claim("worker", 0, 600_000).unwrap().unwrap();
    let (known, over, before) = (Mutex::new(Acknowledged::default()), AtomicBool::new(false), Mutex::new(0));
    std::thread::scope(|scope| {
        let (state, known, over) = (&state, &known, &over);
        scope.spawn(|| {
            repeat(over, |n| {
                insist(|| state.begin_upload(&tenant("ann"), &upload(n), &quota));
                known.lock().unwrap().uploads.push(upload(n).name);
            });
        });
        scope.spawn(|| {
            repeat(over, |n| {
                // Rounds that the owner is told of, and his verdicts on them.
                let round = n as u32 + 1;
                let judged = Some(v1::event::What::Judged(v1::Judged { round }));
                let change = Change { announced: Some(round), event: judged, ..Change::default() };
                // Nobody knows whether a change whose connection was lost is there: not repeated.
                if state.commit(&claim.lease, &change, 0).is_ok() {
                    known.lock().unwrap().events += 1;
                }
                let verdict = || state.judge(&tenant("ann"), job, round, Verdict::Continue);
                if verdict().or_else(|_| verdict()).is_ok() {
                    known.lock().unwrap().verdicts += 1;
                }
            });
        });
        std::thread::sleep(Duration::from_secs(1));
        server.fail_over();
        *before.lock().unwrap() = known.lock().unwrap().uploads.len();
        let begun = std::time::Instant::now();
        while known.lock().unwrap().uploads.len() < *before.lock().unwrap() + 20 {
            assert!(begun.elapsed() < Duration::from_secs(60), "nothing is acknowledged any more");
            std::thread::sleep(Duration::from_millis(20));
        }
        over.store(true, Ordering::SeqCst);
    });
    let Acknowledged { uploads, events, verdicts } = known.into_inner().unwrap();
    println!("{} uploads, {events} events and {verdicts} verdicts were acknowledged", uploads.len());
    for name in &uploads {
        assert!(state.upload(&ann, *name).unwrap().is_some(), "an acknowledged upload is lost");
    }
    let count = |table: &str| server.query(&url, &format!("SELECT COUNT(*) FROM {table}")).parse::<u64>().unwrap();
    assert!(count("events") > events && count("verdicts") >= u64::from(verdicts));
    assert!(uploads.len() > 40 && events > 20 && verdicts > 20);
    assert_eq!(claim.lease.job, JobId([1; 16]));
}
