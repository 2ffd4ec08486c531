//! A server that moves from its folder into PostgreSQL and a shared folder.
#![allow(clippy::unwrap_used)]

use super::state::{QUOTA, complete, new_job, tenant};
use crate::config::Config;
use crate::store::blobs::{BlobKey, Blobs, LocalBlobs, Namespace, name_of};
use crate::store::ownership::{self, Ownership};
use crate::store::parts::STORED_PART_BYTES;
use crate::store::state::*;
use crate::{MoveReport, move_to_postgres};
use hetal_learn::Verdict;
use hetal_testkit::TempDir;
use hetal_testkit::postgres::Postgres;
use hetal_wire::JobId;
use std::path::Path;

/// A stopped server with a job that waits, one that ran, and one that has ended; and its blobs.
fn stopped_server(folder: &Path, bytes: &[u8]) {
    let state = SqliteState::open(&folder.join("state.sqlite")).unwrap();
    let (ann, quota) = (tenant("ann"), Quota { bytes: 1 << 30, uploads: 9, ..QUOTA });
    complete(&state, &ann, [1, 2, 3]);
    (1..=3).for_each(|n| _ = state.create_job(&ann, &new_job(n), &quota, 7).unwrap());
    let waits = Change {
        state: Some(JobState::Waiting),
        round: Some(1),
        announced: Some(1),
        checkpoint: Some("a checkpoint".to_owned()),
        checkpoint_bytes: Some(5),
        release: true,
        ..Change::default()
    };
    let claim = state.claim("local", 10, 20).unwrap().unwrap();
    state.commit(&claim.lease, &waits, 11).unwrap();
    state.judge(&ann, claim.lease.job, 1, Verdict::Continue).unwrap();
    state.cancel_job(&ann, JobId([3; 16]), 12).unwrap();
    // The server was killed while a worker had this one.
    state.claim("local", 13, 1 << 40).unwrap().unwrap();
    let blobs = LocalBlobs::open(&folder.join("blobs")).unwrap();
    let upload = Upload { name: name_of(bytes), kind: BlobKind::Keys, size: bytes.len() as u64, complete: true };
    state.begin_upload(&ann, &upload, &quota).unwrap();
    blobs.put(&BlobKey::new(&ann, Namespace::Uploads, upload.name), bytes).unwrap();
    blobs.put(&BlobKey::new(&ann, Namespace::Job(JobId([3; 16])), name_of(b"an output")), b"an output").unwrap();
    ownership::establish(&blobs, &state, false).unwrap();
}

/// What clients see of a tenant, and what a worker finds.
fn seen(state: &dyn State) -> impl PartialEq + std::fmt::Debug + use<> {
    let ann = tenant("ann");
    let jobs = state.jobs(&ann).unwrap();
    let events: Vec<_> = jobs.iter().map(|job| state.events(&ann, job.id, 0, EventLimit::PAGE).unwrap()).collect();
    let verdicts: Vec<_> = jobs.iter().map(|job| state.verdict(job.id, 1).unwrap()).collect();
    let whole: Vec<_> = jobs.iter().map(|job| state.job(&ann, job.id).unwrap()).collect();
    // A server that starts ends the lease of the one before.
    let running = |job: &JobSummary| JobSummary {
        state: if job.state == JobState::Running { JobState::Queued } else { job.state },
        ..job.clone()
    };
    let whole: Vec<_> = whole.into_iter().map(|job| (job.spec, job.checkpoint, job.spent, job.cancel)).collect();
    (jobs.iter().map(running).collect::<Vec<_>>(), events, verdicts, whole, state.uploads(&ann).unwrap())
}

struct Move {
    dir: TempDir,
    config: Config,
    postgres: &'static Postgres,
    url: String,
}

impl Move {
    fn new() -> Option<Self> {
        let postgres = Postgres::shared()?;
        let (dir, url) = (TempDir::new(), postgres.database());
        std::fs::create_dir(dir.path().join("old")).unwrap();
        let mut config = Config { folder: dir.path().join("new"), ..Config::default() };
        config.state.url = Some(url.clone());
        config.blobs = Some(dir.path().join("shared"));
        Some(Self { dir, config, postgres, url })
    }

    fn old(&self) -> std::path::PathBuf {
        self.dir.path().join("old")
    }

