//! Worker threads: each claims jobs from the queue, one at a time, and runs them under a lease.

use crate::compute::ckks::{CkksExecutor, DevicePlan, JobInput};
use crate::compute::device::{self, CallResult, ComputeDevice, MemoryPlan};
use crate::config::bytes_of_gib;
use crate::jobs::lifecycle::clear_ended;
use crate::jobs::spec::JobSpec;
use crate::server_core::Core;
use crate::store::blobs::{BlobKey, LocalFile, Namespace, has_content};
use crate::store::state::{Change, Claim, Job, JobState, Millis};
use crate::worker::attempt::Attempt;
use crate::worker::retry::{AttemptHistory, AttemptOutcome, NextState, next_state};
use crate::worker::shutdown::{ShutdownReason, ShutdownSignal};
use crate::worker::{classify, training};
use crate::{Error, Result};
use hetal_ckks::{Backend, Params};
use hetal_wire::{BlobName, v1};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often an idle worker polls for jobs that other machines queued.
const POLL: Duration = Duration::from_secs(1);
/// How often the progress of loading keys is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// The pause of a worker that could not claim a job, or whose GPU failed two jobs in a row. It
/// doubles with each further failure.
const WORKER_BACKOFF: Duration = Duration::from_secs(2);
/// The longest pause of a worker.
const MAX_WORKER_BACKOFF: Duration = Duration::from_secs(60);
/// How often a pausing worker checks whether the server stops.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// What all workers of a server share.
pub struct WorkerContext {
    /// What requests and workers share.
    pub core: Arc<Core>,
    /// The name that identifies this server's leases.
    pub name: String,
    /// Set when workers must stop.
    pub draining: AtomicBool,
    /// The fatal condition that ends the server, if there is one.
    pub shutdown: ShutdownSignal,
    /// The last failure of a GPU.
    pub device_fault: Mutex<String>,
}

/// The pause of a worker after its GPU failed this many jobs in a row.
fn worker_backoff(failures: u32) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        _ => WORKER_BACKOFF.saturating_mul(1 << (failures - 2).min(16)).min(MAX_WORKER_BACKOFF),
    }
}

fn panicked() -> Error {
    Error::failed("the computation panicked: this is a bug of the server")
}

/// Blames a failure on the keys if they are damaged. Damaged keys are noticed late, and by many
/// different errors. Hashing a large file takes long and does not use the device.
fn blame_damaged_keys(
    attempt: &Attempt<'_>,
    name: BlobName,
    outcome: Result<AttemptOutcome>,
    are_sound: impl FnOnce() -> Result<bool>,
) -> Result<AttemptOutcome> {
    if !matches!(outcome, Err(Error::Failed { .. })) {
        return outcome;
    }
    attempt.stop_device_watch();
    // Keys that cannot be read are not damaged.
    if matches!(are_sound(), Ok(false)) { Err(Error::DamagedUpload { name }) } else { outcome }
}

impl WorkerContext {
    /// The end of a lease that is given now.
    pub fn lease_until(&self, now: Millis) -> Millis {
        now + 1000 * self.core.config.lease_seconds
    }

    /// Whether workers continue. A process that lost a GPU cannot use another.
    fn accepts_work(&self) -> bool {
        !self.draining.load(Ordering::Relaxed) && self.shutdown.reason().is_none()
    }

    /// Runs jobs on a device until the server stops.
    ///
    /// A job that backs off does so in the queue, and the worker claims the next one, which may
    /// need less memory. If that fails on the GPU too, the worker pauses and leaves the queue to
    /// other devices.
    pub fn run(&self, device: ComputeDevice) {
        let mut failures = 0;
        while self.accepts_work() {
            let seen = self.core.notifier.version();
            let now = (self.core.clock)();
            let claimed = self.core.state.claim(&self.name, now, self.lease_until(now));
            // Other waiting jobs can see now whether a job is left to give way to.
            self.core.give_way.end();
            match claimed {
                Ok(Some(claim)) => {
                    failures = if self.run_attempt(&claim, device) { failures + 1 } else { 0 };
                    self.pause(worker_backoff(failures));
                }
                Ok(None) => self.core.notifier.wait(seen, POLL),
                Err(error) => {
                    self.core.metrics.count_fault(&error);
                    tracing::error!(%error, "could not claim a job");
                    self.core.notifier.wait(seen, WORKER_BACKOFF);
                }
            }
        }
    }

