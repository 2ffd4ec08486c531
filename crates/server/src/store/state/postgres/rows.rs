//! Queries of single rows, and their conversion.

use super::connections::Db;
use crate::jobs::spec::JobSpec;
use crate::store::state::stored::{KINDS, STATES, VERDICTS, corrupt, hex, numbered};
use crate::store::state::{Job, JobSummary, Millis, NewJob, TenantTotals, Upload};
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_learn::Verdict;
use hetal_wire::{BlobName, JobId, v1};
use prost::Message;
use std::borrow::Cow;
use std::collections::HashMap;
use tokio_postgres::Row;

/// The present in milliseconds, by the database's clock and not by the beginning of the
/// transaction.
pub const CLOCK: &str = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint";

/// The columns of a job `j`, with its spec and checkpoint.
const JOB: &str = "j.id, j.tenant, j.label,
    (SELECT work FROM specs s WHERE s.number = j.number), j.state, j.round,
    (SELECT checkpoint FROM checkpoints c WHERE c.number = j.number),
    j.progress, j.reason, j.cancel, j.created, j.updated, j.sequence, j.spent, j.announced";
/// The columns of a summary.
const SUMMARY: &str =
    "number, id, label, agreement, state, round, progress, reason, created, updated, sequence, announced";

/// Open jobs `j` that a worker can claim at `$1` for a lease of length `$2`; `$3` is the longest
/// backoff. Ends of leases and backoffs that no clock could have given now come from a clock that
/// was set back, for example that of a failed primary.
pub const CLAIMABLE: &str = "j.state < 3 AND (j.state IN (0, 1) OR j.state = 2 AND (j.cancel OR EXISTS
        (SELECT 1 FROM verdicts v WHERE v.job = j.id AND v.round = j.round)))
    AND (j.until <= $1::bigint OR j.until > $1::bigint + 2 * $2::bigint)
    AND (j.cancel OR j.not_before <= $1::bigint OR j.not_before > $1::bigint + $3::bigint)";
/// Open jobs `j` that wait for a verdict at `$1` and have no valid lease, of length `$2`.
pub const UNANSWERED: &str = "j.state = 2
    AND (j.worker IS NULL OR j.until <= $1::bigint OR j.until > $1::bigint + 2 * $2::bigint)
    AND NOT EXISTS (SELECT 1 FROM verdicts v WHERE v.job = j.id AND v.round = j.round)";

/// Text without the character that PostgreSQL cannot store.
pub fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{FFFD}")) } else { Cow::Borrowed(text) }
}

/// A stored number that is not negative.
pub fn unsigned(row: &Row, column: usize) -> Result<u64> {
    u64::try_from(row.try_get::<_, i64>(column)?).map_err(|_| corrupt("a number"))
}

/// A query of one number about a tenant.
pub fn count(db: &Db<'_>, sql: &str, tenant: &Tenant) -> Result<u64> {
    unsigned(&db.one(sql, &[&tenant.as_str()])?, 0)
}

/// Lets one change at a time count what a tenant has.
pub fn lock_tenant(db: &Db<'_>, tenant: &Tenant) -> Result<()> {
    db.all("SELECT pg_advisory_xact_lock(hashtextextended('hetal tenant ' || $1, 0))", &[&tenant.as_str()]).map(|_| ())
}

fn parse_upload(row: &Row) -> Result<Upload> {
    let name = BlobName::try_from(row.try_get::<_, &[u8]>(0)?).map_err(|_| corrupt("an upload's name"))?;
    let kind = numbered(&KINDS, row.try_get(1)?, "an upload's kind")?;
    Ok(Upload { name, kind, size: unsigned(row, 2)?, complete: row.try_get(3)? })
}

pub fn find_upload(db: &Db<'_>, tenant: &Tenant, name: BlobName) -> Result<Option<Upload>> {
    let sql = "SELECT name, kind, size, complete FROM uploads WHERE tenant = $1 AND name = $2";
    db.optional(sql, &[&tenant.as_str(), &&name.0[..]])?.as_ref().map(parse_upload).transpose()
}

