//! The state in an SQLite database. Every change is one transaction and durable when it returns.

mod readers;
mod rows;
mod schema;

use super::stored::{KINDS, STATES, VERDICTS, corrupt, hex, number, numbered};
use super::{
    Change, Claim, Database, EventLimit, Job, JobState, JobSummary, Lease, LeaseTimes, MAX_BACKOFF, Millis, NewJob,
    OwnerMarks, Quota, SharedState, State, TenantTotals, Upload, UploadList, Woken, check_job_quota,
    check_same_request, check_same_upload, check_upload_quota, check_verdict, job_not_ended, output_bytes,
    upload_in_use,
};
use crate::store::disk::{Disk, OsDisk};
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_learn::Verdict;
use hetal_wire::{BlobName, JobId, v1};
use prost::Message;
use readers::{ReaderPool, check_migration_space, check_writable};
use rows::*;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use schema::{ERASED, MIGRATIONS};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A state database: one connection that writes, and others that read meanwhile.
pub struct SqliteState {
    writer: Mutex<Connection>,
    /// Empty for a database in memory, whose reads share the writer's connection.
    readers: ReaderPool,
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        Self::State { reason: error.to_string() }
    }
}

impl SqliteState {
    /// Opens a database file and creates it if necessary. An older database is migrated.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, |file| OsDisk.free(file))
    }

    /// As [`SqliteState::open`], with a function for the free disk space beside a file.
    pub(crate) fn open_with(path: &Path, free: impl FnOnce(&Path) -> std::io::Result<u64>) -> Result<Self> {
        check_writable(path)?;
        let connection = Connection::open(path)?;
        check_migration_space(&connection, path, free)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // With a write-ahead log, only FULL makes every transaction survive a power cut.
        connection.pragma_update(None, "synchronous", "FULL")?;
        let writer = Self::prepare(connection)?;
        Ok(Self { writer, readers: ReaderPool::open(path)? })
    }

    /// Creates an empty database of an older version.
    #[cfg(test)]
    pub(crate) fn version(path: &Path, version: usize) -> Result<()> {
        let connection = Connection::open(path)?;
        Ok(MIGRATIONS[..version].iter().try_for_each(|step| connection.execute_batch(step))?)
    }

    /// How SQLite runs the queries that workers repeat.
    #[cfg(test)]
    pub(crate) fn plans_of_hot_queries(path: &Path) -> Result<Vec<String>> {
        let connection = Connection::open(path)?;
        let plan = |query: String| -> Result<String> {
            let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {query}"))?;
            let lines = statement.query_map([1, 2, 3], |row| row.get::<_, String>(3))?;
            Ok(lines.map(|line| Ok(line? + "\n")).collect::<rusqlite::Result<String>>()?)
        };
        let unanswered = format!("SELECT id, round FROM {OPEN_JOBS} AND {UNANSWERED} AND ?3");
        [next_job(), unanswered].map(plan).into_iter().collect()
    }

    /// Creates a database in memory.
    pub fn in_memory() -> Result<Self> {
        Ok(Self { writer: Self::prepare(Connection::open_in_memory()?)?, readers: ReaderPool::default() })
    }

    fn prepare(mut connection: Connection) -> Result<Mutex<Connection>> {
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.busy_timeout(std::time::Duration::from_secs(10))?;
        // Deleted content is overwritten.
        connection.pragma_update(None, "secure_delete", true)?;
        let sound: String = connection.pragma_query_value(None, "quick_check", |row| row.get(0))?;
        if sound != "ok" {
            return Err(Error::State {
                reason: format!("the database is damaged ({sound}): restore it from a backup"),
            });
        }
        let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let missing = usize::try_from(version).ok().and_then(|version| MIGRATIONS.get(version..));
        let newer = || Error::State { reason: format!("the database has version {version}: use a newer server") };
        let missing = missing.ok_or_else(newer)?;
        let transaction = connection.transaction()?;
        missing.iter().try_for_each(|step| transaction.execute_batch(step))?;
        delete_stale_turns(&transaction)?;
        transaction.commit()?;
        Ok(Mutex::new(connection))
    }

    /// Runs a transaction.
    fn write<T>(&self, change: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        let mut connection = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let value = change(&transaction)?;
        transaction.commit()?;
        Ok(value)
    }

    /// Reads a snapshot. A reader waits neither for the writer nor for its syncs.
    fn read<T>(&self, look: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        if self.readers.is_empty() {
            return look(&self.writer.lock().unwrap_or_else(PoisonError::into_inner));
        }
        let mut reader = self.readers.take();
        look(&*reader.connection()?.transaction()?)
    }
}

