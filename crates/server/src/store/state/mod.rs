//! The state of a server: uploads, jobs, events, verdicts and leases.
//!
//! Workers hold jobs by leases. Each lease has a fencing token that is larger than all earlier
//! ones, and writes with an older token are refused. A worker that misses the end of its lease can
//! therefore do no harm. The caller supplies all times; PostgreSQL takes lengths of time from them
//! and judges by its own clock, which all servers share.

mod memory;
mod postgres;
pub(crate) mod shared;
mod sqlite;
mod stored;

pub use memory::MemoryState;
pub(crate) use postgres::DatabaseIdentity;
pub use postgres::{PgSettings, PgState};
pub(crate) use shared::SharedState;
pub use sqlite::SqliteState;

use crate::config::Config;
use std::collections::HashMap;
use std::sync::Arc;

use crate::jobs::spec::JobSpec;
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_learn::{Agreement, Verdict};
pub use hetal_wire::JobState;
use hetal_wire::{BlobName, JobId, v1};

/// Milliseconds since 1970.
pub type Millis = u64;

/// The longest backoff of a job. A later time comes from a clock that was set back since.
pub const MAX_BACKOFF: Millis = 120_000;

/// What an uploaded blob contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobKind {
    /// A key set.
    Keys,
    /// A row blob with labels.
    Batch,
    /// A row blob without labels.
    Features,
    /// A row blob with labels and the weights of its rows.
    WeightedBatch,
}

/// An upload, complete or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Its name.
    pub name: BlobName,
    /// What it contains.
    pub kind: BlobKind,
    /// Its size in bytes.
    pub size: u64,
    /// Whether all bytes are stored and verified.
    pub complete: bool,
}

/// The uploads of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadList {
    /// The uploads in the order of their names, each with the number of jobs that use it.
    pub uploads: Vec<(Upload, u64)>,
    /// The bytes that count against [`Quota::bytes`].
    pub bytes: u64,
}

/// The limits of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Bytes of all uploads (incomplete ones count in full), of the outputs of jobs, and of the
    /// checkpoints of active jobs.
    pub bytes: u64,
    /// Uploads.
    pub uploads: u64,
    /// Jobs that have not ended.
    pub jobs: u64,
    /// Stored jobs, ended ones included.
    pub kept_jobs: u64,
}

/// A job to create.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// Its name.
    pub id: JobId,
    /// The client's id of the request, for idempotence.
    pub request: [u8; 16],
    /// The hash of the request's content. The same id with another content is refused.
    pub body: [u8; 32],
    /// The owner's label.
    pub label: String,
    /// What to do.
    pub spec: JobSpec,
}

/// A job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its name.
    pub id: JobId,
    /// The tenant.
    pub tenant: Tenant,
    /// The owner's label.
    pub label: String,
    /// What to do.
    pub spec: JobSpec,
    /// Its current state.
    pub state: JobState,
    /// The round whose verdict it needs next.
    pub round: u32,
    /// The last round whose logits the owner was told of.
    pub announced: u32,
    /// The checkpoint to resume from.
    pub checkpoint: Option<String>,
    /// Its progress.
    pub progress: Option<v1::Progress>,
    /// Why it failed.
    pub reason: String,
    /// Whether the owner asked to cancel it.
    pub cancel: bool,
    /// Time of creation.
    pub created: Millis,
    /// Time of the last change.
    pub updated: Millis,
    /// Sequence number of its last event.
    pub sequence: u64,
    /// Milliseconds of work on it.
    pub spent: Millis,
}

/// A job as its owner sees it, without its large fields.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSummary {
    /// Its name.
    pub id: JobId,
    /// The owner's label.
    pub label: String,
    /// The hyper-parameters of a training.
    pub agreement: Option<Agreement>,
    /// Its current state.
    pub state: JobState,
    /// The round whose verdict it needs next.
    pub round: u32,
    /// The last round whose logits the owner was told of.
    pub announced: u32,
    /// Its progress.
    pub progress: Option<v1::Progress>,
    /// Why it failed.
    pub reason: String,
    /// Time of creation.
    pub created: Millis,
    /// Time of the last change.
    pub updated: Millis,
    /// Sequence number of its last event.
    pub sequence: u64,
}

