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
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How often an idle worker looks for jobs that other machines queued.
const POLL: Duration = Duration::from_secs(1);
/// How often the reading of keys is told.
const TELL: Duration = Duration::from_millis(500);
/// How long a job, or a worker, rests after a fault of the machine.
pub const REST: Duration = Duration::from_secs(2);

/// How long a worker rests after its GPU failed; after the next failure twice as long, and so on.
const DEVICE_REST: Duration = Duration::from_secs(30);
/// The longest of these rests.
const LONGEST_REST: Duration = Duration::from_secs(120);

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
    /// Why the server has to end, once it has to.
    pub fate: Fate,
    /// What a GPU said when it last failed.
    pub device_fault: Mutex<String>,
}

/// Why a server ends that nobody stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Another server has taken the blobs. What this one did now would destroy the other's: end the process without stopping it.
    BlobsTaken,
    /// A GPU failed, and this process cannot open it again. Another may: stop the server and start it anew.
    CardLost {
        /// What the GPU said.
        reason: String,
    },
    /// A GPU does not answer. Whoever waits for it does so for ever: end the process without stopping the server.
    Hung {
        /// For how long.
        seconds: u64,
    },
}

/// Why a server has to end: told once, to one who waits.
#[derive(Default)]
pub struct Fate {
    end: OnceLock<End>,
    told: Notify,
    hangs: AtomicBool,
}

impl Fate {
    /// Makes it known. The first reason stays.
    pub fn seal(&self, end: End) {
        self.hangs.fetch_or(matches!(end, End::Hung { .. }), Ordering::Relaxed);
        // Another reason is there already: the server ends all the same.
        let _ = self.end.set(end);
        self.told.notify_one();
    }

    /// Whether some thread waits for a card for ever.
    pub fn hangs(&self) -> bool {
        self.hangs.load(Ordering::Relaxed)
    }

    /// The reason, if there is one.
    pub fn known(&self) -> Option<&End> {
        self.end.get()
    }

    /// The reason, once there is one.
    pub async fn wait(&self) -> End {
        loop {
            if let Some(end) = self.end.get() {
                return end.clone();
            }
            self.told.notified().await;
        }
    }
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
    /// When it last showed a sign of life, once it has told how far it is: before that it may wait for what is not the card's.
    alive: Mutex<Option<Instant>>,
    /// Whether the card was tried.
    begun: AtomicBool,
}

impl Desk<'_> {
    /// Changes the job, if it is still ours.
    pub fn commit(&self, change: Change) -> Result<()> {
        self.live();
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

    /// The job as far as it was, resting.
    fn resting(&self) -> v1::Progress {
        let known = self.state.job(&self.job.tenant, self.job.id).ok().and_then(|job| job.progress);
        let begun = v1::Progress { phase: v1::Phase::Preparing.into(), ..v1::Progress::default() };
        v1::Progress { resting: true, ..known.unwrap_or(begun) }
    }

    /// Tells how far the job is.
    pub fn report(&self, progress: v1::Progress) -> Result<()> {
        *self.alive.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
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
            return Err(Error::work(format!("the job was worked on for longer than {hours} hours")));
        }
        Ok(None)
    }

    fn live(&self) {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        *alive = alive.map(|_| Instant::now());
    }

    /// Whether nothing was heard of the computation for so long that it must hang.
    fn hangs(&self) -> bool {
        let alive = *self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        alive.is_some_and(|alive| alive.elapsed() > Duration::from_secs(self.config.stall_seconds))
    }

    /// Extends the lease until told to stop. Where a card does not answer any more, only the end of the process helps.
    pub fn keep_alive(&self, stop: mpsc::Receiver<()>, card: Option<usize>, fate: &Fate) {
        let lease = Duration::from_secs(self.config.lease_seconds);
        // Short enough for an owner who cancels, long enough not to matter.
        let pause = (lease / 3).min(Duration::from_secs(2));
        while let Err(mpsc::RecvTimeoutError::Timeout) = stop.recv_timeout(pause) {
            if card.is_some() && self.hangs() {
                tracing::error!(job = %self.job.id, card, "nothing came from the GPU for too long: the server ends");
                return fate.seal(End::Hung { seconds: self.config.stall_seconds });
            }
            match self.state.renew(&self.lease, (self.clock)() + lease.as_millis() as u64) {
                Ok(cancel) => self.cancelled.store(cancel, Ordering::Relaxed),
                Err(Error::Fenced) => return self.fenced.store(true, Ordering::Relaxed),
                // The next renewal may pass; if none does, the lease ends and others take over.
                Err(error) => tracing::warn!(job = %self.job.id, %error, "a lease could not be renewed"),
            }
        }
    }
}

