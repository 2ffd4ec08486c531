//! Runs a training job: the driver of `hetal-learn` over blobs and state, from the last checkpoint
//! on.

use crate::compute::executor::Executor;
use crate::config::bytes_of_gib;
use crate::jobs::spec::{RowBlob, TrainingSpec};
use crate::store::blobs::{BlobKey, Namespace};
use crate::store::state::{Change, JobState};
use crate::worker::attempt::Attempt;
use crate::worker::checkpoint::Checkpoint;
use crate::worker::retry::AttemptOutcome;
use crate::worker::storable_ciphertext::{StorableCiphertext, unwrap_model, wrap_model};
use crate::{Error, Result};
use hetal_learn::driver::{Ended, Host, StepRequest, drive};
use hetal_learn::session::{Action, CheckRequest};
use hetal_learn::trainer::ModelState;
use hetal_learn::{Session, Verdict};
use hetal_wire::{BlobName, v1};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a job that can only wait for a verdict looks for it and for other jobs.
const VERDICT_POLL: Duration = Duration::from_millis(500);

/// The session of a job.
type SessionOf<W> = Session<StorableCiphertext<<W as Executor>::Ct>>;

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
    /// The logits of the check that is being opened.
    logits: Vec<v1::Output>,
    iterations: u64,
    since_checkpoint: u64,
    /// Verdicts before this round were taken by an attempt that told the owner of it.
    told: u32,
    /// The repeats of the session.
    repeats: usize,
    /// Whether the state has the job as waiting.
    waits: bool,
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
    type Ciphertext = StorableCiphertext<W::Ct>;
    type Error = Error;
    type Interruption = AttemptOutcome;

    fn interruption(&mut self) -> Result<Option<AttemptOutcome>> {
        self.attempt.interruption()
    }

    fn step(&mut self, session: &SessionOf<W>, request: StepRequest) -> Result<ModelState<StorableCiphertext<W::Ct>>> {
        let start = Instant::now();
        self.choose_circuit(request.range)?;
        let (executor, circuit) = (self.executor, &self.circuit.1);
        let uploaded = &self.training.batches;
        let pieces = executor.pieces_of(request.batch, uploaded.len());
        let rows = uploaded[pieces.clone()].iter().map(|row_blob| row_blob.rows).sum();
        let batches = &mut self.batches;
        let mut pieces =
            pieces.map(|piece| batches.get(piece, |again| executor.batch(circuit, &uploaded[piece], again)));
        let model = executor.step(circuit, &unwrap_model(session.model()), rows, &mut pieces, request.size)?;
        let (elapsed, metrics) = (start.elapsed(), &self.attempt.core.metrics);
        metrics.iterations.inc();
        metrics.iteration_seconds.inc_by(elapsed.as_secs_f64());
        let device = self.attempt.device.get().map_or("cpu", String::as_str);
        metrics.iteration_times.observe_time(device, elapsed);
        Ok(wrap_model(model))
    }

    fn refresh(&mut self, session: &SessionOf<W>, range: f64) -> Result<ModelState<StorableCiphertext<W::Ct>>> {
        self.choose_circuit(range)?;
        Ok(wrap_model(self.executor.refresh(&self.circuit.1, &unwrap_model(session.model()))?))
    }

    fn advanced(&mut self, session: &SessionOf<W>, action: Action) -> Result<()> {
        let Action::Step { batch, .. } = action else { return Ok(()) };
        self.iterations += 1;
        let batches = self.executor.batches(self.training.batches.len());
        self.attempt.report(self.progress(session, v1::Phase::Training, batch + 1, batches));
        self.since_checkpoint += 1;
        // At a check, the checkpoint is written together with the logits.
        let training = matches!(session.next_action(), Action::Step { .. } | Action::Refresh);
        if training && self.since_checkpoint >= self.attempt.core.config.checkpoint_every {
            self.save(session, Change::default())?;
        }
        Ok(())
    }

    /// Computes the validation logits. Their blobs are stored, and nobody is told of them yet.
    fn validate(&mut self, session: &SessionOf<W>, check: CheckRequest) -> Result<ControlFlow<AttemptOutcome>> {
        self.choose_circuit(check.range)?;
        let (executor, circuit, row_blobs) = (self.executor, &self.circuit.1, &self.training.validation);
        let weights: Vec<_> = session.weights().iter().map(StorableCiphertext::to_ciphertext).collect();
        let expanded = executor.expand(circuit, &weights)?;
        self.logits.clear();
        for (index, row_blob) in row_blobs.iter().enumerate() {
            if let Some(outcome) = self.attempt.interruption()? {
                return Ok(ControlFlow::Break(outcome));
            }
            let progress = self.progress(session, v1::Phase::Validating, index, row_blobs.len());
            self.attempt.report(progress);
            let rows = self.validation.get(index, |again| executor.rows(circuit, row_blob, again))?;
            let logits = executor.logits(circuit, &rows, &expanded)?;
            let (blob, size) = executor.put_logits(&logits)?;
            let (check, rows) = (check.number as u32, row_blob.rows as u32);
            self.logits.push(v1::Output { blob: blob.to_vec().into(), size, check, rows });
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Asks the owner for a verdict. From now on the check is open, even if this server ends.
    fn opened(&mut self, session: &SessionOf<W>, check: CheckRequest) -> Result<()> {
        let CheckRequest { number, round, repeats, range } = check;
        let logits = std::mem::take(&mut self.logits);
        let (round, check, repeats) = (round as u32, number as u32, repeats as u32);
        let validation = v1::Validation { round, check, range, logits, repeats };
        let event = Some(v1::event::What::Validation(validation));
        self.save(session, Change { event, ..self.rounds(session) })
    }

    fn verdict(&mut self, session: &SessionOf<W>) -> Result<Option<Verdict>> {
        self.attempt.core.state.verdict(self.attempt.job.id, session.rounds() as u32 + 1)
    }

    /// Waits for the verdict without work to do. After `warm_seconds` the job waits in the queue,
    /// where it needs no memory. It gives way earlier if another job can run.
    fn await_verdict(&mut self, session: &SessionOf<W>) -> Result<ControlFlow<AttemptOutcome, Verdict>> {
        let until = Instant::now() + Duration::from_secs(self.attempt.core.config.warm_seconds);
        if !std::mem::replace(&mut self.waits, true) {
            self.attempt.commit(Change { state: Some(JobState::Waiting), ..Change::default() })?;
        }
        loop {
            let (seen, start) = (self.attempt.core.notifier.version(), Instant::now());
            if let Some(verdict) = self.verdict(session)? {
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

    /// A verdict that accepts a check and goes on needs no checkpoint: whoever resumes finds the
    /// check open and its verdict in the state.
    fn judged(&mut self, session: &SessionOf<W>) -> Result<()> {
        let round = session.rounds() as u32;
        let event = (round >= self.told).then_some(v1::event::What::Judged(v1::Judged { round }));
        let goes_on = session.repeats() == self.repeats && session.next_action() != Action::Return;
        self.waits = false;
        let change = Change { state: Some(JobState::Running), event, ..self.rounds(session) };
        if goes_on {
            return self.attempt.commit(change);
        }
        self.repeats = session.repeats();
        self.save(session, change)
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
            logits: Vec::new(),
            iterations: 0,
            since_checkpoint: 0,
            told: attempt.job.round,
            repeats: 0,
            waits: false,
            delayed_others: Duration::ZERO,
        })
    }

    /// The session of the last checkpoint, or a new one.
    fn session(&mut self) -> Result<SessionOf<W>> {
        let (job, executor) = (self.attempt.job, self.executor);
        let Some(text) = &job.checkpoint else {
            let batches = executor.batches(self.training.batches.len());
            let weights = executor.first_weights(self.training)?.into_iter().map(StorableCiphertext::new).collect();
            return Ok(Session::new(self.training.agreement.clone(), batches, weights)?);
        };
        let (checkpoint, names) = Checkpoint::parse(text)?;
        let (mut ciphertexts, mut read) = (Vec::new(), BTreeMap::new());
        for name in names {
            // One blob may stand for several ciphertexts, for example the last accepted weights and
            // weights to return.
            let ciphertext = match read.get(&name) {
                Some(known) => StorableCiphertext::clone(known),
                None => {
                    // Before it is read: if another worker has the job by now, the blob may go.
                    let size = executor.blobs().len(&BlobKey::new(&job.tenant, Namespace::Job(job.id), name))?;
                    let one = executor.load(Namespace::Job(job.id), name, 1)?.try_into();
                    let [ciphertext] = one.map_err(|_| Error::failed(format!("blob {name}: not one ciphertext")))?;
                    StorableCiphertext::stored(ciphertext, (name, size.unwrap_or(0)))
                }
            };
            read.insert(name, ciphertext.clone());
            self.stored.extend(ciphertext.blob());
            ciphertexts.push(ciphertext);
        }
        let session = Session::resume(checkpoint.session, ciphertexts)?;
        (self.iterations, self.repeats) = (checkpoint.iterations, session.repeats());
        Ok(session)
    }

    /// The rounds of a session, as the state has them.
    fn rounds(&self, session: &SessionOf<W>) -> Change {
        let (taken, open) = (session.rounds(), session.open());
        let round = Some(taken as u32 + 1);
        Change { round, announced: Some((taken + open) as u32), ..Change::default() }
    }

    fn progress(&self, session: &SessionOf<W>, phase: v1::Phase, done: usize, total: usize) -> v1::Progress {
        let (done, total) = (done as u64, total as u64);
        let (phase, resting) = (phase.into(), false);
        let batches = self.executor.batches(self.training.batches.len()).max(1);
        let epoch = (session.iteration().saturating_sub(1) / batches) as u32 + 1;
        v1::Progress { phase, done, total, epoch, iterations: self.iterations, resting }
    }

    fn choose_circuit(&mut self, range: f64) -> Result<()> {
        if self.circuit.0 != range {
            self.circuit = (range, self.executor.circuit(range)?);
        }
        Ok(())
    }

    /// Writes a checkpoint and everything else that changes with it. Then deletes the ciphertexts
    /// that only the previous checkpoint named.
    fn save(&mut self, session: &SessionOf<W>, change: Change) -> Result<()> {
        let (record, ciphertexts) = session.checkpoint();
        let mut stored: Vec<(BlobName, u64)> = Vec::new();
        for ciphertext in ciphertexts {
            // This attempt has read or written every blob that the last checkpoint names.
            let known = |name| self.stored.iter().chain(&stored).any(|&(there, _)| there == name);
            let blob = match ciphertext.blob().filter(|(name, _)| known(*name)) {
                Some(blob) => blob,
                None => {
                    let one = std::slice::from_ref(ciphertext.ciphertext());
                    let blob = self.executor.put_unless_stored(one, known)?;
                    ciphertext.set_blob(blob);
                    blob
                }
            };
            stored.push(blob);
        }
        let checkpoint_bytes = Some(stored.iter().copied().collect::<BTreeMap<_, _>>().values().sum());
        let names = stored.iter().map(|(name, _)| name.to_string()).collect();
        let checkpoint = Checkpoint::new(record, names, self.iterations);
        self.attempt.commit(Change { checkpoint: Some(checkpoint.to_text()?), checkpoint_bytes, ..change })?;
        self.attempt.core.metrics.checkpoints.inc();
        self.since_checkpoint = 0;
        let left: BTreeSet<_> = stored.iter().map(|(name, _)| *name).collect();
        let before: BTreeSet<_> = self.stored.iter().map(|(name, _)| *name).collect();
        self.stored = stored;
        before.difference(&left).for_each(|old| self.executor.delete_output(*old));
        Ok(())
    }

    /// Saves the progress before another worker takes over.
    fn interrupt(&mut self, session: &SessionOf<W>, outcome: AttemptOutcome) -> Result<AttemptOutcome> {
        let goes_on = matches!(outcome, AttemptOutcome::Released | AttemptOutcome::Waiting);
        if goes_on && self.since_checkpoint > 0 {
            self.save(session, Change::default())?;
        }
        Ok(outcome)
    }

    fn finish(&self, session: &SessionOf<W>) -> Result<AttemptOutcome> {
        let mut outputs = Vec::new();
        for (check, weights) in session.kept() {
            let weights: Vec<_> = weights.iter().map(StorableCiphertext::to_ciphertext).collect();
            let (blob, size) = self.executor.put(&weights)?;
            outputs.push(v1::Output { blob: blob.to_vec().into(), size, check: check as u32, rows: 0 });
        }
        self.attempt.finish(outputs)?;
        Ok(AttemptOutcome::Ended)
    }
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
