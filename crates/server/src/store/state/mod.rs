//! What a server remembers: uploads, jobs, events, verdicts, and who is working on what.
//!
//! Workers hold jobs by leases. Each lease has a token that is larger than those before it, and everything a worker writes is refused
//! once another lease was given: a worker that slept through the end of its lease can do no harm. Times come from the caller.

mod memory;
mod sqlite;

pub use memory::MemoryState;
pub use sqlite::SqliteState;

use crate::jobs::spec::JobSpec;
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_learn::{Agreement, Verdict};
pub use hetal_wire::JobState;
use hetal_wire::{BlobName, JobId, v1};

/// Milliseconds since 1970.
pub type Millis = u64;

/// The longest rest of a job. One that would end later was given by a clock that has been set back since.
pub const MAX_BACKOFF: Millis = 120_000;

/// What an uploaded blob holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobKind {
    /// A key set.
    Keys,
    /// Feature blocks and labels of a batch.
    Batch,
    /// Feature blocks alone.
    Features,
}

/// An upload, begun or complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Its name.
    pub name: BlobName,
    /// What it holds.
    pub kind: BlobKind,
    /// All its bytes.
    pub size: u64,
    /// Whether they are all there and checked.
    pub complete: bool,
}

/// The most a tenant may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Bytes of all uploads, begun ones counted whole, of what jobs left, and of where those that have not ended go on from.
    pub bytes: u64,
    /// Uploads.
    pub uploads: u64,
    /// Jobs that have not ended.
    pub jobs: u64,
    /// Jobs that are remembered.
    pub kept_jobs: u64,
}

/// A job to be remembered.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// Its name.
    pub id: JobId,
    /// The client's name for the request.
    pub request: [u8; 16],
    /// What its owner calls it.
    pub label: String,
    /// What is to be done.
    pub spec: JobSpec,
}

/// A job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its name.
    pub id: JobId,
    /// Whose it is.
    pub tenant: Tenant,
    /// What its owner calls it.
    pub label: String,
    /// What is to be done.
    pub spec: JobSpec,
    /// What it is doing.
    pub state: JobState,
    /// The round whose verdict it waits for, or waited for last.
    pub round: u32,
    /// Where to go on from.
    pub checkpoint: Option<String>,
    /// How far it is.
    pub progress: Option<v1::Progress>,
    /// Why it failed.
    pub reason: String,
    /// Whether its owner wants it to end.
    pub cancel: bool,
    /// When it was made.
    pub created: Millis,
    /// When it changed.
    pub updated: Millis,
    /// Number of its last event.
    pub sequence: u64,
    /// Milliseconds in which it was worked on.
    pub spent: Millis,
}

/// A job as its owner sees it: without what is large, of which he may have much.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSummary {
    /// Its name.
    pub id: JobId,
    /// What its owner calls it.
    pub label: String,
    /// Of a training, its hyper-parameters.
    pub agreement: Option<Agreement>,
    /// What it is doing.
    pub state: JobState,
    /// The round whose verdict it waits for, or waited for last.
    pub round: u32,
    /// How far it is.
    pub progress: Option<v1::Progress>,
    /// Why it failed.
    pub reason: String,
    /// When it was made.
    pub created: Millis,
    /// When it changed.
    pub updated: Millis,
    /// Number of its last event.
    pub sequence: u64,
}

/// Numbers of what is remembered of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantTotals {
    /// Jobs.
    pub jobs: u64,
    /// Uploads.
    pub uploads: u64,
}

/// The right to work on a job for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The job.
    pub job: JobId,
    /// Larger than those of all leases before it.
    pub token: u64,
}

/// A job that a worker got.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The right to it.
    pub lease: Lease,
    /// The job.
    pub job: Job,
    /// Claims of it since its last checkpoint that count, this one included.
    pub attempts: u32,
    /// Rests since its last checkpoint.
    pub backoffs: u32,
    /// Attempts since its last checkpoint that lacked memory of the card they were made on.
    pub out_of_memory: u32,
}

/// What a worker changes about a job, all at once or not at all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// What it is doing now.
    pub state: Option<JobState>,
    /// The round whose verdict it waits for.
    pub round: Option<u32>,
    /// Where to go on from.
    pub checkpoint: Option<String>,
    /// Bytes of the blobs that the checkpoint names.
    pub held: Option<u64>,
    /// How far it is.
    pub progress: Option<v1::Progress>,
    /// Why it failed.
    pub reason: Option<String>,
    /// What is told to its watchers.
    pub event: Option<v1::event::What>,
    /// Whether the lease ends: a job that runs is in the queue again.
    pub release: bool,
    /// For how long nobody shall take it.
    pub backoff: Option<Millis>,
    /// Whether this attempt does not count; those before it do.
    pub uncounted: bool,
    /// Whether this attempt lacked memory of its card.
    pub out_of_memory: bool,
    /// Milliseconds of work since the last change.
    pub spent: Millis,
}

/// The memory of a server, or of many that share one.
pub trait State: Send + Sync {
    /// Remembers an upload, or finds the one of that name. Fails if the quota does not allow it, or if one of another kind or size has the
    /// name.
    fn begin_upload(&self, tenant: &Tenant, upload: &Upload, quota: &Quota) -> Result<Upload>;
    /// An upload.
    fn upload(&self, tenant: &Tenant, name: BlobName) -> Result<Option<Upload>>;
    /// Marks an upload as complete.
    fn complete_upload(&self, tenant: &Tenant, name: BlobName) -> Result<()>;
    /// Forgets an upload; refuses while a job uses it.
    fn delete_upload(&self, tenant: &Tenant, name: BlobName) -> Result<()>;