    /// Pauses, or returns early if the server stops.
    fn pause(&self, rest: Duration) {
        let started = Instant::now();
        while self.accepts_work() && started.elapsed() < rest {
            std::thread::sleep(STOP_CHECK_INTERVAL.min(rest));
        }
    }

    /// Checks whether a failed GPU is lost to this process. After some faults only a new process
    /// can use it.
    fn fatal_gpu_failure(&self, claim: &Claim, device: ComputeDevice, failure: &Error) -> Option<ShutdownReason> {
        let (ComputeDevice::Gpu(card), Error::Device { reason, is_full: false }) = (device, failure) else {
            return None;
        };
        let params = self.core.param_sets.by_name(&claim.job.spec.training().set).ok()?;
        let seconds = self.core.config.stall_seconds;
        match device::run_with_timeout(seconds, move || device::check_gpu(card, &params)) {
            CallResult::TimedOut => Some(ShutdownReason::GpuHung { seconds }),
            CallResult::Done(Ok(()) | Err(Error::Device { is_full: true, .. })) => None,
            // A panic of the check counts as a failure too.
            _ => {
                tracing::error!(card, reason, "the GPU failed and cannot be opened again: the server ends");
                Some(ShutdownReason::GpuLost { reason: reason.clone() })
            }
        }
    }

    /// Begins an attempt.
    pub fn begin_attempt<'a>(&'a self, claim: &'a Claim) -> Attempt<'a> {
        Attempt::new(&self.core, &self.draining, claim)
    }

    /// Runs one attempt at a job. Returns whether the job backs off because of the device.
    pub(crate) fn run_attempt(&self, claim: &Claim, device: ComputeDevice) -> bool {
        let attempt = self.begin_attempt(claim);
        let (job, tenant) = (claim.job.id, &claim.job.tenant);
        tracing::info!(%job, %tenant, attempt = claim.attempts, "attempt begins");
        let (stop, stopped) = mpsc::channel();
        std::thread::scope(|scope| {
            let attempt = &attempt;
            scope.spawn(move || attempt.renew_lease(stopped, device, &self.shutdown));
            scope.spawn(move || attempt.write_reports());
            let outcome =
                catch_unwind(AssertUnwindSafe(|| self.execute(attempt, device))).unwrap_or_else(|_| Err(panicked()));
            // Checked before the job returns to the queue, where another worker of this process
            // would claim it in vain, and while the lease is still held, because the check may take
            // long.
            attempt.touch();
            attempt.end_reports();
            if let Some(end) = outcome.as_ref().err().and_then(|error| self.fatal_gpu_failure(claim, device, error)) {
                self.shutdown.trigger(end);
            }
            tracing::info!(%job, %tenant, ?outcome, "attempt ended");
            let next = self.next_state(attempt, &outcome);
            self.record_end_with_retries(attempt, &next);
            drop(stop);
            matches!(next, NextState::BackOff(_))
        })
    }

    /// Records the end of an attempt, and retries while the database fails. An attempt that is not
    /// recorded would count. The lease is renewed meanwhile.
    fn record_end_with_retries(&self, attempt: &Attempt<'_>, next: &NextState) {
        let job = attempt.job.id;
        loop {
            match self.record_end(attempt, next.clone()) {
                Err(error @ Error::State { .. }) if self.accepts_work() && !attempt.fenced.load(Ordering::Relaxed) => {
                    self.core.metrics.count_fault(&error);
                    tracing::warn!(%job, %error, "could not record the end of an attempt: retrying");
                    self.pause(WORKER_BACKOFF);
                }
                Err(error) => return tracing::warn!(%job, %error, "could not record the end of an attempt"),
                Ok(()) => return,
            }
        }
    }

