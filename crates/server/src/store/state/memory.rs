//! The state in memory, for tests and simulations.

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A state that is lost with the process.
#[derive(Default)]
pub struct MemoryState(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    uploads: BTreeMap<(Tenant, BlobName), Upload>,
    /// In order of creation.
    jobs: Vec<Entry>,
    /// When each tenant was served last.
    turns: BTreeMap<Tenant, u64>,
}

struct Entry {
    job: Job,
    request: [u8; 16],
    body: [u8; 32],
    uses: BTreeSet<BlobName>,
    events: Vec<v1::Event>,
    verdicts: BTreeMap<u32, Verdict>,
    worker: Option<String>,
    token: u64,
    until: Millis,
    attempts: u32,
    /// Bytes of the checkpoint's blobs.
    held: u64,
    not_before: Millis,
    backoffs: u32,
    out_of_memory: u32,
}

impl Entry {
    fn summary(&self) -> JobSummary {
        let Job { id, state, round, announced, progress, created, updated, sequence, .. } = self.job;
        let agreement = match &self.job.spec {
            JobSpec::Training(training) => Some(training.agreement.clone()),
            JobSpec::Classification(_) => None,
        };
        let (label, reason) = (self.job.label.clone(), self.job.reason.clone());
        JobSummary { id, label, agreement, state, round, announced, progress, reason, created, updated, sequence }
    }

    fn push_event(&mut self, what: v1::event::What) {
        self.job.sequence += 1;
        self.events.push(v1::Event { sequence: self.job.sequence, what: Some(what) });
    }

    fn is_unanswered(&self, now: Millis, until: Millis) -> bool {
        let alone = self.worker.is_none() || self.until <= now || self.until > 2 * until - now;
        self.job.state == JobState::Waiting && alone && !self.verdicts.contains_key(&self.job.round)
    }

    /// Bytes of the job's outputs and of its checkpoint.
    fn bytes(&self) -> u64 {
        let left: u64 = self.events.iter().filter_map(|event| event.what.as_ref()).map(output_bytes).sum();
        left + if self.job.state.has_ended() { 0 } else { self.held }
    }

    fn is_claimable(&self, now: Millis, until: Millis) -> bool {
        let ready = match self.job.state {
            JobState::Queued | JobState::Running => true,
            JobState::Waiting => self.job.cancel || self.verdicts.contains_key(&self.job.round),
            _ => false,
        };
        let backed_off = self.not_before <= now || self.not_before > now + MAX_BACKOFF;
        ready && (backed_off || self.job.cancel) && (self.until <= now || self.until > 2 * until - now)
    }

    /// Ends the lease. A running job returns to the queue.
    fn release(&mut self) {
        (self.worker, self.until) = (None, 0);
        if self.job.state == JobState::Running {
            self.job.state = JobState::Queued;
        }
    }
}

impl Inner {
    fn find(&mut self, tenant: &Tenant, id: JobId) -> Result<&mut Entry> {
        self.jobs.iter_mut().find(|e| e.job.id == id && e.job.tenant == *tenant).ok_or(Error::NoJob { id })
    }

    fn leased(&mut self, lease: &Lease) -> Result<&mut Entry> {
        let holds = |e: &&mut Entry| e.job.id == lease.job && e.token == lease.token && e.worker.is_some();
        self.jobs.iter_mut().find(holds).ok_or(Error::Fenced)
    }

    /// Forgets when a tenant was served who has neither jobs nor uploads.
    fn delete_stale_turn(&mut self, tenant: &Tenant) {
        if self.of(tenant).next().is_none() && !self.uploads.keys().any(|(owner, _)| owner == tenant) {
            self.turns.remove(tenant);
        }
    }

    fn of<'a>(&'a self, tenant: &'a Tenant) -> impl Iterator<Item = &'a Entry> {
        self.jobs.iter().filter(|e| e.job.tenant == *tenant)
    }
}

