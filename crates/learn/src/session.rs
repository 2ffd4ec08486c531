//! Training as a state machine without input or output.
//!
//! A session says what is to be done next ([`Session::next_action`]); whoever drives it does that with an engine, a network or a disk, and
//! tells it what came of it. Every state can be written down ([`Session::checkpoint`]) and taken up again.

use crate::agreement::Agreement;
use crate::judge::{Verdict, wider};
use crate::nesterov::MomentumSchedule;
use crate::trainer::{Model, Trainer};
use crate::{Batches, Error, Result, batches};
use hetal_circuits::Engine;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Epochs that a client may have repeated in a training, whatever it says afterwards: work on a server ends.
pub const MOST_REPEATS: usize = 8;

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// A step on a batch, at a rate, with the softmax of a range; answered by [`Session::stepped`].
    Step {
        /// The batch.
        batch: usize,
        /// The learning rate.
        rate: f64,
        /// The softmax's range.
        range: f64,
    },
    /// A refresh of the momentum; answered by [`Session::stepped`] too.
    Refresh,
    /// Validation logits of [`Session::weights`] to the client; answered by [`Session::judged`].
    Validate {
        /// The epoch that ended, counted from 1.
        epoch: usize,
        /// The range whose scale the logits are divided by.
        range: f64,
    },
    /// Nothing: the kept weights go to the client.
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
    model: Model<C>,
    epoch_start: Model<C>,
    kept: VecDeque<(usize, Vec<C>)>,
    epoch: usize,
    batch: usize,
    rate: f64,
    range: f64,
    repeats: usize,
    phase: Phase,
}

impl<C: Clone> Session<C> {
    /// A session before its first step, with `batches` steps an epoch, from the parts of the first weights.
    pub fn new(agreement: Agreement, batches: usize, weights: Vec<C>) -> Result<Self> {
        if batches == 0 {
            return Err(Error::NoRows);
        }
        let model = Model::new(weights, agreement.momentum);
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

    /// What was agreed.
    pub fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// The model as it stands.
    pub fn model(&self) -> &Model<C> {
        &self.model
    }

    /// The weights as they stand: those validated at the end of an epoch.
    pub fn weights(&self) -> &[C] {
        &self.model.weights
    }

    /// The weights of the last accepted epochs, `patience + 1` of them at most, each with its epoch: all are returned, so that the server
    /// does not learn which the client takes.
    pub fn kept(&self) -> impl Iterator<Item = (usize, &[C])> {
        self.kept.iter().map(|(epoch, weights)| (*epoch, &weights[..]))
    }

    /// What is to be done next.
    pub fn next_action(&self) -> Action {
        match self.phase {
            Phase::Training if self.model.needs_refresh() => Action::Refresh,
            Phase::Training => Action::Step { batch: self.batch, rate: self.rate, range: self.range },
            Phase::Judging => Action::Validate { epoch: self.epoch + 1, range: self.range },
            Phase::Finished => Action::Return,
        }
    }

    /// The model after the step or the refresh that [`Session::next_action`] asked for.
    pub fn stepped(&mut self, model: Model<C>) -> Result<()> {
        self.expect(Phase::Training, "a step")?;
        let refresh = self.model.needs_refresh();
        self.model = model;
        if refresh {
            return Ok(());
        }
        self.batch += 1;
        if self.batch == self.batches {
            self.phase = Phase::Judging;
        }
        Ok(())
    }

    /// The client's verdict on the epoch. Asking for more repeats than [`MOST_REPEATS`], or for a range that there is none beyond, is a
    /// stop.
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

    /// Ends the session at once, from any state: an abort is a stop. An epoch that waits for its verdict is kept, one that is under
    /// way is not; before the first epoch ended there is nothing to return.
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

    /// Everything needed to go on later: a record to write down, and the ciphertexts it names, in order.
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

    /// The session of a checkpoint.
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

/// Does steps on the pieces of batches that are held, and refreshes, until something else is to be done, which is returned. `trainer` gives the circuit of a range. After each step
/// `rest` is called and may interrupt by returning false.
pub fn advance<'t, E: Engine + 't>(
    engine: &E,
    session: &mut Session<E::Ciphertext>,
    held: &(impl Batches<E> + ?Sized),
    trainer: impl Fn(f64) -> Result<&'t Trainer<E>>,
    mut rest: impl FnMut(&Session<E::Ciphertext>) -> bool,
) -> Result<Action> {
    loop {
        let action = session.next_action();
        let model = match action {
            Action::Step { batch, rate, range } => {
                let trainer = trainer(range)?;
                let geometry = trainer.products().geometry();
                let pieces = batches::pieces_of(geometry, session.agreement.batch, batch, held.count());
                batches::step(engine, trainer, session.model(), held, pieces, rate, &mut |_| {})?
            }
            Action::Refresh => trainer(session.range)?.refresh(engine, session.model())?,
            Action::Validate { .. } | Action::Return => return Ok(action),
        };
        session.stepped(model)?;
        if !rest(session) {
            return Ok(session.next_action());
        }
    }
}

/// The plain part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointRecord {
    agreement: Agreement,
    batches: usize,
    /// Ciphertexts of a classifier. Left out where there is one, as in records from before there were more.
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
    lookahead: bool,
    momentum: bool,
    scale: f64,
    /// The state of the momentum schedule.
    #[serde(rename = "pace")]
    schedule: MomentumSchedule,
}

impl ModelRecord {
    fn of<C>(model: &Model<C>) -> Self {
        let (lookahead, momentum) = (model.lookahead.is_some(), model.momentum.is_some());
        Self { lookahead, momentum, scale: model.scale, schedule: model.schedule }
    }

