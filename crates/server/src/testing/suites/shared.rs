//! What several servers on one database and one folder of blobs do: uploads that go on elsewhere,
//! garbage collection, deadlines.
#![allow(clippy::unwrap_used)]

use super::state::{QUOTA, complete, new_job, tenant};
use crate::store::blobs::{BlobKey, Blobs, LocalBlobs, Namespace, name_of, read};
use crate::store::disk::{Disk, OsDisk};
use crate::store::parts::STORED_PART_BYTES;
use crate::store::shared_gc;
use crate::store::shared_uploads::SharedUploads;
use crate::store::staging::Staging;
use crate::store::state::shared::{Duty, SharedState};
use crate::store::state::*;
use crate::store::uploads::{Resumed, UploadProgress, UploadWriter, Uploads};
use crate::{Error, Result};
use hetal_learn::Verdict;
use hetal_testkit::TempDir;
use hetal_testkit::postgres::Postgres;
use hetal_wire::JobId;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Several servers with a folder each, one database and one folder of blobs.
pub struct Site {
    pub dir: TempDir,
    pub postgres: &'static Postgres,
    pub url: String,
}

pub const LARGE: Quota = Quota { bytes: 1 << 30, uploads: 9, ..QUOTA };

impl Site {
    pub fn new() -> Option<Self> {
        let postgres = Postgres::shared()?;
        Some(Self { dir: TempDir::new(), postgres, url: postgres.database() })
    }

    pub fn database(&self) -> Arc<dyn Database> {
        Arc::new(PgState::open(PgSettings::new(&self.url, None, None).unwrap()).unwrap())
    }

    pub fn query(&self, sql: &str) -> String {
        self.postgres.query(&self.url, sql)
    }

    pub fn blobs(&self, server: &str) -> Arc<dyn Blobs> {
        Arc::new(LocalBlobs::open_shared(&self.dir.path().join("blobs"), server).unwrap())
    }

    /// The uploads of a server.
    pub fn server(&self, name: &str) -> Uploads {
        self.uploads(name, self.blobs(name), Arc::new(OsDisk))
    }

    /// The uploads of a server with these blobs and the disk of its staging folder.
    pub fn uploads(&self, name: &str, blobs: Arc<dyn Blobs>, disk: Arc<dyn Disk>) -> Uploads {
        let database = self.database();
        Uploads {
            shared: SharedUploads::new(&database, &blobs, name),
            state: database,
            blobs,
            staging: Staging::open(disk, &self.dir.path().join(name), 8).unwrap(),
            max_bytes: 1 << 30,
            reserve_bytes: 0,
        }
    }

    /// Files of blobs and parts.
    pub fn files(&self) -> usize {
        fn count(folder: &std::path::Path) -> usize {
            let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
            entries.map(|path| if path.is_dir() { count(&path) } else { 1 }).sum()
        }
        count(&self.dir.path().join("blobs"))
    }
}

/// The bytes of a blob of two parts and a half.
pub fn content(seed: u64) -> Vec<u8> {
    (0..5 * STORED_PART_BYTES / 2).map(|i| ((i + seed) * 7 % 253) as u8).collect()
}

pub fn wanted(bytes: &[u8]) -> Upload {
    Upload { name: name_of(bytes), kind: BlobKind::Keys, size: bytes.len() as u64, complete: false }
}

pub fn begin(server: &Uploads, bytes: &[u8]) -> UploadProgress {
    server.begin(&tenant("ann"), &wanted(bytes), &LARGE).unwrap()
}

