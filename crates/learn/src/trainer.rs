//! One iteration of encrypted training: logits, softmax, gradient, step.

use crate::nesterov::{Momentum, MomentumSchedule};
use crate::products::{Expanded, Products, Versions};
use crate::softmax::{Constants, Sharpen};
use crate::{Error, Geometry, LevelPlan, Result};
use hetal_circuits::clear::{Clear, KeyRequirements, OpCounts, OpKind};
use hetal_circuits::{Complex64, Engine};

/// A batch on the server, or a piece of one ([`Geometry::pieces`]), with its row-shifted versions.
#[derive(Clone, Debug)]
pub struct Batch<C> {
    /// All row-shifted versions of the features.
    pub versions: Versions<C>,
    /// The labels.
    pub labels: C,
    /// Rows that are not padding.
    pub rows: usize,
}

/// A classifier in training. Each of its vectors takes [`Geometry::parts`] ciphertexts. The
/// momentum is stored divided by `scale`, so that a step only adds to it and costs no level.
#[derive(Clone, Debug)]
pub struct ModelState<C> {
    /// The weights `W`.
    pub weights: Vec<C>,
    /// `V`, at which the next gradient is computed; `None` stands for `W`.
    pub lookahead: Option<Vec<C>>,
    /// The momentum `W_t - W_(t-1)` divided by `scale`; `None` stands for zero.
    pub momentum: Option<Vec<C>>,
    /// The product of all `beta_t` since the last refresh (`B`).
    pub scale: f64,
    /// The state of the momentum schedule.
    pub schedule: MomentumSchedule,
}

impl<C> ModelState<C> {
    /// A model before its first step.
    pub fn new(weights: Vec<C>, momentum: Momentum) -> Self {
        Self { weights, lookahead: None, momentum: None, scale: 1.0, schedule: MomentumSchedule::new(momentum) }
    }

    /// Whether the momentum should be refreshed before the next step.
    pub fn needs_refresh(&self) -> bool {
        self.momentum.is_some() && self.scale * REFRESH_BEYOND < 1.0
    }
}

/// The stages of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The matrix product `X W^T`.
    Logits,
    /// The softmax, bootstraps included.
    Softmax,
    /// The matrix product `D^T X`.
    Gradient,
    /// The new weights.
    Descent,
}

impl Stage {
    /// Whether it is a product of matrices.
    pub fn is_matrix_product(self) -> bool {
        matches!(self, Stage::Logits | Stage::Gradient)
    }
}

/// The momentum is refreshed when `1 / scale` exceeds this: the stored momentum grows with it.
pub const REFRESH_BEYOND: f64 = 4096.0;

/// The circuit of an iteration for one batch shape: masks and plaintexts, encoded once.
pub struct Trainer<E: Engine> {
    products: Products<E>,
    softmax: Sharpen<E>,
    log_momentum_bound: u32,
}

impl<E: Engine> Trainer<E> {
    /// Encodes the circuit. `log_momentum_bound` bounds the momentum at a refresh:
    /// `|W_t - W_(t-1)| <= 2^bound`.
    pub fn new(
        engine: &E,
        geometry: Geometry,
        level_plan: LevelPlan,
        constants: Constants,
        log_momentum_bound: u32,
    ) -> Result<Self> {
        let scale = constants.scale;
        let softmax = Sharpen::new(engine, constants, &geometry, level_plan.probabilities())?;
        let products = Products::new(engine, geometry, level_plan, scale)?;
        Ok(Self { products, softmax, log_momentum_bound })
    }

    /// The matrix products.
    pub fn products(&self) -> &Products<E> {
        &self.products
    }

    /// The softmax.
    pub fn softmax(&self) -> &Sharpen<E> {
        &self.softmax
    }

    /// Prepares a batch from freshly encrypted features and labels: computes the row-shifted
    /// versions.
    pub fn batch(
        &self,
        engine: &E,
        features: &[E::Ciphertext],
        labels: E::Ciphertext,
        rows: usize,
    ) -> Result<Batch<E::Ciphertext>> {
        if rows == 0 || rows > self.products.geometry().rows() {
            let must = "at least 1 and no more than the batch";
            return Err(Error::Invalid { what: "rows", value: rows as f64, must });
        }
        Ok(Batch { versions: self.products.versions(engine, features)?, labels, rows })
    }

    /// `logit / scale` of a batch under some weights.
    pub fn logits(
        &self,
        engine: &E,
        versions: &Versions<E::Ciphertext>,
        weights: &[E::Ciphertext],
    ) -> Result<E::Ciphertext> {
        self.products.logits(engine, versions, &self.products.expand(engine, weights)?)
    }

    /// One step of gradient descent on a batch.
    pub fn step(
        &self,
        engine: &E,
        model: &ModelState<E::Ciphertext>,
        batch: &Batch<E::Ciphertext>,
        rate: f64,
    ) -> Result<ModelState<E::Ciphertext>> {
        self.step_observed(engine, model, batch, rate, &mut |_| {})
    }