    fn run(&self) -> crate::Result<MoveReport> {
        move_to_postgres(&self.config, &self.old(), false)
    }

    fn state(&self) -> PgState {
        PgState::open(PgSettings::new(&self.url, None, None).unwrap()).unwrap()
    }
}

/// Everything is there afterwards, the next claims are the same, and no server starts on the old
/// folder by mistake. What was copied before an interruption is not copied again.
#[test]
fn a_folder_moves_into_postgres() {
    let Some(site) = Move::new() else { return };
    let bytes: Vec<u8> = (0..STORED_PART_BYTES + 99).map(|i| (i % 251) as u8).collect();
    stopped_server(&site.old(), &bytes);
    let before = SqliteState::open(&site.old().join("state.sqlite")).unwrap();
    let expected = seen(&before);
    before.release_worker("local").unwrap();
    drop(before);
    // The database cannot be written: the blobs are there, and no row is.
    let name = site.postgres.query(&site.url, "SELECT current_database()");
    let alter = |how: &str| site.postgres.query("postgres", &format!("ALTER DATABASE {name} {how}"));
    drop(site.state());
    alter("SET default_transaction_read_only = on");
    assert!(site.run().is_err(), "the database cannot be written");
    alter("RESET default_transaction_read_only");
    let first = site.run().unwrap();
    assert_eq!((first.copied + first.found, first.damaged.len()), (2, 0), "{first:?}");
    assert!(first.rows > 15, "{first:?}");
    let state = site.state();
    assert_eq!(format!("{:?}", seen(&state)), format!("{expected:?}"));
    let claims: Vec<_> =
        std::iter::from_fn(|| state.claim("worker", 0, 60_000).unwrap()).map(|c| c.lease.job).collect();
    assert_eq!(claims, [JobId([1; 16]), JobId([2; 16])]);
    // New jobs come after the old ones.
    state.cancel_job(&tenant("ann"), JobId([1; 16]), 0).unwrap();
    let quota = Quota { bytes: 1 << 30, jobs: 9, kept_jobs: 9, ..QUOTA };
    state.create_job(&tenant("ann"), &new_job(4), &quota, 0).unwrap();
    assert_eq!(state.jobs(&tenant("ann")).unwrap()[0].id, JobId([4; 16]));
    let blobs = LocalBlobs::open_shared(site.config.blobs.as_ref().unwrap(), "first").unwrap();
    assert_eq!(ownership::establish(&blobs, &state, false).unwrap(), Ownership::New);
    let key = BlobKey::new(&tenant("ann"), Namespace::Uploads, name_of(&bytes));
    assert!(crate::store::blobs::read(&blobs, &key, 1 << 30).unwrap() == bytes);
    let again = site.run().unwrap_err().to_string();
    assert!(again.contains("moved already"), "{again}");
    // Killed before the old database got its new name: the repetition changes nothing.
    std::fs::rename(site.old().join("state.sqlite.moved"), site.old().join("state.sqlite")).unwrap();
    let second = site.run().unwrap();
    assert_eq!(second, MoveReport { rows: 0, copied: 0, found: 2, damaged: Vec::new() });
}

/// A damaged blob stays behind and is named. A database that is in use, or blobs of another one,
/// are refused before anything is copied.
#[test]
fn what_cannot_be_moved_is_named() {
    let Some(site) = Move::new() else { return };
    stopped_server(&site.old(), b"bytes of an upload");
    let blob = site.old().join("blobs/tenants/ann/uploads").join(name_of(b"bytes of an upload").to_string());
    std::fs::write(&blob, b"bytes of an uploae").unwrap();
    site.postgres.query(&site.url, "SELECT 1");
    complete(&site.state(), &tenant("bob"), [1, 2, 3]);
    let refused = site.run().unwrap_err().to_string();
    assert!(refused.contains("in use") && site.old().join("state.sqlite").exists(), "{refused}");
    site.postgres.query(&site.url, "DELETE FROM uploads");
    let report = site.run().unwrap();
    assert_eq!(report.damaged.len(), 1, "{report:?}");
    let mut elsewhere = site.config.clone();
    elsewhere.state.url = None;
    assert!(move_to_postgres(&elsewhere, &site.old(), false).unwrap_err().to_string().contains("state.url"));
}
