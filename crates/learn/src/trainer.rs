//! One iteration of encrypted training: logits, softmax, gradient, step.

use crate::nesterov::{LOG_WEIGHT_BOUND, LOG_WEIGHT_SCALE, Momentum, Recursion, StepSize, WeightsAndBias};
use crate::packing;
use crate::products::{Expanded, Products, Versions};
use crate::softmax::{Constants, Sharpen};
use crate::{Error, Geometry, LevelPlan, Result};
use hetal_circuits::clear::{Clear, KeyRequirements, OpCounts, OpKind};
use hetal_circuits::{Complex64, Engine, Multiplication};

/// A batch on the server, or a piece of one ([`Geometry::pieces`]), with its row-shifted versions.
#[derive(Clone, Debug)]
pub struct Batch<C> {
    /// All row-shifted versions of the features.
    pub versions: Versions<C>,
    /// The labels, times the weights of their rows.
    pub labels: C,
    /// The weights of the rows, if they differ.
    pub row_weights: Option<C>,
    /// Rows that are not padding.
    pub rows: usize,
}

/// A classifier in training. Each of its vectors takes [`Geometry::parts`] ciphertexts.
#[derive(Clone, Debug)]
pub struct ModelState<C> {
    /// The weights `W`, times `2^LOG_WEIGHT_SCALE` and divided by the recursion's weight factor.
    pub weights: Vec<C>,
    /// `m` of the recursion; `None` stands for zero.
    pub momentum: Option<Vec<C>>,
    /// The public numbers of the recursion.
    pub recursion: Recursion,
}

impl<C> ModelState<C> {
    /// A model before its first step, with weights as [`packing::weights`] packs them.
    pub fn new(weights: Vec<C>, momentum: Momentum) -> Self {
        Self { weights, momentum: None, recursion: Recursion::new(momentum) }
    }

    /// Whether the model should be refreshed before the next step.
    pub fn needs_refresh(&self) -> bool {
        self.recursion.needs_refresh()
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

/// The circuit of an iteration for one batch shape: masks and plaintexts, encoded once.
pub struct Trainer<E: Engine> {
    products: Products<E>,
    softmax: Sharpen<E>,
}

impl<E: Engine> Trainer<E> {
    /// Encodes the circuit.
    pub fn new(engine: &E, geometry: Geometry, level_plan: LevelPlan, constants: Constants) -> Result<Self> {
        let scale = constants.scale;
        let softmax = Sharpen::new(engine, constants, &geometry, level_plan.probabilities())?;
        let products = Products::new(engine, geometry, level_plan, scale)?;
        Ok(Self { products, softmax })
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
        Ok(Batch { versions: self.products.versions(engine, features)?, labels, row_weights: None, rows })
    }

    /// `logit / scale` of a batch under some weights, as [`packing::weights`] packs them.
    pub fn logits(
        &self,
        engine: &E,
        versions: &Versions<E::Ciphertext>,
        weights: &[E::Ciphertext],
    ) -> Result<E::Ciphertext> {
        self.products.logits(engine, versions, &self.products.expand(engine, weights, 1.0)?)
    }

    /// One step of gradient descent on a batch.
    pub fn step(
        &self,
        engine: &E,
        model: &ModelState<E::Ciphertext>,
        batch: &Batch<E::Ciphertext>,
        size: StepSize,
    ) -> Result<ModelState<E::Ciphertext>> {
        self.step_observed(engine, model, batch, size, &mut |_| {})
    }

    /// [`Trainer::step`] that calls `ended` with each stage when it ends, for profiles.
    pub fn step_observed(
        &self,
        engine: &E,
        model: &ModelState<E::Ciphertext>,
        batch: &Batch<E::Ciphertext>,
        size: StepSize,
        ended: &mut dyn FnMut(Stage),
    ) -> Result<ModelState<E::Ciphertext>> {
        let mut step = self.begin(model, batch.rows, size);
        step.add(engine, batch, ended)?;
        step.finish(engine, ended)
    }

    /// Begins a step on a batch of `rows` rows, whose pieces follow by [`GradientStep::add`].
    pub fn begin<'a>(
        &'a self,
        model: &'a ModelState<E::Ciphertext>,
        rows: usize,
        size: StepSize,
    ) -> GradientStep<'a, E> {
        let WeightsAndBias { weights, bias } = model.recursion.gradient_factors(size);
        let factors = WeightsAndBias { weights: weights / rows as f64, bias: bias / rows as f64 };
        GradientStep { trainer: self, model, size, factors, rows_left: rows, point: None, gradient: None }
    }