/// Totals of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantTotals {
    /// Jobs.
    pub jobs: u64,
    /// Uploads.
    pub uploads: u64,
}

/// The right to work on a job for a limited time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The job.
    pub job: JobId,
    /// The fencing token: larger than those of all earlier leases.
    pub token: u64,
}

/// When a lease begins and ends, on the clock of the caller. A database with a clock of its own
/// takes the length of the lease from here and the times from its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// The present.
    pub now: Millis,
    /// The end of a lease that is given now.
    pub until: Millis,
}

/// A job that a worker claimed.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The lease.
    pub lease: Lease,
    /// The job.
    pub job: Job,
    /// Counted attempts since the last checkpoint, this one included.
    pub attempts: u32,
    /// Backoffs since the last checkpoint.
    pub backoffs: u32,
    /// Attempts since the last checkpoint that ran out of GPU memory.
    pub out_of_memory: u32,
}

/// How many events are read at once. The first event is read whatever its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLimit {
    /// The most events.
    pub count: usize,
    /// The number of encoded bytes after which no further event is read.
    pub bytes: usize,
}

impl EventLimit {
    /// What a stream holds in memory: many small events, or a few large ones.
    pub const PAGE: Self = Self { count: 64, bytes: 64 << 10 };

    /// Whether another event may be read.
    fn allows_more(&self, count: usize, bytes: usize) -> bool {
        count < self.count && (count == 0 || bytes < self.bytes)
    }
}

/// Calls `visit` with every event of a job, a page at a time.
pub fn visit_events(state: &dyn State, tenant: &Tenant, id: JobId, mut visit: impl FnMut(v1::Event)) -> Result<()> {
    let mut after = 0;
    loop {
        let page = state.events(tenant, id, after, EventLimit::PAGE)?;
        let Some(last) = page.last() else { return Ok(()) };
        after = last.sequence;
        page.into_iter().for_each(&mut visit);
    }
}

/// Changes of a job, applied in one transaction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// The new state.
    pub state: Option<JobState>,
    /// The round whose verdict it needs next.
    pub round: Option<u32>,
    /// The last round whose logits the owner was told of. Verdicts on later rounds are forgotten.
    pub announced: Option<u32>,
    /// The checkpoint to resume from.
    pub checkpoint: Option<String>,
    /// Bytes of the blobs that the checkpoint references.
    pub checkpoint_bytes: Option<u64>,
    /// Its progress.
    pub progress: Option<v1::Progress>,
    /// Why it failed.
    pub reason: Option<String>,
    /// The event for watchers.
    pub event: Option<v1::event::What>,
    /// Whether the lease ends. A running job then returns to the queue.
    pub release: bool,
    /// How long no worker may claim the job.
    pub backoff: Option<Millis>,
    /// Whether this attempt does not count. Earlier ones still do.
    pub uncounted: bool,
    /// Whether this attempt ran out of GPU memory.
    pub out_of_memory: bool,
    /// An upload of the job that was found damaged or missing. It counts as incomplete from now on,
    /// so that the client can send it again.
    pub damaged_upload: Option<BlobName>,
    /// Milliseconds of work since the last change.
    pub spent: Millis,
}

/// The state of a server, or of several that share it.
pub trait State: Send + Sync {
    /// Begins an upload, or finds the existing one of that name. Fails if the quota is exceeded or
    /// the existing upload has another kind or size.
    fn begin_upload(&self, tenant: &Tenant, upload: &Upload, quota: &Quota) -> Result<Upload>;
    /// Finds an upload.
    fn upload(&self, tenant: &Tenant, name: BlobName) -> Result<Option<Upload>>;
    /// Finds many uploads.
    fn find_uploads(&self, tenant: &Tenant, names: &[BlobName]) -> Result<HashMap<BlobName, Upload>> {
        let found = names.iter().filter_map(|name| self.upload(tenant, *name).transpose());
        found.map(|upload| upload.map(|upload| (upload.name, upload))).collect()
    }
    /// All uploads of a tenant.
    fn uploads(&self, tenant: &Tenant) -> Result<UploadList>;
    /// Marks an upload as complete.
    fn complete_upload(&self, tenant: &Tenant, name: BlobName) -> Result<()>;
    /// Marks an upload as incomplete, because its blob was found damaged or missing.
    fn distrust_upload(&self, tenant: &Tenant, name: BlobName) -> Result<()>;
    /// Deletes an upload. Fails while a job uses it.
    fn delete_upload(&self, tenant: &Tenant, name: BlobName) -> Result<()>;

