//! The paper's own iteration: `DiagABT`, `ASoftmax`, `DiagATB`, Nesterov on weights tiled over many
//! ciphertexts.

use super::blocks::{BlockShape, Blocks};
use super::softmax::PaperSoftmax;
use super::{diag_abt, diag_atb};
use crate::nesterov::{Momentum, Recursion, StepSize};
use crate::trainer::Stage;
use crate::{Error, Matrix, Result};
use hetal_circuits::clear::{Clear, KeyRequirements};
use hetal_circuits::{Complex64, Engine};

/// The switching keys and bootstraps of some iterations, found by a dry run on `Clear`.
pub fn keys(trainer: &PaperTrainer, features: usize, top_level: usize, iterations: usize) -> Result<KeyRequirements> {
    let engine = Clear::new(trainer.unit.slots(), top_level);
    let zeros = vec![Complex64::ZERO; trainer.unit.slots()];
    let weights = trainer.pack_weights(&Matrix::zeros(trainer.classes, features + 1))?;
    let fresh = |_: &Vec<Complex64>| Ok(engine.fresh(&zeros, top_level)?);
    let (blocks, _) = trainer.pack(&Matrix::zeros(trainer.unit.rows(), features), &[])?;
    let (features, labels) = (blocks.map(fresh)?, engine.fresh(&zeros, top_level)?);
    let batch = PaperBatch { features, labels, rows: trainer.unit.rows() };
    let mut model = trainer.model(weights.map(fresh)?, Momentum::Nesterov);
    for _ in 0..iterations {
        model = trainer.step(&engine, &model, &batch, 1.0)?;
    }
    Ok(engine.op_counts().keys())
}

/// The paper's circuit for batches of one block of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperTrainer {
    unit: BlockShape,
    classes: usize,
    softmax: PaperSoftmax,
    log_weight_bound: u32,
}

/// A batch: features with a last column of ones in blocks, and labels tiled to the right.
#[derive(Clone, Debug)]
pub struct PaperBatch<C> {
    /// The features.
    pub features: Blocks<C>,
    /// The labels.
    pub labels: C,
    /// Rows that are not padding.
    pub rows: usize,
}

/// Weights tiled downwards.
#[derive(Clone, Debug)]
pub struct PaperModel<C> {
    /// The weights `W`.
    pub weights: Blocks<C>,
    /// `V`, at which the next gradient is computed.
    pub lookahead: Blocks<C>,
    /// The momentum that [`crate::trainer::Trainer`] has, so that both train alike.
    pub recursion: Recursion,
}

/// Levels of the weights before an iteration: `DiagABT` takes three.
const WEIGHTS: usize = 3;
/// Levels of the differences: `DiagATB` takes three of them, as its features have more, the
/// combination of weights one.
const DIFFERENCES: usize = 4;

impl PaperTrainer {
    /// The circuit for `rows` rows a batch, a power of two, and `classes` classes. Weights are at
    /// most `2^log_weight_bound`.
    pub fn new(slots: usize, rows: usize, classes: usize, log_weight_bound: u32) -> Result<Self> {
        if !rows.is_power_of_two() || !slots.is_power_of_two() || rows > slots {
            return Err(Error::Invalid { what: "rows", value: rows as f64, must: "a power of two up to the slots" });
        }
        let unit = BlockShape::new(rows, slots / rows)?;
        Ok(Self { unit, classes, softmax: PaperSoftmax::new(unit, classes, true)?, log_weight_bound })
    }

    /// Levels of an iteration.
    pub fn levels(&self) -> usize {
        WEIGHTS + self.softmax.depth() + DIFFERENCES
    }

    /// The block shape.
    pub fn unit(&self) -> BlockShape {
        self.unit
    }

    /// The slots of a batch: features with a last column of ones (0 in padded rows), and labels.
    pub fn pack(&self, x: &Matrix, labels: &[usize]) -> Result<(Blocks<Vec<Complex64>>, Vec<Complex64>)> {
        x.require("a batch of features", self.unit.rows(), x.columns())?;
        let ones = Matrix::from_fn(x.rows(), x.columns() + 1, |i, j| if j < x.columns() { x[(i, j)] } else { 1.0 });
        let padded = self.classes.next_power_of_two();
        let hit = |i: usize, j: usize| labels.get(i).is_some_and(|&label| label == j % padded);
        Ok((Blocks::pack(&ones, self.unit), self.unit.mask(hit)))
    }

