//! Runs a training job: the driver of `hetal-learn` over blobs and state, from the last checkpoint
//! on.

use crate::compute::executor::Executor;
use crate::config::bytes_of_gib;
use crate::jobs::spec::{RowBlob, TrainingSpec};
use crate::metrics::add;
use crate::store::blobs::{BlobKey, Namespace};
use crate::store::state::{Change, JobState};
use crate::worker::attempt::Attempt;
use crate::worker::checkpoint::Checkpoint;
use crate::worker::retry::AttemptOutcome;
use crate::{Error, Result};
use hetal_learn::driver::{Ended, Host, StepRequest, drive};
use hetal_learn::session::Action;
use hetal_learn::trainer::ModelState;
use hetal_learn::{Session, Verdict};
use hetal_wire::{BlobName, v1};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a job that waits for a verdict looks for it and for other jobs.
const VERDICT_POLL: Duration = Duration::from_millis(500);

/// What surrounds a training on the server: blobs, state and an executor.
struct JobHost<'a, W: Executor> {
    attempt: &'a Attempt<'a>,
    executor: &'a W,
    training: &'a TrainingSpec,
    /// The current range and its circuit.
    circuit: (f64, W::Circuit),
    batches: PreparedCache<W::Batch>,
    validation: PreparedCache<W::Rows>,
    /// Names and sizes of the ciphertexts of the last checkpoint.
    stored: Vec<(BlobName, u64)>,
    /// How many of the last entries of `stored` stay the same until the next verdict: the weights
    /// at the start of the epoch, and the weights that are kept.
    unchanged: usize,
    iterations: u64,
    since_checkpoint: u64,
    round: u32,
    asked: bool,
    /// How long this attempt has waited for verdicts while another job could have run.
    delayed_others: Duration,
}

/// Trains from the last checkpoint on.
pub fn train<W: Executor>(attempt: &Attempt<'_>, executor: &W, training: &TrainingSpec) -> Result<AttemptOutcome> {
    let mut host = JobHost::new(attempt, executor, training)?;
    let mut session = host.session()?;
    match drive(&mut session, &mut host)? {
        Ended::Complete => host.finish(&session),
        Ended::Interrupted(outcome) => host.interrupt(&session, outcome),
    }
}

impl<W: Executor> Host for JobHost<'_, W> {
    type Ciphertext = W::Ct;
    type Error = Error;
    type Interruption = AttemptOutcome;

    fn interruption(&mut self) -> Result<Option<AttemptOutcome>> {
        self.attempt.interruption()
    }

    fn step(&mut self, session: &Session<W::Ct>, request: StepRequest) -> Result<ModelState<W::Ct>> {
        let start = Instant::now();
        self.choose_circuit(request.range)?;
        let (executor, circuit) = (self.executor, &self.circuit.1);
        let uploaded = &self.training.batches;
        let pieces = executor.pieces_of(request.batch, uploaded.len());
        let rows = uploaded[pieces.clone()].iter().map(|row_blob| row_blob.rows).sum();
        let batches = &mut self.batches;
        let mut pieces =
            pieces.map(|piece| batches.get(piece, |again| executor.batch(circuit, &uploaded[piece], again)));
        let model = executor.step(circuit, session.model(), rows, &mut pieces, request.size)?;
        add(&self.attempt.core.metrics.iterations, 1);
        let elapsed = start.elapsed();
        add(&self.attempt.core.metrics.iteration_micros, elapsed.as_micros() as u64);
        let device = self.attempt.device.get().map_or("cpu", String::as_str);
        self.attempt.core.metrics.iteration_times.observe_time(device, elapsed);
        Ok(model)
    }

    fn refresh(&mut self, session: &Session<W::Ct>, range: f64) -> Result<ModelState<W::Ct>> {
        self.choose_circuit(range)?;
        self.executor.refresh(&self.circuit.1, session.model())
    }

    fn advanced(&mut self, session: &Session<W::Ct>, action: Action) -> Result<()> {
        let Action::Step { batch, .. } = action else { return Ok(()) };
        self.iterations += 1;
        let batches = self.executor.batches(self.training.batches.len());
        self.attempt.report(self.progress(session, v1::Phase::Training, batch + 1, batches))?;
        self.since_checkpoint += 1;
        // At the end of an epoch, the checkpoint is written together with the logits.
        let training = matches!(session.next_action(), Action::Step { .. } | Action::Refresh);
        if training && self.since_checkpoint >= self.attempt.core.config.checkpoint_every {
            self.save(session, Change::default())?;
        }
        Ok(())
    }

    fn verdict(
        &mut self,
        session: &Session<W::Ct>,
        epoch: usize,
        range: f64,
    ) -> Result<ControlFlow<AttemptOutcome, Verdict>> {
        if !self.asked
            && let Some(outcome) = self.request_verdict(session, epoch, range)?
        {
            return Ok(ControlFlow::Break(outcome));
        }
        self.await_verdict()
    }

    fn rounds(&self) -> usize {
        self.round as usize
    }

    fn judged(&mut self, session: &Session<W::Ct>) -> Result<()> {
        self.unchanged = 0;
        self.asked = false;
        let event = v1::event::What::Judged(v1::Judged { round: self.round });
        self.save(session, Change { state: Some(JobState::Running), event: Some(event), ..Change::default() })
    }
}