impl MemoryState {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State for MemoryState {
    fn begin_upload(&self, tenant: &Tenant, upload: &Upload, quota: &Quota) -> Result<Upload> {
        let mut inner = self.lock();
        let key = (tenant.clone(), upload.name);
        if let Some(found) = inner.uploads.get(&key) {
            return check_same_upload(upload, found.clone());
        }
        let mine = || inner.uploads.iter().filter(|((t, _), _)| t == tenant).map(|(_, u)| u.size);
        let left: u64 = inner.of(tenant).map(Entry::bytes).sum();
        check_upload_quota(quota, upload, mine().count() as u64, mine().sum::<u64>() + left)?;
        inner.uploads.insert(key, upload.clone());
        Ok(upload.clone())
    }

    fn upload(&self, tenant: &Tenant, name: BlobName) -> Result<Option<Upload>> {
        Ok(self.lock().uploads.get(&(tenant.clone(), name)).cloned())
    }

    fn uploads(&self, tenant: &Tenant) -> Result<UploadList> {
        let inner = self.lock();
        let jobs = |name: &BlobName| inner.of(tenant).filter(|entry| entry.uses.contains(name)).count() as u64;
        let uploads: Vec<(Upload, u64)> = inner
            .uploads
            .iter()
            .filter(|((owner, _), _)| owner == tenant)
            .map(|((_, name), upload)| (upload.clone(), jobs(name)))
            .collect();
        let of_jobs: u64 = inner.of(tenant).map(Entry::bytes).sum();
        let bytes = uploads.iter().map(|(upload, _)| upload.size).sum::<u64>() + of_jobs;
        Ok(UploadList { uploads, bytes })
    }

    fn complete_upload(&self, tenant: &Tenant, name: BlobName) -> Result<()> {
        let mut inner = self.lock();
        inner.uploads.get_mut(&(tenant.clone(), name)).ok_or(Error::NoBlob { name })?.complete = true;
        Ok(())
    }

    fn distrust_upload(&self, tenant: &Tenant, name: BlobName) -> Result<()> {
        if let Some(upload) = self.lock().uploads.get_mut(&(tenant.clone(), name)) {
            upload.complete = false;
        }
        Ok(())
    }

    fn delete_upload(&self, tenant: &Tenant, name: BlobName) -> Result<()> {
        let mut inner = self.lock();
        if inner.of(tenant).any(|e| e.uses.contains(&name)) {
            return Err(upload_in_use(name));
        }
        inner.uploads.remove(&(tenant.clone(), name)).ok_or(Error::NoBlob { name })?;
        inner.delete_stale_turn(tenant);
        Ok(())
    }

    fn create_job(&self, tenant: &Tenant, job: &NewJob, quota: &Quota, now: Millis) -> Result<JobSummary> {
        let mut inner = self.lock();
        if let Some(found) = inner.of(tenant).find(|e| e.request == job.request) {
            check_same_request(job, Some(found.body))?;
            return Ok(found.summary());
        }
        let open = inner.of(tenant).filter(|e| !e.job.state.has_ended()).count() as u64;
        check_job_quota(quota, open, inner.of(tenant).count() as u64)?;
        for name in job.spec.uploads() {
            let upload = inner.uploads.get(&(tenant.clone(), name));
            upload.filter(|upload| upload.complete).ok_or(Error::NoBlob { name })?;
        }
        let mut entry = Entry {
            job: Job {
                id: job.id,
                tenant: tenant.clone(),
                label: job.label.clone(),
                spec: job.spec.clone(),
                state: JobState::Queued,
                round: 0,
                announced: 0,
                checkpoint: None,
                progress: None,
                reason: String::new(),
                cancel: false,
                created: now,
                updated: now,
                sequence: 0,
                spent: 0,
            },
            request: job.request,
            body: job.body,
            uses: job.spec.uploads().collect(),
            events: Vec::new(),
            verdicts: BTreeMap::new(),
            worker: None,
            token: 0,
            until: 0,
            attempts: 0,
            held: 0,
            not_before: 0,
            backoffs: 0,
            out_of_memory: 0,
        };
        entry.push_event(v1::event::What::Queued(v1::Queued {}));
        let summary = entry.summary();
        inner.jobs.push(entry);
        Ok(summary)
    }

    fn job(&self, tenant: &Tenant, id: JobId) -> Result<Job> {
        self.lock().find(tenant, id).map(|e| e.job.clone())
    }

    fn summary(&self, tenant: &Tenant, id: JobId) -> Result<JobSummary> {
        self.lock().find(tenant, id).map(|e| e.summary())
    }