    /// Decides what happens to the job after an attempt, and logs failures.
    pub fn next_state(&self, attempt: &Attempt<'_>, outcome: &Result<AttemptOutcome>) -> NextState {
        let Claim { attempts, backoffs, .. } = *attempt.claim;
        let (attempts, backoffs) =
            if attempt.checkpointed.load(Ordering::Relaxed) { (1, 0) } else { (attempts, backoffs) };
        let (max_attempts, started) =
            (self.core.config.bounds.attempts, attempt.started_on_device.load(Ordering::Relaxed));
        let cancelled = attempt.cancelled.load(Ordering::Relaxed);
        let next = next_state(outcome, &AttemptHistory { attempts, max_attempts, backoffs, started, cancelled });
        self.log_failure(attempt.job, &next, outcome.as_ref().err());
        next
    }

    /// Records the end of an attempt.
    pub fn record_end(&self, attempt: &Attempt<'_>, next: NextState) -> Result<()> {
        match next {
            NextState::Requeue(change) => return attempt.commit(change),
            NextState::BackOff(change) => {
                return attempt.commit(Change { progress: Some(attempt.resting()), ..change });
            }
            NextState::End(change) => attempt.commit(change)?,
            // The lease was lost: the job may have ended, or may be deleted, before this attempt
            // stored its last blob.
            NextState::Unchanged => {}
        }
        clear_ended(&*self.core.state, &*self.core.blobs, &attempt.job.tenant, attempt.job.id);
        Ok(())
    }

    /// Logs a failure and counts it.
    fn log_failure(&self, job: &Job, next: &NextState, error: Option<&Error>) {
        let (Some(error), job) = (error, job.id) else { return };
        self.core.metrics.count_fault(error);
        match next {
            NextState::BackOff(_) => {
                tracing::error!(%job, %error, "the GPU failed: the job backs off");
                self.core.metrics.device_failures.inc();
                if let Error::Device { reason, .. } = error {
                    self.device_fault.lock().unwrap_or_else(PoisonError::into_inner).clone_from(reason);
                }
            }
            NextState::Requeue(_) => tracing::warn!(%job, %error, "a transient fault: the job is retried"),
            NextState::End(Change { state: Some(JobState::Failed), .. }) => {
                self.core.metrics.failures.inc();
                tracing::error!(%job, %error, "job failed");
            }
            NextState::End(_) | NextState::Unchanged => {}
        }
    }

    /// Returns an outcome if a claimed job must not run.
    pub fn check_runnable(&self, attempt: &Attempt<'_>) -> Result<Option<AttemptOutcome>> {
        let attempts = attempt.claim.attempts;
        if attempts > self.core.config.bounds.attempts {
            let tried = attempts - 1;
            return Err(Error::failed(format!("the job was tried {tried} times without reaching a new checkpoint")));
        }
        attempt.interruption()
    }

    fn execute(&self, attempt: &Attempt<'_>, device: ComputeDevice) -> Result<AttemptOutcome> {
        if let Some(outcome) = self.check_runnable(attempt)? {
            return Ok(outcome);
        }
        attempt.device.get_or_init(|| device.label());
        self.count_wait(attempt.claim);
        let params = self.core.param_sets.by_name(&attempt.job.spec.training().set)?;
        // Before the GPU is opened and before the job is reported as started: a download from a
        // bucket may take long, or may not fit on the disk.
        let keys = self.local_key_file(attempt.job)?;
        let outcome = self.execute_on(attempt, device, params, &keys);
        let name = attempt.job.spec.training().keys;
        blame_damaged_keys(attempt, name, outcome, || has_content(&keys, name))
    }

    /// Counts the time that a job was queued, when it runs for the first time.
    fn count_wait(&self, claim: &Claim) {
        let job = &claim.job;
        if job.progress.is_none() && job.checkpoint.is_none() && claim.attempts == 1 && claim.backoffs == 0 {
            let waited = (self.core.clock)().saturating_sub(job.created);
            self.core.metrics.queue_times.observe(job.tenant.as_str(), waited as f64 / 1e3);
        }
    }