    /// [`Trainer::step`] that calls `ended` with each stage when it ends, for profiles.
    pub fn step_observed(
        &self,
        engine: &E,
        model: &ModelState<E::Ciphertext>,
        batch: &Batch<E::Ciphertext>,
        rate: f64,
        ended: &mut dyn FnMut(Stage),
    ) -> Result<ModelState<E::Ciphertext>> {
        let mut step = self.begin(model, batch.rows, rate);
        step.add(engine, batch, ended)?;
        step.finish(engine, ended)
    }

    /// Begins a step on a batch of `rows` rows, whose pieces follow by [`GradientStep::add`].
    pub fn begin<'a>(&'a self, model: &'a ModelState<E::Ciphertext>, rows: usize, rate: f64) -> GradientStep<'a, E> {
        let factor = rate / (rows as f64 * model.scale);
        GradientStep { trainer: self, model, factor, rows_left: rows, expanded: None, gradient: None }
    }

    /// `factor` times the gradient of a piece with those logits.
    fn gradient(
        &self,
        engine: &E,
        piece: &Batch<E::Ciphertext>,
        logits: &E::Ciphertext,
        factor: f64,
        ended: &mut dyn FnMut(Stage),
    ) -> Result<Vec<E::Ciphertext>> {
        let probabilities = self.softmax.evaluate(engine, logits)?;
        ended(Stage::Softmax);
        let differences = engine.sub(&probabilities, &piece.labels)?;
        let gradient = self.products.gradient(engine, &piece.versions, &differences, piece.rows, factor)?;
        ended(Stage::Gradient);
        Ok(gradient)
    }

    /// `n <- n - G / B; W <- W + B n; V = W + beta B n; B <- beta B`, for a gradient that is
    /// already divided by `B`.
    fn descend(
        &self,
        engine: &E,
        model: &ModelState<E::Ciphertext>,
        gradient: &[E::Ciphertext],
    ) -> Result<ModelState<E::Ciphertext>> {
        let (beta, schedule) = model.schedule.advance();
        let momentum: Vec<_> = match &model.momentum {
            Some(momentum) => each(momentum, gradient, |n, g| engine.sub(n, g))?,
            None => gradient.iter().map(|g| engine.neg(g)).collect::<hetal_circuits::Result<_>>()?,
        };
        let moved = |from: &[E::Ciphertext], factor: f64| {
            each(from, &momentum, |w, n| engine.add(w, &engine.mul_constant(n, Complex64::new(factor, 0.0))?))
        };
        let weights = moved(&model.weights, model.scale)?;
        if beta == 0.0 {
            return Ok(ModelState { weights, lookahead: None, momentum: None, scale: model.scale, schedule });
        }
        let lookahead = Some(moved(&weights, beta * model.scale)?);
        Ok(ModelState { weights, lookahead, momentum: Some(momentum), scale: beta * model.scale, schedule })
    }

    /// The same model with `scale` 1, by one bootstrap of the momentum for each part. The weights
    /// lose no levels and need no bootstrap.
    pub fn refresh(&self, engine: &E, model: &ModelState<E::Ciphertext>) -> Result<ModelState<E::Ciphertext>> {
        let Some(momentum) = &model.momentum else {
            return Ok(model.clone());
        };
        let fresh = |momentum: &E::Ciphertext| {
            let scaled = engine.mul_constant(momentum, Complex64::new(model.scale, 0.0))?;
            // Each slot holds two features, so the momentum is complex.
            let fresh = engine.bootstrap(&scaled, self.log_momentum_bound)?;
            engine.drop_to(&fresh, self.products.level_plan().momentum())
        };
        let momentum = momentum.iter().map(fresh).collect::<hetal_circuits::Result<_>>()?;
        Ok(ModelState { momentum: Some(momentum), scale: 1.0, ..model.clone() })
    }
}

/// A gradient step whose pieces are added one after the other.
pub struct GradientStep<'a, E: Engine> {
    trainer: &'a Trainer<E>,
    model: &'a ModelState<E::Ciphertext>,
    factor: f64,
    rows_left: usize,
    /// The classifier repeated over all rows, kept while pieces follow.
    expanded: Option<Expanded<E::Ciphertext>>,
    gradient: Option<Vec<E::Ciphertext>>,
}