/// Finds many uploads by one statement.
pub fn find_uploads(db: &Db<'_>, tenant: &Tenant, names: &[BlobName]) -> Result<HashMap<BlobName, Upload>> {
    let sql = "SELECT name, kind, size, complete FROM uploads WHERE tenant = $1 AND name = ANY ($2)";
    let names: Vec<_> = names.iter().map(|name| name.0.to_vec()).collect();
    let found = db.all(sql, &[&tenant.as_str(), &names])?;
    found.iter().map(|row| parse_upload(row).map(|upload| (upload.name, upload))).collect()
}

/// All uploads of a tenant, each with the number of jobs that use it.
pub fn list_uploads(db: &Db<'_>, tenant: &Tenant) -> Result<Vec<(Upload, u64)>> {
    let sql = "SELECT name, kind, size, complete,
        (SELECT COUNT(*) FROM uses s WHERE s.tenant = u.tenant AND s.name = u.name)
        FROM uploads u WHERE tenant = $1 ORDER BY name";
    let read = |row: Row| Ok((parse_upload(&row)?, unsigned(&row, 4)?));
    db.all(sql, &[&tenant.as_str()])?.into_iter().map(read).collect()
}

/// The bytes of a tenant that count: uploads, outputs of jobs, checkpoints of active jobs.
pub fn used_bytes(db: &Db<'_>, tenant: &Tenant) -> Result<u64> {
    let uploads = "SELECT COALESCE(SUM(size), 0)::bigint FROM uploads WHERE tenant = $1";
    let of_jobs = "SELECT COALESCE(SUM(bytes + CASE WHEN state < 3 THEN held ELSE 0 END), 0)::bigint
        FROM jobs WHERE tenant = $1";
    Ok(count(db, uploads, tenant)?.saturating_add(count(db, of_jobs, tenant)?))
}

fn job_id(bytes: &[u8]) -> Result<JobId> {
    JobId::try_from(bytes).map_err(|_| corrupt("a job's id"))
}

fn round(row: &Row, column: usize) -> Result<u32> {
    u32::try_from(row.try_get::<_, i64>(column)?).map_err(|_| corrupt("a round"))
}

fn progress(row: &Row, column: usize) -> Result<Option<v1::Progress>> {
    let decoded = row.try_get::<_, Option<&[u8]>>(column)?.map(v1::Progress::decode).transpose();
    decoded.map_err(|_| corrupt("a job's progress"))
}

/// A job that waits for a verdict: its id as stored, and its name and round if they can be read.
pub fn parse_waiting(row: &Row) -> Result<(JobId, u32)> {
    Ok((job_id(row.try_get(0)?)?, round(row, 1)?))
}

fn parse_job(row: &Row) -> Result<Job> {
    Ok(Job {
        id: job_id(row.try_get(0)?)?,
        tenant: Tenant::try_from(row.try_get::<_, String>(1)?).map_err(|_| corrupt("a tenant"))?,
        label: row.try_get(2)?,
        spec: serde_json::from_str(row.try_get(3)?).map_err(|_| corrupt("a job's work"))?,
        state: numbered(&STATES, row.try_get(4)?, "a job's state")?,
        round: round(row, 5)?,
        checkpoint: row.try_get(6)?,
        progress: progress(row, 7)?,
        reason: row.try_get(8)?,
        cancel: row.try_get(9)?,
        created: unsigned(row, 10)?,
        updated: unsigned(row, 11)?,
        sequence: unsigned(row, 12)?,
        spent: unsigned(row, 13)?,
        announced: round(row, 14)?,
    })
}

/// Reads a job by its number. Damage in one row must not fail a queue, so the result is nested.
pub fn read_job(db: &Db<'_>, number: i64) -> Result<Result<Job>> {
    Ok(parse_job(&db.one(&format!("SELECT {JOB} FROM jobs j WHERE j.number = $1"), &[&number])?))
}

