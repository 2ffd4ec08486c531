//! Workers: threads that take jobs from the queue, one at a time, hold them by leases and run them.

use crate::bell::Bell;
use crate::bench::Bench;
use crate::blobs::Blobs;
use crate::clock::Clock;
use crate::config::Config;
use crate::device;
use crate::metrics::{Metrics, add};
use crate::sets::Sets;
use crate::state::{Change, Claim, Job, JobState, Lease, Millis, State};
use crate::sweep::clear_ended;
use crate::work::{KeyLists, Work};
use crate::{Error, Result, training};
use hetal_ckks::Backend;
use hetal_wire::v1;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often an idle worker looks for jobs that other machines queued.
const POLL: Duration = Duration::from_secs(1);
/// How often the reading of keys is told.
const TELL: Duration = Duration::from_millis(500);
/// How long a job, or a worker, rests after a fault of the machine.
pub const REST: Duration = Duration::from_secs(2);

/// How long a worker waits before it looks again whether a GPU that failed works.
const DEVICE_REST: Duration = Duration::from_secs(30);

/// What all workers of a server share.
pub struct Shop {
    /// The configuration.
    pub config: Config,
    /// The parameter sets.
    pub sets: Arc<Sets>,
    /// What is remembered.
    pub state: Arc<dyn State>,
    /// Where bytes are.
    pub blobs: Arc<dyn Blobs>,
    /// Rung after changes.
    pub bell: Arc<Bell>,
    /// Counted.
    pub metrics: Arc<Metrics>,
    /// The name that leases are held by.
    pub name: String,
    /// Set when workers shall stop.
    pub draining: AtomicBool,
    /// The time of day.
    pub clock: Clock,
    /// How long a job rests after a fault of the machine.
    pub rest: Duration,
    /// Needs of shapes that were asked for.
    pub key_lists: Arc<KeyLists>,
}

/// How an attempt at a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The job has ended.
    Ended,
    /// Its owner wants it to end.
    Cancelled,
    /// It waits for a verdict, without a worker.
    Waiting,
    /// This server stops; the job goes back to the queue.
    Released,
}

/// One attempt at one job: what it may read and change.
pub struct Desk<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// What is remembered.
    pub state: &'a dyn State,
    /// Rung after changes.
    pub bell: &'a Bell,
    /// Counted.
    pub metrics: &'a Metrics,
    /// The job.
    pub job: &'a Job,
    lease: Lease,
    draining: &'a AtomicBool,
    cancelled: AtomicBool,
    fenced: AtomicBool,
    clock: &'a Clock,
    started: Instant,
    /// Of the time since then, what the state knows.
    counted: Mutex<Duration>,
}

impl Desk<'_> {
    /// Changes the job, if it is still ours.
    pub fn commit(&self, change: Change) -> Result<()> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let spent = self.started.elapsed();
        let change = Change { spent: spent.saturating_sub(*counted).as_millis() as u64, ..change };
        self.state.commit(&self.lease, &change, (self.clock)())?;
        *counted = spent;
        self.bell.ring();
        Ok(())
    }

    /// Whether the job would go on from somewhere.
    fn has_checkpoint(&self) -> bool {
        // Where nobody can tell, there may be one.
        self.state.job(&self.job.tenant, self.job.id).map_or(true, |job| job.checkpoint.is_some())
    }

    /// Tells how far the job is.
    pub fn report(&self, progress: v1::Progress) -> Result<()> {
        self.commit(Change { progress: Some(progress), ..Change::default() })
    }

    /// Ends the job with its results.
    pub fn finish(&self, outputs: Vec<v1::Output>) -> Result<()> {
        let event = Some(v1::event::What::Finished(v1::Finished { outputs }));
        self.commit(Change { state: Some(JobState::Finished), event, release: true, ..Change::default() })
    }

    /// Whether the attempt must end: its owner's wish, the server's end, a lost lease, too much time.
    pub fn interruption(&self) -> Result<Option<Outcome>> {
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
            return Err(Error::work(format!("the job was worked on for longer than {hours} hours")));
        }
        Ok(None)
    }

    /// Extends the lease until told to stop.
    fn keep_alive(&self, stop: mpsc::Receiver<()>) {
        let lease = Duration::from_secs(self.config.lease_seconds);
        // Short enough for an owner who cancels, long enough not to matter.
        let pause = (lease / 3).min(Duration::from_secs(2));
        while let Err(mpsc::RecvTimeoutError::Timeout) = stop.recv_timeout(pause) {
            match self.state.renew(&self.lease, (self.clock)() + lease.as_millis() as u64) {
                Ok(cancel) => self.cancelled.store(cancel, Ordering::Relaxed),
                Err(Error::Fenced) => return self.fenced.store(true, Ordering::Relaxed),
                // The next renewal may pass; if none does, the lease ends and others take over.
                Err(error) => tracing::warn!(job = %self.job.id, %error, "a lease could not be renewed"),
            }
        }
    }
}