fn broken_off() -> Error {
    Error::work("the computation broke off: this is a fault of the server")
}

impl Shop {
    /// When a lease ends that is given now.
    pub fn lease_until(&self, now: Millis) -> Millis {
        now + 1000 * self.config.lease_seconds
    }

    /// Takes jobs until the server stops, and computes them on a card, or the CPU.
    pub fn work(&self, card: Option<usize>) {
        let mut rest = DEVICE_REST;
        // A process whose card is lost can use no other.
        while !self.draining.load(Ordering::Relaxed) && self.fate.known().is_none() {
            let heard = self.bell.count();
            let now = (self.clock)();
            match self.state.claim(&self.name, now, self.lease_until(now)) {
                Ok(Some(claim)) if self.attempt(&claim, card) => {
                    self.rest_for(rest);
                    rest = (2 * rest).min(LONGEST_REST);
                }
                Ok(Some(_)) => rest = DEVICE_REST,
                Ok(None) => self.bell.wait(heard, POLL),
                Err(error) => {
                    tracing::error!(%error, "no job could be taken");
                    self.bell.wait(heard, REST);
                }
            }
        }
    }

    /// Waits, unless the server stops.
    fn rest_for(&self, rest: Duration) {
        let until = Instant::now() + rest;
        let ends = || self.draining.load(Ordering::Relaxed) || self.fate.known().is_some();
        while Instant::now() < until && !ends() {
            self.bell.wait(self.bell.count(), POLL);
        }
    }