pub fn find_job(db: &Db<'_>, tenant: &Tenant, id: JobId) -> Result<Job> {
    let sql = format!("SELECT {JOB} FROM jobs j WHERE j.tenant = $1 AND j.id = $2");
    parse_job(&db.optional(&sql, &[&tenant.as_str(), &&id.0[..]])?.ok_or(Error::NoJob { id })?)
}

fn parse_summary(row: &Row) -> Result<JobSummary> {
    let agreement = row.try_get::<_, Option<&str>>(3)?.map(serde_json::from_str).transpose();
    Ok(JobSummary {
        id: job_id(row.try_get(1)?)?,
        label: row.try_get(2)?,
        agreement: agreement.map_err(|_| corrupt("a job's agreement"))?,
        state: numbered(&STATES, row.try_get(4)?, "a job's state")?,
        round: round(row, 5)?,
        progress: progress(row, 6)?,
        reason: row.try_get(7)?,
        created: unsigned(row, 8)?,
        updated: unsigned(row, 9)?,
        sequence: unsigned(row, 10)?,
        announced: round(row, 11)?,
    })
}

pub fn find_summary(db: &Db<'_>, tenant: &Tenant, id: JobId) -> Result<JobSummary> {
    let sql = format!("SELECT {SUMMARY} FROM jobs WHERE tenant = $1 AND id = $2");
    parse_summary(&db.optional(&sql, &[&tenant.as_str(), &&id.0[..]])?.ok_or(Error::NoJob { id })?)
}

/// As [`find_summary`]; nobody else changes the job until the transaction ends.
pub fn lock_job(db: &Db<'_>, tenant: &Tenant, id: JobId) -> Result<JobSummary> {
    let sql = format!("SELECT {SUMMARY} FROM jobs WHERE tenant = $1 AND id = $2 FOR UPDATE");
    parse_summary(&db.optional(&sql, &[&tenant.as_str(), &&id.0[..]])?.ok_or(Error::NoJob { id })?)
}

/// The query of all jobs of the tenant `$1`, newest first.
pub fn jobs_of_tenant() -> String {
    format!("SELECT {SUMMARY} FROM jobs WHERE tenant = $1 ORDER BY number DESC")
}

/// The query of the number of jobs in each state.
pub const COUNT_JOBS: &str = "SELECT state, COUNT(*) FROM jobs GROUP BY state ORDER BY state";

/// All jobs of a tenant, newest first. An unreadable job does not hide the others.
pub fn list_jobs(db: &Db<'_>, tenant: &Tenant) -> Result<Vec<JobSummary>> {
    let sql = jobs_of_tenant();
    let mut jobs = Vec::new();
    for row in db.all(&sql, &[&tenant.as_str()])? {
        match parse_summary(&row) {
            Ok(job) => jobs.push(job),
            Err(error) => tracing::error!(number = row.try_get::<_, i64>(0)?, %error, "cannot read a job"),
        }
    }
    Ok(jobs)
}

pub fn add_event(db: &Db<'_>, id: &[u8], what: v1::event::What) -> Result<()> {
    let sequence = db.number("UPDATE jobs SET sequence = sequence + 1 WHERE id = $1 RETURNING sequence", &[&id])?;
    let event = v1::Event { sequence: sequence as u64, what: Some(what) }.encode_to_vec();
    db.execute("INSERT INTO events VALUES ($1, $2, $3)", &[&id, &sequence, &event]).map(|_| ())
}

