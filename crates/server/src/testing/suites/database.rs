//! What the database does with damaged rows, older versions, and jobs that have ended.
#![allow(clippy::unwrap_used)]

use super::state::{QUOTA, at_most, check, complete, kinds, new_job, tenant};
use crate::Error;
use crate::store::state::*;
use hetal_learn::AgreementLimits;
use hetal_testkit::TempDir;
use hetal_wire::{BlobName, JobId};

/// A damaged row fails its job or is skipped. It blocks neither other jobs nor the start.
#[test]
fn one_damaged_row_stops_nobody() {
    let damages = [
        "label = CAST(X'FF' AS TEXT)",
        "work = CAST(X'FF' AS TEXT)",
        "tenant = CAST(X'FF' AS TEXT)",
        "checkpoint = CAST(X'FF' AS TEXT)",
        "progress = X'FF'",
        "round = -1",
        "id = X'0102'",
    ];
    for damage in damages {
        let dir = TempDir::new();
        let path = dir.path().join("state.sqlite");
        let state = SqliteState::open(&path).unwrap();
        let ann = tenant("ann");
        complete(&state, &ann, [1, 2, 3]);
        state.create_job(&ann, &new_job(1), &QUOTA, 1).unwrap();
        state.create_job(&ann, &new_job(2), &QUOTA, 1).unwrap();
        let broken = rusqlite::Connection::open(&path).unwrap();
        let add_checkpoint = "INSERT INTO checkpoints VALUES (1, 'x')";
        broken.execute_batch(add_checkpoint).unwrap();
        let table = match damage.split(' ').next() {
            Some("work") => "specs",
            Some("checkpoint") => "checkpoints",
            _ => "jobs",
        };
        let sql = format!(
            "PRAGMA foreign_keys = OFF; UPDATE {table} SET {damage} WHERE number = 1;
            UPDATE jobs SET worker = 'worker' WHERE number = 1;"
        );
        broken.execute_batch(&sql).unwrap();
        state.release_worker("worker").unwrap();
        // Damage in fields that the owner does not see does not hide the job.
        let is_shown = !damage.starts_with("work") && !damage.starts_with("checkpoint");
        assert_eq!(state.jobs(&ann).unwrap().len(), if is_shown { 1 } else { 2 }, "{damage}");
        assert_eq!(state.claim("worker", 5, 10).unwrap().unwrap().job.id, JobId([2; 16]), "{damage}");
        assert_eq!(state.claim("worker", 5, 10).unwrap(), None, "{damage}");
        assert_eq!(state.count_jobs().unwrap(), [(JobState::Running, 1), (JobState::Failed, 1)], "{damage}");
        broken.execute_batch("UPDATE jobs SET state = 99 WHERE number = 1").unwrap();
        assert_eq!(state.count_jobs().unwrap(), [(JobState::Running, 1)]);
        state.release_worker("worker").unwrap();
        assert_eq!(state.claim("worker", 6, 10).unwrap().unwrap().job.id, JobId([2; 16]), "{damage}");
    }
}

/// An invalid count fails its job and not the queue. A damaged tenant does not prevent the end of a
/// job.
#[test]
fn damaged_numbers_and_names_stop_nobody() {
    let dir = TempDir::new();
    let path = dir.path().join("state.sqlite");
    let state = SqliteState::open(&path).unwrap();
    complete(&state, &tenant("ann"), [1, 2, 3]);
    state.create_job(&tenant("ann"), &new_job(1), &QUOTA, 1).unwrap();
    let broken = rusqlite::Connection::open(&path).unwrap();
    broken.execute_batch("UPDATE jobs SET attempts = -9, rests = -1").unwrap();
    let claim = state.claim("worker", 5, 10).unwrap().unwrap();
    assert_eq!((claim.attempts, claim.backoffs, claim.out_of_memory), (u32::MAX, u32::MAX, 0));
    broken.execute_batch("UPDATE jobs SET state = 2, round = 1, tenant = CAST(X'FF' AS TEXT)").unwrap();
    assert!(state.expire(JobId([1; 16]), 1, "late", 20, 30).is_err(), "nobody knows whose it was");
    assert_eq!(state.count_jobs().unwrap(), [(JobState::Failed, 1)]);
}