    /// Queues a job, or finds the one of the same request. Fails if the request's id belongs to a
    /// request with another content.
    fn create_job(&self, tenant: &Tenant, job: &NewJob, quota: &Quota, now: Millis) -> Result<JobSummary>;
    /// A job of a tenant.
    fn job(&self, tenant: &Tenant, id: JobId) -> Result<Job>;
    /// The summary of a job.
    fn summary(&self, tenant: &Tenant, id: JobId) -> Result<JobSummary>;
    /// All jobs of a tenant, newest first.
    fn jobs(&self, tenant: &Tenant) -> Result<Vec<JobSummary>>;
    /// Cancels a job. If a worker has it, the worker is asked to end it.
    fn cancel_job(&self, tenant: &Tenant, id: JobId, now: Millis) -> Result<JobSummary>;
    /// Deletes an ended job.
    fn delete_job(&self, tenant: &Tenant, id: JobId) -> Result<()>;
    /// Events after a sequence number, in order.
    fn events(&self, tenant: &Tenant, id: JobId, after: u64, limit: EventLimit) -> Result<Vec<v1::Event>>;
    /// Records the verdict on a round that the owner was told of. Repeating the same verdict has no
    /// effect. Returns whether it is new.
    fn judge(&self, tenant: &Tenant, id: JobId, round: u32, verdict: Verdict) -> Result<bool>;

    /// Whether [`State::claim`] would find a job.
    fn has_claimable(&self, now: Millis, until: Millis) -> Result<bool>;
    /// Gives a worker the next job. Tenants with the fewest running jobs come first, then the
    /// tenant who was served longest ago, then the oldest job.
    ///
    /// A job that waits for a verdict can be claimed once it has the verdict, and a job that backs
    /// off once the time is over. Both can be claimed at once if the owner cancels. `until` is the
    /// latest time at which a lease can end; a later end comes from a clock that was set back.
    fn claim(&self, worker: &str, now: Millis, until: Millis) -> Result<Option<Claim>>;
    /// Extends a lease. `term` is called after all locks are held. Returns whether the owner asked
    /// to cancel the job.
    fn renew(&self, lease: &Lease, term: &dyn Fn() -> LeaseTimes) -> Result<bool>;
    /// Applies changes to a job.
    fn commit(&self, lease: &Lease, change: &Change, now: Millis) -> Result<()>;
    /// The verdict on a round.
    fn verdict(&self, job: JobId, round: u32) -> Result<Option<Verdict>>;
    /// Jobs that wait for a verdict and have no valid lease, with their rounds; `until` as in
    /// [`State::claim`].
    fn waiting(&self, now: Millis, until: Millis) -> Result<Vec<(JobId, u32)>>;
    /// Fails a job that still waits for this verdict. Returns its tenant if it did.
    fn expire(&self, id: JobId, round: u32, reason: &str, now: Millis, until: Millis) -> Result<Option<Tenant>>;
    /// The totals of a tenant.
    fn tenant_totals(&self, tenant: &Tenant) -> Result<TenantTotals>;
    /// Deletes everything of a tenant and returns the totals. No worker may have one of his jobs.
    fn forget_tenant(&self, tenant: &Tenant) -> Result<TenantTotals>;
    /// Ends all leases of a dead worker, and the backoffs of its jobs: the next process may have a
    /// working device. A state that one server uses alone ends all backoffs.
    fn release_worker(&self, worker: &str) -> Result<()>;
    /// Checks with a small write that changes can be stored.
    fn check_writable(&self) -> Result<()>;
    /// The number of jobs in each state.
    fn count_jobs(&self) -> Result<Vec<(JobState, u64)>>;
}

/// The ownership marks of a database (see `ownership`).
pub(crate) struct OwnerMarks {
    /// The last mark that was found beside the blobs.
    pub found: String,
    /// The mark that was intended to replace it.
    pub intended: String,
}

/// Is told of changes by other servers: of one job, or of anything.
pub(crate) type Woken = Box<dyn Fn(Option<JobId>) + Send + Sync>;

