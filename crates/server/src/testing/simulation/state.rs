//! A simulated state. Each change is one transaction: it is applied or not, whatever the caller is
//! told.

use super::fault_injector::{FaultInjector, Injected};
use super::toy_executor::SIZE;
use crate::store::state::{
    Change, Claim, EventLimit, Job, JobState, JobSummary, Lease, LeaseTimes, Millis, NewJob, Quota, State,
    TenantTotals, Upload, UploadList,
};
use crate::tenants::Tenant;
use crate::worker::checkpoint::Checkpoint;
use crate::{Error, Result};
use hetal_learn::Verdict;
use hetal_wire::{BlobName, JobId, v1};
use std::collections::BTreeSet;
use std::sync::Arc;

pub struct SimState {
    faults: Arc<FaultInjector>,
    inner: Box<dyn State>,
}

impl SimState {
    pub fn new(faults: &Arc<FaultInjector>, inner: Box<dyn State>) -> Self {
        Self { faults: Arc::clone(faults), inner }
    }

    /// The state without faults, for checks.
    pub fn without_faults(&self) -> &dyn State {
        &*self.inner
    }

    fn operate<T>(&self, writes: bool, work: impl FnOnce(&dyn State) -> Result<T>) -> Result<T> {
        let failed = || Error::State { reason: "the simulated state failed".to_owned() };
        match self.faults.next_fault(writes) {
            Injected::Success => work(&*self.inner),
            Injected::Crash { applied: true } => work(&*self.inner).and(Err(failed())),
            // A connection that is lost during a commit: it was applied, and the caller lives on.
            Injected::Failure if writes && self.faults.is_alive() && self.faults.chance(300) => {
                work(&*self.inner).and(Err(failed()))
            }
            Injected::Failure | Injected::Crash { applied: false } => Err(failed()),
        }
    }

    fn write<T>(&self, work: impl FnOnce(&dyn State) -> Result<T>) -> Result<T> {
        self.operate(true, work)
    }

    fn read<T>(&self, work: impl FnOnce(&dyn State) -> Result<T>) -> Result<T> {
        self.operate(false, work)
    }
}

impl State for SimState {
    fn begin_upload(&self, tenant: &Tenant, upload: &Upload, quota: &Quota) -> Result<Upload> {
        self.write(|s| s.begin_upload(tenant, upload, quota))
    }
    fn upload(&self, tenant: &Tenant, name: BlobName) -> Result<Option<Upload>> {
        self.read(|s| s.upload(tenant, name))
    }
    fn uploads(&self, tenant: &Tenant) -> Result<UploadList> {
        self.read(|s| s.uploads(tenant))
    }
    fn complete_upload(&self, tenant: &Tenant, name: BlobName) -> Result<()> {
        self.write(|s| s.complete_upload(tenant, name))
    }
    fn distrust_upload(&self, tenant: &Tenant, name: BlobName) -> Result<()> {
        self.write(|s| s.distrust_upload(tenant, name))
    }
    fn delete_upload(&self, tenant: &Tenant, name: BlobName) -> Result<()> {
        self.write(|s| s.delete_upload(tenant, name))
    }
    fn create_job(&self, tenant: &Tenant, job: &NewJob, quota: &Quota, now: Millis) -> Result<JobSummary> {
        self.write(|s| s.create_job(tenant, job, quota, now))
    }
    fn job(&self, tenant: &Tenant, id: JobId) -> Result<Job> {
        self.read(|s| s.job(tenant, id))
    }
    fn summary(&self, tenant: &Tenant, id: JobId) -> Result<JobSummary> {
        self.read(|s| s.summary(tenant, id))
    }
    fn jobs(&self, tenant: &Tenant) -> Result<Vec<JobSummary>> {
        self.read(|s| s.jobs(tenant))
    }
    fn cancel_job(&self, tenant: &Tenant, id: JobId, now: Millis) -> Result<JobSummary> {
        self.write(|s| s.cancel_job(tenant, id, now))
    }
    fn delete_job(&self, tenant: &Tenant, id: JobId) -> Result<()> {
        self.write(|s| s.delete_job(tenant, id))
    }
    fn events(&self, tenant: &Tenant, id: JobId, after: u64, limit: EventLimit) -> Result<Vec<v1::Event>> {
        self.read(|s| s.events(tenant, id, after, limit))
    }
    fn judge(&self, tenant: &Tenant, id: JobId, round: u32, verdict: Verdict) -> Result<bool> {
        self.write(|s| s.judge(tenant, id, round, verdict))
    }
    fn has_claimable(&self, now: Millis, until: Millis) -> Result<bool> {
        self.read(|s| s.has_claimable(now, until))
    }
    fn claim(&self, worker: &str, now: Millis, until: Millis) -> Result<Option<Claim>> {
        self.write(|s| s.claim(worker, now, until))
    }
    fn renew(&self, lease: &Lease, term: &dyn Fn() -> LeaseTimes) -> Result<bool> {
        self.write(|s| s.renew(lease, term))
    }
    fn commit(&self, lease: &Lease, change: &Change, now: Millis) -> Result<()> {
        if let (Some(checkpoint), Some(held)) = (&change.checkpoint, change.checkpoint_bytes) {
            // A blob counts once, however many ciphertexts it stands for. In the toy all have the
            // same size.
            let names: BTreeSet<_> = Checkpoint::parse(checkpoint)?.1.into_iter().collect();
            assert_eq!(held, (names.len() * SIZE) as u64, "bytes of a checkpoint");
        }
        self.write(|s| s.commit(lease, change, now))
    }
    fn verdict(&self, job: JobId, round: u32) -> Result<Option<Verdict>> {
        self.read(|s| s.verdict(job, round))
    }
    fn waiting(&self, now: Millis, until: Millis) -> Result<Vec<(JobId, u32)>> {
        self.read(|s| s.waiting(now, until))
    }
    fn expire(&self, id: JobId, round: u32, reason: &str, now: Millis, until: Millis) -> Result<Option<Tenant>> {
        self.write(|s| s.expire(id, round, reason, now, until))
    }
    fn tenant_totals(&self, tenant: &Tenant) -> Result<TenantTotals> {
        self.read(|s| s.tenant_totals(tenant))
    }
    fn forget_tenant(&self, tenant: &Tenant) -> Result<TenantTotals> {
        self.write(|s| s.forget_tenant(tenant))
    }
    fn release_worker(&self, worker: &str) -> Result<()> {
        self.write(|s| s.release_worker(worker))
    }
    fn check_writable(&self) -> Result<()> {
        self.write(|s| s.check_writable())
    }
    fn count_jobs(&self) -> Result<Vec<(JobState, u64)>> {
        self.read(|s| s.count_jobs())
    }
}
