//! Workers: threads that take jobs from the queue, one at a time, hold them by leases and run them.

use crate::clock::Clock;
use crate::compute::ckks::CkksExecutor;
use crate::compute::device::{self, MemoryPlan, Timed};
use crate::compute::param_registry::ParamRegistry;
use crate::config::Config;
use crate::jobs::key_requirements::KeyRequirementsCache;
use crate::jobs::lifecycle::clear_ended;
use crate::jobs::spec::JobSpec;
use crate::metrics::{Metrics, add};
use crate::notify::ChangeNotifier;
use crate::store::blobs::{Blobs, Key, Namespace};
use crate::store::state::{Change, Claim, Job, JobState, Millis, State};
use crate::worker::retry::{Attempt, Next, Outcome, next};
use crate::worker::shutdown::{ShutdownReason, ShutdownSignal};
use crate::worker::training;
use crate::{Error, Result};
use hetal_ckks::Backend;
use hetal_wire::v1;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often an idle worker looks for jobs that other machines queued.
const POLL: Duration = Duration::from_secs(1);
/// How often the reading of keys is told.
const TELL: Duration = Duration::from_millis(500);
/// How long a worker rests that could not ask for a job, or whose card failed two jobs in a row; each further one twice as long.
const REST: Duration = Duration::from_secs(2);
/// The longest that it rests for its card.
const LONGEST: Duration = Duration::from_secs(60);
/// How often it looks meanwhile whether the server stops.
const GLANCE: Duration = Duration::from_millis(100);

/// What all workers of a server share.
pub struct Shop {
    /// The configuration.
    pub config: Config,
    /// The parameter sets.
    pub param_sets: Arc<ParamRegistry>,
    /// What is remembered.
    pub state: Arc<dyn State>,
    /// Where bytes are.
    pub blobs: Arc<dyn Blobs>,
    /// Rung after changes.
    pub notifier: Arc<ChangeNotifier>,
    /// Counted.
    pub metrics: Arc<Metrics>,
    /// The name that leases are held by.
    pub name: String,
    /// Set when workers shall stop.
    pub draining: AtomicBool,
    /// The time of day.
    pub clock: Clock,
    /// Needs of shapes that were asked for.
    pub key_requirements: Arc<KeyRequirementsCache>,
    /// Why the server has to end, once it has to.
    pub shutdown: ShutdownSignal,
    /// What a GPU said when it last failed.
    pub device_fault: Mutex<String>,
}

/// One attempt at one job: what it may read and change.
pub struct Desk<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// What is remembered.
    pub state: &'a dyn State,
    /// Rung after changes.
    pub notifier: &'a ChangeNotifier,
    /// Counted.
    pub metrics: &'a Metrics,
    /// The job.
    pub job: &'a Job,
    claim: &'a Claim,
    draining: &'a AtomicBool,
    cancelled: AtomicBool,
    fenced: AtomicBool,
    clock: &'a Clock,
    started: Instant,
    /// Of the time since then, what the state knows.
    counted: Mutex<Duration>,
    /// When it last showed a sign of life, since it turned to its card: before that it may wait for what is not the card's.
    alive: Mutex<Option<Instant>>,
    /// Whether the card was tried.
    begun: AtomicBool,
    /// Whether a checkpoint was written since: what came before it no longer counts.
    saved: AtomicBool,
}

