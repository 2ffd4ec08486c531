//! What the pool of connections and the queries of this module do, seen from inside.
#![allow(clippy::unwrap_used)]

use super::connections::OF_ONE_TENANT;
use super::*;
use crate::limits::caller::on_behalf_of;
use crate::store::state::BlobKind;
use crate::testing::suites::state::{QUOTA, complete, new_job, tenant};
use hetal_testkit::postgres::Postgres;
use std::sync::{Barrier, Mutex, mpsc};
use std::time::Instant;

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