    fn vectors(&self) -> usize {
        1 + usize::from(self.lookahead) + usize::from(self.momentum)
    }

    /// The model, with its vectors in the order in which they were written down.
    fn filled<C>(&self, mut vector: impl FnMut() -> Vec<C>) -> Model<C> {
        let weights = vector();
        let lookahead = self.lookahead.then(&mut vector);
        let momentum = self.momentum.then(&mut vector);
        Model { weights, lookahead, momentum, scale: self.scale, schedule: self.schedule }
    }
}

fn ciphertexts<C>(model: &Model<C>) -> impl Iterator<Item = &C> {
    model.weights.iter().chain(model.lookahead.iter().flatten()).chain(model.momentum.iter().flatten())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Limits;

    /// A session whose "ciphertexts" are numbers: each step adds 1 to both of a classifier's.
    fn session(patience: usize, max_epochs: usize) -> Session<u32> {
        let agreement = Agreement { patience, max_epochs, ..Limits::default().defaults };
        Session::new(agreement, 2, vec![0, 100]).unwrap()
    }

    fn epoch(session: &mut Session<u32>) {
        while let Action::Step { .. } | Action::Refresh = session.next_action() {
            let model = session.model().clone();
            let weights = model.weights.iter().map(|w| w + 1).collect();
            session.stepped(Model { weights, ..model }).unwrap();
        }
    }

    #[test]
    fn epochs_alternate_with_verdicts() {
        let mut s = session(1, 3);
        assert_eq!(s.next_action(), Action::Step { batch: 0, rate: 1.0, range: 128.0 });
        epoch(&mut s);
        assert_eq!(s.next_action(), Action::Validate { epoch: 1, range: 128.0 });
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
            let (mut s, mut judge) = (session(patience, 10), crate::Judge::new(patience, 128.0, 3));
            let labels = [0];
            for quality in [1.0, 3.0, 2.0, 1.5, 1.0, 0.5] {
                epoch(&mut s);
                let logits = crate::Matrix::from_fn(1, 2, |_, k| if k == 0 { quality } else { 0.0 });
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
        assert_eq!((s.weights(), s.next_action()), (&[2, 102][..], Action::Step { batch: 0, rate: 0.5, range: 128.0 }));
        epoch(&mut s);
        assert_eq!(s.next_action(), Action::Validate { epoch: 2, range: 128.0 });
        s.judged(Verdict::WidenRange).unwrap();
        assert_eq!(s.next_action(), Action::Step { batch: 0, rate: 0.5, range: 512.0 });
        assert_eq!(s.kept().collect::<Vec<_>>(), [(1, &[2, 102][..])]);
    }

    #[test]
    fn words_out_of_turn_are_errors() {
        let mut s = session(3, 10);
        let waiting = "training";
        assert_eq!(s.judged(Verdict::Continue), Err(Error::OutOfTurn { got: "a verdict", waiting }));
        epoch(&mut s);
        let model = s.model().clone();
        assert!(matches!(s.stepped(model), Err(Error::OutOfTurn { .. })));
        assert!(Session::new(Limits::default().defaults, 0, vec![0]).is_err());
    }

    #[test]
    fn a_checkpoint_is_the_whole_session() {
        let mut s = session(1, 10);
        for _ in 0..3 {
            epoch(&mut s);
            s.judged(Verdict::Continue).unwrap();
        }
        let (momentum, lookahead) = (Some(vec![50, 150]), Some(vec![60, 160]));
        s.stepped(Model { momentum, lookahead, scale: 0.1, ..s.model().clone() }).unwrap();
        let (record, ciphertexts) = s.checkpoint();
        assert_eq!(ciphertexts, [&6, &106, &60, &160, &50, &150, &6, &106, &4, &104, &6, &106]);
        let text = serde_json::to_string(&record).unwrap();
        let ciphertexts: Vec<u32> = ciphertexts.into_iter().copied().collect();
        let again = Session::resume(serde_json::from_str(&text).unwrap(), ciphertexts.clone()).unwrap();
        assert_eq!(format!("{again:?}"), format!("{s:?}"));
        assert!(matches!(Session::resume(record, ciphertexts[1..].to_vec()), Err(Error::Checkpoint { .. })));
    }

    /// The record of a classifier in one ciphertext says nothing of parts, as it did before there were any.
    #[test]
    fn a_checkpoint_of_one_ciphertext_is_as_it_was() {
        let s = Session::new(Limits::default().defaults, 1, vec![7]).unwrap();
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
}