pub fn insert_job(db: &Db<'_>, tenant: &Tenant, job: &NewJob, now: i64) -> Result<()> {
    let failed = |e: serde_json::Error| Error::State { reason: e.to_string() };
    let agreement = match &job.spec {
        JobSpec::Training(training) => Some(serde_json::to_string(&training.agreement).map_err(failed)?),
        JobSpec::Classification(_) => None,
    };
    let work = serde_json::to_string(&job.spec).map_err(failed)?;
    let sql = "INSERT INTO jobs (id, tenant, request, body, label, agreement, created, updated)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $7) RETURNING number";
    let label = storable(&job.label);
    let (id, request, body) = (&job.id.0[..], &job.request[..], &job.body[..]);
    let number = db.number(sql, &[&id, &tenant.as_str(), &request, &body, &label, &agreement, &now])?;
    db.execute("INSERT INTO specs VALUES ($1, $2)", &[&number, &work])?;
    let sql = "INSERT INTO uses (job, tenant, name) SELECT $1, $2, unnest($3::bytea[]) ON CONFLICT DO NOTHING";
    let uploads: Vec<_> = job.spec.uploads().map(|name| name.0.to_vec()).collect();
    db.execute(sql, &[&id, &tenant.as_str(), &uploads])?;
    add_event(db, id, v1::event::What::Queued(v1::Queued {}))
}

/// How long a job is left to the worker that had it last and has its keys on its disk.
const AFFINITY: Millis = 3_000;

/// The query of the job that the worker `$4` claims next. It skips rows that another transaction
/// holds, and for a while jobs whose last worker is idle.
pub fn next_job() -> String {
    format!(
        "SELECT j.number FROM jobs j WHERE {CLAIMABLE}
            AND NOT COALESCE(j.last_worker <> $4 AND NOT j.cancel AND j.ready BETWEEN $1 - {AFFINITY} AND $1
                AND NOT EXISTS (SELECT 1 FROM jobs b WHERE b.state < 3 AND b.worker = j.last_worker AND b.until > $1),
                FALSE)
            ORDER BY
            (SELECT COUNT(*) FROM jobs r WHERE r.state < 3 AND r.tenant = j.tenant AND r.until > $1::bigint),
            (SELECT turn FROM turns t WHERE t.tenant = j.tenant) NULLS FIRST, j.number
            LIMIT 1 FOR UPDATE OF j SKIP LOCKED"
    )
}

pub fn find_verdict(db: &Db<'_>, id: JobId, round: u32) -> Result<Option<Verdict>> {
    let sql = "SELECT verdict FROM verdicts WHERE job = $1 AND round = $2";
    let Some(row) = db.optional(sql, &[&&id.0[..], &i64::from(round)])? else { return Ok(None) };
    numbered(&VERDICTS, row.try_get(0)?, "a verdict").map(Some)
}

pub fn tenant_totals(db: &Db<'_>, tenant: &Tenant) -> Result<TenantTotals> {
    let jobs = count(db, "SELECT COUNT(*) FROM jobs WHERE tenant = $1", tenant)?;
    let uploads = count(db, "SELECT COUNT(*) FROM uploads WHERE tenant = $1", tenant)?;
    Ok(TenantTotals { jobs, uploads })
}

/// Forgets when a tenant was served who has neither jobs nor uploads: nothing of a tenant who
/// deleted everything stays in the tables.
pub fn delete_stale_turn(db: &Db<'_>, tenant: &Tenant) -> Result<()> {
    let sql = "DELETE FROM turns WHERE tenant = $1 AND NOT EXISTS (SELECT 1 FROM jobs WHERE tenant = $1)
        AND NOT EXISTS (SELECT 1 FROM uploads WHERE tenant = $1)";
    db.execute(sql, &[&tenant.as_str()]).map(|_| ())
}

/// Fails a job whose row cannot be read, so that the queue continues. The worker that had it last
/// may still be there: it loses the job.
pub fn fail_unreadable(db: &Db<'_>, number: i64, error: &Error) -> Result<()> {
    let reason = "the server's record of the job is damaged";
    let sql = "UPDATE jobs SET state = 4, reason = $2, worker = NULL, until = 0, token = token + 1
        WHERE number = $1 RETURNING id";
    let row = db.one(sql, &[&number, &reason])?;
    let id: &[u8] = row.try_get(0)?;
    tracing::error!(job = hex(id), number, %error, "cannot read a job: it fails");
    add_event(db, id, v1::event::What::Failed(v1::Failed { reason: reason.to_owned() }))
}