impl<E: Engine> GradientStep<'_, E> {
    /// Adds the gradient of a piece. `ended` is called with each stage when it ends.
    pub fn add(&mut self, engine: &E, piece: &Batch<E::Ciphertext>, ended: &mut dyn FnMut(Stage)) -> Result<()> {
        let logits = self.logits(engine, piece)?;
        ended(Stage::Logits);
        let gradient = self.trainer.gradient(engine, piece, &logits, self.factor, ended)?;
        self.gradient = Some(match self.gradient.take() {
            Some(sum) => each(&sum, &gradient, |a, b| engine.add(a, b))?,
            None => gradient,
        });
        Ok(())
    }

    /// The logits of a piece, at `V`.
    fn logits(&mut self, engine: &E, piece: &Batch<E::Ciphertext>) -> Result<E::Ciphertext> {
        let products = &self.trainer.products;
        let expanded = match self.expanded.take() {
            Some(expanded) => expanded,
            None => products.expand(engine, self.model.lookahead.as_deref().unwrap_or(&self.model.weights))?,
        };
        let logits = products.logits(engine, &piece.versions, &expanded)?;
        self.rows_left = self.rows_left.saturating_sub(piece.rows);
        self.expanded = (self.rows_left > 0).then_some(expanded);
        Ok(logits)
    }

    /// The model after the step.
    pub fn finish(self, engine: &E, ended: &mut dyn FnMut(Stage)) -> Result<ModelState<E::Ciphertext>> {
        let gradient = self.gradient.ok_or(Error::NoRows)?;
        let model = self.trainer.descend(engine, self.model, &gradient)?;
        ended(Stage::Descent);
        Ok(model)
    }
}

/// Joins two vectors part by part.
fn each<C>(a: &[C], b: &[C], join: impl Fn(&C, &C) -> hetal_circuits::Result<C>) -> Result<Vec<C>> {
    if a.len() != b.len() {
        let (rows, must_rows) = (a.len(), b.len());
        let what = "the parts of a classifier";
        return Err(Error::Shape { what, rows, columns: 1, must_rows, must_columns: 1 });
    }
    Ok(a.iter().zip(b).map(|(a, b)| join(a, b)).collect::<hetal_circuits::Result<_>>()?)
}

/// The switching keys for preparing a batch, iterating and refreshing, without those inside
/// bootstraps. A dry run on [`Clear`] finds them. They are the same for all rows, rates and values.
pub fn keys(
    geometry: Geometry,
    level_plan: LevelPlan,
    constants: Constants,
    log_momentum_bound: u32,
    top_level: usize,
) -> Result<KeyRequirements> {
    Ok(dry_run(geometry, level_plan, constants, log_momentum_bound, top_level)?.keys())
}

/// The operations of preparing a batch, of [`DRY_RUN_STEPS`] steps on it and of one refresh.
fn dry_run(
    geometry: Geometry,
    level_plan: LevelPlan,
    constants: Constants,
    log_momentum_bound: u32,
    top_level: usize,
) -> Result<OpCounts> {
    let engine = Clear::new(geometry.slots(), top_level);
    let trainer = Trainer::new(&engine, geometry, level_plan, constants, log_momentum_bound)?;
    let zeros = vec![Complex64::ZERO; geometry.slots()];
    let fresh = |level| engine.fresh(&zeros, level);
    let features = vec![fresh(level_plan.fresh_features())?; geometry.blocks()];
    let batch = trainer.batch(&engine, &features, fresh(level_plan.probabilities())?, geometry.rows())?;
    let mut model = ModelState::new(vec![fresh(level_plan.weights())?; geometry.parts()], Momentum::Nesterov);
    for _ in 0..DRY_RUN_STEPS {
        model = trainer.step(&engine, &model, &batch, 1.0)?;
    }
    trainer.refresh(&engine, &model)?;
    Ok(engine.op_counts())
}

/// Steps of a dry run: the first has no momentum, the second is like all others.
const DRY_RUN_STEPS: u64 = 2;

/// What a session needs, for every range that it may be widened to.
pub(crate) struct SessionNeeds {
    /// Its switching keys, without those inside bootstraps.
    pub(crate) keys: KeyRequirements,
    /// Bootstraps of a gradient step on one piece, at the range that takes most of them.
    pub(crate) bootstraps: u64,
}

/// [`keys`] for a session that starts with a range and may be widened to every larger one
/// ([`crate::judge::RANGES`]).
pub fn keys_of_session(
    geometry: Geometry,
    level_plan: LevelPlan,
    range: f64,
    log_momentum_bound: u32,
    top_level: usize,
) -> Result<KeyRequirements> {
    Ok(needs_of_session(geometry, level_plan, range, log_momentum_bound, top_level)?.keys)
}

pub(crate) fn needs_of_session(
    geometry: Geometry,
    level_plan: LevelPlan,
    range: f64,
    log_momentum_bound: u32,
    top_level: usize,
) -> Result<SessionNeeds> {
    let mut ranges = vec![range];
    while let Some(wider) = ranges.last().and_then(|&range| crate::judge::wider(range)) {
        ranges.push(wider);
    }
    let mut needs = SessionNeeds { keys: KeyRequirements::default(), bootstraps: 0 };
    for range in ranges {
        let constants = Constants::built_in(geometry.classes(), range)?;
        let ops = dry_run(geometry, level_plan, constants, log_momentum_bound, top_level)?;
        needs.keys = needs.keys.union(ops.keys());
        let of_steps = ops.count(OpKind::Bootstrap) - geometry.parts() as u64;
        needs.bootstraps = needs.bootstraps.max(of_steps.div_ceil(DRY_RUN_STEPS));
    }
    Ok(needs)
}