impl Database for SqliteState {
    fn identity(&self) -> Result<String> {
        self.read(|db| Ok(hex(&db.query_row("SELECT id FROM identity", [], |row| row.get::<_, [u8; 16]>(0))?)))
    }

    fn marks(&self) -> Result<OwnerMarks> {
        let sql = "SELECT found, intended FROM identity";
        self.read(|db| Ok(db.query_row(sql, [], |row| Ok(OwnerMarks { found: row.get(0)?, intended: row.get(1)? }))?))
    }

    fn set_marks(&self, found: &str, intended: &str) -> Result<()> {
        self.write(|db| {
            db.execute("UPDATE identity SET found = ?1, intended = ?2", [found, intended])?;
            Ok(())
        })
    }

    fn complete_uploads(&self) -> Result<u64> {
        let sql = "SELECT COUNT(*) FROM uploads WHERE complete";
        self.read(|db| Ok(db.query_row(sql, [], |row| row.get::<_, i64>(0))? as u64))
    }

    /// The lock of the folder keeps other servers away.
    fn exclusively(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        work()
    }

    fn shared(&self) -> Option<&dyn SharedState> {
        None
    }

    /// There is no other server.
    fn watch(&self, _: Woken) -> Result<()> {
        Ok(())
    }

    fn location(&self) -> String {
        "state.sqlite".to_owned()
    }
}

impl State for SqliteState {
    fn begin_upload(&self, tenant: &Tenant, upload: &Upload, quota: &Quota) -> Result<Upload> {
        // Repeated requests do not occupy the writer.
        if let Some(found) = self.upload(tenant, upload.name)? {
            return check_same_upload(upload, found);
        }
        self.write(|db| {
            if let Some(found) = find_upload(db, tenant, upload.name)? {
                return check_same_upload(upload, found);
            }
            let uploads = count(db, "SELECT COUNT(*) FROM uploads WHERE tenant = ?1", tenant)?;
            check_upload_quota(quota, upload, uploads, used_bytes(db, tenant)?)?;
            let kind = number(&KINDS, upload.kind);
            let values = params![tenant.as_str(), upload.name.0, kind, upload.size as i64, upload.complete];
            db.execute("INSERT INTO uploads VALUES (?1, ?2, ?3, ?4, ?5)", values)?;
            Ok(upload.clone())
        })
    }

    fn upload(&self, tenant: &Tenant, name: BlobName) -> Result<Option<Upload>> {
        self.read(|db| find_upload(db, tenant, name))
    }

    fn uploads(&self, tenant: &Tenant) -> Result<UploadList> {
        self.read(|db| Ok(UploadList { uploads: list_uploads(db, tenant)?, bytes: used_bytes(db, tenant)? }))
    }

    fn complete_upload(&self, tenant: &Tenant, name: BlobName) -> Result<()> {
        self.write(|db| {
            let sql = "UPDATE uploads SET complete = 1 WHERE tenant = ?1 AND name = ?2";
            match db.execute(sql, params![tenant.as_str(), name.0])? {
                0 => Err(Error::NoBlob { name }),
                _ => Ok(()),
            }
        })
    }