impl Desk<'_> {
    /// Changes the job, if it is still ours.
    pub fn commit(&self, change: Change) -> Result<()> {
        self.live();
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let spent = self.started.elapsed();
        let change = Change { spent: spent.saturating_sub(*counted).as_millis() as u64, ..change };
        self.state.commit(&self.claim.lease, &change, (self.clock)())?;
        *counted = spent;
        self.saved.fetch_or(change.checkpoint.is_some(), Ordering::Relaxed);
        self.notifier.notify();
        Ok(())
    }

    /// Whether the job would go on from somewhere.
    fn has_checkpoint(&self) -> bool {
        // Where nobody can tell, there may be one.
        self.state.job(&self.job.tenant, self.job.id).map_or(true, |job| job.checkpoint.is_some())
    }

    /// The job as far as it was, resting.
    fn resting(&self) -> v1::Progress {
        let known = self.state.job(&self.job.tenant, self.job.id).ok().and_then(|job| job.progress);
        let begun = v1::Progress { phase: v1::Phase::Preparing.into(), ..v1::Progress::default() };
        v1::Progress { resting: true, ..known.unwrap_or(begun) }
    }

    /// Tells how far the job is.
    pub fn report(&self, progress: v1::Progress) -> Result<()> {
        self.turn_to_card();
        self.commit(Change { progress: Some(progress), ..Change::default() })
    }

    /// Ends the job with its results.
    pub fn finish(&self, outputs: Vec<v1::Output>) -> Result<()> {
        let event = Some(v1::event::What::Finished(v1::Finished { outputs }));
        self.commit(Change { state: Some(JobState::Finished), event, release: true, ..Change::default() })
    }

    /// Whether the attempt must end: its owner's wish, the server's end, a lost lease, too much time.
    pub fn interruption(&self) -> Result<Option<Outcome>> {
        self.live();
        if self.fenced.load(Ordering::Relaxed) {
            return Err(Error::Fenced);
        }
        if self.cancelled.load(Ordering::Relaxed) {
            return Ok(Some(Outcome::Cancelled));
        }
        if self.draining.load(Ordering::Relaxed) {
            return Ok(Some(Outcome::Released));
        }
        // Time in which the job was worked on, by a clock that cannot be set: one that can may jump.
        let (hours, spent) = (self.config.bounds.job_hours, self.started.elapsed().as_millis() as u64);
        if self.job.spent.saturating_add(spent) > hours.saturating_mul(3_600_000) {
            return Err(Error::failed(format!("the job was worked on for longer than {hours} hours")));
        }
        Ok(None)
    }

    /// From now on silence is the card's.
    pub fn turn_to_card(&self) {
        *self.alive.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Shows a sign of life.
    fn live(&self) {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        *alive = alive.map(|_| Instant::now());
    }

    /// Whether nothing was heard of the computation for so long that it must hang.
    fn is_stalled(&self) -> bool {
        let alive = *self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        alive.is_some_and(|alive| alive.elapsed() > Duration::from_secs(self.config.stall_seconds))
    }

    /// Extends the lease until told to stop. Where a card does not answer any more, only the end of the process helps.
    pub fn keep_alive(&self, stop: mpsc::Receiver<()>, card: Option<usize>, shutdown: &ShutdownSignal) {
        let lease = Duration::from_secs(self.config.lease_seconds);
        // Short enough for an owner who cancels, long enough not to matter.
        let pause = (lease / 3).min(Duration::from_secs(2));
        while let Err(mpsc::RecvTimeoutError::Timeout) = stop.recv_timeout(pause) {
            if card.is_some() && self.is_stalled() {
                tracing::error!(job = %self.job.id, card, "nothing came from the GPU for too long: the server ends");
                return shutdown.trigger(ShutdownReason::GpuHung { seconds: self.config.stall_seconds });
            }
            match self.state.renew(&self.claim.lease, &|| (self.clock)() + lease.as_millis() as u64) {
                Ok(cancel) => self.cancelled.store(cancel, Ordering::Relaxed),
                Err(Error::Fenced) => return self.fenced.store(true, Ordering::Relaxed),
                // The next renewal may pass; if none does, the lease ends and others take over.
                Err(error) => tracing::warn!(job = %self.job.id, %error, "a lease could not be renewed"),
            }
        }
    }
}

/// How long a worker rests after its card failed so many jobs in a row.
fn rest_of_worker(failures: u32) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        _ => REST.saturating_mul(1 << (failures - 2).min(16)).min(LONGEST),
    }
}

fn broken_off() -> Error {
    Error::failed("the computation broke off: this is a fault of the server")
}

impl Shop {
    /// When a lease ends that is given now.
    pub fn lease_until(&self, now: Millis) -> Millis {
        now + 1000 * self.config.lease_seconds
    }

    /// Whether workers go on. A process whose card is lost can use no other.
    fn is_open(&self) -> bool {
        !self.draining.load(Ordering::Relaxed) && self.shutdown.reason().is_none()
    }

    /// Takes jobs until the server stops, and computes them on a card, or the CPU. A job that rests does so in the queue: its worker
    /// takes the next, which may need less. Where that fails too, the worker rests as well, and leaves the queue to other cards.
    pub fn work(&self, card: Option<usize>) {
        let mut failures = 0;
        while self.is_open() {
            let seen = self.notifier.version();
            let now = (self.clock)();
            match self.state.claim(&self.name, now, self.lease_until(now)) {
                Ok(Some(claim)) => {
                    failures = if self.attempt(&claim, card) { failures + 1 } else { 0 };
                    self.pause(rest_of_worker(failures));
                }
                Ok(None) => self.notifier.wait(seen, POLL),
                Err(error) => {
                    tracing::error!(%error, "no job could be taken");
                    self.notifier.wait(seen, REST);
                }
            }
        }
    }

    /// Waits so long, or until the server stops.
    fn pause(&self, rest: Duration) {
        let begun = Instant::now();
        while self.is_open() && begun.elapsed() < rest {
            std::thread::sleep(GLANCE.min(rest));
        }
    }

