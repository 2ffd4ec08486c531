//! One attempt at a job.

use crate::compute::device::ComputeDevice;
use crate::server_core::Core;
use crate::store::state::{Change, Claim, Job, JobState, LeaseTimes};
use crate::worker::retry::AttemptOutcome;
use crate::worker::shutdown::{ShutdownReason, ShutdownSignal};
use crate::{Error, Result};
use hetal_wire::v1;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// The least time that a job keeps its worker while another job could run: an idle worker may be
/// about to claim that job.
pub(crate) const MIN_CONTENDED_WAIT: Duration = Duration::from_millis(100);
/// The most time that a job keeps its worker while another job could run.
const MAX_CONTENDED_WAIT: Duration = Duration::from_secs(10);

/// The least time between two writes of a job's progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The progress that is not written yet.
#[derive(Default)]
struct Reports {
    pending: Option<v1::Progress>,
    /// Whether no more will come.
    ended: bool,
}

/// One attempt at a job: what it may read and change.
pub struct Attempt<'a> {
    /// What requests and workers share.
    pub core: &'a Core,
    /// The job.
    pub job: &'a Job,
    /// The claim, with the lease.
    pub claim: &'a Claim,
    draining: &'a AtomicBool,
    /// Whether the owner asked to cancel the job.
    pub cancelled: AtomicBool,
    /// Whether the lease was lost.
    pub fenced: AtomicBool,
    started: Instant,
    /// The part of the elapsed time that the state has recorded.
    accounted: Mutex<Duration>,
    reports: Mutex<Reports>,
    /// Notified when `reports` changes.
    reported: Condvar,
    /// How long it took to load the keys and to prepare the device.
    preparation: OnceLock<Duration>,
    /// The last sign of progress on the device. `None` while the attempt does not use the device,
    /// because other steps may wait for something else.
    last_activity: Mutex<Option<Instant>>,
    /// Whether the attempt has begun to compute on the device.
    pub started_on_device: AtomicBool,
    /// Whether the attempt has written a checkpoint. Earlier attempts then no longer count.
    pub checkpointed: AtomicBool,
    /// The device, as metrics name it.
    pub device: OnceLock<String>,
}

impl<'a> Attempt<'a> {
    /// Begins an attempt at a claimed job.
    pub fn new(core: &'a Core, draining: &'a AtomicBool, claim: &'a Claim) -> Self {
        Self {
            core,
            job: &claim.job,
            claim,
            draining,
            cancelled: AtomicBool::new(claim.job.cancel),
            fenced: AtomicBool::new(false),
            started: Instant::now(),
            accounted: Mutex::default(),
            reports: Mutex::default(),
            reported: Condvar::new(),
            preparation: OnceLock::new(),
            last_activity: Mutex::default(),
            started_on_device: AtomicBool::new(false),
            checkpointed: AtomicBool::new(false),
            device: OnceLock::new(),
        }
    }

    fn reports(&self) -> MutexGuard<'_, Reports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies changes to the job, unless the lease was lost. Progress that is not written yet goes
    /// with them.
    pub fn commit(&self, change: Change) -> Result<()> {
        self.touch();
        let counted = self.accounted.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = self.reports().pending.take();
        let progress = change.progress.or(pending);
        self.apply(Change { progress, ..change }, counted)
    }

    /// Writes the progress that is not written yet.
    fn commit_progress(&self) -> Result<()> {
        let counted = self.accounted.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken under the lock, so that no earlier progress is written after a later one.
        let progress = self.reports().pending.take();
        if progress.is_none() { Ok(()) } else { self.apply(Change { progress, ..Change::default() }, counted) }
    }

    fn apply(&self, change: Change, mut counted: MutexGuard<'_, Duration>) -> Result<()> {
        let spent = self.started.elapsed();
        let change = Change { spent: spent.saturating_sub(*counted).as_millis() as u64, ..change };
        self.core.state.commit(&self.claim.lease, &change, (self.core.clock)())?;
        *counted = spent;
        self.checkpointed.fetch_or(change.checkpoint.is_some(), Ordering::Relaxed);
        self.core.notifier.notify_of(self.job.id);
        Ok(())
    }

    /// Whether the job has a checkpoint.
    pub fn has_checkpoint(&self) -> bool {
        // If the state cannot be read, assume that there is one.
        self.core.state.job(&self.job.tenant, self.job.id).map_or(true, |job| job.checkpoint.is_some())
    }

    /// The job's progress, marked as backing off.
    pub fn resting(&self) -> v1::Progress {
        let known = self.core.state.job(&self.job.tenant, self.job.id).ok().and_then(|job| job.progress);
        let preparing = v1::Progress { phase: v1::Phase::Preparing.into(), ..v1::Progress::default() };
        v1::Progress { resting: true, ..known.unwrap_or(preparing) }
    }

    /// Reports the job's progress. This waits for nothing: [`Attempt::write_reports`] or the next
    /// commit writes it.
    pub fn report(&self, progress: v1::Progress) {
        self.start_device_watch();
        self.reports().pending = Some(progress);
        self.reported.notify_all();
    }

