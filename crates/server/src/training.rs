//! A training on the server: the session of `learn`, driven over blobs and state, and taken up again wherever it stopped.

use crate::blobs::{Key, Shelf};
use crate::metrics::add;
use crate::outcome::Outcome;
use crate::state::{Change, JobState};
use crate::work::{Classification, Part, Training};
use crate::worker::Desk;
use crate::workshop::Workshop;
use crate::{Error, Result};
use hetal_learn::session::{Action, CheckpointRecord};
use hetal_learn::trainer::Model;
use hetal_learn::{Session, Verdict};
use hetal_wire::{BlobName, v1};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where a training goes on.
#[derive(Serialize, Deserialize)]
pub struct Checkpoint {
    /// The session, but for its ciphertexts.
    pub session: CheckpointRecord,
    /// Its ciphertexts, in the session's order.
    ciphertexts: Vec<String>,
    iterations: u64,
    /// Validations so far.
    round: u32,
    /// Whether the client was asked about the last of them and its verdict has not been taken yet.
    asked: bool,
}

impl Checkpoint {
    /// The checkpoint in a text, and the names of its ciphertexts.
    pub fn parse(text: &str) -> Result<(Self, Vec<BlobName>)> {
        let broken = |e: &dyn std::fmt::Display| Error::work(format!("the checkpoint makes no sense: {e}"));
        let checkpoint: Self = serde_json::from_str(text).map_err(|e| broken(&e))?;
        let names = checkpoint.ciphertexts.iter().map(|name| name.parse().map_err(|e| broken(&e)));
        let names = names.collect::<Result<_>>()?;
        Ok((checkpoint, names))
    }
}

/// A training in progress.
struct Run<'a, W: Workshop> {
    desk: &'a Desk<'a>,
    shop: &'a W,
    training: &'a Training,
    session: Session<W::Ct>,
    /// The circuit of the range in use.
    circuit: (f64, W::Circuit),
    batches: Prepared<W::Batch>,
    validation: Prepared<W::Rows>,
    /// Ciphertexts of the last checkpoint, and their bytes.
    stored: Vec<(BlobName, u64)>,
    /// How many of its last ones no step changes, only a verdict: the start of the epoch, and the weights that are kept.
    settled: usize,
    iterations: u64,
    since_checkpoint: u64,
    round: u32,
    asked: bool,
}

/// Trains, from the last checkpoint on.
pub fn train<W: Workshop>(desk: &Desk<'_>, shop: &W, training: &Training) -> Result<Outcome> {
    let mut run = Run::resume(desk, shop, training)?;
    loop {
        if let Some(outcome) = desk.interruption()? {
            return run.interrupt(outcome);
        }
        match run.session.next_action() {
            Action::Step { batch, rate, range } => run.step(batch, rate, range)?,
            Action::Refresh => run.refresh()?,
            Action::Validate { epoch, range } => {
                if !run.asked
                    && let Some(outcome) = run.ask(epoch, range)?
                {
                    return run.interrupt(outcome);
                }
                match run.verdict()? {
                    Ok(verdict) => run.judged(verdict)?,
                    Err(outcome) => return Ok(outcome),
                }
            }
            Action::Return => return run.finish(),
        }
    }
}

impl<'a, W: Workshop> Run<'a, W> {
    fn resume(desk: &'a Desk<'a>, shop: &'a W, training: &'a Training) -> Result<Self> {
        let range = training.agreement.range;
        let (kept_batches, kept_validation) = shares(desk, shop, training);
        let mut run = Self {
            desk,
            shop,
            training,
            session: Session::new(
                training.agreement.clone(),
                shop.batches(training.batches.len()),
                shop.first_weights(training)?,
            )
            .map_err(Error::work)?,
            circuit: (range, shop.circuit(range)?),
            batches: Prepared::new(kept_batches),
            validation: Prepared::new(kept_validation),
            stored: Vec::new(),
            settled: 0,
            iterations: 0,
            since_checkpoint: 0,
            round: 0,
            asked: false,
        };
        let Some(text) = &desk.job.checkpoint else { return Ok(run) };
        let (checkpoint, names) = Checkpoint::parse(text)?;
        let mut ciphertexts = Vec::new();
        for name in names {
            ciphertexts.extend(shop.get(Shelf::Job(desk.job.id), name, 1)?);
            let key = Key::new(&desk.job.tenant, Shelf::Job(desk.job.id), name);
            run.stored.push((name, shop.blobs().len(&key)?.unwrap_or(0)));
        }
        run.session = Session::resume(checkpoint.session, ciphertexts).map_err(Error::work)?;
        run.settled = run.stored.len() - run.moving();
        (run.iterations, run.round, run.asked) = (checkpoint.iterations, checkpoint.round, checkpoint.asked);
        Ok(run)
    }