    fn jobs(&self, tenant: &Tenant) -> Result<Vec<JobSummary>> {
        let mut jobs: Vec<_> = self.lock().of(tenant).map(Entry::summary).collect();
        jobs.reverse();
        Ok(jobs)
    }

    fn cancel_job(&self, tenant: &Tenant, id: JobId, now: Millis) -> Result<JobSummary> {
        let mut inner = self.lock();
        let entry = inner.find(tenant, id)?;
        if !entry.job.state.has_ended() {
            (entry.job.cancel, entry.job.updated) = (true, now);
            (entry.not_before, entry.backoffs) = (0, 0);
            if entry.until <= now {
                entry.job.state = JobState::Cancelled;
                entry.token += 1;
                entry.push_event(v1::event::What::Cancelled(v1::Cancelled {}));
            }
        }
        Ok(entry.summary())
    }

    fn delete_job(&self, tenant: &Tenant, id: JobId) -> Result<()> {
        let mut inner = self.lock();
        if !inner.find(tenant, id)?.job.state.has_ended() {
            return Err(job_not_ended());
        }
        inner.jobs.retain(|e| e.job.id != id);
        inner.delete_stale_turn(tenant);
        Ok(())
    }

    fn events(&self, tenant: &Tenant, id: JobId, after: u64, limit: EventLimit) -> Result<Vec<v1::Event>> {
        let mut inner = self.lock();
        let (mut events, mut bytes) = (Vec::new(), 0);
        for event in inner.find(tenant, id)?.events.iter().filter(|e| e.sequence > after) {
            if !limit.allows_more(events.len(), bytes) {
                break;
            }
            bytes += prost::Message::encoded_len(event);
            events.push(event.clone());
        }
        Ok(events)
    }

    fn judge(&self, tenant: &Tenant, id: JobId, round: u32, verdict: Verdict) -> Result<bool> {
        let mut inner = self.lock();
        let entry = inner.find(tenant, id)?;
        check_verdict(&entry.summary(), round, verdict, entry.verdicts.get(&round).copied())?;
        Ok(entry.verdicts.insert(round, verdict).is_none())
    }

    fn has_claimable(&self, now: Millis, until: Millis) -> Result<bool> {
        Ok(self.lock().jobs.iter().any(|e| e.is_claimable(now, until)))
    }

    fn claim(&self, worker: &str, now: Millis, until: Millis) -> Result<Option<Claim>> {
        let mut inner = self.lock();
        let rank = |(index, entry): &(usize, &Entry)| {
            let running = inner.of(&entry.job.tenant).filter(|e| e.until > now).count();
            let served = inner.turns.get(&entry.job.tenant).copied();
            (running, served, *index)
        };
        let ready = inner.jobs.iter().enumerate().filter(|(_, e)| e.is_claimable(now, until));
        let Some((index, _)) = ready.min_by_key(rank) else { return Ok(None) };
        let turn = inner.turns.values().max().map_or(1, |last| last + 1);
        let tenant = inner.jobs[index].job.tenant.clone();
        inner.turns.insert(tenant, turn);
        let entry = &mut inner.jobs[index];
        entry.worker = Some(worker.to_owned());
        (entry.until, entry.job.state) = (until, JobState::Running);
        entry.token += 1;
        entry.attempts += 1;
        let lease = Lease { job: entry.job.id, token: entry.token };
        let Entry { attempts, backoffs, out_of_memory, .. } = *entry;
        Ok(Some(Claim { lease, job: entry.job.clone(), attempts, backoffs, out_of_memory }))
    }

    fn renew(&self, lease: &Lease, term: &dyn Fn() -> LeaseTimes) -> Result<bool> {
        let mut inner = self.lock();
        let entry = inner.leased(lease)?;
        entry.until = term().until;
        Ok(entry.job.cancel)
    }

