//! Queries of single rows, and their conversion.

use crate::jobs::spec::JobSpec;
use crate::store::state::stored::{KINDS, STATES, VERDICTS, corrupt, hex, numbered};
use crate::store::state::{Job, JobSummary, MAX_BACKOFF, Millis, NewJob, TenantTotals, Upload};
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_learn::Verdict;
use hetal_wire::{BlobName, JobId, v1};
use prost::Message;
use rusqlite::{Connection, OptionalExtension, Row, params};

/// The columns of a job `j`, with its spec and checkpoint.
pub const JOB: &str = "j.number, id, tenant, label,
    (SELECT work FROM specs s WHERE s.number = j.number), state, round,
    (SELECT checkpoint FROM checkpoints c WHERE c.number = j.number),
    progress, reason, cancel, created, updated, sequence, spent, announced";
/// The columns of a summary.
pub const SUMMARY: &str =
    "number, id, label, agreement, state, round, progress, reason, created, updated, sequence, announced";
/// The jobs `j` that have not ended, by an index of them alone.
pub const OPEN_JOBS: &str = "jobs j INDEXED BY jobs_open WHERE state < 3";
/// Open jobs that a worker can claim.
///
/// A lease that ends a whole lease later than one given now comes from a clock that was set back.
/// (A slightly later end was extended while this query waited.) The same holds for a backoff beyond
/// the longest one.
pub const CLAIMABLE: &str = "(state IN (0, 1) OR state = 2 AND (cancel OR EXISTS
    (SELECT 1 FROM verdicts v WHERE v.job = j.id AND v.round = j.round))) AND (until <= ?1 OR until > 2 * ?2 - ?1)
    AND (cancel OR not_before <= ?1 OR not_before > ?1 + ?3)";

/// Open jobs that wait for a verdict and have no valid lease.
pub const UNANSWERED: &str = "state = 2 AND (worker IS NULL OR until <= ?1 OR until > 2 * ?2 - ?1) AND NOT EXISTS
    (SELECT 1 FROM verdicts v WHERE v.job = j.id AND v.round = j.round)";

pub fn find_upload(db: &Connection, tenant: &Tenant, name: BlobName) -> Result<Option<Upload>> {
    let sql = "SELECT kind, size, complete FROM uploads WHERE tenant = ?1 AND name = ?2";
    let row = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get(2)?));
    let found = db.query_row(sql, params![tenant.as_str(), name.0], row).optional()?;
    let parse = |(kind, size, complete): (i64, i64, bool)| {
        Ok(Upload { name, kind: numbered(&KINDS, kind, "an upload's kind")?, size: size as u64, complete })
    };
    found.map(parse).transpose()
}

/// All uploads of a tenant, each with the number of jobs that use it.
pub fn list_uploads(db: &Connection, tenant: &Tenant) -> Result<Vec<(Upload, u64)>> {
    let sql = "SELECT name, kind, size, complete,
        (SELECT COUNT(*) FROM uses s WHERE s.tenant = u.tenant AND s.name = u.name)
        FROM uploads u WHERE tenant = ?1 ORDER BY name";
    let mut statement = db.prepare(sql)?;
    let mut rows = statement.query([tenant.as_str()])?;
    let mut uploads = Vec::new();
    while let Some(row) = rows.next()? {
        let name = BlobName::try_from(&row.get::<_, Vec<u8>>(0)?[..]).map_err(|_| corrupt("an upload's name"))?;
        let kind = numbered(&KINDS, row.get::<_, i64>(1)?, "an upload's kind")?;
        let upload = Upload { name, kind, size: row.get::<_, i64>(2)? as u64, complete: row.get(3)? };
        uploads.push((upload, row.get::<_, i64>(4)? as u64));
    }
    Ok(uploads)
}

/// The bytes of a tenant that count: uploads, outputs of jobs, checkpoints of active jobs.
pub fn used_bytes(db: &Connection, tenant: &Tenant) -> Result<u64> {
    let uploads = count(db, "SELECT COALESCE(SUM(size), 0) FROM uploads WHERE tenant = ?1", tenant)?;
    let of_jobs = "SELECT COALESCE(SUM(bytes + IIF(state < 3, held, 0)), 0) FROM jobs WHERE tenant = ?1";
    Ok(uploads.saturating_add(count(db, of_jobs, tenant)?))
}

