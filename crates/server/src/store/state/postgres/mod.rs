//! The state in PostgreSQL, shared by any number of servers. Every change is one transaction,
//! acknowledged by the database when it returns.
//!
//! All times are those of the database's clock. Of the times that a caller supplies, only their
//! difference counts: the length of a lease.

mod connections;
mod import;
mod rows;
mod schema;
mod settings;
mod shared;
#[cfg(test)]
mod tests;
mod tls;

pub(crate) use import::DatabaseIdentity;
pub use settings::PgSettings;

use super::stored::{KINDS, STATES, VERDICTS, corrupt, hex, number, numbered};
use super::{
    Change, Claim, Database, EventLimit, Job, JobState, JobSummary, Lease, LeaseTimes, MAX_BACKOFF, Millis, NewJob,
    OwnerMarks, Quota, SharedState, State, TenantTotals, Upload, UploadList, Woken, check_job_quota,
    check_same_request, check_same_upload, check_upload_quota, check_verdict, job_not_ended, output_bytes,
    upload_in_use,
};
use crate::tenants::Tenant;
use crate::{Error, Result};
use connections::{Access, ConnectionPool, Db};
use hetal_learn::Verdict;
use hetal_wire::{BlobName, JobId, v1};
use prost::Message;
use rows::*;
use schema::{CLAIM_LOCK, ERASED, OF_TENANTS, OWNERSHIP_LOCK, lock};
use std::collections::HashMap;
use std::time::Duration;

/// A state in PostgreSQL.
pub struct PgState {
    connections: ConnectionPool,
    /// Whether the times are those that callers supply. Only tests do, which set their clock.
    times_of_callers: bool,
}

impl PgState {
    /// Connects to a database and brings its tables up to date.
    pub fn open(settings: PgSettings) -> Result<Self> {
        let state = Self { connections: ConnectionPool::new(settings)?, times_of_callers: false };
        state.write(|db| {
            schema::check_server(db)?;
            schema::migrate(db)
        })?;
        Ok(state)
    }

    /// Connects to a database, changes nothing, and describes it.
    pub fn describe(settings: PgSettings) -> Result<String> {
        let location = settings.location();
        let described = ConnectionPool::new(settings)?.statements(|db| {
            schema::check_server(db)?;
            schema::describe(db)
        })?;
        Ok(format!("{location}: {described}"))
    }

    /// As [`PgState::open`], with the times that callers supply.
    #[cfg(test)]
    pub(crate) fn with_times_of_callers(settings: PgSettings) -> Result<Self> {
        Ok(Self { times_of_callers: true, ..Self::open(settings)? })
    }

    /// A setting of a connection.
    #[cfg(test)]
    pub(crate) fn setting(&self, name: &str) -> Result<String> {
        self.read(|db| Ok(db.one("SELECT current_setting($1)", &[&name])?.try_get(0)?))
    }