    fn distrust_upload(&self, tenant: &Tenant, name: BlobName) -> Result<()> {
        self.write(|db| {
            let sql = "UPDATE uploads SET complete = 0 WHERE tenant = ?1 AND name = ?2";
            db.execute(sql, params![tenant.as_str(), name.0])?;
            Ok(())
        })
    }

    fn delete_upload(&self, tenant: &Tenant, name: BlobName) -> Result<()> {
        self.write(|db| {
            let sql = "SELECT COUNT(*) FROM uses WHERE tenant = ?1 AND name = ?2";
            let uses: i64 = db.query_row(sql, params![tenant.as_str(), name.0], |row| row.get(0))?;
            if uses > 0 {
                return Err(upload_in_use(name));
            }
            let sql = "DELETE FROM uploads WHERE tenant = ?1 AND name = ?2";
            match db.execute(sql, params![tenant.as_str(), name.0])? {
                0 => Err(Error::NoBlob { name }),
                _ => delete_stale_turns(db),
            }
        })
    }

    fn create_job(&self, tenant: &Tenant, job: &NewJob, quota: &Quota, now: Millis) -> Result<JobSummary> {
        self.write(|db| {
            let sql = "SELECT id, body FROM jobs WHERE tenant = ?1 AND request = ?2";
            let values = params![tenant.as_str(), job.request];
            let known = |row: &Row<'_>| Ok((row.get::<_, [u8; 16]>(0)?, row.get::<_, Option<[u8; 32]>>(1)?));
            if let Some((id, body)) = db.query_row(sql, values, known).optional()? {
                check_same_request(job, body)?;
                return find_summary(db, tenant, JobId(id));
            }
            let open = count(db, "SELECT COUNT(*) FROM jobs WHERE tenant = ?1 AND state < 3", tenant)?;
            let all = count(db, "SELECT COUNT(*) FROM jobs WHERE tenant = ?1", tenant)?;
            check_job_quota(quota, open, all)?;
            for name in job.spec.uploads() {
                find_upload(db, tenant, name)?.filter(|upload| upload.complete).ok_or(Error::NoBlob { name })?;
            }
            insert_job(db, tenant, job, now)?;
            for name in job.spec.uploads() {
                let sql = "INSERT OR IGNORE INTO uses (job, tenant, name) VALUES (?1, ?2, ?3)";
                db.execute(sql, params![job.id.0, tenant.as_str(), name.0])?;
            }
            add_event(db, job.id, v1::event::What::Queued(v1::Queued {}))?;
            find_summary(db, tenant, job.id)
        })
    }

    fn job(&self, tenant: &Tenant, id: JobId) -> Result<Job> {
        self.read(|db| find_job(db, tenant, id))
    }

    fn summary(&self, tenant: &Tenant, id: JobId) -> Result<JobSummary> {
        self.read(|db| find_summary(db, tenant, id))
    }

    fn jobs(&self, tenant: &Tenant) -> Result<Vec<JobSummary>> {
        self.read(|db| {
            let mut rows = db.prepare(&format!("SELECT {SUMMARY} FROM jobs WHERE tenant = ?1 ORDER BY number DESC"))?;
            let mut jobs = Vec::new();
            for row in rows.query_map([tenant.as_str()], read_summary)? {
                match row? {
                    (_, Ok(job)) => jobs.push(job),
                    // An unreadable job does not hide the others.
                    (number, Err(error)) => tracing::error!(number, %error, "cannot read a job"),
                }
            }
            Ok(jobs)
        })
    }

    fn cancel_job(&self, tenant: &Tenant, id: JobId, now: Millis) -> Result<JobSummary> {
        self.write(|db| {
            if !find_summary(db, tenant, id)?.state.has_ended() {
                let sql = "UPDATE jobs SET cancel = 1, updated = ?2, not_before = 0, rests = 0 WHERE id = ?1";
                db.execute(sql, params![id.0, now as i64])?;
                let sql = "UPDATE jobs SET state = 5, token = token + 1 WHERE id = ?1 AND until <= ?2";
                if db.execute(sql, params![id.0, now as i64])? > 0 {
                    add_event(db, id, v1::event::What::Cancelled(v1::Cancelled {}))?;
                }
            }
            find_summary(db, tenant, id)
        })
    }

