//! The matrix products of an iteration, logits `X W^T` and gradients `D^T X`, for a classifier in a
//! few ciphertexts.

mod chains;

use crate::nesterov::{LOG_WEIGHT_SCALE, WeightsAndBias};
use crate::packing::mask;
use crate::{Error, Geometry, LevelPlan, Result};
use chains::MaskedRotations;
use hetal_circuits::{Diagonal, Engine, Multiplication};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The number of row counts whose masks are cached: a full piece, the last piece of a batch, the
/// last piece of all, and one more.
const KEPT_UNSKEWS: usize = 4;

/// The row-shifted versions `X_b^(-k)[j, i] = X_b[j, (i - k) mod a]` of a batch of features:
/// `versions[b][k]`, `k < c'`.
pub type Versions<C> = Vec<Vec<C>>;

/// A classifier with every feature block repeated over all rows, ready for products with the
/// features. The bias is in the first column only, like the weight of a feature that is 1 there and
/// 0 elsewhere.
pub struct Expanded<C> {
    blocks: Vec<C>,
    bias: C,
}

/// The masks of the products for one geometry, one level plan and one scale of the logits, encoded
/// once.
pub struct Products<E: Engine> {
    geometry: Geometry,
    level_plan: LevelPlan,
    /// The versions of a block for `k` from 1 on.
    shifts: MaskedRotations<E>,
    groups: Vec<E::Pattern>,
    bias_groups: Vec<E::Plaintext>,
    /// The masks of the last expansion, with its factor.
    scaled_groups: Mutex<Option<(f64, ScaledGroups<E>)>>,
    skews: MaskedRotations<E>,
    compact_groups: Vec<E::Plaintext>,
    compact_bias_groups: Vec<E::Plaintext>,
    /// Keyed by the rows of a batch: all batches but the last have the same number.
    unskews: Mutex<BTreeMap<usize, Arc<Unskews<E>>>>,
}

/// The masks of the groups for one factor of the weights.
type ScaledGroups<E> = Arc<Vec<<E as Engine>::Plaintext>>;

/// The masks of each `D_k`, each with the rotation that precedes it.
type Unskews<E> = Vec<Vec<(i64, <E as Engine>::Pattern)>>;

impl<E: Engine> Products<E> {
    /// Encodes the masks. The resulting logits are divided by `scale`.
    pub fn new(engine: &E, geometry: Geometry, level_plan: LevelPlan, scale: f64) -> Result<Self> {
        let g = &geometry;
        if engine.slots() != g.slots() {
            return Err(hetal_circuits::Error::SlotCount { got: g.slots(), slots: engine.slots() }.into());
        }
        // The real part is computed as L + conj L, so the masks before it contain the factor 1/2.
        let half = 0.5 / scale;
        let class_count = g.padded_classes();
        let group = |u: usize, columns: usize, value: f64| mask(g, value, |j, i| j < columns && i / class_count == u);
        let groups = |place: Multiplication, columns: usize, value: f64| -> Result<Vec<E::Plaintext>> {
            let encoded = |u| engine.encode(&group(u, columns, value), place);
            Ok((0..g.window()).map(encoded).collect::<hetal_circuits::Result<_>>()?)
        };
        let all = g.columns();
        let patterns = (0..g.window()).map(|u| engine.pattern(&group(u, all, 1.0)));
        let is_chained = level_plan.key_plan().chains();
        let shifts = (1..class_count).map(|k| shift(g, k).into());
        let skews = (0..class_count).map(|k| skew(g, k, half));
        Ok(Self {
            shifts: MaskedRotations::before(engine, shifts, level_plan.fresh_features(), is_chained)?,
            groups: patterns.collect::<hetal_circuits::Result<_>>()?,
            bias_groups: groups(at_one_below(level_plan.weights()), 1, weight_unit())?,
            scaled_groups: Mutex::default(),
            skews: MaskedRotations::after(engine, skews, level_plan.partial_logits(), is_chained)?,
            compact_groups: groups(Multiplication::at(level_plan.gradient()), all, 1.0)?,
            compact_bias_groups: groups(Multiplication::at(level_plan.gradient()), 1, 1.0)?,
            unskews: Mutex::default(),
            geometry,
            level_plan,
        })
    }

    /// The arrangement of rows, features and classes in slots.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The level at which each part of an iteration happens.
    pub fn level_plan(&self) -> LevelPlan {
        self.level_plan
    }