    fn write<T>(&self, change: impl Fn(&Db<'_>) -> Result<T>) -> Result<T> {
        self.connections.transaction(Access::Write, change)
    }

    /// Runs statements that each are a transaction of their own.
    fn autocommit<T>(&self, run: impl Fn(&Db<'_>) -> Result<T>) -> Result<T> {
        self.connections.statements(run)
    }

    /// Reads with statements that each see the present.
    fn read<T>(&self, look: impl Fn(&Db<'_>) -> Result<T>) -> Result<T> {
        self.connections.statements(look)
    }

    /// The time of the caller, if it counts.
    fn given(&self, now: Millis) -> Option<i64> {
        self.times_of_callers.then_some(now as i64)
    }

    /// The present.
    fn now(&self, db: &Db<'_>, now: Millis) -> Result<i64> {
        match self.given(now) {
            Some(now) => Ok(now),
            None => db.number(&format!("SELECT {CLOCK}"), &[]),
        }
    }
}

/// How long an erasure waits for older transactions, in steps of [`UNSEEN_PAUSE`].
const UNSEEN_STEPS: usize = 200;
const UNSEEN_PAUSE: Duration = Duration::from_millis(50);

impl PgState {
    /// Waits until no transaction sees what the transaction `deletion` deleted. A vacuum keeps rows
    /// that somebody may still read.
    fn wait_until_unseen(&self, deletion: i64) -> Result<()> {
        let sql = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint > $1 AND NOT EXISTS (
            SELECT 1 FROM pg_stat_activity WHERE (datname = current_database() OR datname IS NULL)
                AND pid <> pg_backend_pid() AND age(backend_xmin) >= age(($1 & 4294967295)::text::xid))";
        for _ in 0..UNSEEN_STEPS {
            if self.read(|db| Ok(db.one(sql, &[&deletion])?.try_get(0)?))? {
                return Ok(());
            }
            std::thread::sleep(UNSEEN_PAUSE);
        }
        let reason = "PostgreSQL: other transactions still see the deleted rows: repeat the erasure".to_owned();
        Err(Error::State { reason })
    }
}

/// The length of a lease.
fn length(now: Millis, until: Millis) -> i64 {
    until.saturating_sub(now) as i64
}

impl Database for PgState {
    fn identity(&self) -> Result<String> {
        self.read(|db| Ok(hex(db.one("SELECT id FROM identity", &[])?.try_get(0)?)))
    }

    fn marks(&self) -> Result<OwnerMarks> {
        let row = self.read(|db| db.one("SELECT found, intended FROM identity", &[]))?;
        Ok(OwnerMarks { found: row.try_get(0)?, intended: row.try_get(1)? })
    }

    fn set_marks(&self, found: &str, intended: &str) -> Result<()> {
        self.write(|db| db.execute("UPDATE identity SET found = $1, intended = $2", &[&found, &intended]).map(|_| ()))
    }

    fn complete_uploads(&self) -> Result<u64> {
        self.read(|db| unsigned(&db.one("SELECT COUNT(*) FROM uploads WHERE complete", &[])?, 0))
    }

    fn exclusively(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.connections.once(|db| {
            // `work` waits for the blobs, which may be slow.
            db.batch("SET LOCAL idle_in_transaction_session_timeout = '5min'")?;
            lock(db, OWNERSHIP_LOCK)?;
            work()
        })
    }

    fn shared(&self) -> Option<&dyn SharedState> {
        Some(self)
    }

    fn watch(&self, woken: Woken) -> Result<()> {
        self.connections.listen(woken)
    }

    fn location(&self) -> String {
        self.connections.location()
    }
}

impl State for PgState {
    fn begin_upload(&self, tenant: &Tenant, upload: &Upload, quota: &Quota) -> Result<Upload> {
        // Repeated requests need no lock.
        if let Some(found) = self.upload(tenant, upload.name)? {
            return check_same_upload(upload, found);
        }
        self.write(|db| {
            lock_tenant(db, tenant)?;
            if let Some(found) = find_upload(db, tenant, upload.name)? {
                return check_same_upload(upload, found);
            }
            let uploads = count(db, "SELECT COUNT(*) FROM uploads WHERE tenant = $1", tenant)?;
            check_upload_quota(quota, upload, uploads, used_bytes(db, tenant)?)?;
            let (name, kind, size) = (&upload.name.0[..], number(&KINDS, upload.kind), upload.size as i64);
            let sql = "INSERT INTO uploads (tenant, name, kind, size, complete) VALUES ($1, $2, $3, $4, $5)";
            db.execute(sql, &[&tenant.as_str(), &name, &kind, &size, &upload.complete])?;
            Ok(upload.clone())
        })
    }

    fn upload(&self, tenant: &Tenant, name: BlobName) -> Result<Option<Upload>> {
        self.read(|db| find_upload(db, tenant, name))
    }

    fn find_uploads(&self, tenant: &Tenant, names: &[BlobName]) -> Result<HashMap<BlobName, Upload>> {
        self.read(|db| find_uploads(db, tenant, names))
    }

    fn uploads(&self, tenant: &Tenant) -> Result<UploadList> {
        self.connections.transaction(Access::Snapshot, |db| {
            Ok(UploadList { uploads: list_uploads(db, tenant)?, bytes: used_bytes(db, tenant)? })
        })
    }

    fn complete_upload(&self, tenant: &Tenant, name: BlobName) -> Result<()> {
        self.write(|db| {
            let sql = "UPDATE uploads SET complete = TRUE, store_id = NULL WHERE tenant = $1 AND name = $2";
            if db.execute(sql, &[&tenant.as_str(), &&name.0[..]])? == 0 {
                return Err(Error::NoBlob { name });
            }
            db.execute("DELETE FROM parts WHERE tenant = $1 AND name = $2", &[&tenant.as_str(), &&name.0[..]])?;
            Ok(())
        })
    }

    fn distrust_upload(&self, tenant: &Tenant, name: BlobName) -> Result<()> {
        let sql = "UPDATE uploads SET complete = FALSE WHERE tenant = $1 AND name = $2";
        self.write(|db| db.execute(sql, &[&tenant.as_str(), &&name.0[..]])).map(|_| ())
    }

    fn delete_upload(&self, tenant: &Tenant, name: BlobName) -> Result<()> {
        self.write(|db| {
            // A job that is created meanwhile would use it.
            lock_tenant(db, tenant)?;
            let sql = "SELECT COUNT(*) FROM uses WHERE tenant = $1 AND name = $2";
            if db.number(sql, &[&tenant.as_str(), &&name.0[..]])? > 0 {
                return Err(upload_in_use(name));
            }
            let sql = "DELETE FROM uploads WHERE tenant = $1 AND name = $2";
            match db.execute(sql, &[&tenant.as_str(), &&name.0[..]])? {
                0 => Err(Error::NoBlob { name }),
                _ => delete_stale_turn(db, tenant),
            }
        })
    }

    fn create_job(&self, tenant: &Tenant, job: &NewJob, quota: &Quota, now: Millis) -> Result<JobSummary> {
        self.write(|db| {
            lock_tenant(db, tenant)?;
            let sql = "SELECT id, body FROM jobs WHERE tenant = $1 AND request = $2";
            if let Some(row) = db.optional(sql, &[&tenant.as_str(), &&job.request[..]])? {
                let id = JobId::try_from(row.try_get::<_, &[u8]>(0)?).map_err(|_| corrupt("a job's id"))?;
                let body = row.try_get::<_, Option<&[u8]>>(1)?.map(<[u8; 32]>::try_from).transpose();
                check_same_request(job, body.map_err(|_| corrupt("a request's hash"))?)?;
                return find_summary(db, tenant, id);
            }
            let open = count(db, "SELECT COUNT(*) FROM jobs WHERE tenant = $1 AND state < 3", tenant)?;
            let all = count(db, "SELECT COUNT(*) FROM jobs WHERE tenant = $1", tenant)?;
            check_job_quota(quota, open, all)?;
            let uploads: Vec<_> = job.spec.uploads().collect();
            let found = find_uploads(db, tenant, &uploads)?;
            if let Some(&name) = uploads.iter().find(|name| found.get(name).is_none_or(|upload| !upload.complete)) {
                return Err(Error::NoBlob { name });
            }
            insert_job(db, tenant, job, self.now(db, now)?)?;
            db.announce(job.id)?;
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
        self.read(|db| list_jobs(db, tenant))
    }

    fn cancel_job(&self, tenant: &Tenant, id: JobId, now: Millis) -> Result<JobSummary> {
        self.write(|db| {
            if !lock_job(db, tenant, id)?.state.has_ended() {
                let now = self.now(db, now)?;
                let asked: bool = db.one("SELECT cancel FROM jobs WHERE id = $1", &[&&id.0[..]])?.try_get(0)?;
                let sql = "UPDATE jobs SET cancel = TRUE, updated = $2, not_before = 0, rests = 0 WHERE id = $1";
                db.execute(sql, &[&&id.0[..], &now])?;
                let sql = "UPDATE jobs SET state = 5, token = token + 1 WHERE id = $1 AND until <= $2";
                let ends = db.execute(sql, &[&&id.0[..], &now])? > 0;
                if ends {
                    add_event(db, &id.0, v1::event::What::Cancelled(v1::Cancelled {}))?;
                }
                // Repetitions wake nobody.
                if ends || !asked {
                    db.announce(id)?;
                }
            }
            find_summary(db, tenant, id)
        })
    }

    fn delete_job(&self, tenant: &Tenant, id: JobId) -> Result<()> {
        self.write(|db| {
            if !lock_job(db, tenant, id)?.state.has_ended() {
                return Err(job_not_ended());
            }
            db.execute("DELETE FROM jobs WHERE id = $1", &[&&id.0[..]])?;
            delete_stale_turn(db, tenant)
        })
    }

    fn events(&self, tenant: &Tenant, id: JobId, after: u64, limit: EventLimit) -> Result<Vec<v1::Event>> {
        self.read(|db| {
            find_summary(db, tenant, id)?;
            // The sum of the sizes before an event decides, so that a page holds the first event
            // whatever its size, and the database sends no event that is not read.
            let sql = "SELECT event FROM (SELECT sequence, event,
                    SUM(LENGTH(event)) OVER (ORDER BY sequence) - LENGTH(event) AS before
                    FROM (SELECT sequence, event FROM events WHERE job = $1 AND sequence > $2
                        ORDER BY sequence LIMIT $3) AS first) AS sized
                WHERE before = 0 OR before < $4 ORDER BY sequence";
            let after = i64::try_from(after).unwrap_or(i64::MAX);
            let [count, bytes] = [limit.count, limit.bytes].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
            let read = |row: tokio_postgres::Row| {
                v1::Event::decode(row.try_get::<_, &[u8]>(0)?).map_err(|_| corrupt("an event"))
            };
            db.all(sql, &[&&id.0[..], &after, &count, &bytes])?.into_iter().map(read).collect()
        })
    }

    fn judge(&self, tenant: &Tenant, id: JobId, round: u32, verdict: Verdict) -> Result<bool> {
        self.write(|db| {
            let job = lock_job(db, tenant, id)?;
            let given = find_verdict(db, id, round)?;
            check_verdict(&job, round, verdict, given)?;
            if given.is_some() {
                // Repetitions wake nobody.
                return Ok(false);
            }
            let sql = "INSERT INTO verdicts VALUES ($1, $2, $3)";
            db.execute(sql, &[&&id.0[..], &i64::from(round), &number(&VERDICTS, verdict)])?;
            db.execute(&format!("UPDATE jobs SET ready = {CLOCK} WHERE id = $1 AND state = 2"), &[&&id.0[..]])?;
            db.announce(id)?;
            Ok(true)
        })
    }

    fn has_claimable(&self, now: Millis, until: Millis) -> Result<bool> {
        self.read(|db| {
            let sql = format!("SELECT EXISTS (SELECT 1 FROM jobs j WHERE {CLAIMABLE})");
            let values: connections::SqlValues<'_> = &[&self.now(db, now)?, &length(now, until), &(MAX_BACKOFF as i64)];
            Ok(db.one(&sql, values)?.try_get(0)?)
        })
    }

    fn claim(&self, worker: &str, now: Millis, until: Millis) -> Result<Option<Claim>> {
        // Idle workers hold no lock.
        if !self.has_claimable(now, until)? {
            return Ok(None);
        }
        let length = length(now, until);
        self.write(|db| {
            // One claim at a time, so that each counts the running jobs of the ones before.
            lock(db, CLAIM_LOCK)?;
            let now = self.now(db, now)?;
            let job = loop {
                let next = db.optional(&next_job(), &[&now, &length, &(MAX_BACKOFF as i64), &worker])?;
                let Some(number) = next.map(|row| row.try_get(0)).transpose()? else { return Ok(None) };
                match read_job(db, number)? {
                    Ok(job) => break job,
                    // An unreadable job does not block the queue.
                    Err(error) => fail_unreadable(db, number, &error)?,
                }
            };
            let sql = "INSERT INTO turns SELECT $1, COALESCE(MAX(turn), 0) + 1 FROM turns
                ON CONFLICT (tenant) DO UPDATE SET turn = EXCLUDED.turn";
            db.execute(sql, &[&job.tenant.as_str()])?;
            let sql = "UPDATE jobs SET worker = $2, last_worker = $2, until = $3, token = token + 1,
                attempts = attempts + 1, state = 1 WHERE id = $1 RETURNING token, attempts, rests, lacked";
            let row = db.one(sql, &[&&job.id.0[..], &storable(worker), &now.saturating_add(length)])?;
            // An invalid count is treated as too large: it fails the job and not the queue.
            let count = |column| Ok::<_, Error>(u32::try_from(row.try_get::<_, i64>(column)?).unwrap_or(u32::MAX));
            let lease = Lease { job: job.id, token: unsigned(&row, 0)? };
            let job = Job { state: JobState::Running, ..job };
            Ok(Some(Claim { lease, job, attempts: count(1)?, backoffs: count(2)?, out_of_memory: count(3)? }))
        })
    }

    fn renew(&self, lease: &Lease, term: &dyn Fn() -> LeaseTimes) -> Result<bool> {
        let sql = format!(
            "UPDATE jobs SET until = COALESCE($3::bigint, {CLOCK}) + $4::bigint
                WHERE id = $1 AND token = $2 AND worker IS NOT NULL RETURNING cancel"
        );
        let renewed = self.autocommit(|db| {
            let LeaseTimes { now, until } = term();
            let values: connections::SqlValues<'_> =
                &[&&lease.job.0[..], &(lease.token as i64), &self.given(now), &length(now, until)];
            db.optional(&sql, values)
        })?;
        Ok(renewed.ok_or(Error::Fenced)?.try_get(0)?)
    }

    fn commit(&self, lease: &Lease, change: &Change, now: Millis) -> Result<()> {
        self.write(|db| {
            let number = update_job(db, lease, change, self.given(now))?;
            if let Some(checkpoint) = &change.checkpoint {
                let sql = "INSERT INTO checkpoints VALUES ($1, $2)
                    ON CONFLICT (number) DO UPDATE SET checkpoint = EXCLUDED.checkpoint";
                db.execute(sql, &[&number, &storable(checkpoint)])?;
            }
            if let Some(announced) = change.announced {
                let sql = "DELETE FROM verdicts WHERE job = $1 AND round > $2";
                db.execute(sql, &[&&lease.job.0[..], &i64::from(announced)])?;
            }
            if let Some(name) = change.damaged_upload {
                let sql = "UPDATE uploads SET complete = FALSE
                    WHERE tenant = (SELECT tenant FROM jobs WHERE number = $1) AND name = $2";
                db.execute(sql, &[&number, &&name.0[..]])?;
            }
            if change.release {
                // A job without a worker is not running.
                // A worker that stops leaves its job to any other. One that rests is still its own,
                // so that it goes on when the worker starts again.
                let sql = format!(
                    "UPDATE jobs SET worker = NULL, until = 0, state = CASE state WHEN 1 THEN 0 ELSE state END,
                        ready = {CLOCK}, last_worker = CASE WHEN $2 THEN NULL ELSE last_worker END WHERE number = $1"
                );
                db.execute(&sql, &[&number, &(change.uncounted && change.backoff.is_none())])?;
            }
            if let Some(what) = change.event.clone() {
                add_event(db, &lease.job.0, what)?;
            }
            db.announce(lease.job)
        })
    }

    fn verdict(&self, job: JobId, round: u32) -> Result<Option<Verdict>> {
        self.read(|db| find_verdict(db, job, round))
    }

    fn waiting(&self, now: Millis, until: Millis) -> Result<Vec<(JobId, u32)>> {
        self.read(|db| {
            let sql = format!("SELECT id, round FROM jobs j WHERE j.state < 3 AND {UNANSWERED} ORDER BY number");
            let mut waiting = Vec::new();
            for row in db.all(&sql, &[&self.now(db, now)?, &length(now, until)])? {
                match parse_waiting(&row) {
                    Ok(found) => waiting.push(found),
                    // An unreadable job does not block the others.
                    Err(error) => {
                        let job = hex(row.try_get(0)?);
                        tracing::error!(job, %error, "cannot read a job that waits for a verdict");
                    }
                }
            }
            Ok(waiting)
        })
    }

    fn expire(&self, id: JobId, round: u32, reason: &str, now: Millis, until: Millis) -> Result<Option<Tenant>> {
        let tenant = self.write(|db| {
            // The next statement sees a verdict that was recorded while this one waited.
            db.all("SELECT 1 FROM jobs WHERE id = $1 FOR UPDATE", &[&&id.0[..]])?;
            let sql = format!(
                "UPDATE jobs AS j SET state = 4, reason = $3, updated = $1, worker = NULL, until = 0, token = token + 1
                    WHERE id = $4 AND round = $5 AND {UNANSWERED} RETURNING tenant"
            );
            let reason = storable(reason);
            let values: connections::SqlValues<'_> =
                &[&self.now(db, now)?, &length(now, until), &reason, &&id.0[..], &i64::from(round)];
            let Some(row) = db.optional(&sql, values)? else { return Ok(None) };
            add_event(db, &id.0, v1::event::What::Failed(v1::Failed { reason: reason.into_owned() }))?;
            db.announce(id)?;
            Ok(Some(row.try_get::<_, String>(0)?))
        })?;
        tenant.map(|name| Tenant::try_from(name).map_err(|_| corrupt("a tenant"))).transpose()
    }

    fn tenant_totals(&self, tenant: &Tenant) -> Result<TenantTotals> {
        self.read(|db| tenant_totals(db, tenant))
    }

    fn forget_tenant(&self, tenant: &Tenant) -> Result<TenantTotals> {
        let (held, deletion) = self.write(|db| {
            lock_tenant(db, tenant)?;
            let sql = format!("SELECT COUNT(*) FROM jobs WHERE tenant = $1 AND worker IS NOT NULL AND until > {CLOCK}");
            if count(db, &sql, tenant)? > 0 {
                return Err(Error::Precondition {
                    message: format!("a worker has a job of {tenant}: cancel his jobs and wait until they end"),
                });
            }
            let held = tenant_totals(db, tenant)?;
            for table in ERASED {
                db.execute(&format!("DELETE FROM {table} WHERE tenant = $1"), &[&tenant.as_str()])?;
            }
            Ok((held, db.number("SELECT pg_current_xact_id()::text::bigint", &[])?))
        })?;
        self.wait_until_unseen(deletion)?;
        // Deleted content must not stay in the files of the tables.
        self.connections.maintain(&format!("VACUUM (FULL) {}", OF_TENANTS.join(", ")))?;
        Ok(held)
    }

    fn release_worker(&self, worker: &str) -> Result<()> {
        self.write(|db| {
            // Jobs of other workers are not touched, however often this one starts.
            let own = "state < 3 AND (worker = $1 OR last_worker = $1)";
            let sql =
                format!("UPDATE jobs SET not_before = 0, rests = 0 WHERE {own} AND (not_before > 0 OR rests > 0)");
            db.execute(&sql, &[&storable(worker)])?;
            let sql = format!("SELECT number, progress FROM jobs WHERE {own} AND progress IS NOT NULL FOR UPDATE");
            for row in db.all(&sql, &[&storable(worker)])? {
                // Damaged progress is reported when the job itself is read.
                if let Ok(progress @ v1::Progress { resting: true, .. }) =
                    v1::Progress::decode(row.try_get::<_, &[u8]>(1)?)
                {
                    let awake = v1::Progress { resting: false, ..progress }.encode_to_vec();
                    let sql = "UPDATE jobs SET progress = $2 WHERE number = $1";
                    db.execute(sql, &[&row.try_get::<_, i64>(0)?, &awake])?;
                }
            }
            let sql = "UPDATE jobs SET worker = NULL, until = 0, token = token + 1,
                state = CASE state WHEN 1 THEN 0 ELSE state END WHERE state < 3 AND worker = $1";
            db.execute(sql, &[&storable(worker)]).map(|_| ())
        })
    }

    fn check_writable(&self) -> Result<()> {
        self.write(|db| db.execute("UPDATE identity SET checked = checked + 1", &[]).map(|_| ()))
    }

    fn count_jobs(&self) -> Result<Vec<(JobState, u64)>> {
        self.read(|db| {
            let mut counted = Vec::new();
            for row in db.all(COUNT_JOBS, &[])? {
                let (state, count) = (row.try_get(0)?, unsigned(&row, 1)?);
                match numbered(&STATES, state, "a job's state") {
                    Ok(state) => counted.push((state, count)),
                    // Invalid states do not prevent counting the others.
                    Err(_) => tracing::error!(state, count, "jobs have an invalid state"),
                }
            }
            Ok(counted)
        })
    }
}

/// Applies a change to the row of a job, whose number it returns.
fn update_job(db: &Db<'_>, lease: &Lease, change: &Change, now: Option<i64>) -> Result<i64> {
    let sql = format!(
        "UPDATE jobs SET updated = COALESCE($3::bigint, {CLOCK}), state = COALESCE($4::bigint, state),
            round = COALESCE($5::bigint, round), progress = COALESCE($7::bytea, progress),
            reason = COALESCE($8::text, reason), spent = spent + $9::bigint, bytes = bytes + $10::bigint,
            held = COALESCE($11::bigint, held),
            attempts = CASE WHEN $6::boolean THEN 0 ELSE GREATEST(attempts - $12::bigint, 0) END,
            not_before = COALESCE(COALESCE($3::bigint, {CLOCK}) + $13::bigint, not_before),
            rests = CASE WHEN $6::boolean THEN 0 ELSE rests END + CASE WHEN $13::bigint IS NULL THEN 0 ELSE 1 END,
            lacked = CASE WHEN $6::boolean THEN 0 ELSE lacked END + $14::bigint,
            announced = COALESCE($15::bigint, announced)
            WHERE id = $1 AND token = $2 AND worker IS NOT NULL RETURNING number"
    );
    let reason = change.reason.as_deref().map(storable);
    let row = db.optional(
        &sql,
        &[
            &&lease.job.0[..],
            &(lease.token as i64),
            &now,
            &change.state.map(|state| number(&STATES, state)),
            &change.round.map(i64::from),
            &change.checkpoint.is_some(),
            &change.progress.as_ref().map(|progress| progress.encode_to_vec()),
            &reason,
            &(change.spent as i64),
            &(change.event.as_ref().map_or(0, output_bytes) as i64),
            &change.checkpoint_bytes.map(|bytes| bytes as i64),
            &i64::from(change.uncounted),
            &change.backoff.map(|backoff| backoff as i64),
            &i64::from(change.out_of_memory),
            &change.announced.map(i64::from),
        ],
    )?;
    Ok(row.ok_or(Error::Fenced)?.try_get(0)?)
}
