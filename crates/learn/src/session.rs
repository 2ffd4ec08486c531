//! The training loop as a state machine without input or output.
//!
//! A session names the next action ([`Session::next_action`]). Its driver ([`crate::driver`])
//! executes the action with an engine, a network or a disk, and reports the result. Every state can
//! be saved ([`Session::checkpoint`]) and resumed.

use crate::agreement::Agreement;
use crate::judge::{Verdict, wider};
use crate::nesterov::{Recursion, StepSize};
use crate::trainer::ModelState;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The most epochs that a client may have repeated in a training, so that every job ends.
pub const MOST_REPEATS: usize = 8;

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
    /// [`Session::judged`].
    Validate {
        /// The epoch that ended, counted from 1.
        epoch: usize,
        /// The range whose scale the logits are divided by.
        range: f64,
    },
    /// The end: return the kept weights to the client.
    Return,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    Training,
    Judging,
    Finished,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Phase::Training => "training",
            Phase::Judging => "waiting for a verdict",
            Phase::Finished => "finished",
        }
    }
}

/// A training in progress.
#[derive(Clone, Debug)]
pub struct Session<C> {
    agreement: Agreement,
    batches: usize,
    model: ModelState<C>,
    epoch_start: ModelState<C>,
    kept: VecDeque<(usize, Vec<C>)>,
    epoch: usize,
    batch: usize,
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
            epoch_start: model.clone(),
            model,
            kept: VecDeque::new(),
            epoch: 0,
            batch: 0,
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

    /// The number of repeated epochs.
    pub fn repeats(&self) -> usize {
        self.repeats
    }

    /// The range of the softmax in use.
    pub fn range(&self) -> f64 {
        self.range
    }

    /// The current weights. At the end of an epoch these are validated.
    pub fn weights(&self) -> &[C] {
        &self.model.weights
    }

    /// The weights of the last accepted epochs, at most `patience + 1`, each with its epoch. All of
    /// them are returned, so that the server does not learn which one the client chooses.
    pub fn kept(&self) -> impl Iterator<Item = (usize, &[C])> {
        self.kept.iter().map(|(epoch, weights)| (*epoch, &weights[..]))
    }

    /// What the driver must do next.
    pub fn next_action(&self) -> Action {
        match self.phase {
            Phase::Training | Phase::Judging if self.needs_refresh() => Action::Refresh,
            Phase::Training => {
                let size = StepSize { rate: self.rate, alpha: self.agreement.alpha };
                Action::Step { batch: self.batch, size, range: self.range }
            }
            Phase::Judging => Action::Validate { epoch: self.epoch + 1, range: self.range },
            Phase::Finished => Action::Return,
        }
    }

    /// Whether the model is refreshed next. Weights that are judged and kept carry no factor.
    fn needs_refresh(&self) -> bool {
        let to_be_judged = self.phase == Phase::Judging;
        self.model.needs_refresh() || to_be_judged && !self.model.recursion.has_plain_weights()
    }

    /// The model after the step or the refresh that [`Session::next_action`] asked for.
    pub fn stepped(&mut self, model: ModelState<C>) -> Result<()> {
        if self.needs_refresh() && self.phase != Phase::Finished {
            self.model = model;
            return Ok(());
        }
        self.expect(Phase::Training, "a step")?;
        self.model = model;
        self.batch += 1;
        if self.batch == self.batches {
            self.phase = Phase::Judging;
        }
        Ok(())
    }

    /// Takes the client's verdict on the epoch. More repeats than [`MOST_REPEATS`], or a range
    /// beyond the widest, count as a stop.
    pub fn judged(&mut self, verdict: Verdict) -> Result<()> {
        self.expect(Phase::Judging, "a verdict")?;
        match (verdict, wider(self.range)) {
            (Verdict::LowerRate, _) if self.repeats < MOST_REPEATS => {
                self.repeat(self.rate * self.agreement.lowering, self.range);
            }
            (Verdict::WidenRange, Some(range)) if self.repeats < MOST_REPEATS => self.repeat(self.rate, range),
            (verdict, _) => self.accept(verdict != Verdict::Continue),
        }
        Ok(())
    }

