//! The cost of a training, computed before anything is encrypted.

use crate::nesterov::{Momentum, StepSize};
use crate::softmax::Constants;
use crate::trainer::{ModelState, Trainer};
use crate::{Geometry, LevelPlan, Result, batches};
use hetal_circuits::Complex64;
use hetal_circuits::clear::{Clear, KeyRequirements, OpCounts, OpKind};

/// The sizes and times of a parameter set on a machine.
pub trait CostModel {
    /// Bytes of a ciphertext of a level, as it is sent and stored.
    fn ciphertext_bytes(&self, level: usize) -> u64;
    /// Seconds of one operation at a level; `None` if it was not measured.
    fn seconds(&self, kind: OpKind, level: usize) -> Option<f64>;
}

/// The size of a training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Rows to train on.
    pub rows: usize,
    /// Rows to validate on.
    pub validation_rows: usize,
    /// Rows of a batch.
    pub batch: usize,
    /// Features of a row.
    pub features: usize,
    /// Classes.
    pub classes: usize,
    /// Logits lie in `[-range, range]`.
    pub range: f64,
    /// Whether rows have weights.
    pub weighted: bool,
    /// The factor of `|W|^2 / 2` in the loss; 0 for none.
    pub alpha: f64,
}

/// The plan of a training: layout, levels, operations of an iteration, sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The layout.
    pub geometry: Geometry,
    /// The levels.
    pub level_plan: LevelPlan,
    /// The softmax, with its expected error.
    pub constants: Constants,
    /// Iterations of an epoch.
    pub batches: usize,
    /// The number of pieces of all batches.
    pub pieces: usize,
    /// Operations that prepare one piece of a batch, once per upload.
    pub preparation: OpCounts,
    /// Operations of one iteration without refreshes. A refresh bootstraps [`Geometry::parts`]
    /// ciphertexts.
    pub iteration: OpCounts,
    /// Operations that repeat a classifier over all rows for validation logits, once per check.
    pub expansion: OpCounts,
    /// Operations of one batch's validation logits (once per check).
    pub validation: OpCounts,
    /// Keys of the whole training for every range it may be widened to, without those inside
    /// bootstraps.
    pub keys: KeyRequirements,
    /// Batches of validation rows.
    pub validation_batches: usize,
    /// Bootstraps of one iteration at the range that takes most of them, with a refresh.
    pub most_bootstraps: u64,
}

impl Plan {
    /// Plans a training on an engine of `slots` slots and `top_level` levels by a dry run of every
    /// part on [`Clear`].
    pub fn new(workload: &Workload, slots: usize, top_level: usize) -> Result<Self> {
        let geometry = Geometry::new(slots, workload.batch, workload.features, workload.classes)?;
        let level_plan = LevelPlan::of(workload.weighted);
        let constants = Constants::for_plan(workload.classes, workload.range, level_plan)?;
        let engine = Clear::new(slots, top_level);
        let trainer = Trainer::new(&engine, geometry, level_plan, constants.clone())?;
        let zeros = vec![Complex64::ZERO; slots];
        let fresh = |level| engine.fresh(&zeros, level);
        let features = vec![fresh(level_plan.fresh_features())?; geometry.blocks()];
        let mut batch = trainer.batch(&engine, &features, fresh(level_plan.labels())?, geometry.rows())?;
        if level_plan.is_weighted() {
            batch.row_weights = Some(fresh(level_plan.row_weights())?);
        }
        let preparation = engine.take_op_counts();
        // The first step has no momentum; the second is like all others.
        let weights = vec![fresh(level_plan.weights())?; geometry.parts()];
        let first = trainer.step(&engine, &ModelState::new(weights, Momentum::Nesterov), &batch, StepSize::of(1.0))?;
        engine.take_op_counts();
        let pieces = geometry.pieces(workload.batch);
        let mut step = trainer.begin(&first, pieces * geometry.rows(), StepSize::of(1.0));
        for _ in 0..pieces {
            step.add(&engine, &batch, &mut |_| {})?;
        }
        let second = step.finish(&engine, &mut |_| {})?;
        let iteration = engine.take_op_counts();
        let expanded = trainer.products().expand(&engine, &second.weights, 1.0)?;
        let expansion = engine.take_op_counts();
        trainer.products().logits(&engine, &batch.versions, &expanded)?;
        let validation = engine.take_op_counts();
        // With L2 a refresh bootstraps the weights as well as the momentum.
        let refreshed = if workload.alpha == 0.0 { 1 } else { 2 };
        let refresh = crate::trainer::BOOTSTRAPS_OF_A_REFRESH * geometry.parts() as u64 * refreshed;
        let needs = crate::trainer::needs_of_session(geometry, level_plan, workload.range, top_level)?;
        Ok(Self {
            geometry,
            level_plan,
            constants,
            batches: workload.rows.div_ceil(workload.batch),
            pieces: batches::pieces(&geometry, workload.rows, workload.batch).len(),
            preparation,
            iteration,
            expansion,
            validation,
            keys: needs.keys,
            validation_batches: workload.validation_rows.div_ceil(geometry.rows()),
            most_bootstraps: pieces as u64 * needs.bootstraps + refresh,
        })
    }

    /// Bootstraps of an iteration.
    pub fn bootstraps(&self) -> u64 {
        self.iteration.count(OpKind::Bootstrap)
    }

    /// The most bootstraps of a training of so many epochs, whatever its ranges and refreshes.
    pub fn bootstraps_of_training(&self, epochs: usize) -> u64 {
        (epochs as u64).saturating_mul(self.batches as u64).saturating_mul(self.most_bootstraps)
    }