/// Reads a row of jobs. Damage in one row must not fail a query of many, so the result is nested.
pub fn read_job(row: &Row<'_>) -> rusqlite::Result<(i64, Result<Job>)> {
    Ok((row.get(0)?, parse_job(row)))
}

pub fn parse_job(row: &Row<'_>) -> Result<Job> {
    let work: String = row.get(4)?;
    let progress = row.get::<_, Option<Vec<u8>>>(8)?.map(|bytes| v1::Progress::decode(&bytes[..])).transpose();
    let number = |column| Ok::<_, Error>(row.get::<_, i64>(column)? as u64);
    Ok(Job {
        id: JobId::try_from(&row.get::<_, Vec<u8>>(1)?[..]).map_err(|_| corrupt("a job's id"))?,
        tenant: Tenant::try_from(row.get::<_, String>(2)?).map_err(|_| corrupt("a tenant"))?,
        label: row.get(3)?,
        spec: serde_json::from_str(&work).map_err(|_| corrupt("a job's work"))?,
        state: numbered(&STATES, row.get(5)?, "a job's state")?,
        round: row.get(6)?,
        checkpoint: row.get(7)?,
        progress: progress.map_err(|_| corrupt("a job's progress"))?,
        reason: row.get(9)?,
        cancel: row.get(10)?,
        created: number(11)?,
        updated: number(12)?,
        sequence: number(13)?,
        spent: number(14)?,
        announced: row.get(15)?,
    })
}

pub fn find_job(db: &Connection, tenant: &Tenant, id: JobId) -> Result<Job> {
    let sql = format!("SELECT {JOB} FROM jobs j INDEXED BY jobs_of WHERE tenant = ?1 AND id = ?2");
    let found = db.query_row(&sql, params![tenant.as_str(), id.0], read_job).optional()?;
    found.ok_or(Error::NoJob { id })?.1
}

pub fn read_summary(row: &Row<'_>) -> rusqlite::Result<(i64, Result<JobSummary>)> {
    Ok((row.get(0)?, parse_summary(row)))
}

pub fn parse_summary(row: &Row<'_>) -> Result<JobSummary> {
    let agreement = row.get::<_, Option<String>>(3)?.map(|text| serde_json::from_str(&text)).transpose();
    let progress = row.get::<_, Option<Vec<u8>>>(6)?.map(|bytes| v1::Progress::decode(&bytes[..])).transpose();
    let number = |column| Ok::<_, Error>(row.get::<_, i64>(column)? as u64);
    Ok(JobSummary {
        id: JobId::try_from(&row.get::<_, Vec<u8>>(1)?[..]).map_err(|_| corrupt("a job's id"))?,
        label: row.get(2)?,
        agreement: agreement.map_err(|_| corrupt("a job's agreement"))?,
        state: numbered(&STATES, row.get(4)?, "a job's state")?,
        round: row.get(5)?,
        progress: progress.map_err(|_| corrupt("a job's progress"))?,
        reason: row.get(7)?,
        created: number(8)?,
        updated: number(9)?,
        sequence: number(10)?,
        announced: row.get(11)?,
    })
}

pub fn find_summary(db: &Connection, tenant: &Tenant, id: JobId) -> Result<JobSummary> {
    let sql = format!("SELECT {SUMMARY} FROM jobs INDEXED BY jobs_of WHERE tenant = ?1 AND id = ?2");
    let found = db.query_row(&sql, params![tenant.as_str(), id.0], read_summary).optional()?;
    found.ok_or(Error::NoJob { id })?.1
}

pub fn add_event(db: &Connection, id: JobId, what: v1::event::What) -> Result<()> {
    let sql = "UPDATE jobs SET sequence = sequence + 1 WHERE id = ?1 RETURNING sequence";
    let sequence: i64 = db.query_row(sql, [&id.0[..]], |row| row.get(0))?;
    let event = v1::Event { sequence: sequence as u64, what: Some(what) };
    db.execute("INSERT INTO events VALUES (?1, ?2, ?3)", params![id.0, sequence, event.encode_to_vec()])?;
    Ok(())
}