    /// Whether a card that failed is lost to this process. After some faults nothing but another process can use it.
    fn fatal(&self, claim: &Claim, card: Option<usize>, failure: &Error) -> Option<ShutdownReason> {
        let (card, Error::Device { reason, is_full: false }) = (card?, failure) else { return None };
        let params = self.param_sets.by_name(&claim.job.spec.training().set).ok()?;
        let seconds = self.config.stall_seconds;
        match device::run_with_timeout(seconds, move || device::check_gpu(card, &params)) {
            Timed::TimedOut => Some(ShutdownReason::GpuHung { seconds }),
            Timed::Done(Ok(()) | Err(Error::Device { is_full: true, .. })) => None,
            // Also where the test broke off.
            _ => {
                tracing::error!(card, reason, "the GPU failed and cannot be opened again: the server ends");
                Some(ShutdownReason::GpuLost { reason: reason.clone() })
            }
        }
    }

    /// A desk for an attempt.
    pub fn desk<'a>(&'a self, claim: &'a Claim) -> Desk<'a> {
        Desk {
            config: &self.config,
            state: &*self.state,
            notifier: &self.notifier,
            metrics: &self.metrics,
            job: &claim.job,
            claim,
            draining: &self.draining,
            cancelled: AtomicBool::new(claim.job.cancel),
            fenced: AtomicBool::new(false),
            clock: &self.clock,
            started: Instant::now(),
            counted: Mutex::default(),
            alive: Mutex::default(),
            begun: AtomicBool::new(false),
            saved: AtomicBool::new(false),
        }
    }

    /// One attempt at a job. Says whether the job rests because of the card.
    pub(crate) fn attempt(&self, claim: &Claim, card: Option<usize>) -> bool {
        let desk = self.desk(claim);
        let (job, tenant) = (claim.job.id, &claim.job.tenant);
        tracing::info!(%job, %tenant, attempt = claim.attempts, "job begins");
        let (stop, stopped) = mpsc::channel();
        std::thread::scope(|scope| {
            let desk = &desk;
            scope.spawn(move || desk.keep_alive(stopped, card, &self.shutdown));
            let outcome = catch_unwind(AssertUnwindSafe(|| self.run(desk, card))).unwrap_or_else(|_| Err(broken_off()));
            // Before the job is in the queue again, where others of this process would take it in vain, and while it is still ours:
            // testing a card takes as long as the card does.
            desk.live();
            if let Some(end) = outcome.as_ref().err().and_then(|error| self.fatal(claim, card, error)) {
                self.shutdown.trigger(end);
            }
            tracing::info!(%job, %tenant, ?outcome, "job rests or ends");
            let next = self.next(desk, &outcome);
            self.write_down(desk, &next);
            drop(stop);
            matches!(next, Next::Rests(_))
        })
    }

    /// Writes down what an attempt's end means, again and again where the database does not take it: an attempt that is not written down
    /// would count. Meanwhile the lease is kept.
    fn write_down(&self, desk: &Desk<'_>, next: &Next) {
        let job = desk.job.id;
        loop {
            match self.settle(desk, next.clone()) {
                Err(error @ Error::State { .. }) if self.is_open() && !desk.fenced.load(Ordering::Relaxed) => {
                    tracing::warn!(%job, %error, "the end of an attempt could not be remembered: again in a moment");
                    self.pause(REST);
                }
                Err(error) => return tracing::warn!(%job, %error, "the end of an attempt could not be remembered"),
                Ok(()) => return,
            }
        }
    }

    /// What an attempt's end means for the job. Faults are told to the operator.
    pub fn next(&self, desk: &Desk<'_>, outcome: &Result<Outcome>) -> Next {
        let Claim { attempts, backoffs, .. } = *desk.claim;
        let (attempts, backoffs) = if desk.saved.load(Ordering::Relaxed) { (1, 0) } else { (attempts, backoffs) };
        let (most, begun) = (self.config.bounds.attempts, desk.begun.load(Ordering::Relaxed));
        let cancelled = desk.cancelled.load(Ordering::Relaxed);
        let next = next(outcome, &Attempt { attempts, most, backoffs, begun, cancelled });
        self.tell(desk.job, &next, outcome.as_ref().err());
        next
    }

    /// Writes it down.
    pub fn settle(&self, desk: &Desk<'_>, next: Next) -> Result<()> {
        match next {
            Next::Back(change) => return desk.commit(change),
            Next::Rests(change) => return desk.commit(Change { progress: Some(desk.resting()), ..change }),
            Next::Ends(change) => desk.commit(change)?,
            // Of a lost lease: the job may have ended, or be gone, before the last of what was made here was stored.
            Next::Over => {}
        }
        clear_ended(&*self.state, &*self.blobs, &desk.job.tenant, desk.job.id);
        Ok(())
    }