    /// Ends the session from any state. An epoch that waits for its verdict is kept, an unfinished
    /// epoch is not. Before the end of the first epoch there is nothing to return.
    pub fn abort(&mut self) {
        match self.phase {
            Phase::Judging => self.accept(true),
            Phase::Training | Phase::Finished => self.phase = Phase::Finished,
        }
    }

    fn accept(&mut self, last: bool) {
        self.epoch += 1;
        self.kept.push_back((self.epoch, self.model.weights.clone()));
        while self.kept.len() > self.agreement.patience + 1 {
            self.kept.pop_front();
        }
        self.epoch_start = self.model.clone();
        self.batch = 0;
        let done = last || self.epoch >= self.agreement.max_epochs;
        self.phase = if done { Phase::Finished } else { Phase::Training };
    }

    /// Rolls back to the start of the epoch.
    fn repeat(&mut self, rate: f64, range: f64) {
        self.repeats += 1;
        self.model = self.epoch_start.clone();
        (self.rate, self.range, self.batch, self.phase) = (rate, range, 0, Phase::Training);
    }

    fn expect(&self, phase: Phase, got: &'static str) -> Result<()> {
        if self.phase == phase { Ok(()) } else { Err(Error::OutOfTurn { got, waiting: self.phase.name() }) }
    }

    /// The checkpoint: a record to store, and the ciphertexts it refers to, in order.
    pub fn checkpoint(&self) -> (CheckpointRecord, Vec<&C>) {
        let record = CheckpointRecord {
            agreement: self.agreement.clone(),
            batches: self.batches,
            parts: self.model.weights.len(),
            model: ModelRecord::of(&self.model),
            epoch_start: ModelRecord::of(&self.epoch_start),
            kept: self.kept.iter().map(|(epoch, _)| *epoch).collect(),
            epoch: self.epoch,
            batch: self.batch,
            rate: self.rate,
            range: self.range,
            repeats: self.repeats,
            phase: self.phase,
        };
        let models = ciphertexts(&self.model).chain(ciphertexts(&self.epoch_start));
        (record, models.chain(self.kept.iter().flat_map(|(_, weights)| weights)).collect())
    }