    /// Queues a job, or finds the one of the same request.
    fn create_job(&self, tenant: &Tenant, job: &NewJob, quota: &Quota, now: Millis) -> Result<JobSummary>;
    /// A job of a tenant.
    fn job(&self, tenant: &Tenant, id: JobId) -> Result<Job>;
    /// A job of a tenant, as he sees it.
    fn summary(&self, tenant: &Tenant, id: JobId) -> Result<JobSummary>;
    /// All jobs of a tenant, the newest first.
    fn jobs(&self, tenant: &Tenant) -> Result<Vec<JobSummary>>;
    /// Ends a job that no worker has; asks the worker that has it to end it.
    fn cancel_job(&self, tenant: &Tenant, id: JobId, now: Millis) -> Result<JobSummary>;
    /// Forgets a job that has ended.
    fn delete_job(&self, tenant: &Tenant, id: JobId) -> Result<()>;
    /// Events of a job after a number, in order, `most` of them.
    fn events(&self, tenant: &Tenant, id: JobId, after: u64, most: usize) -> Result<Vec<v1::Event>>;
    /// Remembers the verdict on the round that a job waits for; the same verdict again changes nothing.
    fn judge(&self, tenant: &Tenant, id: JobId, round: u32, verdict: Verdict) -> Result<()>;

    /// Gives a worker the job whose turn it is: of the tenant that has the fewest jobs running, among these of the one that was served
    /// longest ago, the oldest. Jobs that wait for a verdict come when they have it, those that rest when they have rested, and both when
    /// their owner wants them to end. `until` is as late as any lease can end: one that ends later was given by a clock that has been set
    /// back.
    fn claim(&self, worker: &str, now: Millis, until: Millis) -> Result<Option<Claim>>;
    /// Extends a lease until a time that is asked for when nobody is waited for any more; gives whether the owner wants the job to end.
    fn renew(&self, lease: &Lease, until: &dyn Fn() -> Millis) -> Result<bool>;
    /// Changes a job.
    fn commit(&self, lease: &Lease, change: &Change, now: Millis) -> Result<()>;
    /// The verdict on a round.
    fn verdict(&self, job: JobId, round: u32) -> Result<Option<Verdict>>;
    /// Jobs that wait for a verdict, without a worker or with one whose lease is over, and the rounds they ask about; `until` as in
    /// [`State::claim`].
    fn waiting(&self, now: Millis, until: Millis) -> Result<Vec<(JobId, u32)>>;
    /// Ends a job that is still among those; gives whose it was if it did.
    fn expire(&self, id: JobId, round: u32, reason: &str, now: Millis, until: Millis) -> Result<Option<Tenant>>;
    /// What is remembered of a tenant.
    fn tenant_totals(&self, tenant: &Tenant) -> Result<TenantTotals>;
    /// Forgets everything of a tenant; gives what that was. No worker may have a job of his.
    fn forget_tenant(&self, tenant: &Tenant) -> Result<TenantTotals>;
    /// Ends all leases of a worker that is known to be dead, and the rest of all jobs: what they waited for may work for the next.
    fn release_worker(&self, worker: &str) -> Result<()>;
    /// Numbers of jobs in each state.
    fn count_jobs(&self) -> Result<Vec<(JobState, u64)>>;
}

/// The upload that `wanted` may be, where `found` has its name already.
fn check_same_upload(wanted: &Upload, found: Upload) -> Result<Upload> {
    if (wanted.kind, wanted.size) == (found.kind, found.size) {
        return Ok(found);
    }
    Err(Error::invalid(format!("blob {} was begun with another kind or size", found.name)))
}

/// Bytes of the blobs that an event tells of: they stay as long as the job.
fn output_bytes(what: &v1::event::What) -> u64 {
    let outputs = match what {
        v1::event::What::Validation(validation) => &validation.logits,
        v1::event::What::Finished(finished) => &finished.outputs,
        _ => return 0,
    };
    outputs.iter().fold(0, |bytes, output| bytes.saturating_add(output.size))
}

/// Refuses an upload that would pass the quota of a tenant who has `count` uploads, and with those of his jobs `bytes` bytes.
fn check_upload_quota(quota: &Quota, upload: &Upload, count: u64, bytes: u64) -> Result<()> {
    let message = if count >= quota.uploads {
        format!("there are {count} uploads, the most allowed: delete some")
    } else if bytes.saturating_add(upload.size) > quota.bytes {
        format!(
            "{} more bytes would pass the limit of {} (there are {bytes}): delete uploads or jobs",
            upload.size, quota.bytes
        )
    } else {
        return Ok(());
    };
    Err(Error::Limit { message })
}

/// Refuses a job that would pass the quota of a tenant with so many jobs.
fn check_job_quota(quota: &Quota, open: u64, all: u64) -> Result<()> {
    let message = if open >= quota.jobs {
        format!("{open} jobs have not ended, the most allowed: wait or cancel one")
    } else if all >= quota.kept_jobs {
        format!("{all} jobs are kept, the most allowed: delete some")
    } else {
        return Ok(());
    };
    Err(Error::Limit { message })
}

/// Whether a verdict may be given: `given` is the one there is already.
fn check_verdict(job: &JobSummary, round: u32, verdict: Verdict, given: Option<Verdict>) -> Result<()> {
    let message = match given {
        Some(given) if given == verdict => return Ok(()),
        Some(_) => format!("round {round} has been judged already"),
        None if job.state == JobState::Waiting && job.round == round => return Ok(()),
        None => format!("the job does not wait for a verdict on round {round}"),
    };
    Err(Error::Precondition { message })
}

fn job_not_ended() -> Error {
    Error::Precondition { message: "the job has not ended: cancel it first".to_owned() }
}

fn upload_in_use(name: BlobName) -> Error {
    Error::Precondition { message: format!("a job uses blob {name}: delete the job first") }
}