    /// Tells the operator of faults.
    fn tell(&self, job: &Job, next: &Next, error: Option<&Error>) {
        let (Some(error), job) = (error, job.id) else { return };
        match next {
            Next::Rests(_) => {
                tracing::error!(%job, %error, "the GPU failed: the job rests at its checkpoint");
                add(&self.metrics.device_failures, 1);
                if let Error::Device { reason, .. } = error {
                    self.device_fault.lock().unwrap_or_else(PoisonError::into_inner).clone_from(reason);
                }
            }
            Next::Back(_) => tracing::warn!(%job, %error, "a fault of this machine: the job is tried again"),
            Next::Ends(Change { state: Some(JobState::Failed), .. }) => {
                add(&self.metrics.failures, 1);
                tracing::error!(%job, %error, "job failed");
            }
            Next::Ends(_) | Next::Over => {}
        }
    }

    /// Why a job that was claimed is not worked on.
    pub fn refused(&self, desk: &Desk<'_>) -> Result<Option<Outcome>> {
        let attempts = desk.claim.attempts;
        if attempts > self.config.bounds.attempts {
            return Err(Error::failed(format!("{attempts} attempts brought the job no further")));
        }
        desk.interruption()
    }

    fn run(&self, desk: &Desk<'_>, card: Option<usize>) -> Result<Outcome> {
        if let Some(outcome) = self.refused(desk)? {
            return Ok(outcome);
        }
        let params = self.param_sets.by_name(&desk.job.spec.training().set)?;
        // Before a card is opened, and before anyone is told that the job began: what has to come from a bucket may take long, or find
        // no room.
        let keys = self.fetch_keys(desk.job)?;
        let Some(card) = card else {
            return self.run_on(desk, &keys, "cpu".to_owned(), (self.param_sets.ring(&params)?, None));
        };
        desk.turn_to_card();
        let gpu = Arc::new(device::open_gpu(card, &params)?);
        let plan = device::plan_memory(&gpu, &params, (desk.job, desk.claim.out_of_memory), &self.key_requirements)?;
        desk.begun.store(true, Ordering::Relaxed);
        let room = plan.map(|plan| plan.kept);
        let attempt = || self.run_on(desk, &keys, gpu.describe(), (Arc::clone(&gpu), room));
        // Whatever broke off may have done so because the card did.
        let outcome = catch_unwind(AssertUnwindSafe(attempt)).unwrap_or_else(|_| Err(broken_off()));
        device::log_graphs(&gpu);
        let can_continue = desk.has_checkpoint() || !plan.is_none_or(MemoryPlan::is_minimal);
        device::attribute_failure(gpu.health(), outcome, gpu.pool_bytes(), can_continue)
    }

    /// The file of a job's keys.
    fn fetch_keys(&self, job: &Job) -> Result<PathBuf> {
        let name = job.spec.training().keys;
        self.blobs.local(&Key::new(&job.tenant, Namespace::Uploads, name))?.ok_or(Error::NoBlob { name })
    }

    fn run_on<B: Backend>(
        &self,
        desk: &Desk<'_>,
        keys: &Path,
        engine: String,
        device: (Arc<B>, Option<usize>),
    ) -> Result<Outcome> {
        let params = self.param_sets.by_name(&desk.job.spec.training().set)?;
        // A job that rested begins again and again, perhaps for days: its watchers see that by its progress.
        // Unless it never began.
        if desk.claim.backoffs == 0 || desk.job.sequence <= 1 {
            let started = v1::Started { attempt: desk.claim.attempts, engine };
            desk.commit(Change { event: Some(v1::event::What::Started(started)), ..Change::default() })?;
        }
        let mut told: Option<Instant> = None;
        let mut progress = |done: usize, total: usize| {
            if told.is_some_and(|told| told.elapsed() < TELL) {
                return Ok(());
            }
            told = Some(Instant::now());
            let (done, total) = (done as u64, total as u64);
            let phase = v1::Phase::Preparing.into();
            desk.report(v1::Progress { phase, done, total, ..v1::Progress::default() })
        };
        let bench =
            CkksExecutor::new((&*self.blobs, desk.job, keys), params, device, &self.key_requirements, &mut progress)?;
        match &desk.job.spec {
            JobSpec::Training(work) => training::train(desk, &bench, work),
            JobSpec::Classification(work) => training::classify(desk, &bench, work),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_that_fails_one_job_may_do_another_and_then_leaves_the_queue_to_others() {
        let seconds = [0, 1, 2, 3, 4, 7, u32::MAX].map(|failures| rest_of_worker(failures).as_secs());
        assert_eq!(seconds, [0, 0, 2, 4, 8, 60, 60]);
    }
}