impl Shop {
    /// When a lease ends that is given now.
    pub fn lease_until(&self, now: Millis) -> Millis {
        now + 1000 * self.config.lease_seconds
    }

    /// Takes jobs until the server stops.
    pub fn work(&self) {
        // The set whose device failed in the last attempt, and when to look again: no attempt is made before it works.
        let mut broken: Option<(String, Instant)> = None;
        while !self.draining.load(Ordering::Relaxed) {
            let heard = self.bell.count();
            if let Some((set, again)) = &mut broken {
                if Instant::now() < *again {
                    self.bell.wait(heard, POLL);
                    continue;
                }
                if !self.device_works(set) {
                    *again = Instant::now() + DEVICE_REST;
                    continue;
                }
                broken = None;
            }
            let now = (self.clock)();
            match self.state.claim(&self.name, now, self.lease_until(now)) {
                Ok(Some(claim)) => broken = self.attempt(&claim).map(|set| (set, Instant::now() + DEVICE_REST)),
                Ok(None) => self.bell.wait(heard, POLL),
                Err(error) => {
                    tracing::error!(%error, "no job could be taken");
                    self.bell.wait(heard, REST);
                }
            }
        }
    }

    /// A desk for an attempt.
    pub fn desk<'a>(&'a self, claim: &'a Claim) -> Desk<'a> {
        Desk {
            config: &self.config,
            state: &*self.state,
            bell: &self.bell,
            metrics: &self.metrics,
            job: &claim.job,
            lease: claim.lease,
            draining: &self.draining,
            cancelled: AtomicBool::new(claim.job.cancel),
            fenced: AtomicBool::new(false),
            clock: &self.clock,
            started: Instant::now(),
            counted: Mutex::default(),
        }
    }

    /// One attempt at a job, and the set of a job whose device failed.
    fn attempt(&self, claim: &Claim) -> Option<String> {
        let desk = self.desk(claim);
        let (job, tenant) = (claim.job.id, &claim.job.tenant);
        tracing::info!(%job, %tenant, attempt = claim.attempts, "job begins");
        let (stop, stopped) = mpsc::channel();
        let outcome = std::thread::scope(|scope| {
            let desk = &desk;
            scope.spawn(move || desk.keep_alive(stopped));
            let outcome = catch_unwind(AssertUnwindSafe(|| self.run(desk, claim.attempts)));
            drop(stop);
            outcome.unwrap_or_else(|_| Err(Error::work("the computation broke off: this is a fault of the server")))
        });
        tracing::info!(%job, %tenant, ?outcome, "job rests or ends");
        let failed = matches!(outcome, Err(Error::Device { .. }));
        if let Err(error) = self.settle(&desk, claim.attempts, outcome) {
            tracing::warn!(%job, %error, "the end of an attempt could not be remembered");
        }
        failed.then(|| claim.job.work.training().set.clone())
    }