    /// Writes reported progress, once a second at most, until [`Attempt::end_reports`].
    pub fn write_reports(&self) {
        loop {
            let nothing = |reports: &mut Reports| reports.pending.is_none() && !reports.ended;
            let reports = self.reported.wait_while(self.reports(), nothing);
            if reports.unwrap_or_else(PoisonError::into_inner).ended {
                return;
            }
            match self.commit_progress() {
                Ok(()) => {}
                Err(Error::Fenced) => return self.fenced.store(true, Ordering::Relaxed),
                // The next report or commit may succeed.
                Err(error) => {
                    self.core.metrics.count_fault(&error);
                    tracing::warn!(job = %self.job.id, %error, "could not write the progress of a job");
                }
            }
            let going = |reports: &mut Reports| !reports.ended;
            drop(self.reported.wait_timeout_while(self.reports(), REPORT_INTERVAL, going));
        }
    }

    /// Ends [`Attempt::write_reports`].
    pub fn end_reports(&self) {
        self.reports().ended = true;
        self.reported.notify_all();
    }

    /// Ends the job with its results.
    pub fn finish(&self, outputs: Vec<v1::Output>) -> Result<()> {
        let event = Some(v1::event::What::Finished(v1::Finished { outputs }));
        self.commit(Change { state: Some(JobState::Finished), event, release: true, ..Change::default() })
    }

    /// Whether the attempt must end: the owner cancelled, the server stops, the lease was lost, or
    /// the job took too long.
    pub fn interruption(&self) -> Result<Option<AttemptOutcome>> {
        self.touch();
        if self.fenced.load(Ordering::Relaxed) {
            return Err(Error::Fenced);
        }
        if self.cancelled.load(Ordering::Relaxed) {
            return Ok(Some(AttemptOutcome::Cancelled));
        }
        if self.draining.load(Ordering::Relaxed) {
            return Ok(Some(AttemptOutcome::Released));
        }
        // The time of work is measured by a monotonic clock.
        let (hours, spent) = (self.core.config.bounds.job_hours, self.started.elapsed().as_millis() as u64);
        if self.job.spent.saturating_add(spent) > hours.saturating_mul(3_600_000) {
            return Err(Error::failed(format!("the job took more than {hours} hours of work, the server's limit")));
        }
        Ok(None)
    }

    /// Records that the keys are loaded and the computation begins.
    pub fn prepared(&self) {
        // Only the first call counts.
        let _ = self.preparation.set(self.started.elapsed());
    }

    /// Whether a worker could claim another job.
    pub fn is_contended(&self) -> Result<bool> {
        let now = (self.core.clock)();
        self.core.state.has_claimable(now, now + 1000 * self.core.config.lease_seconds)
    }

    /// Whether this attempt gives its worker up for another job. One attempt does at a time, and
    /// the next one looks again whether a job is left.
    pub fn gives_way(&self) -> Result<bool> {
        if !self.core.give_way.begin()? {
            return Ok(false);
        }
        let contended = self.is_contended();
        if !matches!(contended, Ok(true)) {
            self.core.give_way.end();
        }
        contended
    }

    /// How long, in all rounds together, this attempt may wait for verdicts while another job could
    /// run. Waiting as long as the keys took to load costs at most twice the better choice, whether
    /// the owner answers soon or not.
    pub fn contended_wait(&self) -> Duration {
        let preparation = self.preparation.get().copied().unwrap_or_default();
        preparation.clamp(MIN_CONTENDED_WAIT, MAX_CONTENDED_WAIT)
    }

    /// From now on, silence means that the device hangs.
    pub fn start_device_watch(&self) {
        *self.last_activity.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// From now on, the attempt does not use the device, and silence means nothing.
    pub fn stop_device_watch(&self) {
        *self.last_activity.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Records a sign of progress.
    pub fn touch(&self) {
        let mut alive = self.last_activity.lock().unwrap_or_else(PoisonError::into_inner);
        *alive = alive.map(|_| Instant::now());
    }

    /// Whether the device has been silent for too long.
    pub fn is_stalled(&self) -> bool {
        let alive = *self.last_activity.lock().unwrap_or_else(PoisonError::into_inner);
        alive.is_some_and(|alive| alive.elapsed() > Duration::from_secs(self.core.config.stall_seconds))
    }

    /// Renews the lease until told to stop. If the GPU hangs, triggers the end of the process,
    /// because nothing else helps.
    pub fn renew_lease(&self, stop: mpsc::Receiver<()>, device: ComputeDevice, shutdown: &ShutdownSignal) {
        let lease = Duration::from_secs(self.core.config.lease_seconds);
        // Short enough to notice a cancellation soon.
        let pause = (lease / 3).min(Duration::from_secs(2));
        while let Err(mpsc::RecvTimeoutError::Timeout) = stop.recv_timeout(pause) {
            if let ComputeDevice::Gpu(card) = device
                && self.is_stalled()
            {
                let seconds = self.core.config.stall_seconds;
                tracing::error!(
                    job = %self.job.id,
                    card,
                    "the GPU has not answered for {seconds} seconds (stall_seconds): the server ends"
                );
                return shutdown.trigger(ShutdownReason::GpuHung { seconds });
            }
            let term = || {
                let now = (self.core.clock)();
                LeaseTimes { now, until: now + lease.as_millis() as u64 }
            };
            match self.core.state.renew(&self.claim.lease, &term) {
                Ok(cancel) => self.cancelled.store(cancel, Ordering::Relaxed),
                Err(Error::Fenced) => return self.fenced.store(true, Ordering::Relaxed),
                // A later renewal may succeed. If none does, the lease ends and another worker
                // takes over.
                Err(error) => {
                    self.core.metrics.count_fault(&error);
                    tracing::warn!(job = %self.job.id, %error, "could not renew the lease of a job: trying again until it ends");
                }
            }
        }
    }
}