    /// All row-shifted versions of freshly encrypted feature blocks.
    pub fn versions(&self, engine: &E, features: &[E::Ciphertext]) -> Result<Versions<E::Ciphertext>> {
        let versions = |block: &E::Ciphertext| -> Result<Vec<E::Ciphertext>> {
            let block = engine.drop_to(block, self.level_plan.fresh_features())?;
            let mut all = vec![engine.drop_to(&block, self.level_plan.features())?];
            all.extend(self.shifts.of(engine, &block, (-1, self.geometry.rows() as i64))?);
            Ok(all)
        };
        engine.concurrently(features.iter().collect(), versions)
    }

    /// Repeats every feature block of a classifier over all rows: `E_b[j, u, rho] = W_c[j, b, rho]`
    /// for all `u`. The weights, but not the bias, are multiplied by `factor`.
    pub fn expand(&self, engine: &E, weights: &[E::Ciphertext], factor: f64) -> Result<Expanded<E::Ciphertext>> {
        self.check_parts(weights)?;
        let groups = self.scaled_groups(engine, factor)?;
        let mut blocks = Vec::with_capacity(self.geometry.blocks() + 1);
        for (part, weights) in weights.iter().enumerate() {
            blocks.extend(self.expand_part(engine, part, weights, &groups)?);
        }
        let bias = blocks.pop().ok_or(hetal_circuits::Error::Empty("a classifier"))?;
        Ok(Expanded { blocks, bias })
    }

