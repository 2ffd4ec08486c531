//! The training loop as a state machine without input or output.
//!
//! A session names the next action ([`Session::next_action`]). Its driver ([`crate::driver`])
//! executes the action with an engine, a network or a disk, and reports the result. Every state can
//! be saved ([`Session::checkpoint`]) and resumed.
//!
//! Every [`Agreement::check_every`] iterations the weights are checked: their validation logits go
//! to the client, who answers with a verdict. The session trains on meanwhile. At most
//! [`MOST_OPEN`] checks wait for their verdicts; the model of each is kept. Verdicts are taken in
//! order. One that repeats iterations throws away everything after the last accepted check:
//!
//! ```text
//! accepted      open checks         model
//!    ●───────────○───────○───────────▶        continue: the first open check is accepted
//!    ●▶                                       lower the rate, widen the range: back to here
//! ```
//!
//! The weights that a session returns depend on the verdicts alone, and not on when they came.

use crate::agreement::Agreement;
use crate::judge::{Verdict, wider};
use crate::nesterov::{Recursion, StepSize};
use crate::trainer::ModelState;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The most times that a client may go back to the last accepted check in a training, so that every
/// job ends.
pub const MOST_REPEATS: usize = 8;

/// The most checks that wait for their verdicts. On a fast GPU, sixteen checks of four iterations
/// take longer than the two seconds of a verdict, so that the server does not wait. The model of
/// each open check is in memory, and a verdict that goes back wastes the iterations after it.
pub const MOST_OPEN: usize = 16;

/// The next action of a session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// A step on a batch, of a size, with the softmax of a range. Answered by [`Session::stepped`].
    Step {
        /// The batch.
        batch: usize,
        /// The learning rate and the strength of L2.
        size: StepSize,
        /// The softmax's range.
        range: f64,
    },
    /// A refresh of the model. Answered by [`Session::stepped`], too.
    Refresh,
    /// Send validation logits of [`Session::weights`] to the client. Answered by
    /// [`Session::opened`].
    Validate(CheckRequest),
    /// Wait for the verdict on the first open check. Answered by [`Session::judged`].
    Await,
    /// The end: return the kept weights to the client.
    Return,
}

/// A check of the weights by the client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckRequest {
    /// Its number among the accepted checks, counted from 1.
    pub number: usize,
    /// The number of its verdict, counted from 1: the accepted checks and the repeats before it
    /// count. A check that a repeat throws away has no verdict, and another check has its round.
    pub round: usize,
    /// The repeats before it.
    pub repeats: usize,
    /// The range whose scale the logits are divided by.
    pub range: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    Training,
    Finished,
}

/// A training in progress.
#[derive(Clone, Debug)]
pub struct Session<C> {
    agreement: Agreement,
    batches: usize,
    model: ModelState<C>,
    /// The iterations that led to the model, without repeated ones.
    iteration: usize,
    /// The models of the open checks, in order.
    open: VecDeque<ModelState<C>>,
    /// The model of the last accepted check, or the first one.
    accepted: ModelState<C>,
    kept: VecDeque<(usize, Vec<C>)>,
    /// The accepted checks.
    checks: usize,
    rate: f64,
    range: f64,
    repeats: usize,
    phase: Phase,
}

impl<C: Clone> Session<C> {
    /// A session before its first step, with `batches` steps an epoch, from the parts of the first
    /// weights.
    pub fn new(agreement: Agreement, batches: usize, weights: Vec<C>) -> Result<Self> {
        if batches == 0 {
            return Err(Error::NoRows);
        }
        let model = ModelState::new(weights, agreement.momentum);
        Ok(Self {
            batches,
            accepted: model.clone(),
            model,
            iteration: 0,
            open: VecDeque::new(),
            kept: VecDeque::new(),
            checks: 0,
            rate: agreement.rate,
            range: agreement.range,
            repeats: 0,
            phase: Phase::Training,
            agreement,
        })
    }

    /// The agreement of the training.
    pub fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// The current model.
    pub fn model(&self) -> &ModelState<C> {
        &self.model
    }

    /// How often the session went back to the last accepted check.
    pub fn repeats(&self) -> usize {
        self.repeats
    }

    /// The range of the softmax in use.
    pub fn range(&self) -> f64 {
        self.range
    }