/// A damaged row fails its job and does not block others. A damaged file is refused.
#[test]
fn damage_to_the_database_is_noticed() {
    let dir = TempDir::new();
    let path = dir.path().join("state.sqlite");
    let state = SqliteState::open(&path).unwrap();
    let ann = tenant("ann");
    complete(&state, &ann, [1, 2, 3]);
    state.create_job(&ann, &new_job(1), &QUOTA, 1).unwrap();
    state.create_job(&ann, &new_job(2), &QUOTA, 1).unwrap();
    rusqlite::Connection::open(&path).unwrap().execute("UPDATE specs SET work = 'x' WHERE number = 1", []).unwrap();
    let claim = state.claim("worker", 5, 10).unwrap().unwrap();
    assert_eq!(claim.job.id, JobId([2; 16]));
    assert_eq!(state.claim("worker", 5, 10).unwrap(), None);
    let failed = &state.jobs(&ann).unwrap()[1];
    assert!(failed.state == JobState::Failed && failed.reason.contains("damaged"), "{failed:?}");
    assert_eq!(kinds(&state.events(&ann, JobId([2; 16]), 0, at_most(9)).unwrap()), [(1, "queued")]);
    // A worker that has such a job, and was suspended, does not bring it back.
    rusqlite::Connection::open(&path).unwrap().execute("UPDATE specs SET work = 'x' WHERE number = 2", []).unwrap();
    assert_eq!(state.claim("other", 20, 30).unwrap(), None);
    let running = Change { state: Some(JobState::Running), ..Change::default() };
    assert_eq!(state.commit(&claim.lease, &running, 21), Err(Error::Fenced));
    drop(state);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].fill(0xA5);
    std::fs::write(&path, bytes).unwrap();
    let damaged = SqliteState::open(&path).err().unwrap().to_string();
    assert!(damaged.contains("backup") || damaged.contains("malformed"), "{damaged}");
}

/// A database of version 1 is migrated.
#[test]
fn an_older_database_is_brought_up_to_date() {
    let dir = TempDir::new();
    let path = dir.path().join("state.sqlite");
    SqliteState::version(&path, 1).unwrap();
    check(&SqliteState::open(&path).unwrap());
    // The agreements of older jobs are taken from their specs, if those can be read.
    let path = dir.path().join("used.sqlite");
    SqliteState::version(&path, 1).unwrap();
    let work = serde_json::to_string(&new_job(1).spec).unwrap();
    for (id, work) in [([1u8; 16], work.as_str()), ([2; 16], "x")] {
        let sql = "INSERT INTO jobs (id, tenant, request, label, work, state, created, updated)
            VALUES (?1, 'ann', ?1, '', ?2, 0, 1, 1)";
        rusqlite::Connection::open(&path).unwrap().execute(sql, rusqlite::params![id, work]).unwrap();
    }
    let state = SqliteState::open(&path).unwrap();
    let agreement = |n| state.summary(&tenant("ann"), JobId([n; 16])).unwrap().agreement;
    assert_eq!((agreement(1), agreement(2)), (Some(AgreementLimits::default().defaults), None));
    assert_eq!(state.job(&tenant("ann"), JobId([1; 16])).unwrap().spec, new_job(1).spec);
}