    fn delete_job(&self, tenant: &Tenant, id: JobId) -> Result<()> {
        self.write(|db| {
            if !find_summary(db, tenant, id)?.state.has_ended() {
                return Err(job_not_ended());
            }
            db.execute("DELETE FROM jobs WHERE id = ?1", [&id.0[..]])?;
            delete_stale_turns(db)
        })
    }

    fn events(&self, tenant: &Tenant, id: JobId, after: u64, limit: EventLimit) -> Result<Vec<v1::Event>> {
        self.read(|db| {
            find_summary(db, tenant, id)?;
            let sql = "SELECT event FROM events WHERE job = ?1 AND sequence > ?2 ORDER BY sequence";
            let mut statement = db.prepare(sql)?;
            let after = i64::try_from(after).unwrap_or(i64::MAX);
            let mut rows = statement.query(params![id.0, after])?;
            let (mut events, mut bytes) = (Vec::new(), 0);
            while limit.allows_more(events.len(), bytes)
                && let Some(row) = rows.next()?
            {
                let event = row.get_ref(0)?.as_blob().map_err(|_| corrupt("an event"))?;
                bytes += event.len();
                events.push(v1::Event::decode(event).map_err(|_| corrupt("an event"))?);
            }
            Ok(events)
        })
    }

    fn judge(&self, tenant: &Tenant, id: JobId, round: u32, verdict: Verdict) -> Result<bool> {
        self.write(|db| {
            let job = find_summary(db, tenant, id)?;
            check_verdict(&job, round, verdict, find_verdict(db, id, round)?)?;
            let sql = "INSERT OR IGNORE INTO verdicts VALUES (?1, ?2, ?3)";
            Ok(db.execute(sql, params![id.0, round, number(&VERDICTS, verdict)])? > 0)
        })
    }

    fn has_claimable(&self, now: Millis, until: Millis) -> Result<bool> {
        self.read(|db| has_claimable(db, now, until))
    }

    fn claim(&self, worker: &str, now: Millis, until: Millis) -> Result<Option<Claim>> {
        // Idle workers do not occupy the writer.
        if !self.has_claimable(now, until)? {
            return Ok(None);
        }
        self.write(|db| {
            let sql = next_job();
            let job = loop {
                let values = params![now as i64, until as i64, MAX_BACKOFF as i64];
                let next = db.query_row(&sql, values, |row| row.get::<_, i64>(0)).optional()?;
                let Some(number) = next else { return Ok(None) };
                let job = format!("SELECT {JOB} FROM jobs j WHERE number = ?1");
                match db.query_row(&job, [number], read_job)?.1 {
                    Ok(job) => break job,
                    // An unreadable job does not block the queue.
                    Err(error) => fail_unreadable(db, number, &error)?,
                }
            };
            let sql = "INSERT OR REPLACE INTO turns SELECT ?1, COALESCE(MAX(turn), 0) + 1 FROM turns";
            db.execute(sql, [job.tenant.as_str()])?;
            let sql = "UPDATE jobs SET worker = ?2, until = ?3, token = token + 1, attempts = attempts + 1, state = 1
                WHERE id = ?1 RETURNING token, attempts, rests, lacked";
            let values = params![job.id.0, worker, until as i64];
            let counts = |row: &Row<'_>| Ok([row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?, row.get(3)?]);
            let [token, counts @ ..] = db.query_row(sql, values, counts)?;
            // An invalid count is treated as too large: it fails the job and not the queue.
            let [attempts, backoffs, out_of_memory] = counts.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
            let lease = Lease { job: job.id, token: token as u64 };
            Ok(Some(Claim { lease, job: Job { state: JobState::Running, ..job }, attempts, backoffs, out_of_memory }))
        })
    }