impl<'a, W: Executor> JobHost<'a, W> {
    fn new(attempt: &'a Attempt<'a>, executor: &'a W, training: &'a TrainingSpec) -> Result<Self> {
        let range = training.agreement.range;
        let (kept_batches, kept_validation) = resident_shares(attempt, executor, training);
        Ok(Self {
            attempt,
            executor,
            training,
            circuit: (range, executor.circuit(range)?),
            batches: PreparedCache::new(kept_batches),
            validation: PreparedCache::new(kept_validation),
            stored: Vec::new(),
            unchanged: 0,
            iterations: 0,
            since_checkpoint: 0,
            round: 0,
            asked: false,
            delayed_others: Duration::ZERO,
        })
    }

    /// The session of the last checkpoint, or a new one.
    fn session(&mut self) -> Result<Session<W::Ct>> {
        let (job, executor) = (self.attempt.job, self.executor);
        let Some(text) = &job.checkpoint else {
            let batches = executor.batches(self.training.batches.len());
            let weights = executor.first_weights(self.training)?;
            return Ok(Session::new(self.training.agreement.clone(), batches, weights)?);
        };
        let (checkpoint, names) = Checkpoint::parse(text)?;
        let mut ciphertexts = Vec::new();
        for name in names {
            ciphertexts.extend(executor.load(Namespace::Job(job.id), name, 1)?);
            let key = BlobKey::new(&job.tenant, Namespace::Job(job.id), name);
            self.stored.push((name, executor.blobs().len(&key)?.unwrap_or(0)));
        }
        let session = Session::resume(checkpoint.session, ciphertexts)?;
        self.unchanged = self.stored.len() - changing_ciphertexts(&session);
        (self.iterations, self.round, self.asked) = (checkpoint.iterations, checkpoint.round, checkpoint.asked);
        Ok(session)
    }

    fn progress(&self, session: &Session<W::Ct>, phase: v1::Phase, done: usize, total: usize) -> v1::Progress {
        let (done, total) = (done as u64, total as u64);
        let (phase, resting) = (phase.into(), false);
        let epoch = session.kept().last().map_or(0, |(epoch, _)| epoch as u32) + 1;
        v1::Progress { phase, done, total, epoch, iterations: self.iterations, resting }
    }

    fn choose_circuit(&mut self, range: f64) -> Result<()> {
        if self.circuit.0 != range {
            self.circuit = (range, self.executor.circuit(range)?);
        }
        Ok(())
    }

    /// Computes the validation logits and asks the owner for a verdict. From then on the job waits,
    /// even if this server ends. Returns an outcome if the attempt was interrupted before.
    fn request_verdict(
        &mut self,
        session: &Session<W::Ct>,
        epoch: usize,
        range: f64,
    ) -> Result<Option<AttemptOutcome>> {
        self.choose_circuit(range)?;
        let (executor, circuit, row_blobs) = (self.executor, &self.circuit.1, &self.training.validation);
        let expanded = executor.expand(circuit, session.weights())?;
        let mut logits = Vec::new();
        for (index, row_blob) in row_blobs.iter().enumerate() {
            if let Some(outcome) = self.attempt.interruption()? {
                return Ok(Some(outcome));
            }
            let progress = self.progress(session, v1::Phase::Validating, index, row_blobs.len());
            self.attempt.report(progress)?;
            let rows = self.validation.get(index, |again| executor.rows(circuit, row_blob, again))?;
            let (blob, size) = executor.put(&[executor.logits(circuit, &rows, &expanded)?])?;
            logits.push(v1::Output {
                blob: blob.to_vec().into(),
                size,
                epoch: epoch as u32,
                rows: row_blob.rows as u32,
            });
        }
        self.round += 1;
        self.asked = true;
        let validation = v1::Validation { round: self.round, epoch: epoch as u32, range, logits };
        let change = Change {
            state: Some(JobState::Waiting),
            round: Some(self.round),
            event: Some(v1::event::What::Validation(validation)),
            ..Change::default()
        };
        self.save(session, change)?;
        Ok(None)
    }