/// Version 7 moves large values out of the rows of jobs and keeps the order of tenants.
#[test]
fn large_values_of_an_older_database_are_moved() {
    let dir = TempDir::new();
    let path = dir.path().join("state.sqlite");
    SqliteState::version(&path, 6).unwrap();
    let work = serde_json::to_string(&new_job(1).spec).unwrap();
    let old = rusqlite::Connection::open(&path).unwrap();
    for (n, tenant, turn, state) in [(1u8, "ann", 5, 3), (2, "ann", 0, 0), (3, "bob", 4, 0)] {
        let sql = "INSERT INTO jobs (id, tenant, request, label, work, checkpoint, state, created, updated, turn)
            VALUES (?1, ?2, ?1, '', ?3, 'here', ?4, 1, 1, ?5)";
        old.execute(sql, rusqlite::params![[n; 16], tenant, work, state, turn]).unwrap();
        old.execute("INSERT INTO uses VALUES (?1, ?2, ?1)", rusqlite::params![[n; 16], tenant]).unwrap();
    }
    drop(old);
    let state = SqliteState::open(&path).unwrap();
    let job = state.job(&tenant("ann"), JobId([1; 16])).unwrap();
    assert_eq!((job.spec, job.checkpoint.as_deref()), (new_job(1).spec, Some("here")));
    // A request of an older server can be repeated, although the hash of its content is unknown.
    let again = state.create_job(&tenant("ann"), &new_job(1), &QUOTA, 9).unwrap();
    assert_eq!(again.id, JobId([1; 16]));
    // Bob was served longer ago than ann, whose last job has ended.
    assert_eq!(state.claim("worker", 5, 10).unwrap().unwrap().job.id, JobId([3; 16]));
    state.delete_job(&tenant("ann"), JobId([1; 16])).unwrap();
    let rows = |table: &str| {
        let sql = format!("SELECT COUNT(*) FROM {table}");
        rusqlite::Connection::open(&path).unwrap().query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!(["jobs", "specs", "checkpoints", "uses"].map(rows), [2; 4]);
}

/// A migration that would fill the disk is refused before it begins, and says what it needs.
#[test]
fn a_migration_without_room_is_refused() {
    let dir = TempDir::new();
    let path = dir.path().join("state.sqlite");
    SqliteState::version(&path, 6).unwrap();
    let old = rusqlite::Connection::open(&path).unwrap();
    let sql = "INSERT INTO jobs (id, tenant, request, label, work, state, created, updated)
        VALUES (x'01', 'ann', x'01', '', hex(zeroblob(1000000)), 3, 1, 1)";
    old.execute(sql, []).unwrap();
    drop(old);
    let (size, margin) = (std::fs::metadata(&path).unwrap().len(), 16 << 20);
    let refused = SqliteState::open_with(&path, |_| Ok(3 * size + margin)).err().unwrap().to_string();
    let needed = (3 * size + size / 8 + margin).div_ceil(1 << 20);
    assert!(refused.contains(&format!("needs {needed} MiB")) && refused.contains("version 6"), "{refused}");
    let version = |path| {
        let database = rusqlite::Connection::open(path).unwrap();
        database.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!(version(&path), 6);
    drop(SqliteState::open_with(&path, |_| Ok(4 * size + margin)).unwrap());
    assert_eq!(version(&path), 8);
    // A new or current database needs no room for copies.
    for name in ["state.sqlite", "new.sqlite"] {
        drop(SqliteState::open_with(&dir.path().join(name), |_| Ok(0)).unwrap());
    }
}

/// The database keeps no name of a tenant who deleted everything, also of an older server.
#[test]
fn a_tenant_who_deleted_everything_is_not_remembered() {
    let dir = TempDir::new();
    let path = dir.path().join("state.sqlite");
    let state = SqliteState::open(&path).unwrap();
    let (ann, bob) = (tenant("ann"), tenant("bob"));
    let remembered = || {
        let db = rusqlite::Connection::open(&path).unwrap();
        let mut rows = db.prepare("SELECT tenant FROM turns ORDER BY tenant").unwrap();
        rows.query_map([], |row| row.get::<_, String>(0)).unwrap().collect::<rusqlite::Result<Vec<_>>>().unwrap()
    };
    for (n, tenant) in [(1, &ann), (2, &bob)] {
        complete(&state, tenant, [1, 2, 3]);
        state.create_job(tenant, &new_job(n), &QUOTA, 1).unwrap();
        let Claim { lease, .. } = state.claim("worker", 5, 10).unwrap().unwrap();
        let failed = Change { state: Some(JobState::Failed), release: true, ..Change::default() };
        state.commit(&lease, &failed, 6).unwrap();
    }
    // Deleting jobs alone does not move a tenant forward in the queue.
    state.delete_job(&ann, JobId([1; 16])).unwrap();
    assert_eq!(remembered(), ["ann", "bob"]);
    (1..=3).for_each(|n| state.delete_upload(&ann, BlobName([n; 32])).unwrap());
    assert_eq!(remembered(), ["bob"]);
    rusqlite::Connection::open(&path).unwrap().execute("INSERT INTO turns VALUES ('carol', 9)", []).unwrap();
    drop(state);
    drop(SqliteState::open(&path).unwrap());
    assert_eq!(remembered(), ["bob"]);
}

/// No query that workers and requests repeat reads rows of ended jobs or large values.
#[test]
fn ended_jobs_cost_the_queue_nothing() {
    let dir = TempDir::new();
    let path = dir.path().join("state.sqlite");
    let state = SqliteState::open(&path).unwrap();
    let ann = tenant("ann");
    complete(&state, &ann, [1, 2, 3]);
    state.create_job(&ann, &new_job(1), &QUOTA, 1).unwrap();
    state.cancel_job(&ann, JobId([1; 16]), 2).unwrap();
    // A row of an ended job that cannot be read at all is not noticed.
    let broken = rusqlite::Connection::open(&path).unwrap();
    let damage = "PRAGMA foreign_keys = OFF; UPDATE jobs SET tenant = CAST(X'FF' AS TEXT), round = -1, id = X'01'";
    broken.execute_batch(damage).unwrap();
    state.create_job(&ann, &new_job(2), &QUOTA, 3).unwrap();
    assert!(state.has_claimable(5, 10).unwrap());
    assert_eq!(state.waiting(5, 10).unwrap(), []);
    assert_eq!(state.claim("worker", 5, 10).unwrap().unwrap().job.id, JobId([2; 16]));
    for plan in SqliteState::plans_of_hot_queries(&path).unwrap() {
        assert!(plan.contains("jobs_open") && !plan.contains("SCAN jobs\n"), "{plan}");
    }
}