    fn execute_on(
        &self,
        attempt: &Attempt<'_>,
        device: ComputeDevice,
        params: Arc<Params>,
        keys: &Path,
    ) -> Result<AttemptOutcome> {
        let ComputeDevice::Gpu(card) = device else {
            let ring = self.core.param_sets.ring(&params)?;
            return self.run_on(attempt, keys, "cpu".to_owned(), self.device_plan(ring, None));
        };
        attempt.start_device_watch();
        let gpu = Arc::new(device::open_gpu(card, &params)?);
        let plan =
            device::plan_memory(&gpu, &params, attempt.job, attempt.claim.out_of_memory, &self.core.required_keys)?;
        attempt.started_on_device.store(true, Ordering::Relaxed);
        let resident_batches = plan.map(|plan| plan.kept);
        let device = self.device_plan(Arc::clone(&gpu), resident_batches);
        let run = || self.run_on(attempt, keys, gpu.describe(), device);
        // The GPU may be the cause of a panic.
        let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(panicked()));
        device::log_graphs(&gpu);
        let can_continue = attempt.has_checkpoint() || !plan.is_none_or(MemoryPlan::is_minimal);
        device::attribute_failure(gpu.health(), outcome, gpu.pool_bytes(), can_continue)
    }

    /// A device with what a job may keep on it and beside it.
    fn device_plan<B>(&self, device: Arc<B>, resident_batches: Option<usize>) -> DevicePlan<B> {
        DevicePlan { device, resident_batches, lifted_bytes: bytes_of_gib(self.core.config.lifted_gib) }
    }

    /// A local file with the job's keys.
    fn local_key_file(&self, job: &Job) -> Result<LocalFile> {
        let name = job.spec.training().keys;
        match self.core.blobs.local(&BlobKey::new(&job.tenant, Namespace::Uploads, name)) {
            Ok(Some(file)) => Ok(file),
            Ok(None) | Err(Error::Damaged { .. } | Error::NoBlob { .. }) => Err(Error::DamagedUpload { name }),
            Err(error) => Err(error),
        }
    }

    fn run_on<B: Backend>(
        &self,
        attempt: &Attempt<'_>,
        keys: &Path,
        engine: String,
        device: DevicePlan<B>,
    ) -> Result<AttemptOutcome> {
        let params = self.core.param_sets.by_name(&attempt.job.spec.training().set)?;
        // A job that backs off starts again many times. Watchers see that from its progress, so
        // only the first start is an event.
        if attempt.claim.backoffs == 0 || attempt.job.sequence <= 1 {
            let started = v1::Started { attempt: attempt.claim.attempts, engine };
            attempt.commit(Change { event: Some(v1::event::What::Started(started)), ..Change::default() })?;
        }
        let mut last_report: Option<Instant> = None;
        let mut progress = |done: usize, total: usize| {
            if last_report.is_some_and(|last_report| last_report.elapsed() < PROGRESS_INTERVAL) {
                return Ok(());
            }
            last_report = Some(Instant::now());
            let (done, total) = (done as u64, total as u64);
            let phase = v1::Phase::Preparing.into();
            attempt.report(v1::Progress { phase, done, total, ..v1::Progress::default() });
            Ok(())
        };
        let executor = CkksExecutor::new(
            JobInput { blobs: &*self.core.blobs, job: attempt.job, key_file: keys },
            params,
            device,
            &self.core.required_keys,
            &mut progress,
        )?;
        attempt.prepared();
        match &attempt.job.spec {
            JobSpec::Training(work) => training::train(attempt, &executor, work),
            JobSpec::Classification(work) => classify::classify(attempt, &executor, work),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::compute::param_registry::ParamRegistry;
    use crate::config::Config;
    use crate::store::blobs::MemoryBlobs;
    use crate::store::state::{MemoryState, State};
    use crate::tenants::Tenant;
    use crate::testing::suites::state::{QUOTA, complete, new_job};
    use hetal_wire::JobId;

    /// Workers with three queued jobs, and a clock that stands still.
    fn workers(config: Config) -> WorkerContext {
        let state = MemoryState::default();
        let ann = Tenant::try_from("ann".to_owned()).unwrap();
        complete(&state, &ann, [1, 2, 3]);
        (1..=3).for_each(|n| _ = state.create_job(&ann, &new_job(n), &QUOTA, 1).unwrap());
        let core = Core {
            config,
            param_sets: Arc::new(ParamRegistry::new(&["insecure-toy11".to_owned()], true).unwrap()),
            state: Arc::new(state),
            blobs: Arc::new(MemoryBlobs::new(Path::new("unused"))),
            notifier: Default::default(),
            metrics: Arc::default(),
            required_keys: Default::default(),
            give_way: Default::default(),
            clock: Arc::new(|| 1_000_000),
        };
        WorkerContext {
            core: Arc::new(core),
            name: "local".to_owned(),
            draining: false.into(),
            shutdown: ShutdownSignal::default(),
            device_fault: Mutex::default(),
        }
    }

    fn claim(workers: &WorkerContext) -> Option<Claim> {
        let now = (workers.core.clock)();
        workers.core.state.claim(&workers.name, now, workers.lease_until(now)).unwrap()
    }

    /// Two jobs wait for verdicts while a third is queued. The first one that gives way is enough.
    #[test]
    fn one_queued_job_makes_one_waiting_job_give_way() {
        let workers = workers(Config::default());
        let [first, second] = [claim(&workers), claim(&workers)].map(Option::unwrap);
        let [first, second] = [&first, &second].map(|claim| workers.begin_attempt(claim));
        let gives_way = |attempt: &Attempt<'_>| {
            std::thread::scope(|scope| scope.spawn(|| attempt.gives_way()).join().unwrap().unwrap())
        };
        assert!(first.gives_way().unwrap());
        assert!(!gives_way(&second), "the first one's worker is about to claim the queued job");
        let change = Change { state: Some(JobState::Waiting), release: true, ..Change::default() };
        first.commit(change).unwrap();
        assert!(!gives_way(&second));
        let third = claim(&workers).unwrap();
        workers.core.give_way.end();
        assert_eq!(third.job.id, JobId([3; 16]));
        assert!(!gives_way(&second), "no job is left");
        // A job that is queued later finds the second one ready to give way.
        let back = workers.begin_attempt(&third);
        back.commit(Change { release: true, ..Change::default() }).unwrap();
        assert!(gives_way(&second));
    }

    #[test]
    fn looking_for_damaged_keys_is_no_silence_of_the_gpu() {
        let workers = workers(Config { stall_seconds: 0, ..Config::default() });
        let claim = claim(&workers).unwrap();
        let attempt = workers.begin_attempt(&claim);
        let name = BlobName([1; 32]);
        let failed = || Err(Error::failed("a key is wrong"));
        let damaged = Err(Error::DamagedUpload { name });
        let unreadable = || Err(Error::file(Path::new("keys"), "unreadable"));
        for (sound, expected) in [(Ok(false), damaged), (Ok(true), failed()), (unreadable(), failed())] {
            attempt.start_device_watch();
            while !attempt.is_stalled() {
                std::thread::yield_now();
            }
            let look = || {
                assert!(!attempt.is_stalled(), "the time counts as silence");
                sound
            };
            assert_eq!(blame_damaged_keys(&attempt, name, failed(), look), expected);
        }
        let released = Ok(AttemptOutcome::Released);
        assert_eq!(blame_damaged_keys(&attempt, name, released.clone(), unreadable), released);
    }

    #[test]
    fn a_card_that_fails_one_job_may_do_another_and_then_leaves_the_queue_to_others() {
        let seconds = [0, 1, 2, 3, 4, 7, u32::MAX].map(|failures| worker_backoff(failures).as_secs());
        assert_eq!(seconds, [0, 0, 2, 4, 8, 60, 60]);
    }
}