    /// The current weights. At a check these are validated.
    pub fn weights(&self) -> &[C] {
        &self.model.weights
    }

    /// The iterations that led to the current model, without repeated ones.
    pub fn iteration(&self) -> usize {
        self.iteration
    }

    /// The number of open checks.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// The verdicts taken so far.
    pub fn rounds(&self) -> usize {
        self.checks + self.repeats
    }

    /// The weights of the last accepted checks, at most `patience + 1`, each with its number. All
    /// of them are returned, so that the server does not learn which one the client chooses.
    pub fn kept(&self) -> impl Iterator<Item = (usize, &[C])> {
        self.kept.iter().map(|(check, weights)| (*check, &weights[..]))
    }

    /// What the driver must do next. It may take a verdict on the first open check at any time.
    pub fn next_action(&self) -> Action {
        if self.phase == Phase::Finished {
            return Action::Return;
        }
        let due = self.is_check_due();
        if self.needs_refresh() {
            Action::Refresh
        } else if due && self.open.len() < MOST_OPEN {
            Action::Validate(self.next_check())
        } else if due || self.is_complete() {
            Action::Await
        } else {
            let size = StepSize { rate: self.rate, alpha: self.agreement.alpha };
            Action::Step { batch: self.iteration % self.batches, size, range: self.range }
        }
    }

    /// The check that follows the open ones.
    fn next_check(&self) -> CheckRequest {
        let (ahead, repeats) = (self.open.len() + 1, self.repeats);
        CheckRequest { number: self.checks + ahead, round: self.rounds() + ahead, repeats, range: self.range }
    }

    /// Whether all checks are accepted or open.
    fn is_complete(&self) -> bool {
        self.checks + self.open.len() == self.agreement.checks(self.batches)
    }

    /// Whether the current weights are those of the next check.
    fn is_check_due(&self) -> bool {
        let next = self.checks + self.open.len() + 1;
        !self.is_complete() && self.iteration == self.agreement.iterations_until(next, self.batches)
    }

    /// Whether the model is refreshed next. Weights that are judged and kept carry no factor.
    fn needs_refresh(&self) -> bool {
        let recursion = &self.model.recursion;
        let is_due = recursion.needs_refresh() || self.is_check_due() && !recursion.has_plain_weights();
        is_due && !self.is_complete() && self.phase == Phase::Training
    }

    /// The model after the step or the refresh that [`Session::next_action`] asked for.
    pub fn stepped(&mut self, model: ModelState<C>) -> Result<()> {
        match self.next_action() {
            Action::Refresh => {}
            Action::Step { .. } => self.iteration += 1,
            _ => return Err(self.out_of_turn("a step")),
        }
        self.model = model;
        Ok(())
    }

    /// The client has the validation logits that [`Session::next_action`] asked for.
    pub fn opened(&mut self) -> Result<()> {
        if !matches!(self.next_action(), Action::Validate(_)) {
            return Err(self.out_of_turn("a check"));
        }
        self.open.push_back(self.model.clone());
        Ok(())
    }

    /// Takes the client's verdict on the first open check. More repeats than [`MOST_REPEATS`], or a
    /// range beyond the widest, count as a stop.
    pub fn judged(&mut self, verdict: Verdict) -> Result<()> {
        let Some(judged) = self.open.pop_front() else { return Err(self.out_of_turn("a verdict")) };
        match (verdict, wider(self.range)) {
            (Verdict::LowerRate, _) if self.repeats < MOST_REPEATS => {
                self.repeat(self.rate * self.agreement.lowering, self.range);
            }
            (Verdict::WidenRange, Some(range)) if self.repeats < MOST_REPEATS => self.repeat(self.rate, range),
            (verdict, _) => self.accept(judged, verdict != Verdict::Continue),
        }
        Ok(())
    }

    fn accept(&mut self, judged: ModelState<C>, last: bool) {
        self.checks += 1;
        self.kept.push_back((self.checks, judged.weights.clone()));
        while self.kept.len() > self.agreement.patience + 1 {
            self.kept.pop_front();
        }
        self.accepted = judged;
        if last || self.checks == self.agreement.checks(self.batches) {
            self.go_back();
            self.phase = Phase::Finished;
        }
    }

    fn repeat(&mut self, rate: f64, range: f64) {
        self.repeats += 1;
        (self.rate, self.range) = (rate, range);
        self.go_back();
    }