    fn renew(&self, lease: &Lease, term: &dyn Fn() -> LeaseTimes) -> Result<bool> {
        self.write(|db| {
            let sql = "UPDATE jobs SET until = ?3 WHERE id = ?1 AND token = ?2 AND worker IS NOT NULL RETURNING cancel";
            let values = params![lease.job.0, lease.token as i64, term().until as i64];
            db.query_row(sql, values, |row| row.get(0)).optional()?.ok_or(Error::Fenced)
        })
    }

    fn commit(&self, lease: &Lease, change: &Change, now: Millis) -> Result<()> {
        self.write(|db| {
            let sql = "UPDATE jobs SET updated = ?3, state = COALESCE(?4, state), round = COALESCE(?5, round),
                progress = COALESCE(?7, progress), reason = COALESCE(?8, reason),
                attempts = IIF(?6, 0, MAX(attempts - ?12, 0)), spent = spent + ?9,
                bytes = bytes + ?10, held = COALESCE(?11, held), not_before = COALESCE(?3 + ?13, not_before),
                rests = IIF(?6, 0, rests) + (?13 IS NOT NULL), lacked = IIF(?6, 0, lacked) + ?14,
                announced = COALESCE(?15, announced)
                WHERE id = ?1 AND token = ?2 AND worker IS NOT NULL RETURNING number";
            let values = params![
                lease.job.0,
                lease.token as i64,
                now as i64,
                change.state.map(|state| number(&STATES, state)),
                change.round,
                change.checkpoint.is_some(),
                change.progress.as_ref().map(|progress| progress.encode_to_vec()),
                change.reason,
                change.spent as i64,
                change.event.as_ref().map_or(0, output_bytes) as i64,
                change.checkpoint_bytes.map(|bytes| bytes as i64),
                change.uncounted,
                change.backoff.map(|backoff| backoff as i64),
                change.out_of_memory,
                change.announced,
            ];
            let number = db.query_row(sql, values, |row| row.get::<_, i64>(0)).optional()?.ok_or(Error::Fenced)?;
            if let Some(checkpoint) = &change.checkpoint {
                db.execute("INSERT OR REPLACE INTO checkpoints VALUES (?1, ?2)", params![number, checkpoint])?;
            }
            if let Some(announced) = change.announced {
                db.execute("DELETE FROM verdicts WHERE job = ?1 AND round > ?2", params![lease.job.0, announced])?;
            }
            if let Some(name) = change.damaged_upload {
                let sql = "UPDATE uploads SET complete = 0
                    WHERE tenant = (SELECT tenant FROM jobs WHERE number = ?1) AND name = ?2";
                db.execute(sql, params![number, name.0])?;
            }
            if change.release {
                // A job without a worker is not running.
                let sql = "UPDATE jobs SET worker = NULL, until = 0, state = IIF(state = 1, 0, state) WHERE id = ?1";
                db.execute(sql, [&lease.job.0[..]])?;
            }
            change.event.clone().map_or(Ok(()), |what| add_event(db, lease.job, what))
        })
    }

    fn verdict(&self, job: JobId, round: u32) -> Result<Option<Verdict>> {
        self.read(|db| find_verdict(db, job, round))
    }

    fn waiting(&self, now: Millis, until: Millis) -> Result<Vec<(JobId, u32)>> {
        self.read(|db| {
            let mut rows = db.prepare(&format!("SELECT id, round FROM {OPEN_JOBS} AND {UNANSWERED}"))?;
            let raw = |row: &Row<'_>| Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, i64>(1)?));
            let mut waiting = Vec::new();
            for row in rows.query_map([now as i64, until as i64], raw)? {
                let (id, round) = row?;
                match (JobId::try_from(&id[..]), u32::try_from(round)) {
                    (Ok(id), Ok(round)) => waiting.push((id, round)),
                    // An unreadable job does not block the others.
                    _ => tracing::error!(job = hex(&id), round, "cannot read a job that waits for a verdict"),
                }
            }
            Ok(waiting)
        })
    }