    /// The gradient of a piece with those logits, times factors.
    fn gradient(
        &self,
        engine: &E,
        piece: &Batch<E::Ciphertext>,
        logits: &E::Ciphertext,
        factors: WeightsAndBias,
        ended: &mut dyn FnMut(Stage),
    ) -> Result<Vec<E::Ciphertext>> {
        let probabilities = match &piece.row_weights {
            Some(weights) => self.softmax.evaluate_weighted(engine, logits, weights)?,
            None => self.softmax.evaluate(engine, logits)?,
        };
        ended(Stage::Softmax);
        let differences = engine.sub(&probabilities, &piece.labels)?;
        let gradient = self.products.gradient(engine, &piece.versions, &differences, piece.rows, factors)?;
        ended(Stage::Gradient);
        Ok(gradient)
    }

    /// `w + k m`, which stands for `V`.
    fn lookahead(&self, engine: &E, model: &ModelState<E::Ciphertext>) -> Result<Vec<E::Ciphertext>> {
        let Some(momentum) = &model.momentum else { return Ok(model.weights.clone()) };
        let k = model.recursion.multiple();
        each(&model.weights, momentum, |w, m| engine.add(w, &engine.mul_integer(m, k)?))
    }

    /// The same model with the numbers of a fresh recursion, by one precise bootstrap of the
    /// momentum for each part. Without L2 the weights lose nothing and need no bootstrap.
    pub fn refresh(&self, engine: &E, model: &ModelState<E::Ciphertext>) -> Result<ModelState<E::Ciphertext>> {
        let recursion = model.recursion.refreshed();
        if model.recursion.has_plain_weights() {
            let [_, of_momentum] = model.recursion.refreshing();
            let fresh = |momentum: &E::Ciphertext| {
                let scaled = engine.mul_constant(momentum, Complex64::new(of_momentum.bias, 0.0))?;
                self.bootstrapped(engine, &scaled, 0)
            };
            let momentum = model.momentum.as_ref().map(|parts| parts.iter().map(fresh).collect::<Result<_>>());
            return Ok(ModelState { weights: model.weights.clone(), momentum: momentum.transpose()?, recursion });
        }
        let parts = (0..model.weights.len()).collect();
        let fresh = engine.concurrently(parts, |part| self.refresh_part(engine, model, part))?;
        let (weights, momentum): (Vec<_>, Vec<_>) = fresh.into_iter().unzip();
        Ok(ModelState { weights, momentum: momentum.into_iter().collect(), recursion })
    }

    /// The weights and the momentum of one part, each bootstrapped.
    fn refresh_part(
        &self,
        engine: &E,
        model: &ModelState<E::Ciphertext>,
        part: usize,
    ) -> Result<(E::Ciphertext, Option<E::Ciphertext>)> {
        let place = Multiplication::at(self.products.level_plan().weights());
        let encode = |values| engine.encode(&packing::factors(self.products.geometry(), part, values), place);
        let weights = &model.weights[part];
        let plain = libm::ldexp(1.0, -(LOG_WEIGHT_SCALE as i32));
        let of_weights = WeightsAndBias { weights: plain * model.recursion.weight_factor(), bias: plain };
        let fresh = self.bootstrapped(engine, &engine.mul_plain(weights, &encode(of_weights)?)?, LOG_WEIGHT_BOUND)?;
        let fresh = engine.mul_integer(&fresh, 1 << LOG_WEIGHT_SCALE)?;
        let Some(momentum) = &model.momentum else { return Ok((fresh, None)) };
        let [of_weights, of_momentum] = model.recursion.refreshing();
        let (of_weights, of_momentum) = (encode(of_weights)?, encode(of_momentum)?);
        let sum = engine.sum_of_plain_products(&[(weights, &of_weights), (&momentum[part], &of_momentum)])?;
        Ok((fresh, Some(self.bootstrapped(engine, &sum, 0)?)))
    }

    /// A part at the level of the classifier again. Each slot holds two features, so it is complex.
    /// The bootstrap is precise: what it adds to a momentum, later steps multiply by their number.
    fn bootstrapped(&self, engine: &E, part: &E::Ciphertext, log_bound: u32) -> Result<E::Ciphertext> {
        Ok(engine.drop_to(&engine.bootstrap_precise(part, log_bound)?, self.products.level_plan().weights())?)
    }
}

/// A gradient step whose pieces are added one after the other.
pub struct GradientStep<'a, E: Engine> {
    trainer: &'a Trainer<E>,
    model: &'a ModelState<E::Ciphertext>,
    size: StepSize,
    factors: WeightsAndBias,
    rows_left: usize,
    /// Where the gradient is computed.
    point: Option<Point<E::Ciphertext>>,
    gradient: Option<Vec<E::Ciphertext>>,
}

/// `V`, as it is stored and, while pieces follow, repeated over all rows.
struct Point<C> {
    lookahead: Vec<C>,
    expanded: Option<Expanded<C>>,
}