    /// Resumes the session of a checkpoint.
    pub fn resume(record: CheckpointRecord, ciphertexts: Vec<C>) -> Result<Self> {
        let vectors = record.model.vectors() + record.epoch_start.vectors() + record.kept.len();
        let expected = vectors.saturating_mul(record.parts);
        let mismatch = Error::Checkpoint { got: ciphertexts.len(), expected };
        if ciphertexts.len() != expected || record.parts == 0 {
            return Err(mismatch);
        }
        let mut ciphertexts = ciphertexts.into_iter();
        let mut vector = || -> Vec<C> { ciphertexts.by_ref().take(record.parts).collect() };
        let model = record.model.filled(&mut vector);
        let epoch_start = record.epoch_start.filled(&mut vector);
        Ok(Self {
            agreement: record.agreement,
            batches: record.batches,
            model,
            epoch_start,
            kept: record.kept.into_iter().map(|epoch| (epoch, vector())).collect(),
            epoch: record.epoch,
            batch: record.batch,
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
    /// Ciphertexts of a classifier. Omitted if there is one, as in older records.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    parts: usize,
    model: ModelRecord,
    epoch_start: ModelRecord,
    kept: Vec<usize>,
    epoch: usize,
    batch: usize,
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::AgreementLimits;

    /// A session whose "ciphertexts" are numbers: each step adds 1 to both of a classifier's.
    fn session(patience: usize, max_epochs: usize) -> Session<u32> {
        let agreement = Agreement { patience, max_epochs, ..AgreementLimits::default().defaults };
        Session::new(agreement, 2, vec![0, 100]).unwrap()
    }

    fn epoch(session: &mut Session<u32>) {
        while let Action::Step { .. } | Action::Refresh = session.next_action() {
            let model = session.model().clone();
            let weights = model.weights.iter().map(|w| w + 1).collect();
            session.stepped(ModelState { weights, ..model }).unwrap();
        }
    }

    #[test]
    fn epochs_alternate_with_verdicts() {
        let mut s = session(1, 3);
        assert_eq!(s.next_action(), Action::Step { batch: 0, size: StepSize::of(1.0), range: 32.0 });
        epoch(&mut s);
        assert_eq!(s.next_action(), Action::Validate { epoch: 1, range: 32.0 });
        for _ in 0..2 {
            s.judged(Verdict::Continue).unwrap();
            epoch(&mut s);
        }
        s.judged(Verdict::Continue).unwrap();
        assert_eq!(s.next_action(), Action::Return);
        assert_eq!(s.kept().collect::<Vec<_>>(), [(2, &[4, 104][..]), (3, &[6, 106])]);
    }

    #[test]
    fn stop_keeps_the_epoch_it_was_said_after() {
        let mut s = session(3, 10);
        epoch(&mut s);
        s.judged(Verdict::Stop).unwrap();
        assert_eq!((s.next_action(), s.kept().count()), (Action::Return, 1));
    }

    #[test]
    fn an_abort_is_a_stop() {
        let mut at_once = session(3, 10);
        at_once.abort();
        assert_eq!((at_once.next_action(), at_once.kept().count()), (Action::Return, 0));
        let mut waiting = session(3, 10);
        epoch(&mut waiting);
        waiting.abort();
        assert_eq!(
            (waiting.next_action(), waiting.kept().collect::<Vec<_>>()),
            (Action::Return, vec![(1, &[2, 102][..])])
        );
        waiting.abort();
        assert_eq!(waiting.kept().count(), 1);
    }

    #[test]
    fn no_client_holds_a_session_forever() {
        for verdict in [Verdict::LowerRate, Verdict::WidenRange] {
            let mut s = session(3, 10);
            let mut rounds = 0;
            while s.next_action() != Action::Return {
                epoch(&mut s);
                s.judged(verdict).unwrap();
                rounds += 1;
            }
            assert!(rounds <= MOST_REPEATS + 1, "{verdict:?}: {rounds}");
            assert_eq!(s.kept().count(), 1);
        }
    }

    /// Whatever the patience, the best epoch is among those that are returned.
    #[test]
    fn the_best_epoch_is_kept() {
        for patience in 1..=3 {
            let (mut s, mut judge) = (session(patience, 10), crate::Judge::new(patience, 32.0, 3));
            let labels = [0];
            for quality in [1.0, 3.0, 2.0, 1.5, 1.0, 0.5] {
                epoch(&mut s);
                let logits = crate::Matrix::from_fn(1, 2, |_, k| if k == 0 { quality } else { -quality });
                s.judged(judge.judge(&logits, &labels).unwrap().verdict).unwrap();
                if s.next_action() == Action::Return {
                    break;
                }
            }
            assert_eq!((s.next_action(), judge.best_epoch()), (Action::Return, Some(2)));
            assert!(s.kept().any(|(epoch, _)| epoch == 2), "patience {patience}");
        }
    }

    #[test]
    fn divergence_rolls_back() {
        let mut s = session(3, 10);
        epoch(&mut s);
        s.judged(Verdict::Continue).unwrap();
        epoch(&mut s);
        s.judged(Verdict::LowerRate).unwrap();
        assert_eq!(
            (s.weights(), s.next_action()),
            (&[2, 102][..], Action::Step { batch: 0, size: StepSize::of(0.5), range: 32.0 })
        );
        epoch(&mut s);
        assert_eq!(s.next_action(), Action::Validate { epoch: 2, range: 32.0 });
        s.judged(Verdict::WidenRange).unwrap();
        assert_eq!(s.next_action(), Action::Step { batch: 0, size: StepSize::of(0.5), range: 128.0 });
        assert_eq!(s.kept().collect::<Vec<_>>(), [(1, &[2, 102][..])]);
    }

    #[test]
    fn answers_out_of_turn_are_errors() {
        let mut s = session(3, 10);
        let waiting = "training";
        assert_eq!(s.judged(Verdict::Continue), Err(Error::OutOfTurn { got: "a verdict", waiting }));
        epoch(&mut s);
        let model = s.model().clone();
        assert!(matches!(s.stepped(model), Err(Error::OutOfTurn { .. })));
        assert!(Session::new(AgreementLimits::default().defaults, 0, vec![0]).is_err());
    }

    #[test]
    fn a_checkpoint_is_the_whole_session() {
        let mut s = session(1, 10);
        for _ in 0..3 {
            epoch(&mut s);
            s.judged(Verdict::Continue).unwrap();
        }
        let (recursion, _) = s.model().recursion.advance(StepSize { rate: 1.0, alpha: 0.1 });
        s.stepped(ModelState { momentum: Some(vec![50, 150]), recursion, ..s.model().clone() }).unwrap();
        let (record, ciphertexts) = s.checkpoint();
        assert_eq!(ciphertexts, [&6, &106, &50, &150, &6, &106, &4, &104, &6, &106]);
        let text = serde_json::to_string(&record).unwrap();
        let ciphertexts: Vec<u32> = ciphertexts.into_iter().copied().collect();
        let again = Session::resume(serde_json::from_str(&text).unwrap(), ciphertexts.clone()).unwrap();
        assert_eq!(format!("{again:?}"), format!("{s:?}"));
        assert!(matches!(Session::resume(record, ciphertexts[1..].to_vec()), Err(Error::Checkpoint { .. })));
    }

    /// The record of a classifier in one ciphertext does not mention parts.
    #[test]
    fn a_checkpoint_of_one_ciphertext_is_as_it_was() {
        let s = Session::new(AgreementLimits::default().defaults, 1, vec![7]).unwrap();
        let (record, ciphertexts) = s.checkpoint();
        assert_eq!(ciphertexts, [&7, &7]);
        let text = serde_json::to_string(&record).unwrap();
        assert!(!text.contains("parts"), "{text}");
        let again = Session::resume(serde_json::from_str(&text).unwrap(), vec![7, 7]).unwrap();
        assert_eq!(format!("{again:?}"), format!("{s:?}"));
        for parts in ["0", "18446744073709551615"] {
            let bad = text.replace("\"batches\":1", &format!("\"batches\":1,\"parts\":{parts}"));
            assert!(Session::resume(serde_json::from_str(&bad).unwrap(), vec![7, 7]).is_err());
        }
    }

    /// Stored checkpoints must stay readable: the names in the record are fixed.
    #[test]
    fn the_names_in_a_checkpoint_do_not_change() {
        let model = concat!(
            r#"{"momentum":false,"recursion":{"schedule":{"momentum":"Nesterov","lambda":1.0},"multiple":32768,"#,
            r#""weight_factor":1.0,"lookahead_factor":1.0}}"#
        );
        let agreement = concat!(
            r#"{"batch":1024,"rate":1.0,"lowering":0.5,"momentum":"Nesterov","patience":3,"#,
            r#""max_epochs":50,"range":32.0,"seed":0,"alpha":0.0,"weighted":false,"circuit":1,"rate_hidden":false}"#
        );
        let expected = format!(
            r#"{{"agreement":{agreement},"batches":1,"model":{model},"epoch_start":{model},"kept":[],"epoch":0,"#
        ) + r#""batch":0,"rate":1.0,"range":32.0,"repeats":0,"phase":"Training"}"#;
        let (record, _) = Session::new(AgreementLimits::default().defaults, 1, vec![7]).unwrap().checkpoint();
        assert_eq!(serde_json::to_string(&record).unwrap(), expected);
    }
}