    fn commit(&self, lease: &Lease, change: &Change, now: Millis) -> Result<()> {
        let mut inner = self.lock();
        let entry = inner.leased(lease)?;
        let job = &mut entry.job;
        job.updated = now;
        job.spent += change.spent;
        job.state = change.state.unwrap_or(job.state);
        job.round = change.round.unwrap_or(job.round);
        job.announced = change.announced.unwrap_or(job.announced);
        entry.verdicts.retain(|&round, _| round <= entry.job.announced);
        let job = &mut entry.job;
        job.progress = change.progress.or(job.progress);
        if let Some(reason) = &change.reason {
            job.reason.clone_from(reason);
        }
        if change.checkpoint.is_some() {
            job.checkpoint.clone_from(&change.checkpoint);
        }
        if change.checkpoint.is_some() {
            (entry.attempts, entry.backoffs, entry.out_of_memory) = (0, 0, 0);
        }
        if change.uncounted {
            entry.attempts = entry.attempts.saturating_sub(1);
        }
        if let Some(backoff) = change.backoff {
            (entry.not_before, entry.backoffs) = (now + backoff, entry.backoffs + 1);
        }
        entry.out_of_memory += u32::from(change.out_of_memory);
        entry.held = change.checkpoint_bytes.unwrap_or(entry.held);
        if change.release {
            entry.release();
        }
        if let Some(what) = &change.event {
            entry.push_event(what.clone());
        }
        let key = change.damaged_upload.map(|name| (entry.job.tenant.clone(), name));
        if let Some(upload) = key.and_then(|key| inner.uploads.get_mut(&key)) {
            upload.complete = false;
        }
        Ok(())
    }

    fn verdict(&self, job: JobId, round: u32) -> Result<Option<Verdict>> {
        let inner = self.lock();
        Ok(inner.jobs.iter().find(|e| e.job.id == job).and_then(|e| e.verdicts.get(&round).copied()))
    }

    fn waiting(&self, now: Millis, until: Millis) -> Result<Vec<(JobId, u32)>> {
        let inner = self.lock();
        Ok(inner.jobs.iter().filter(|e| e.is_unanswered(now, until)).map(|e| (e.job.id, e.job.round)).collect())
    }

    fn expire(&self, id: JobId, round: u32, reason: &str, now: Millis, until: Millis) -> Result<Option<Tenant>> {
        let mut inner = self.lock();
        let is_it = |e: &&mut Entry| e.job.id == id && e.job.round == round && e.is_unanswered(now, until);
        let Some(entry) = inner.jobs.iter_mut().find(is_it) else { return Ok(None) };
        (entry.worker, entry.until) = (None, 0);
        entry.token += 1;
        (entry.job.state, entry.job.reason, entry.job.updated) = (JobState::Failed, reason.to_owned(), now);
        entry.push_event(v1::event::What::Failed(v1::Failed { reason: reason.to_owned() }));
        Ok(Some(entry.job.tenant.clone()))
    }

    fn tenant_totals(&self, tenant: &Tenant) -> Result<TenantTotals> {
        let inner = self.lock();
        let uploads = inner.uploads.keys().filter(|(owner, _)| owner == tenant).count() as u64;
        Ok(TenantTotals { jobs: inner.of(tenant).count() as u64, uploads })
    }

    fn forget_tenant(&self, tenant: &Tenant) -> Result<TenantTotals> {
        let held = self.tenant_totals(tenant)?;
        let mut inner = self.lock();
        inner.jobs.retain(|e| e.job.tenant != *tenant);
        inner.uploads.retain(|(owner, _), _| owner != tenant);
        inner.turns.remove(tenant);
        Ok(held)
    }

    fn release_worker(&self, worker: &str) -> Result<()> {
        for entry in &mut self.lock().jobs {
            if entry.worker.as_deref() == Some(worker) {
                entry.release();
                entry.token += 1;
            }
            (entry.not_before, entry.backoffs) = (0, 0);
            if let Some(progress) = &mut entry.job.progress {
                progress.resting = false;
            }
        }
        Ok(())
    }

    fn check_writable(&self) -> Result<()> {
        Ok(())
    }

    fn count_jobs(&self) -> Result<Vec<(JobState, u64)>> {
        let inner = self.lock();
        let states = [
            JobState::Queued,
            JobState::Running,
            JobState::Waiting,
            JobState::Finished,
            JobState::Failed,
            JobState::Cancelled,
        ];
        let counted = states.map(|state| (state, inner.jobs.iter().filter(|e| e.job.state == state).count() as u64));
        Ok(counted.into_iter().filter(|(_, n)| *n > 0).collect())
    }
}
