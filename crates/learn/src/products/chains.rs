//! Rotations of the products: each with a key of its own, or chains of a few that have keys.

use super::{Products, Unskews};
use crate::Result;
use hetal_circuits::{Complex64, Diagonal, Engine, KeyPlan, Multiplication};
use std::ops::Range;

/// The rotations by multiples of a group that share digits, if rotations are chained.
const GROUPS_AT_ONCE: i64 = 4;

/// Matrices of at most two diagonals each. Those of number `k` are rotations by `k` times a step,
/// and a fixed number more for the second.
pub(super) enum MaskedRotations<E: Engine> {
    /// Every rotation has a key.
    Hoisted(Vec<E::Transform>),
    /// Only the step and the fixed number have keys. The masks follow the rotations in
    /// [`MaskedRotations::of`] and precede them in [`MaskedRotations::sum`].
    Chained(Vec<Vec<E::Plaintext>>),
}

impl<E: Engine> MaskedRotations<E> {
    /// For [`MaskedRotations::of`], at a level.
    pub(super) fn before(
        engine: &E,
        matrices: impl Iterator<Item = Vec<Diagonal>>,
        level: usize,
        is_chained: bool,
    ) -> Result<Self> {
        Self::new(engine, matrices, level, is_chained, |d| d.values)
    }

    /// For [`MaskedRotations::sum`], at a level.
    pub(super) fn after(
        engine: &E,
        matrices: impl Iterator<Item = Vec<Diagonal>>,
        level: usize,
        is_chained: bool,
    ) -> Result<Self> {
        Self::new(engine, matrices, level, is_chained, |d| {
            let mut values = d.values;
            let places = d.rotation.rem_euclid(values.len() as i64) as usize;
            values.rotate_right(places);
            values
        })
    }

    fn new(
        engine: &E,
        matrices: impl Iterator<Item = Vec<Diagonal>>,
        level: usize,
        is_chained: bool,
        mask: impl Fn(Diagonal) -> Vec<Complex64>,
    ) -> Result<Self> {
        let place = Multiplication::at(level);
        if !is_chained {
            let prepared = matrices.map(|matrix| engine.prepare(&matrix, place));
            return Ok(Self::Hoisted(prepared.collect::<hetal_circuits::Result<_>>()?));
        }
        let encoded = |matrix: Vec<Diagonal>| matrix.into_iter().map(|d| engine.encode(&mask(d), place)).collect();
        Ok(Self::Chained(matrices.map(encoded).collect::<hetal_circuits::Result<_>>()?))
    }

    /// The product of each matrix with `a`. The rotations of number `k`, from 1 on, are by
    /// `k step` and `k step + more`.
    pub(super) fn of(&self, engine: &E, a: &E::Ciphertext, (step, more): (i64, i64)) -> Result<Vec<E::Ciphertext>> {
        let masks = match self {
            Self::Hoisted(matrices) => return Ok(engine.transform_many(a, &matrices.iter().collect::<Vec<_>>())?),
            Self::Chained(masks) => masks,
        };
        let (mut first, mut second) = (a.clone(), engine.rotate(a, more)?);
        let product = |masks: &Vec<E::Plaintext>| {
            (first, second) = (engine.rotate(&first, step)?, engine.rotate(&second, step)?);
            let terms: Vec<_> = [&first, &second].into_iter().zip(masks).collect();
            Ok(engine.sum_of_plain_products(&terms)?)
        };
        masks.iter().map(product).collect()
    }