/// A state that lasts, to which blobs belong.
pub(crate) trait Database: State {
    /// The identity in hexadecimal. It is random and shared by all backups.
    fn identity(&self) -> Result<String>;
    /// The ownership marks.
    fn marks(&self) -> Result<OwnerMarks>;
    /// Stores the ownership marks.
    fn set_marks(&self, found: &str, intended: &str) -> Result<()>;
    /// The number of complete uploads of all tenants.
    fn complete_uploads(&self) -> Result<u64>;
    /// Runs `work` while no other server that shares the database does.
    fn exclusively(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<()>;
    /// What servers agree on, if several may use the database at once.
    fn shared(&self) -> Option<&dyn SharedState>;
    /// Whether several servers may use the database at once.
    fn is_shared(&self) -> bool {
        self.shared().is_some()
    }
    /// Calls `woken` after changes by other servers, but not after each of them.
    fn watch(&self, woken: Woken) -> Result<()>;
    /// The name of the database, for messages.
    fn location(&self) -> String;
}

/// Opens the configured database.
pub(crate) fn open(config: &Config) -> Result<Arc<dyn Database>> {
    match config.state.settings()? {
        Some(settings) => Ok(Arc::new(PgState::open(settings)?)),
        None => Ok(Arc::new(SqliteState::open(&config.folder.join("state.sqlite"))?)),
    }
}

/// Describes a shared database for an operator, with its version and the difference of clocks;
/// `None` if none is configured. Changes nothing.
pub fn describe_shared(config: &Config) -> Result<Option<String>> {
    config.state.settings()?.map(PgState::describe).transpose()
}

/// Checks that an existing upload matches the wanted one.
fn check_same_upload(wanted: &Upload, found: Upload) -> Result<Upload> {
    if (wanted.kind, wanted.size) == (found.kind, found.size) {
        return Ok(found);
    }
    Err(Error::invalid(format!("the upload of blob {} began with another kind or size", found.name)))
}

/// Checks that a repeated request has the same content; `body` is unknown for jobs of older
/// servers.
fn check_same_request(job: &NewJob, body: Option<[u8; 32]>) -> Result<()> {
    if body.is_none_or(|body| body == job.body) {
        return Ok(());
    }
    Err(Error::invalid("the request id belongs to another request: use 16 new random bytes for each job"))
}

/// Bytes of the blobs that an event references. They exist as long as the job.
fn output_bytes(what: &v1::event::What) -> u64 {
    let outputs = match what {
        v1::event::What::Validation(validation) => &validation.logits,
        v1::event::What::Finished(finished) => &finished.outputs,
        _ => return 0,
    };
    outputs.iter().fold(0, |bytes, output| bytes.saturating_add(output.size))
}

/// Checks the upload quota of a tenant with `count` uploads and `bytes` stored bytes.
fn check_upload_quota(quota: &Quota, upload: &Upload, count: u64, bytes: u64) -> Result<()> {
    let message = if count >= quota.uploads {
        format!("the limit of {count} uploads is reached: delete some")
    } else if bytes.saturating_add(upload.size) > quota.bytes {
        format!(
            "{} more bytes would exceed the limit of {} bytes ({bytes} are used): delete uploads or jobs",
            upload.size, quota.bytes
        )
    } else {
        return Ok(());
    };
    Err(Error::Limit { message })
}

/// Checks the job quota of a tenant.
fn check_job_quota(quota: &Quota, open: u64, all: u64) -> Result<()> {
    let message = if open >= quota.jobs {
        format!("the limit of {open} active jobs is reached: wait or cancel one")
    } else if all >= quota.kept_jobs {
        format!("the limit of {all} stored jobs is reached: delete some")
    } else {
        return Ok(());
    };
    Err(Error::Limit { message })
}

/// Checks a verdict. `given` is the one already recorded.
fn check_verdict(job: &JobSummary, round: u32, verdict: Verdict, given: Option<Verdict>) -> Result<()> {
    let message = match given {
        Some(given) if given == verdict => return Ok(()),
        Some(_) => format!("round {round} already has a verdict"),
        // Also after the end: a job that runs ahead can end while a verdict is on its way.
        None if (job.round.max(1)..=job.announced).contains(&round) => return Ok(()),
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