    /// Ciphertexts that every step changes: the first of a checkpoint.
    fn moving(&self) -> usize {
        let Model { weights, lookahead, momentum, .. } = self.session.model();
        weights.len() + [lookahead, momentum].into_iter().flatten().map(Vec::len).sum::<usize>()
    }

    fn epoch(&self) -> u32 {
        self.session.kept().last().map_or(0, |(epoch, _)| epoch as u32) + 1
    }

    fn progress(&self, phase: v1::Phase, done: usize, total: usize) -> v1::Progress {
        let (done, total) = (done as u64, total as u64);
        let (phase, resting) = (phase.into(), false);
        v1::Progress { phase, done, total, epoch: self.epoch(), iterations: self.iterations, resting }
    }

    fn choose_circuit(&mut self, range: f64) -> Result<()> {
        if self.circuit.0 != range {
            self.circuit = (range, self.shop.circuit(range)?);
        }
        Ok(())
    }

    fn step(&mut self, index: usize, rate: f64, range: f64) -> Result<()> {
        let start = Instant::now();
        self.choose_circuit(range)?;
        let (shop, circuit) = (self.shop, &self.circuit.1);
        let sent = &self.training.batches;
        let pieces = shop.pieces_of(index, sent.len());
        let rows = sent[pieces.clone()].iter().map(|part| part.rows).sum();
        let batches = &mut self.batches;
        let mut pieces = pieces.map(|piece| batches.get(piece, || shop.batch(circuit, &sent[piece])));
        let model = shop.step(circuit, self.session.model(), (rows, &mut pieces), rate)?;
        self.session.stepped(model).map_err(Error::work)?;
        self.iterations += 1;
        add(&self.desk.metrics.iterations, 1);
        add(&self.desk.metrics.iteration_micros, start.elapsed().as_micros() as u64);
        let batches = shop.batches(sent.len());
        self.desk.report(self.progress(v1::Phase::Training, index + 1, batches))?;
        self.since_checkpoint += 1;
        // At the end of an epoch the checkpoint comes with the logits.
        let training = matches!(self.session.next_action(), Action::Step { .. } | Action::Refresh);
        if training && self.since_checkpoint >= self.desk.config.checkpoint_every {
            self.save(Change::default())?;
        }
        Ok(())
    }

    fn refresh(&mut self) -> Result<()> {
        let model = self.shop.refresh(&self.circuit.1, self.session.model())?;
        self.session.stepped(model).map_err(Error::work)
    }

    /// Computes the validation logits and asks the client about them: from then on the job waits, whatever happens to this server. Gives
    /// why it did not, if it was interrupted.
    fn ask(&mut self, epoch: usize, range: f64) -> Result<Option<Outcome>> {
        self.choose_circuit(range)?;
        let (shop, circuit, parts) = (self.shop, &self.circuit.1, &self.training.validation);
        let expanded = shop.expand(circuit, self.session.weights())?;
        let mut logits = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            if let Some(outcome) = self.desk.interruption()? {
                return Ok(Some(outcome));
            }
            self.desk.report(self.progress(v1::Phase::Validating, index, parts.len()))?;
            let rows = self.validation.get(index, || shop.rows(circuit, part))?;
            let (blob, size) = shop.put(&[shop.logits(circuit, &rows, &expanded)?])?;
            logits.push(v1::Output { blob: blob.to_vec().into(), size, epoch: epoch as u32, rows: part.rows as u32 });
        }
        self.round += 1;
        self.asked = true;
        let validation = v1::Validation { round: self.round, epoch: epoch as u32, range, logits };
        self.save(Change {
            state: Some(JobState::Waiting),
            round: Some(self.round),
            event: Some(v1::event::What::Validation(validation)),
            ..Change::default()
        })?;
        Ok(None)
    }

    /// Waits for the verdict: for a while here, then in the queue, where the job needs no memory.
    fn verdict(&self) -> Result<std::result::Result<Verdict, Outcome>> {
        let until = Instant::now() + Duration::from_secs(self.desk.config.warm_seconds);
        loop {
            let heard = self.desk.bell.count();
            if let Some(verdict) = self.desk.state.verdict(self.desk.job.id, self.round)? {
                return Ok(Ok(verdict));
            }
            if let Some(outcome) = self.desk.interruption()? {
                return Ok(Err(outcome));
            }
            if Instant::now() >= until {
                return Ok(Err(Outcome::Waiting));
            }
            self.desk.bell.wait(heard, Duration::from_millis(500));
        }
    }

    fn judged(&mut self, verdict: Verdict) -> Result<()> {
        self.session.judged(verdict).map_err(Error::work)?;
        self.settled = 0;
        // Repeated epochs cost as much as others and tell the server as much: they count.
        if self.round as usize >= self.training.agreement.max_epochs {
            self.session.abort();
        }
        self.asked = false;
        let event = v1::event::What::Judged(v1::Judged { round: self.round });
        self.save(Change { state: Some(JobState::Running), event: Some(event), ..Change::default() })
    }

    /// Writes a checkpoint and whatever else changes with it; then the ciphertexts of the last one that are not in this one can go.
    fn save(&mut self, change: Change) -> Result<()> {
        let (session, ciphertexts) = self.session.checkpoint();
        let mut stored: Vec<(BlobName, u64)> = Vec::new();
        for &ciphertext in &ciphertexts[..ciphertexts.len() - self.settled] {
            // What the last checkpoint names was read or written by this attempt.
            let known = |name| self.stored.iter().chain(&stored).any(|&(there, _)| there == name);
            let put = self.shop.put_unless(std::slice::from_ref(ciphertext), known)?;
            stored.push(put);
        }
        stored.extend(&self.stored[self.stored.len() - self.settled..]);
        // One blob may stand for several ciphertexts: the weights at the beginning of an epoch, for example, and those to come back to.
        let held = Some(stored.iter().copied().collect::<BTreeMap<_, _>>().values().sum());
        let checkpoint = Checkpoint {
            session,
            ciphertexts: stored.iter().map(|(name, _)| name.to_string()).collect(),
            iterations: self.iterations,
            round: self.round,
            asked: self.asked,
        };
        let checkpoint = serde_json::to_string(&checkpoint).map_err(Error::work)?;
        self.desk.commit(Change { checkpoint: Some(checkpoint), held, ..change })?;
        add(&self.desk.metrics.checkpoints, 1);
        self.since_checkpoint = 0;
        self.settled = stored.len() - self.moving();
        for (old, _) in std::mem::replace(&mut self.stored, stored) {
            if !self.stored.iter().any(|(name, _)| *name == old) {
                self.shop.forget(old);
            }
        }
        Ok(())
    }

    /// Keeps what was done before another worker takes over.
    fn interrupt(&mut self, outcome: Outcome) -> Result<Outcome> {
        if outcome == Outcome::Released && self.since_checkpoint > 0 {
            self.save(Change::default())?;
        }
        Ok(outcome)
    }

    fn finish(&mut self) -> Result<Outcome> {
        let mut outputs = Vec::new();
        for (epoch, weights) in self.session.kept() {
            let (blob, size) = self.shop.put(weights)?;
            outputs.push(v1::Output { blob: blob.to_vec().into(), size, epoch: epoch as u32, rows: 0 });
        }
        self.desk.finish(outputs)?;
        Ok(Outcome::Ended)
    }
}