    /// Waits for the verdict. After `warm_seconds` the job waits in the queue, where it needs no
    /// memory. It gives way earlier if another job can run.
    fn await_verdict(&mut self) -> Result<ControlFlow<AttemptOutcome, Verdict>> {
        let until = Instant::now() + Duration::from_secs(self.attempt.core.config.warm_seconds);
        loop {
            let (seen, start) = (self.attempt.core.notifier.version(), Instant::now());
            if let Some(verdict) = self.attempt.core.state.verdict(self.attempt.job.id, self.round)? {
                return Ok(ControlFlow::Continue(verdict));
            }
            if let Some(outcome) = self.attempt.interruption()? {
                return Ok(ControlFlow::Break(outcome));
            }
            let contended = self.attempt.is_contended()?;
            let allowance = self.attempt.contended_wait().saturating_sub(self.delayed_others);
            if start >= until || contended && allowance.is_zero() && self.attempt.gives_way()? {
                return Ok(ControlFlow::Break(AttemptOutcome::Waiting));
            }
            let pause = if contended && !allowance.is_zero() { VERDICT_POLL.min(allowance) } else { VERDICT_POLL };
            self.attempt.core.notifier.wait(seen, pause);
            if contended {
                self.delayed_others += start.elapsed();
            }
        }
    }

    /// Writes a checkpoint and everything else that changes with it. Then deletes the ciphertexts
    /// that only the previous checkpoint named.
    fn save(&mut self, session: &Session<W::Ct>, change: Change) -> Result<()> {
        let (record, ciphertexts) = session.checkpoint();
        let mut stored: Vec<(BlobName, u64)> = Vec::new();
        for &ciphertext in &ciphertexts[..ciphertexts.len() - self.unchanged] {
            // This attempt has read or written every blob that the last checkpoint names.
            let known = |name| self.stored.iter().chain(&stored).any(|&(there, _)| there == name);
            let put = self.executor.put_unless_stored(std::slice::from_ref(ciphertext), known)?;
            stored.push(put);
        }
        stored.extend(&self.stored[self.stored.len() - self.unchanged..]);
        // One blob may stand for several ciphertexts, for example the weights at the start of an
        // epoch and the weights to return to.
        let held = Some(stored.iter().copied().collect::<BTreeMap<_, _>>().values().sum());
        let checkpoint = Checkpoint {
            session: record,
            ciphertexts: stored.iter().map(|(name, _)| name.to_string()).collect(),
            iterations: self.iterations,
            round: self.round,
            asked: self.asked,
        };
        self.attempt.commit(Change { checkpoint: Some(checkpoint.to_text()?), held, ..change })?;
        add(&self.attempt.core.metrics.checkpoints, 1);
        self.since_checkpoint = 0;
        self.unchanged = stored.len() - changing_ciphertexts(session);
        for (old, _) in std::mem::replace(&mut self.stored, stored) {
            if !self.stored.iter().any(|(name, _)| *name == old) {
                self.executor.delete_output(old);
            }
        }
        Ok(())
    }

    /// Saves the progress before another worker takes over.
    fn interrupt(&mut self, session: &Session<W::Ct>, outcome: AttemptOutcome) -> Result<AttemptOutcome> {
        if outcome == AttemptOutcome::Released && self.since_checkpoint > 0 {
            self.save(session, Change::default())?;
        }
        Ok(outcome)
    }

    fn finish(&self, session: &Session<W::Ct>) -> Result<AttemptOutcome> {
        let mut outputs = Vec::new();
        for (epoch, weights) in session.kept() {
            let (blob, size) = self.executor.put(weights)?;
            outputs.push(v1::Output { blob: blob.to_vec().into(), size, epoch: epoch as u32, rows: 0 });
        }
        self.attempt.finish(outputs)?;
        Ok(AttemptOutcome::Ended)
    }
}

/// The number of ciphertexts that every step changes. They come first in a checkpoint.
fn changing_ciphertexts<C: Clone>(session: &Session<C>) -> usize {
    let ModelState { weights, momentum, .. } = session.model();
    weights.len() + momentum.as_ref().map_or(0, Vec::len)
}

/// A cache of prepared batches. It keeps the first few and prepares the others each time. Batches
/// are used in turn, so a cache of the most recent ones would never hit.
struct PreparedCache<T> {
    kept: Vec<Option<Arc<T>>>,
}

impl<T> PreparedCache<T> {
    fn new(most: usize) -> Self {
        Self { kept: (0..most).map(|_| None).collect() }
    }

    /// `make` is told whether it will have to prepare the same batch again.
    fn get(&mut self, index: usize, make: impl FnOnce(bool) -> Result<T>) -> Result<Arc<T>> {
        match self.kept.get_mut(index) {
            None => Ok(Arc::new(make(true)?)),
            Some(Some(kept)) => Ok(Arc::clone(kept)),
            Some(slot) => Ok(Arc::clone(slot.insert(Arc::new(make(false)?)))),
        }
    }
}

/// How many batches and validation blobs stay prepared. One place remains free for blobs that are
/// prepared each time.
fn resident_shares<W: Executor>(attempt: &Attempt<'_>, executor: &W, training: &TrainingSpec) -> (usize, usize) {
    let fit = executor.batch_capacity(bytes_of_gib(attempt.core.config.prepared_gib));
    let (batches, validation): (&[RowBlob], &[RowBlob]) = (&training.batches, &training.validation);
    if batches.len() + validation.len() <= fit {
        return (batches.len(), validation.len());
    }
    let batches = batches.len().min(fit.saturating_sub(1));
    (batches, validation.len().min(fit.saturating_sub(1 + batches)))
}