    fn expire(&self, id: JobId, round: u32, reason: &str, now: Millis, until: Millis) -> Result<Option<Tenant>> {
        let tenant = self.write(|db| {
            let sql = format!(
                "UPDATE jobs AS j SET state = 4, reason = ?3, updated = ?1, worker = NULL, until = 0, token = token + 1
                    WHERE id = ?4 AND round = ?5 AND {UNANSWERED} RETURNING tenant"
            );
            let values = params![now as i64, until as i64, reason, id.0, round];
            // Read as bytes: the job ends even if the tenant's name is damaged.
            let tenant = |row: &Row<'_>| Ok(row.get_ref(0)?.as_bytes()?.to_vec());
            let Some(tenant) = db.query_row(&sql, values, tenant).optional()? else { return Ok(None) };
            add_event(db, id, v1::event::What::Failed(v1::Failed { reason: reason.to_owned() }))?;
            Ok(Some(tenant))
        })?;
        let parse = |name| Tenant::try_from(String::from_utf8(name).ok()?).ok();
        tenant.map(|name| parse(name).ok_or_else(|| corrupt("a tenant"))).transpose()
    }

    fn tenant_totals(&self, tenant: &Tenant) -> Result<TenantTotals> {
        self.read(|db| tenant_totals(db, tenant))
    }

    fn forget_tenant(&self, tenant: &Tenant) -> Result<TenantTotals> {
        let held = self.write(|db| {
            let held = tenant_totals(db, tenant)?;
            for table in ERASED {
                db.execute(&format!("DELETE FROM {table} WHERE tenant = ?1"), [tenant.as_str()])?;
            }
            Ok(held)
        })?;
        // Deleted content must not stay in free pages or in the write-ahead log.
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE);")?;
        Ok(held)
    }

    fn release_worker(&self, worker: &str) -> Result<()> {
        self.write(|db| {
            let sql = "UPDATE jobs SET worker = NULL, until = 0, token = token + 1, state = IIF(state = 1, 0, state)
                WHERE worker = ?1";
            db.execute(sql, [worker])?;
            db.execute("UPDATE jobs SET not_before = 0, rests = 0 WHERE state < 3", [])?;
            let sql = format!("SELECT number, progress FROM {OPEN_JOBS} AND progress IS NOT NULL");
            let mut rows = db.prepare(&sql)?;
            let rows = rows.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)))?;
            for row in rows {
                let (number, bytes) = row?;
                // Damaged progress is reported when the job itself is read.
                if let Ok(progress @ v1::Progress { resting: true, .. }) = v1::Progress::decode(&bytes[..]) {
                    let awake = v1::Progress { resting: false, ..progress }.encode_to_vec();
                    db.execute("UPDATE jobs SET progress = ?2 WHERE number = ?1", params![number, awake])?;
                }
            }
            Ok(())
        })
    }

    fn check_writable(&self) -> Result<()> {
        self.write(|db| {
            db.execute("UPDATE identity SET checked = checked + 1", [])?;
            Ok(())
        })
    }

    fn count_jobs(&self) -> Result<Vec<(JobState, u64)>> {
        self.read(|db| {
            let sql = "SELECT state, COUNT(*) FROM jobs INDEXED BY jobs_totals GROUP BY state ORDER BY state";
            let mut rows = db.prepare(sql)?;
            let rows = rows.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?;
            let mut counted = Vec::new();
            for row in rows {
                let (state, count) = row?;
                match numbered(&STATES, state, "a job's state") {
                    Ok(state) => counted.push((state, count as u64)),
                    // Invalid states do not prevent counting the others.
                    Err(_) => tracing::error!(state, count, "jobs have an invalid state"),
                }
            }
            Ok(counted)
        })
    }
}