/// Logits of queries under weights that a training left.
pub fn classify<W: Workshop>(desk: &Desk<'_>, shop: &W, work: &Classification) -> Result<Outcome> {
    let circuit = shop.circuit(work.training.agreement.range)?;
    let weights = shop.get(Shelf::Job(work.job), work.weights, shop.parts())?;
    let weights = shop.expand(&circuit, &weights)?;
    let mut outputs = Vec::new();
    for (index, part) in work.queries.iter().enumerate() {
        if let Some(outcome) = desk.interruption()? {
            return Ok(outcome);
        }
        let (done, total) = (index as u64, work.queries.len() as u64);
        let phase = v1::Phase::Classifying.into();
        desk.report(v1::Progress { phase, done, total, ..v1::Progress::default() })?;
        let rows = shop.rows(&circuit, part)?;
        let (blob, size) = shop.put(&[shop.logits(&circuit, &rows, &weights)?])?;
        outputs.push(v1::Output { blob: blob.to_vec().into(), size, epoch: 0, rows: part.rows as u32 });
    }
    desk.finish(outputs)?;
    Ok(Outcome::Ended)
}

/// Batches that were prepared: the first so many are kept, the others made each time. Batches come round and round, so keeping the most
/// recent ones would keep none that is needed next.
struct Prepared<T> {
    kept: Vec<Option<Arc<T>>>,
}

impl<T> Prepared<T> {
    fn new(most: usize) -> Self {
        Self { kept: (0..most).map(|_| None).collect() }
    }

    fn get(&mut self, index: usize, make: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        match self.kept.get_mut(index) {
            None => Ok(Arc::new(make()?)),
            Some(Some(kept)) => Ok(Arc::clone(kept)),
            Some(place) => Ok(Arc::clone(place.insert(Arc::new(make()?)))),
        }
    }
}

/// How many batches and validation blobs are kept prepared: as many as fit, one place left for what is made each time.
fn shares<W: Workshop>(desk: &Desk<'_>, shop: &W, training: &Training) -> (usize, usize) {
    let fit = shop.room((desk.config.prepared_gib * (1u64 << 30) as f64) as u64);
    let (batches, validation): (&[Part], &[Part]) = (&training.batches, &training.validation);
    if batches.len() + validation.len() <= fit {
        return (batches.len(), validation.len());
    }
    let batches = batches.len().min(fit.saturating_sub(1));
    (batches, validation.len().min(fit.saturating_sub(1 + batches)))
}