/// Resumes where the server says, as soon as it may.
pub fn resume(server: &Uploads, bytes: &[u8]) -> (UploadWriter, u64) {
    let (name, begun) = (name_of(bytes), Instant::now());
    loop {
        let UploadProgress { received: held, .. } = begin(server, bytes);
        match server.resume(&tenant("ann"), name, held) {
            Ok(Resumed::Partial(writer)) => return (writer, held),
            Ok(Resumed::Complete(_)) => panic!("it is complete"),
            Err(Error::Busy { .. }) if begun.elapsed() < Duration::from_secs(60) => {
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Sends bytes from `from` on, in messages of odd sizes.
pub fn send(server: &Uploads, writer: &mut UploadWriter, bytes: &[u8]) -> Result<()> {
    bytes.chunks(999_983).try_for_each(|data| server.add(writer, data))
}

pub fn finish(server: &Uploads, writer: UploadWriter) -> Result<()> {
    server.finish(&tenant("ann"), writer, |_, _| Ok(()))
}

/// A server that is killed in the middle of an upload: another one has all but the last part, and
/// what the first does later is refused.
#[test]
fn an_upload_goes_on_at_another_server() {
    let Some(site) = Site::new() else { return };
    let (first, second, bytes) = (site.server("first"), site.server("second"), content(0));
    let sent = 2 * STORED_PART_BYTES as usize + 5000;
    let (mut stale, held) = resume(&first, &bytes);
    assert_eq!(held, 0);
    send(&first, &mut stale, &bytes[..sent]).unwrap();
    // The first server alone knows of the bytes behind the last part.
    assert_eq!(begin(&first, &bytes), UploadProgress { received: sent as u64, complete: false });
    assert_eq!(begin(&second, &bytes), UploadProgress { received: 2 * STORED_PART_BYTES, complete: false });
    let refused = second.resume(&tenant("ann"), name_of(&bytes), 2 * STORED_PART_BYTES).err().unwrap();
    assert!(matches!(refused, Error::Busy { .. }), "the first may still receive: {refused}");
    let (mut writer, held) = resume(&second, &bytes);
    assert_eq!(held, 2 * STORED_PART_BYTES);
    let lost = send(&first, &mut stale, &bytes[sent..]).unwrap_err();
    assert!(matches!(lost, Error::Busy { .. }), "{lost}");
    send(&second, &mut writer, &bytes[held as usize..]).unwrap();
    finish(&second, writer).unwrap();
    for server in [&first, &second] {
        assert_eq!(begin(server, &bytes), UploadProgress { received: bytes.len() as u64, complete: true });
        let key = BlobKey::new(&tenant("ann"), Namespace::Uploads, name_of(&bytes));
        assert!(read(&*server.blobs, &key, 1 << 30).unwrap() == bytes);
    }
    assert_eq!(site.postgres.query(&site.url, "SELECT COUNT(*) FROM parts"), "0");
}

/// A stream that breaks off at one server goes on there with its last byte, also after the store
/// failed to take a part, and a damaged rest is sent again.
#[test]
fn an_upload_goes_on_at_the_same_server_with_its_last_byte() {
    let Some(site) = Site::new() else { return };
    let (server, bytes) = (site.server("first"), content(1));
    let (mut writer, _) = resume(&server, &bytes);
    send(&server, &mut writer, &bytes[..1000]).unwrap();
    drop(writer);
    let (mut writer, held) = resume(&server, &bytes);
    assert_eq!(held, 1000);
    // The folder of blobs cannot be written: the part stays staged.
    let parts = site.dir.path().join("blobs/parts");
    std::fs::write(&parts, b"an obstacle").unwrap();
    let failed = send(&server, &mut writer, &bytes[1000..]).unwrap_err();
    assert!(failed.is_transient(), "{failed}");
    drop(writer);
    std::fs::remove_file(&parts).unwrap();
    let (mut writer, held) = resume(&server, &bytes);
    assert_eq!(held, STORED_PART_BYTES, "the whole part was kept");
    send(&server, &mut writer, &bytes[held as usize..]).unwrap();
    finish(&server, writer).unwrap();
    assert!(begin(&server, &bytes).complete);
}

/// Bytes that are not those of the name are refused, and so are parts that were damaged in the
/// store. The next attempt begins at zero.
#[test]
fn damaged_parts_are_not_believed() {
    let Some(site) = Site::new() else { return };
    let (server, bytes, other) = (site.server("first"), content(2), content(3));
    let (mut writer, _) = resume(&server, &bytes);
    send(&server, &mut writer, &other).unwrap();
    let refused = finish(&server, writer).unwrap_err();
    assert!(matches!(refused, Error::Damaged { .. }), "{refused}");
    let (mut writer, held) = resume(&server, &bytes);
    assert_eq!(held, 0);
    send(&server, &mut writer, &bytes).unwrap();
    let folder = site.dir.path().join("blobs/parts/ann").join(name_of(&bytes).to_string());
    let part = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let mut damaged = std::fs::read(&part).unwrap();
    damaged[77] ^= 1;
    std::fs::write(&part, &damaged).unwrap();
    let refused = finish(&server, writer).unwrap_err();
    assert!(matches!(refused, Error::Damaged { .. }), "{refused}");
    let (mut writer, held) = resume(&server, &bytes);
    assert_eq!(held, 0);
    send(&server, &mut writer, &bytes).unwrap();
    finish(&server, writer).unwrap();
    assert!(begin(&server, &bytes).complete);
}

/// An upload that is deleted while another server receives it is not complete without its bytes.
#[test]
fn a_deleted_upload_is_never_complete() {
    let Some(site) = Site::new() else { return };
    let (first, second, bytes) = (site.server("first"), site.server("second"), content(4));
    let (mut writer, _) = resume(&first, &bytes);
    send(&first, &mut writer, &bytes).unwrap();
    second.delete(&tenant("ann"), name_of(&bytes)).unwrap();
    finish(&first, writer).unwrap_err();
    assert_eq!(first.state.upload(&tenant("ann"), name_of(&bytes)).unwrap(), None);
    assert!(!begin(&second, &bytes).complete);
    let (mut writer, held) = resume(&second, &bytes);
    assert_eq!(held, 0);
    send(&second, &mut writer, &bytes).unwrap();
    finish(&second, writer).unwrap();
    assert!(begin(&first, &bytes).complete);
    second.delete(&tenant("ann"), name_of(&bytes)).unwrap();
    assert_eq!(site.files(), 0);
}

pub fn shared(database: &Arc<dyn Database>) -> &dyn SharedState {
    database.shared().unwrap()
}

/// One server at a time has a duty. Another one gets it when the first no longer asks.
#[test]
fn a_duty_belongs_to_one_server() {
    let Some(site) = Site::new() else { return };
    let database = site.database();
    let take_duty = |server: &str, length| shared(&database).take_duty(Duty::CollectGarbage, server, length).unwrap();
    assert!(take_duty("first", 60_000) && !take_duty("second", 60_000) && take_duty("first", 300));
    let begun = Instant::now();
    while !take_duty("second", 60_000) {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!take_duty("first", 60_000));
    // A term that no clock of this database could give comes from another clock.
    site.postgres.query(&site.url, "UPDATE duties SET until = until + 86400000");
    assert!(take_duty("first", 60_000));
}

/// What nobody references goes after a day, and nothing else does: not a blob of a job that goes
/// on, and not one that is referenced again.
#[test]
fn garbage_goes_after_a_day() {
    let Some(site) = Site::new() else { return };
    let (database, blobs, ann) = (site.database(), site.blobs("first"), tenant("ann"));
    let collect = || shared_gc::collect(&*database, &*blobs, shared_gc::GRACE).unwrap();
    complete(&*database, &ann, [1, 2, 3]);
    let job = database.create_job(&ann, &new_job(1), &QUOTA, 0).unwrap().id;
    let put = |namespace, bytes: &[u8]| {
        let key = BlobKey::new(&ann, namespace, name_of(bytes));
        blobs.put(&key, bytes).unwrap();
        key
    };
    let unknown = put(Namespace::Uploads, b"of no upload");
    let returns = put(Namespace::Uploads, b"of a later upload");
    let gone = put(Namespace::Job(JobId([9; 16])), b"of no job");
    let of_job = put(Namespace::Job(job), b"of a checkpoint that is not committed yet");
    let parts = blobs.parts().unwrap();
    parts.put_part(&unknown, "", 0, b"a part of no upload".to_vec()).unwrap();
    let pass_a_day = || {
        let sql = "UPDATE orphans SET since = since - 86400000";
        site.postgres.query(&site.url, sql);
    };
    assert_eq!((collect(), collect(), site.files()), (0, 0, 5));
    database
        .begin_upload(&ann, &Upload { name: returns.name(), kind: BlobKind::Keys, size: 17, complete: true }, &LARGE)
        .unwrap();
    pass_a_day();
    assert_eq!((collect(), site.files()), (3, 2), "the parts, the upload and the job that nobody knows");
    assert!(blobs.len(&unknown).unwrap().is_none() && blobs.len(&gone).unwrap().is_none());
    assert!(blobs.len(&of_job).unwrap().is_some() && blobs.len(&returns).unwrap().is_some());
    assert_eq!(site.postgres.query(&site.url, "SELECT COUNT(*) FROM orphans"), "0");
    // When the job has ended, its blob waits for a day too. The day begins anew after a reference.
    database.cancel_job(&ann, job, 0).unwrap();
    assert_eq!(collect(), 0);
    database.delete_upload(&ann, returns.name()).unwrap();
    assert_eq!(collect(), 0);
    pass_a_day();
    assert_eq!((collect(), site.files()), (2, 0));
}

/// A deadline is in the database: whichever server looks after it sees it. A time in which no
/// server looked does not count.
#[test]
fn a_deadline_is_everybodys() {
    let Some(site) = Site::new() else { return };
    let [first, second] = [site.database(), site.database()];
    let (ann, limit, pause, lease) = (tenant("ann"), 3_600_000, 30_000, 60_000);
    complete(&*first, &ann, [1, 2, 3]);
    let id = first.create_job(&ann, &new_job(1), &QUOTA, 0).unwrap().id;
    let overdue = |database: &Arc<dyn Database>| shared(database).advance_deadlines(limit, pause, lease).unwrap();
    assert!(overdue(&first).is_empty());
    let claim = first.claim("worker", 0, 60_000).unwrap().unwrap();
    let waits = Change {
        state: Some(JobState::Waiting),
        round: Some(1),
        announced: Some(1),
        release: true,
        ..Change::default()
    };
    first.commit(&claim.lease, &waits, 0).unwrap();
    assert!(overdue(&first).is_empty() && overdue(&second).is_empty());
    let turn_back = |table: &str, column: &str, by: u64| {
        site.postgres.query(&site.url, &format!("UPDATE {table} SET {column} = {column} - {by}"));
    };
    // An hour passes, but nobody looked.
    turn_back("jobs", "due", limit);
    turn_back("duties", "acted", limit);
    assert!(overdue(&second).is_empty(), "the owner could not answer");
    // An hour passes before the eyes of the servers.
    turn_back("jobs", "due", limit);
    assert_eq!(overdue(&first), [(id, 1)]);
    assert_eq!(overdue(&second), [(id, 1)]);
    let expire = |database: &Arc<dyn Database>| database.expire(id, 1, "late", 0, lease).unwrap();
    assert_eq!((expire(&second), expire(&first)), (Some(ann.clone()), None), "one of them acts");
    assert!(overdue(&first).is_empty());
    // A verdict ends the wait, and the next question has a deadline of its own.
    let id = first.create_job(&ann, &new_job(2), &QUOTA, 0).unwrap().id;
    let claim = first.claim("worker", 0, 60_000).unwrap().unwrap();
    first.commit(&claim.lease, &waits, 0).unwrap();
    assert!(overdue(&first).is_empty());
    turn_back("jobs", "due", limit);
    second.judge(&ann, id, 1, Verdict::Continue).unwrap();
    assert!(overdue(&first).is_empty(), "it was answered");
    let claim = first.claim("worker", 0, 60_000).unwrap().unwrap();
    let waits = Change { round: Some(2), announced: Some(2), ..waits };
    first.commit(&claim.lease, &waits, 0).unwrap();
    assert!(overdue(&first).is_empty());
    turn_back("jobs", "due", limit);
    assert_eq!(overdue(&first), [(id, 2)]);
}