    /// Whether a card that failed is lost to this process. After some faults nothing but another process can use it.
    fn fatal(&self, claim: &Claim, card: Option<usize>, failure: &Error) -> Option<End> {
        let (card, Error::Device { reason, is_full: false }) = (card?, failure) else { return None };
        let params = self.sets.by_name(&claim.job.work.training().set).ok()?;
        let (answer, answers) = mpsc::channel();
        // A card may also never answer. Whoever no longer listens needs no answer.
        std::thread::spawn(move || _ = answer.send(device::works(card, &params)));
        let seconds = self.config.stall_seconds;
        match answers.recv_timeout(Duration::from_secs(seconds)) {
            Err(mpsc::RecvTimeoutError::Timeout) => Some(End::Hung { seconds }),
            Ok(Ok(()) | Err(Error::Device { is_full: true, .. })) => None,
            // Also where the test broke off.
            _ => {
                tracing::error!(card, reason, "the GPU failed and cannot be opened again: the server ends");
                Some(End::CardLost { reason: reason.clone() })
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
            alive: Mutex::default(),
            begun: AtomicBool::new(false),
        }
    }

    /// One attempt at a job; gives whether its card failed.
    fn attempt(&self, claim: &Claim, card: Option<usize>) -> bool {
        let desk = self.desk(claim);
        let (job, tenant) = (claim.job.id, &claim.job.tenant);
        tracing::info!(%job, %tenant, attempt = claim.attempts, "job begins");
        let (stop, stopped) = mpsc::channel();
        let outcome = std::thread::scope(|scope| {
            let desk = &desk;
            scope.spawn(move || desk.keep_alive(stopped, card, &self.fate));
            let outcome = catch_unwind(AssertUnwindSafe(|| self.run(desk, claim.attempts, card)));
            drop(stop);
            outcome.unwrap_or_else(|_| Err(broken_off()))
        });
        tracing::info!(%job, %tenant, ?outcome, "job rests or ends");
        let failed = matches!(outcome, Err(Error::Device { .. }));
        // Before the job is in the queue again, where others of this process would take it in vain.
        if let Some(end) = outcome.as_ref().err().and_then(|error| self.fatal(claim, card, error)) {
            self.fate.seal(end);
        }
        if let Err(error) = self.settle(&desk, claim.attempts, outcome) {
            tracing::warn!(%job, %error, "the end of an attempt could not be remembered");
        }
        failed
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
            // An owner who wants the job to end does not wait for the card.
            Err(Error::Device { .. }) if desk.cancelled.load(Ordering::Relaxed) => {
                self.settle(desk, attempts, Ok(Outcome::Cancelled))
            }
            // A job does not end because a card did: it rests at its checkpoint until there is one again. A card that works otherwise
            // and breaks at every attempt is the job's doing.
            Err(Error::Device { reason, is_full })
                if is_full && !desk.begun.load(Ordering::Relaxed) || attempts < self.config.bounds.attempts =>
            {
                tracing::error!(job = %desk.job.id, reason, "the GPU failed: the job rests at its checkpoint");
                add(&self.metrics.device_failures, 1);
                *self.device_fault.lock().unwrap_or_else(PoisonError::into_inner) = reason;
                let (state, progress) = (Some(JobState::Queued), Some(desk.resting()));
                // What lacks memory before it begins is not the job's doing; what does so later may be.
                let uncounted = is_full && !desk.begun.load(Ordering::Relaxed);
                desk.commit(Change { state, progress, uncounted, ..release })
            }
            Err(error) if error.may_pass() && attempts < self.config.bounds.attempts => {
                tracing::warn!(job = %desk.job.id, %error, "a fault of this machine: the job is tried again");
                std::thread::sleep(self.rest);
                // What there is no room for now waits as long as it takes.
                desk.commit(Change { uncounted: matches!(error, Error::Busy { .. }), ..release })
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

    /// Why a job that was claimed is not worked on.
    pub fn refused(&self, desk: &Desk<'_>, attempts: u32) -> Result<Option<Outcome>> {
        if attempts > self.config.bounds.attempts {
            return Err(Error::work(format!("{attempts} attempts brought the job no further")));
        }
        desk.interruption()
    }

    fn run(&self, desk: &Desk<'_>, attempts: u32, card: Option<usize>) -> Result<Outcome> {
        if let Some(outcome) = self.refused(desk, attempts)? {
            return Ok(outcome);
        }
        let params = self.sets.by_name(&desk.job.work.training().set)?;
        match card {
            Some(card) => {
                let gpu = Arc::new(device::gpu(card, &params)?);
                let room = device::room(&gpu, &params, (desk.job, attempts), &self.key_lists)?;
                desk.begun.store(true, Ordering::Relaxed);
                let attempt = || self.run_on(desk, attempts, gpu.describe(), (Arc::clone(&gpu), room));
                // Whatever broke off may have done so because the card did.
                let outcome = catch_unwind(AssertUnwindSafe(attempt)).unwrap_or_else(|_| Err(broken_off()));
                device::tell(&gpu);
                device::blamed(gpu.health(), outcome, gpu.pool_bytes(), desk.has_checkpoint())
            }
            None => self.run_on(desk, attempts, "cpu".to_owned(), (self.sets.ring(&params)?, None)),
        }
    }

    fn run_on<B: Backend>(
        &self,
        desk: &Desk<'_>,
        attempt: u32,
        engine: String,
        device: (Arc<B>, Option<usize>),
    ) -> Result<Outcome> {
        let params = self.sets.by_name(&desk.job.work.training().set)?;
        // A job that rested begins again and again, perhaps for days: its watchers see that by its progress.
        if !desk.job.progress.is_some_and(|progress| progress.resting) {
            let started = v1::Started { attempt, engine };
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
        let bench = Bench::new((&*self.blobs, desk.job), params, device, &self.key_lists, &mut progress)?;
        match &desk.job.work {
            Work::Training(work) => training::train(desk, &bench, work),
            Work::Classification(work) => training::classify(desk, &bench, work),
        }
    }
}