    /// The slots of weights (classes x features + 1), tiled downwards.
    pub fn pack_weights(&self, weights: &Matrix) -> Result<Blocks<Vec<Complex64>>> {
        Blocks::pack_tiled_down(weights, self.classes.next_power_of_two(), self.unit)
    }

    /// A model before its first step.
    pub fn model<C: Clone>(&self, weights: Blocks<C>, momentum: Momentum) -> PaperModel<C> {
        PaperModel { lookahead: weights.clone(), weights, recursion: Recursion::new(momentum) }
    }

    /// One step; weights are bootstrapped when they have too few levels left for the next.
    pub fn step<E: Engine>(
        &self,
        engine: &E,
        model: &PaperModel<E::Ciphertext>,
        batch: &PaperBatch<E::Ciphertext>,
        rate: f64,
    ) -> Result<PaperModel<E::Ciphertext>> {
        self.step_observed(engine, model, batch, rate, &mut |_| {})
    }

    /// [`PaperTrainer::step`] that calls `ended` with each stage when it ends, for profiles.
    /// Bootstraps of weights count as descent.
    pub fn step_observed<E: Engine>(
        &self,
        engine: &E,
        model: &PaperModel<E::Ciphertext>,
        batch: &PaperBatch<E::Ciphertext>,
        rate: f64,
        ended: &mut dyn FnMut(Stage),
    ) -> Result<PaperModel<E::Ciphertext>> {
        let padded = self.classes.next_power_of_two();
        let lookahead = self.with_levels(engine, &model.lookahead, WEIGHTS)?;
        ended(Stage::Descent);
        let logits = diag_abt(engine, &batch.features, &lookahead, padded, 1.0)?;
        ended(Stage::Logits);
        let mut probabilities = self.softmax.evaluate(engine, &logits.rows()[0][0])?;
        if engine.level(&probabilities) < DIFFERENCES {
            probabilities = engine.bootstrap(&probabilities, 1)?;
        }
        ended(Stage::Softmax);
        // Padded rows of the features are 0, ones included: they add nothing to the gradient.
        let differences = Blocks::new(self.unit, vec![vec![engine.sub(&probabilities, &batch.labels)?]])?;
        let gradient = diag_atb(engine, &differences, &batch.features, padded, rate / batch.rows as f64, None)?;
        ended(Stage::Gradient);
        let model = self.descend(engine, model, &lookahead, &gradient)?;
        ended(Stage::Descent);
        Ok(model)
    }

    /// `W' = V - G`, `V' = (1 + beta) W' - beta W`.
    fn descend<E: Engine>(
        &self,
        engine: &E,
        model: &PaperModel<E::Ciphertext>,
        lookahead: &Blocks<E::Ciphertext>,
        gradient: &Blocks<E::Ciphertext>,
    ) -> Result<PaperModel<E::Ciphertext>> {
        let (recursion, beta) = model.recursion.advance_refreshed(StepSize::of(0.0));
        let beta = beta.weights;
        let weights = zipped(lookahead, gradient, |v, g| Ok(engine.sub(v, g)?))?;
        let weights = self.with_levels(engine, &weights, 1)?;
        let before = self.with_levels(engine, &model.weights, 1)?;
        let real = |c: f64| Complex64::new(c, 0.0);
        let lookahead = zipped(&weights, &before, |new, old| {
            Ok(engine.linear_combination(&[(new, real(1.0 + beta)), (old, real(-beta))], Complex64::ZERO)?)
        })?;
        Ok(PaperModel { weights, lookahead, recursion })
    }

    fn with_levels<E: Engine>(
        &self,
        engine: &E,
        blocks: &Blocks<E::Ciphertext>,
        levels: usize,
    ) -> Result<Blocks<E::Ciphertext>> {
        blocks.map(|block| {
            if engine.level(block) >= levels {
                return Ok(block.clone());
            }
            Ok(engine.bootstrap(block, self.log_weight_bound)?)
        })
    }
}

fn zipped<C>(a: &Blocks<C>, b: &Blocks<C>, f: impl Fn(&C, &C) -> Result<C>) -> Result<Blocks<C>> {
    let row = |(a, b): (&Vec<C>, &Vec<C>)| a.iter().zip(b).map(|(x, y)| f(x, y)).collect::<Result<Vec<C>>>();
    Blocks::new(a.unit(), a.rows().iter().zip(b.rows()).map(row).collect::<Result<_>>()?)
}