    /// The masks of the groups times `factor`. Without L2 it is always the same.
    fn scaled_groups(&self, engine: &E, factor: f64) -> Result<ScaledGroups<E>> {
        let mut known = self.scaled_groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, groups)) = known.as_ref().filter(|(scaled, _)| *scaled == factor) {
            return Ok(Arc::clone(groups));
        }
        let place = Multiplication::for_partner(self.level_plan.weights(), self.level_plan.features());
        let encoded = |pattern| engine.encode_pattern(pattern, factor * weight_unit(), place);
        let groups: ScaledGroups<E> = Arc::new(self.groups.iter().map(encoded).collect::<hetal_circuits::Result<_>>()?);
        *known = Some((factor, Arc::clone(&groups)));
        Ok(groups)
    }

    /// The blocks of one part, with the bias if the part has it.
    fn expand_part(
        &self,
        engine: &E,
        part: usize,
        weights: &E::Ciphertext,
        groups: &[E::Plaintext],
    ) -> Result<Vec<E::Ciphertext>> {
        let (window, blocks) = (self.geometry.window(), self.geometry.blocks_of(part));
        let weights = engine.drop_to(weights, self.level_plan.weights())?;
        let rotated = self.group_rotations(engine, &weights, self.offsets(part))?;
        let block = |(group, block): (usize, usize)| -> Result<E::Ciphertext> {
            let masks = if block < self.geometry.blocks() { groups } else { &self.bias_groups };
            // Group u takes this group from the rotation by group - u, which is entry group - u +
            // window - 1.
            let terms: Vec<_> = (0..window).map(|u| (&rotated[group + window - 1 - u], &masks[u])).collect();
            let few = engine.sum_of_plain_products(&terms)?;
            self.fold(engine, few, (0..self.foldings()).map(|t| -((window << t) as i64)))
        };
        engine.concurrently(blocks.enumerate().collect(), block)
    }

    /// The logits divided by the scale, `L[j, i] = logit[i, (i + j) mod c'] / scale`, real.
    pub fn logits(
        &self,
        engine: &E,
        versions: &Versions<E::Ciphertext>,
        weights: &Expanded<E::Ciphertext>,
    ) -> Result<E::Ciphertext> {
        let g = &self.geometry;
        self.check_versions(versions)?;
        let partial = |k: usize| {
            let terms: Vec<_> = weights.blocks.iter().zip(versions).map(|(e, x)| (e, &x[k])).collect();
            engine.add(&engine.sum_of_products(&terms)?, &weights.bias)
        };
        let partials = engine.concurrently((0..g.padded_classes()).collect(), partial)?;
        let rows = g.rows() as i64;
        let mut sum = self.skews.sum(engine, &partials, (1 - rows, -rows))?;
        let mut columns = g.padded_classes();
        while columns < g.columns() {
            sum = engine.add(&sum, &engine.rotate(&sum, (columns * g.rows()) as i64)?)?;
            columns *= 2;
        }
        Ok(engine.add(&sum, &engine.conjugate(&sum)?)?)
    }

    /// `D^T X` over the first `rows` rows times a factor, packed like a classifier (all parts, bias
    /// included) but not scaled. `D` is packed like logits. The values of its padded rows and
    /// classes are ignored.
    pub fn gradient(
        &self,
        engine: &E,
        versions: &Versions<E::Ciphertext>,
        differences: &E::Ciphertext,
        rows: usize,
        factors: WeightsAndBias,
    ) -> Result<Vec<E::Ciphertext>> {
        self.check_versions(versions)?;
        let differences = engine.drop_to(differences, self.level_plan.labels())?;
        let (shifted, bias) = self.shifted_differences(engine, &differences, rows, factors)?;
        let window = self.geometry.window();
        // The bias has no features.
        let block = |versions: Option<&Vec<E::Ciphertext>>| {
            let sum = match versions {
                Some(versions) => engine.sum_of_products(&shifted.iter().zip(versions).collect::<Vec<_>>())?,
                None => bias.clone(),
            };
            self.fold(engine, sum, (0..self.foldings()).rev().map(|t| (window << t) as i64))
        };
        let folded = engine.concurrently(versions.iter().map(Some).chain([None]).collect(), block)?;
        (0..self.geometry.parts()).map(|part| self.compact(engine, part, &folded)).collect()
    }

    /// `D_k[j, i] = factor * D[j + k, i - k]` for every `k`, prepared for the features, and their
    /// sum with the bias's factor (the bias's gradient).
    fn shifted_differences(
        &self,
        engine: &E,
        differences: &E::Ciphertext,
        rows: usize,
        factors: WeightsAndBias,
    ) -> Result<(Vec<E::Ciphertext>, E::Ciphertext)> {
        let unskews = self.unskews(engine, rows)?;
        let rotated = self.unskew_rotations(engine, differences, &unskews)?;
        let level = self.level_plan.labels();
        let encode = |part: &[(i64, E::Pattern)], factor, place| -> hetal_circuits::Result<Vec<E::Plaintext>> {
            part.iter().map(|(_, pattern)| engine.encode_pattern(pattern, factor, place)).collect()
        };
        let mut rest = rotated.as_slice();
        let mut shifted = Vec::new();
        for part in unskews.iter() {
            let (terms, others) = rest.split_at(part.len());
            let place = Multiplication::for_partner(level, self.level_plan.features());
            let masks = encode(part, factors.weights, place)?;
            shifted.push(engine.sum_of_plain_products(&terms.iter().zip(&masks).collect::<Vec<_>>())?);
            rest = others;
        }
        // The bias has no features: the same masks again, for an ordinary result at the level of
        // the gradient.
        let encode_bias = |part: &Vec<_>| encode(part, factors.bias, at_one_below(level));
        let masks: Vec<Vec<_>> = unskews.iter().map(encode_bias).collect::<hetal_circuits::Result<_>>()?;
        let terms: Vec<_> = rotated.iter().zip(masks.iter().flatten()).collect();
        Ok((shifted, engine.sum_of_plain_products(&terms)?))
    }

    /// The masks that turn differences into `D_k` for batches of `rows` rows. They are prepared
    /// once; their factor changes with each step.
    fn unskews(&self, engine: &E, rows: usize) -> Result<Arc<Unskews<E>>> {
        let mut known = self.unskews.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(unskews) = known.get(&rows) {
            return Ok(Arc::clone(unskews));
        }
        let pattern = |d: Diagonal| Ok((d.rotation, engine.pattern(&d.values)?));
        let shift = |k| unskew(&self.geometry, k, rows).into_iter().map(pattern).collect::<Result<_>>();
        let made: Arc<Unskews<E>> = Arc::new((0..self.geometry.padded_classes()).map(shift).collect::<Result<_>>()?);
        // Each number of rows costs megabytes and clients choose it, so the cache is bounded. Full
        // pieces are the largest and stay.
        if known.len() >= KEPT_UNSKEWS {
            known.pop_first();
        }
        known.insert(rows, Arc::clone(&made));
        Ok(made)
    }

    /// Puts the blocks of a part, summed over their groups, side by side, each in its group. Of the
    /// bias only the first column is kept: copies in other columns would be trained separately and
    /// drift apart.
    fn compact(&self, engine: &E, part: usize, folded: &[E::Ciphertext]) -> Result<E::Ciphertext> {
        let (window, blocks) = (self.geometry.window(), self.geometry.blocks_of(part));
        // Each sum is rotated a group further than the next, and all of them at last.
        let is_chained = self.level_plan.key_plan().chains();
        let moved = |d: i64| {
            // Group u of the block of group u + d goes there.
            let pair = |u: usize| {
                let block = blocks.clone().nth(usize::try_from(u as i64 + d).ok()?)?;
                let masks =
                    if block < self.geometry.blocks() { &self.compact_groups } else { &self.compact_bias_groups };
                Some((folded.get(block)?, &masks[u]))
            };
            let terms: Vec<_> = (0..window).filter_map(pair).collect();
            let sum = engine.sum_of_plain_products(&terms)?;
            if is_chained { Ok(sum) } else { engine.rotate(&sum, -self.group_rotation(d)) }
        };
        let mut moved = engine.concurrently(self.offsets(part).collect(), moved)?.into_iter();
        let first = moved.next().ok_or(hetal_circuits::Error::Empty("a compaction"))?;
        let add = |sum: E::Ciphertext, part: E::Ciphertext| {
            engine.add(&if is_chained { engine.rotate(&sum, self.group_rotation(1))? } else { sum }, &part)
        };
        let mut sum = moved.try_fold(first, add)?;
        if is_chained {
            sum = engine.rotate(&sum, -self.group_rotation(self.offsets(part).end - 1))?;
        }
        // The features are packed as X1 - i X2, the classifier as W1 + i W2.
        Ok(engine.conjugate(&sum)?)
    }

    /// Adds rotations by each number of groups in turn.
    fn fold(&self, engine: &E, mut a: E::Ciphertext, groups: impl Iterator<Item = i64>) -> Result<E::Ciphertext> {
        for u in groups {
            a = engine.add(&a, &engine.rotate(&a, self.group_rotation(u))?)?;
        }
        Ok(a)
    }

    /// From a group of the window to one of a part.
    fn offsets(&self, part: usize) -> std::ops::Range<i64> {
        1 - self.geometry.window() as i64..self.geometry.blocks_of(part).len() as i64
    }

    fn group_rotation(&self, groups: i64) -> i64 {
        groups * self.geometry.padded_classes() as i64
    }

    fn foldings(&self) -> u32 {
        (self.geometry.groups() / self.geometry.window()).ilog2()
    }

    fn check_parts(&self, parts: &[E::Ciphertext]) -> Result<()> {
        if parts.len() == self.geometry.parts() {
            return Ok(());
        }
        let (rows, columns, must_rows) = (parts.len(), 1, self.geometry.parts());
        Err(Error::Shape { what: "the parts of a classifier", rows, columns, must_rows, must_columns: 1 })
    }

    fn check_versions(&self, versions: &Versions<E::Ciphertext>) -> Result<()> {
        let (must_rows, must_columns) = (self.geometry.blocks(), self.geometry.padded_classes());
        let columns = versions.iter().map(Vec::len).find(|&k| k != must_columns).unwrap_or(must_columns);
        if versions.len() == must_rows && columns == must_columns {
            return Ok(());
        }
        let what = "the versions of a batch of features";
        Err(Error::Shape { what, rows: versions.len(), columns, must_rows, must_columns })
    }
}