impl<E: Engine> GradientStep<'_, E> {
    /// Adds the gradient of a piece. `ended` is called with each stage when it ends.
    pub fn add(&mut self, engine: &E, piece: &Batch<E::Ciphertext>, ended: &mut dyn FnMut(Stage)) -> Result<()> {
        let logits = self.logits(engine, piece)?;
        ended(Stage::Logits);
        let gradient = self.trainer.gradient(engine, piece, &logits, self.factors, ended)?;
        self.gradient = Some(match self.gradient.take() {
            Some(sum) => each(&sum, &gradient, |a, b| engine.add(a, b))?,
            None => gradient,
        });
        Ok(())
    }

    /// The logits of a piece, at `V`.
    fn logits(&mut self, engine: &E, piece: &Batch<E::Ciphertext>) -> Result<E::Ciphertext> {
        let products = &self.trainer.products;
        let (lookahead, expanded) = match self.point.take() {
            Some(Point { lookahead, expanded }) => (lookahead, expanded),
            None => (self.trainer.lookahead(engine, self.model)?, None),
        };
        let factor = self.model.recursion.lookahead_factor();
        let expanded = expanded.map_or_else(|| products.expand(engine, &lookahead, factor), Ok)?;
        let logits = products.logits(engine, &piece.versions, &expanded)?;
        self.rows_left = self.rows_left.saturating_sub(piece.rows);
        self.point = Some(Point { lookahead, expanded: (self.rows_left > 0).then_some(expanded) });
        Ok(logits)
    }

    /// The model after the step: `w' = w + k m - k d`, `m' = m - d`.
    pub fn finish(self, engine: &E, ended: &mut dyn FnMut(Stage)) -> Result<ModelState<E::Ciphertext>> {
        let (gradient, point) = self.gradient.zip(self.point).ok_or(Error::NoRows)?;
        let (recursion, beta) = self.model.recursion.advance(self.size);
        let k = self.model.recursion.multiple();
        let weights = each(&point.lookahead, &gradient, |v, d| engine.sub(v, &engine.mul_integer(d, k)?))?;
        let momentum = match &self.model.momentum {
            _ if beta.weights == 0.0 => None,
            Some(momentum) => Some(each(momentum, &gradient, |m, d| engine.sub(m, d))?),
            None => Some(gradient.iter().map(|d| engine.neg(d)).collect::<hetal_circuits::Result<_>>()?),
        };
        ended(Stage::Descent);
        Ok(ModelState { weights, momentum, recursion })
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
    top_level: usize,
) -> Result<KeyRequirements> {
    Ok(dry_run(geometry, level_plan, constants, top_level)?.keys())
}

/// The operations of preparing a batch, of [`DRY_RUN_STEPS`] steps on it and of one refresh.
fn dry_run(geometry: Geometry, level_plan: LevelPlan, constants: Constants, top_level: usize) -> Result<OpCounts> {
    let engine = Clear::new(geometry.slots(), top_level);
    let trainer = Trainer::new(&engine, geometry, level_plan, constants)?;
    let zeros = vec![Complex64::ZERO; geometry.slots()];
    let fresh = |level| engine.fresh(&zeros, level);
    let features = vec![fresh(level_plan.fresh_features())?; geometry.blocks()];
    let mut batch = trainer.batch(&engine, &features, fresh(level_plan.labels())?, geometry.rows())?;
    if level_plan.is_weighted() {
        batch.row_weights = Some(fresh(level_plan.row_weights())?);
    }
    let mut model = ModelState::new(vec![fresh(level_plan.weights())?; geometry.parts()], Momentum::Nesterov);
    for _ in 0..DRY_RUN_STEPS {
        model = trainer.step(&engine, &model, &batch, StepSize::of(1.0))?;
    }
    trainer.refresh(&engine, &model)?;
    Ok(engine.op_counts())
}

/// Steps of a dry run: the first has no momentum, the second is like all others.
const DRY_RUN_STEPS: u64 = 2;

/// Bootstraps of a refresh of one part without L2: a precise bootstrap is two.
pub(crate) const BOOTSTRAPS_OF_A_REFRESH: u64 = 2;

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
    top_level: usize,
) -> Result<KeyRequirements> {
    Ok(needs_of_session(geometry, level_plan, range, top_level)?.keys)
}

pub(crate) fn needs_of_session(
    geometry: Geometry,
    level_plan: LevelPlan,
    range: f64,
    top_level: usize,
) -> Result<SessionNeeds> {
    let mut ranges = vec![range];
    while let Some(wider) = ranges.last().and_then(|&range| crate::judge::wider(range)) {
        ranges.push(wider);
    }
    let mut needs = SessionNeeds { keys: KeyRequirements::default(), bootstraps: 0 };
    for range in ranges {
        let constants = Constants::for_plan(geometry.classes(), range, level_plan)?;
        let ops = dry_run(geometry, level_plan, constants, top_level)?;
        needs.keys = needs.keys.union(ops.keys());
        let of_steps = ops.count(OpKind::Bootstrap) - BOOTSTRAPS_OF_A_REFRESH * geometry.parts() as u64;
        needs.bootstraps = needs.bootstraps.max(of_steps.div_ceil(DRY_RUN_STEPS));
    }
    Ok(needs)
}