    /// What an attempt's end means for the job.
    pub fn settle(&self, desk: &Desk<'_>, attempts: u32, outcome: Result<Outcome>) -> Result<()> {
        let release = Change { release: true, ..Change::default() };
        match outcome {
            // Of a lost lease: the job may have ended, or be gone, before the last of what was made here was stored.
            Ok(Outcome::Ended) | Err(Error::Fenced) => {
                clear_ended(&*self.state, &*self.blobs, &desk.job.tenant, desk.job.id);
                Ok(())
            }
            Ok(Outcome::Released) => desk.commit(release),
            Ok(Outcome::Waiting) => desk.commit(Change { state: Some(JobState::Waiting), ..release }),
            Ok(Outcome::Cancelled) => {
                let event = Some(v1::event::What::Cancelled(v1::Cancelled {}));
                desk.commit(Change { state: Some(JobState::Cancelled), event, ..release })?;
                clear_ended(&*self.state, &*self.blobs, &desk.job.tenant, desk.job.id);
                Ok(())
            }
            // A job does not end because a card did: it rests at its checkpoint until there is one again.
            Err(error @ Error::Device { .. }) => {
                tracing::error!(job = %desk.job.id, %error, "the GPU failed: the job goes on from its checkpoint when it works again");
                desk.commit(Change { state: Some(JobState::Queued), uncounted: true, ..release })
            }
            Err(error) if error.may_pass() && attempts < self.config.bounds.attempts => {
                tracing::warn!(job = %desk.job.id, %error, "a fault of this machine: the job is tried again");
                std::thread::sleep(self.rest);
                desk.commit(release)
            }
            Err(error) => {
                add(&self.metrics.failures, 1);
                tracing::error!(job = %desk.job.id, %error, "job failed");
                let reason = error.sentence();
                let event = Some(v1::event::What::Failed(v1::Failed { reason: reason.clone() }));
                desk.commit(Change { state: Some(JobState::Failed), reason: Some(reason), event, ..release })?;
                clear_ended(&*self.state, &*self.blobs, &desk.job.tenant, desk.job.id);
                Ok(())
            }
        }
    }

    /// Whether what computes the jobs of a set works, again.
    fn device_works(&self, set: &str) -> bool {
        let opened = self.sets.by_name(set).and_then(|params| device::gpu(self.config.engine, &params));
        if let Err(error) = &opened {
            tracing::error!(%error, "no job is taken while the GPU fails");
        }
        opened.is_ok()
    }

    /// Why a job that was claimed is not worked on.
    pub fn refused(&self, desk: &Desk<'_>, attempts: u32) -> Result<Option<Outcome>> {
        if attempts > self.config.bounds.attempts {
            return Err(Error::work(format!("{attempts} attempts brought the job no further")));
        }
        desk.interruption()
    }

    fn run(&self, desk: &Desk<'_>, attempts: u32) -> Result<Outcome> {
        if let Some(outcome) = self.refused(desk, attempts)? {
            return Ok(outcome);
        }
        let params = self.sets.by_name(&desk.job.work.training().set)?;
        match device::gpu(self.config.engine, &params)? {
            Some(gpu) => {
                let gpu = Arc::new(gpu);
                let outcome = self.run_on(desk, attempts, gpu.describe(), Arc::clone(&gpu));
                device::tell(&gpu);
                device::blamed(gpu.health(), outcome, desk.has_checkpoint())
            }
            None => self.run_on(desk, attempts, "cpu".to_owned(), self.sets.ring(&params)?),
        }
    }

    fn run_on<B: Backend>(&self, desk: &Desk<'_>, attempt: u32, engine: String, device: Arc<B>) -> Result<Outcome> {
        let params = self.sets.by_name(&desk.job.work.training().set)?;
        let started = v1::Started { attempt, engine };
        desk.commit(Change { event: Some(v1::event::What::Started(started)), ..Change::default() })?;
        let mut told: Option<Instant> = None;
        let mut progress = |done: usize, total: usize| {
            if told.is_some_and(|told| told.elapsed() < TELL) {
                return Ok(());
            }
            told = Some(Instant::now());
            let (done, total) = (done as u64, total as u64);
            desk.report(v1::Progress { phase: v1::Phase::Preparing.into(), done, total, epoch: 0, iterations: 0 })
        };
        let bench = Bench::new((&*self.blobs, desk.job), params, device, &self.key_lists, &mut progress)?;
        match &desk.job.work {
            Work::Training(work) => training::train(desk, &bench, work),
            Work::Classification(work) => training::classify(desk, &bench, work),
        }
    }
}