/// The masks that expand a classifier undo the scale of its weights.
fn weight_unit() -> f64 {
    libm::ldexp(1.0, -(LOG_WEIGHT_SCALE as i32))
}

/// A multiplication at `level` whose result is two levels lower; the lower result costs nothing.
fn at_one_below(level: usize) -> Multiplication {
    Multiplication { operand: level, at: level - 1, partner: None }
}

/// `out[j, i] = x[j, (i - k) mod a]`.
fn shift(g: &Geometry, k: usize) -> [Diagonal; 2] {
    let (a, by) = (g.rows() as i64, k as i64);
    [
        Diagonal { rotation: -by, values: mask(g, 1.0, |_, i| i >= k) },
        Diagonal { rotation: a - by, values: mask(g, 1.0, |_, i| i < k) },
    ]
}

/// `out[j, i] = value * y[j - k, (i + k) mod a]`.
fn skew(g: &Geometry, k: usize, value: f64) -> Vec<Diagonal> {
    let (a, by) = (g.rows() as i64, k as i64);
    let mut diagonals = vec![Diagonal { rotation: by - by * a, values: mask(g, value, |_, i| i + k < g.rows()) }];
    if k > 0 {
        diagonals.push(Diagonal { rotation: by - by * a - a, values: mask(g, value, |_, i| i + k >= g.rows()) });
    }
    diagonals
}

/// `out[j, i] = d[j + k, (i - k) mod a]` where that is a row below `rows` and a real class, 0
/// elsewhere.
fn unskew(g: &Geometry, k: usize, rows: usize) -> Vec<Diagonal> {
    let (a, by) = (g.rows() as i64, k as i64);
    let real = |j, i| g.class(j, i) < g.classes();
    let mut diagonals =
        vec![Diagonal { rotation: by * a - by, values: mask(g, 1.0, |j, i| i >= k && i - k < rows && real(j, i)) }];
    if k > 0 {
        let wrapped = mask(g, 1.0, |j, i| i < k && i + g.rows() - k < rows && real(j, i));
        diagonals.push(Diagonal { rotation: by * a - by + a, values: wrapped });
    }
    diagonals
}