    /// The sum of the products of each matrix with the ciphertext of its number. The rotations of
    /// number `k`, from 0 on, are by `k step` and, except for `k = 0`, `k step + more`.
    pub(super) fn sum(&self, engine: &E, terms: &[E::Ciphertext], (step, more): (i64, i64)) -> Result<E::Ciphertext> {
        let masks = match self {
            Self::Hoisted(matrices) => {
                return Ok(engine.sum_of_transforms(&terms.iter().zip(matrices).collect::<Vec<_>>())?);
            }
            Self::Chained(masks) => masks,
        };
        // The last come first: each sum is rotated a step further than the next.
        let nested = |which: usize| -> Result<Option<E::Ciphertext>> {
            let mut sum: Option<E::Ciphertext> = None;
            for (a, masks) in terms.iter().zip(masks).rev() {
                let rotated = sum.map(|sum| engine.rotate(&sum, step)).transpose()?;
                let product = masks.get(which).map(|mask| engine.mul_plain(a, mask)).transpose()?;
                sum = match (rotated, product) {
                    (Some(rotated), Some(product)) => Some(engine.add(&rotated, &product)?),
                    (rotated, product) => rotated.or(product),
                };
            }
            Ok(sum)
        };
        let mut sums = engine.concurrently(vec![0, 1], nested)?.into_iter().flatten();
        let first = sums.next().ok_or(hetal_circuits::Error::Empty("skewed sums"))?;
        match sums.next() {
            Some(second) => Ok(engine.add(&first, &engine.rotate(&second, more)?)?),
            None => Ok(first),
        }
    }
}

/// `a` and its rotations by the first multiples of a step, `count` ciphertexts.
pub(super) fn chain<E: Engine>(engine: &E, a: &E::Ciphertext, step: i64, count: usize) -> Result<Vec<E::Ciphertext>> {
    let mut all = Vec::with_capacity(count);
    all.extend((count > 0).then(|| a.clone()));
    while let Some(last) = all.last().filter(|_| all.len() < count) {
        all.push(engine.rotate(last, step)?);
    }
    Ok(all)
}

impl<E: Engine> Products<E> {
    /// The rotations of a classifier by a range of groups.
    pub(super) fn group_rotations(
        &self,
        engine: &E,
        weights: &E::Ciphertext,
        groups: Range<i64>,
    ) -> Result<Vec<E::Ciphertext>> {
        let by = |group| self.group_rotation(group);
        let count = (groups.end - groups.start).max(0) as usize;
        match self.level_plan.key_plan() {
            KeyPlan::Most | KeyPlan::Fast => Ok(engine.rotate_many(weights, &groups.map(by).collect::<Vec<_>>())?),
            KeyPlan::Balanced => {
                let first = engine.rotate(weights, by(groups.start))?;
                let firsts = chain(engine, &first, by(GROUPS_AT_ONCE), count.div_ceil(GROUPS_AT_ONCE as usize))?;
                let all = firsts.iter().zip((0..).step_by(GROUPS_AT_ONCE as usize)).map(|(first, done)| {
                    let more = GROUPS_AT_ONCE.min(count as i64 - done);
                    Ok(engine.rotate_many(first, &(0..more).map(by).collect::<Vec<_>>())?)
                });
                Ok(all.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
            }
            KeyPlan::Small => chain(engine, &engine.rotate(weights, by(groups.start))?, by(1), count),
        }
    }

    /// The rotations of the differences, in the order of their masks: by `k (a - 1)` and, except
    /// for `k = 0`, by `a` more.
    pub(super) fn unskew_rotations(
        &self,
        engine: &E,
        differences: &E::Ciphertext,
        unskews: &Unskews<E>,
    ) -> Result<Vec<E::Ciphertext>> {
        if !self.level_plan.key_plan().chains() {
            let rotations: Vec<i64> = unskews.iter().flatten().map(|(rotation, _)| *rotation).collect();
            return Ok(engine.rotate_many(differences, &rotations)?);
        }
        let rows = self.geometry.rows() as i64;
        let wrapped = engine.rotate(differences, rows)?;
        let chains = engine.concurrently(vec![differences, &wrapped], |a| chain(engine, a, rows - 1, unskews.len()))?;
        let places = unskews.iter().enumerate().flat_map(|(k, masks)| (0..masks.len()).map(move |which| (k, which)));
        Ok(places.map(|(k, which)| chains[which][k].clone()).collect())
    }
}