pub fn insert_job(db: &Connection, tenant: &Tenant, job: &NewJob, now: Millis) -> Result<()> {
    let failed = |e: serde_json::Error| Error::State { reason: e.to_string() };
    let agreement = match &job.spec {
        JobSpec::Training(training) => Some(serde_json::to_string(&training.agreement).map_err(failed)?),
        JobSpec::Classification(_) => None,
    };
    let work = serde_json::to_string(&job.spec).map_err(failed)?;
    let sql = "INSERT INTO jobs (id, tenant, request, body, label, agreement, state, created, updated)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, ?7)";
    let values = params![job.id.0, tenant.as_str(), job.request, job.body, job.label, agreement, now as i64];
    db.execute(sql, values)?;
    db.execute("INSERT INTO specs VALUES (?1, ?2)", params![db.last_insert_rowid(), work])?;
    Ok(())
}

/// The query of the job that is claimed next.
pub fn next_job() -> String {
    format!(
        "SELECT number FROM {OPEN_JOBS} AND {CLAIMABLE} ORDER BY
            (SELECT COUNT(*) FROM jobs r INDEXED BY jobs_open
                WHERE r.state < 3 AND r.tenant = j.tenant AND r.until > ?1),
            (SELECT turn FROM turns t WHERE t.tenant = j.tenant), number LIMIT 1"
    )
}

/// Whether a worker could claim a job now.
pub fn has_claimable(db: &Connection, now: Millis, until: Millis) -> Result<bool> {
    let sql = format!("SELECT EXISTS (SELECT 1 FROM {OPEN_JOBS} AND {CLAIMABLE})");
    Ok(db.query_row(&sql, params![now as i64, until as i64, MAX_BACKOFF as i64], |row| row.get(0))?)
}

pub fn find_verdict(db: &Connection, id: JobId, round: u32) -> Result<Option<Verdict>> {
    let sql = "SELECT verdict FROM verdicts WHERE job = ?1 AND round = ?2";
    let found = db.query_row(sql, params![id.0, round], |row| row.get::<_, i64>(0)).optional()?;
    found.map(|n| numbered(&VERDICTS, n, "a verdict")).transpose()
}

pub fn tenant_totals(db: &Connection, tenant: &Tenant) -> Result<TenantTotals> {
    let jobs = count(db, "SELECT COUNT(*) FROM jobs WHERE tenant = ?1", tenant)?;
    let uploads = count(db, "SELECT COUNT(*) FROM uploads WHERE tenant = ?1", tenant)?;
    Ok(TenantTotals { jobs, uploads })
}

/// Forgets when tenants were served who have neither jobs nor uploads: nothing of a tenant who
/// deleted everything stays in the database.
pub fn delete_stale_turns(db: &Connection) -> Result<()> {
    let sql = "DELETE FROM turns AS t WHERE NOT EXISTS (SELECT 1 FROM jobs j WHERE j.tenant = t.tenant)
        AND NOT EXISTS (SELECT 1 FROM uploads u WHERE u.tenant = t.tenant)";
    db.execute(sql, [])?;
    Ok(())
}

/// Fails a job whose row cannot be read, so that the queue continues. The worker that had it last
/// may still be there: it loses the job.
pub fn fail_unreadable(db: &Connection, number: i64, error: &Error) -> Result<()> {
    let reason = "the server's record of the job is damaged";
    let sql = "UPDATE jobs SET state = 4, reason = ?2, worker = NULL, until = 0, token = token + 1
        WHERE number = ?1 RETURNING id";
    let id: Vec<u8> = db.query_row(sql, params![number, reason], |row| row.get(0))?;
    tracing::error!(job = hex(&id), number, %error, "cannot read a job: it fails");
    if let Ok(id) = JobId::try_from(&id[..]) {
        add_event(db, id, v1::event::What::Failed(v1::Failed { reason: reason.to_owned() }))?;
    }
    Ok(())
}

pub fn count(db: &Connection, sql: &str, tenant: &Tenant) -> Result<u64> {
    Ok(db.query_row(sql, [tenant.as_str()], |row| row.get::<_, i64>(0))? as u64)
}