    /// Key-switches of an iteration outside bootstraps.
    pub fn key_switches(&self) -> u64 {
        self.iteration.key_switches()
    }

    /// Bytes of the validation logits the client gets at each check.
    pub fn validation_bytes(&self, machine: &impl CostModel) -> u64 {
        self.validation_batches as u64 * machine.ciphertext_bytes(self.level_plan.logits())
    }

    /// Bytes of an encrypted classifier.
    pub fn classifier_bytes(&self, machine: &impl CostModel) -> u64 {
        self.geometry.parts() as u64 * machine.ciphertext_bytes(self.level_plan.weights())
    }

    /// Seconds of an iteration by the measured operations; `None` if one of them was not measured.
    pub fn seconds_per_iteration(&self, machine: &impl CostModel) -> Option<f64> {
        seconds(&self.iteration, machine)
    }

    /// Seconds of the validation logits of a check, without the preparation of their rows; `None`
    /// if an operation was not measured.
    pub fn seconds_of_validation(&self, machine: &impl CostModel) -> Option<f64> {
        Some(seconds(&self.expansion, machine)? + self.validation_batches as f64 * seconds(&self.validation, machine)?)
    }
}

fn seconds(counts: &OpCounts, machine: &impl CostModel) -> Option<f64> {
    counts.entries().map(|(kind, level, n)| Some(machine.seconds(kind, level)? * n as f64)).sum()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The paper's machine: seconds of its operations, 8-byte residues of 2^16 coefficients, 4
    /// limbs at level 0.
    struct PaperCosts;

    impl CostModel for PaperCosts {
        fn ciphertext_bytes(&self, level: usize) -> u64 {
            2 * 65536 * 8 * (level as u64 + 4)
        }

        fn seconds(&self, kind: OpKind, _: usize) -> Option<f64> {
            Some(match kind {
                OpKind::Addition | OpKind::Drop | OpKind::Rescale => 0.085e-3,
                OpKind::PlainProduct | OpKind::ConstantProduct => 0.9e-3,
                OpKind::Product => 0.4e-3,
                OpKind::Bootstrap => 0.159,
                _ => 1.2e-3,
            })
        }
    }

    #[test]
    fn mnist_is_planned() {
        let workload = Workload {
            rows: 52_000,
            validation_rows: 8000,
            batch: 1024,
            features: 768,
            classes: 10,
            range: 32.0,
            weighted: false,
            alpha: 0.0,
        };
        let plan = Plan::new(&workload, 32768, 13).unwrap();
        assert_eq!((plan.batches, plan.validation_batches, plan.bootstraps()), (51, 8, 2));
        assert_eq!(plan.key_switches(), 247);
        // The range 512 takes one bootstrap more, and a refresh two.
        assert_eq!((plan.most_bootstraps, plan.bootstraps_of_training(10)), (5, 10 * 51 * 5));
        // 12 blocks and 15 shifts of two rotations each.
        assert_eq!(plan.preparation.key_switches(), 12 * 15 * 2);
        assert!(plan.constants.error < 5e-5);
        let machine = PaperCosts;
        assert_eq!(plan.validation_bytes(&machine), 8 * (4 << 20));
        let seconds = plan.seconds_per_iteration(&machine).unwrap();
        assert!(seconds > 0.5 && seconds < 1.6, "{seconds}");
        assert_eq!(plan.classifier_bytes(&machine), 7 << 20);
    }

    /// Weights of rows take no bootstrap; L2 takes a precise one in a refresh.
    #[test]
    fn weights_and_l2_are_planned() {
        let plan = |weighted, alpha| {
            let (rows, validation_rows, batch, features, classes, range) = (13_084, 700, 1024, 768, 7, 32.0);
            let workload = Workload { rows, validation_rows, batch, features, classes, range, weighted, alpha };
            Plan::new(&workload, 32768, 13).unwrap()
        };
        let (plain, weighted) = (plan(false, 0.0), plan(true, 0.01));
        assert_eq!((plain.bootstraps(), weighted.bootstraps()), (2, 2));
        assert_eq!(weighted.most_bootstraps, plain.most_bootstraps + 2);
        assert!(weighted.level_plan.is_weighted());
    }

    /// 128 classes of 768 features: two ciphertexts of weights. The fourth bootstrap is the
    /// softmax's, which is deeper for more classes.
    #[test]
    fn a_classifier_of_two_ciphertexts_is_planned() {
        let workload = Workload {
            rows: 2560,
            validation_rows: 256,
            batch: 256,
            features: 768,
            classes: 128,
            range: 128.0,
            weighted: false,
            alpha: 0.0,
        };
        let plan = Plan::new(&workload, 32768, 13).unwrap();
        assert_eq!((plan.geometry.parts(), plan.bootstraps()), (2, 4));
        assert_eq!(plan.classifier_bytes(&PaperCosts), 14 << 20);
        let larger = Plan::new(&Workload { batch: 512, ..workload }, 32768, 13).unwrap();
        assert_eq!((larger.batches, larger.pieces, larger.bootstraps()), (5, 10, 8));
        // Both pieces take one bootstrap more at the range 512, and a refresh takes two a part.
        assert_eq!(larger.most_bootstraps, 8 + 4);
        // Both pieces meet a classifier that is repeated over the rows once.
        assert_eq!(larger.key_switches() + plan.expansion.key_switches(), 2 * plan.key_switches());
        assert_eq!(larger.keys, plan.keys);
    }
}