    /// Back to the last accepted check.
    fn go_back(&mut self) {
        self.open.clear();
        self.model = self.accepted.clone();
        self.iteration = self.agreement.iterations_until(self.checks, self.batches);
    }

    fn out_of_turn(&self, got: &'static str) -> Error {
        let waiting = match self.next_action() {
            Action::Step { .. } => "training",
            Action::Refresh => "refreshing",
            Action::Validate(_) => "validating",
            Action::Await => "waiting for a verdict",
            Action::Return => "finished",
        };
        Error::OutOfTurn { got, waiting }
    }

    /// The checkpoint: a record to store, and the ciphertexts it refers to, in order.
    pub fn checkpoint(&self) -> (CheckpointRecord, Vec<&C>) {
        let record = CheckpointRecord {
            agreement: self.agreement.clone(),
            batches: self.batches,
            parts: self.model.weights.len(),
            model: ModelRecord::of(&self.model),
            open: self.open.iter().map(ModelRecord::of).collect(),
            accepted: ModelRecord::of(&self.accepted),
            kept: self.kept.iter().map(|(check, _)| *check).collect(),
            iteration: self.iteration,
            checks: self.checks,
            rate: self.rate,
            range: self.range,
            repeats: self.repeats,
            phase: self.phase,
        };
        let models = std::iter::once(&self.model).chain(&self.open).chain([&self.accepted]);
        let kept = self.kept.iter().flat_map(|(_, weights)| weights);
        (record, models.flat_map(ciphertexts).chain(kept).collect())
    }

    /// Resumes the session of a checkpoint.
    pub fn resume(record: CheckpointRecord, ciphertexts: Vec<C>) -> Result<Self> {
        let models = std::iter::once(&record.model).chain(&record.open).chain([&record.accepted]);
        let vectors = models.map(ModelRecord::vectors).sum::<usize>() + record.kept.len();
        let expected = vectors.saturating_mul(record.parts);
        if ciphertexts.len() != expected || record.parts == 0 || record.batches == 0 {
            return Err(Error::Checkpoint { got: ciphertexts.len(), expected });
        }
        let mut ciphertexts = ciphertexts.into_iter();
        let mut vector = || -> Vec<C> { ciphertexts.by_ref().take(record.parts).collect() };
        let model = record.model.filled(&mut vector);
        let open = record.open.iter().map(|model| model.filled(&mut vector)).collect();
        let accepted = record.accepted.filled(&mut vector);
        Ok(Self {
            agreement: record.agreement,
            batches: record.batches,
            model,
            iteration: record.iteration,
            open,
            accepted,
            kept: record.kept.into_iter().map(|check| (check, vector())).collect(),
            checks: record.checks,
            rate: record.rate,
            range: record.range,
            repeats: record.repeats,
            phase: record.phase,
        })
    }
}

/// The plain part of a checkpoint. Its ciphertexts are stored beside it. The names of its fields
/// are part of the format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointRecord {
    agreement: Agreement,
    batches: usize,
    /// Ciphertexts of a classifier. Omitted if there is one.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    parts: usize,
    model: ModelRecord,
    open: Vec<ModelRecord>,
    accepted: ModelRecord,
    kept: Vec<usize>,
    iteration: usize,
    checks: usize,
    rate: f64,
    range: f64,
    repeats: usize,
    phase: Phase,
}

fn one() -> usize {
    1
}

fn is_one(parts: &usize) -> bool {
    *parts == 1
}

/// The plain part of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ModelRecord {
    momentum: bool,
    recursion: Recursion,
}

impl ModelRecord {
    fn of<C>(model: &ModelState<C>) -> Self {
        Self { momentum: model.momentum.is_some(), recursion: model.recursion }
    }

    fn vectors(&self) -> usize {
        1 + usize::from(self.momentum)
    }

    /// The model, with its vectors in the order of the record.
    fn filled<C>(&self, mut vector: impl FnMut() -> Vec<C>) -> ModelState<C> {
        let weights = vector();
        let momentum = self.momentum.then(&mut vector);
        ModelState { weights, momentum, recursion: self.recursion }
    }
}

fn ciphertexts<C>(model: &ModelState<C>) -> impl Iterator<Item = &C> {
    model.weights.iter().chain(model.momentum.iter().flatten())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
