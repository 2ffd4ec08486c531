//! The map between coefficients and slots, as a product of a few sparse matrices.

use crate::Result;
use hetal_ckks::{Backend, Complex64, Encoder, Evaluator, Matrix};
use std::collections::{BTreeMap, BTreeSet};

/// A product of consecutive butterflies of `n` slots, before any number of it is computed.
pub(super) struct Shape {
    n: i64,
    lengths: Vec<usize>,
    inverse: bool,
    steps: Steps,
}

/// How a rotation is made of an inner and an outer one. Inner ones share their digits, outer ones each cost a whole key-switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steps {
    /// As many inner as outer ones, or twice as many: fewest keys.
    #[default]
    FewKeys,
    /// Twice as many inner ones as that: faster, with a third more keys.
    FewOuter,
}

impl Steps {
    /// What a user who allows `more_keys` or not gets.
    pub fn allowing(more_keys: bool) -> Self {
        if more_keys { Self::FewOuter } else { Self::FewKeys }
    }
}

/// The butterflies of `n` slots in `count` groups, in the order in which they are applied: short ones first from
/// (bit-reversed) coefficients to slots, long ones first for the inverse.
pub(super) fn shapes(n: usize, count: usize, inverse: bool, steps: Steps) -> Vec<Shape> {
    let mut lengths: Vec<usize> = (1..=n.ilog2()).map(|k| 1 << k).collect();
    if inverse {
        lengths.reverse();
    }
    let mut rest = &lengths[..];
    (0..count)
        .map(|k| {
            let (now, later) = rest.split_at(rest.len().div_ceil(count - k));
            rest = later;
            Shape { n: n as i64, lengths: now.to_vec(), inverse, steps }
        })
        .collect()
}

impl Shape {
    /// All rotations are multiples of it.
    fn stride(&self) -> i64 {
        self.lengths.iter().min().map_or(1, |&len| len as i64 / 2)
    }

    /// Whether the longest butterfly is in it: `k` of them then have `2^k` diagonals, else `2^(k+1) - 1`.
    fn wraps(&self) -> bool {
        self.lengths.contains(&(self.n as usize))
    }

    /// Rotations in `-n/2 .. n/2`, or in `0 .. n` for the group that wraps around: neighbours stay neighbours.
    fn signed(&self, rotation: i64) -> i64 {
        let r = rotation.rem_euclid(self.n);
        if !self.wraps() && r >= self.n / 2 { r - self.n } else { r }
    }

    /// The inner step of a rotation: there are about as many as the root of the number of diagonals, rounded up.
    fn baby(&self, rotation: i64) -> i64 {
        let levels = self.lengths.len() as u32;
        let log_diagonals = if self.wraps() { levels } else { levels + 1 };
        let log_inner = log_diagonals.div_ceil(2) + u32::from(self.steps == Steps::FewOuter);
        rotation.rem_euclid(self.stride() << log_inner)
    }

    /// Every rotation of `slots` slots that needs a key: the inner and outer steps of the matrix's nonzero diagonals.
    pub(super) fn rotations(&self, slots: usize) -> BTreeSet<i64> {
        let mut diagonals = BTreeSet::from([0]);
        for &len in &self.lengths {
            let half = len as i64 / 2;
            diagonals = diagonals.iter().flat_map(|r| [r - half, *r, r + half]).map(|r| self.signed(r)).collect();
        }
        let steps = diagonals.iter().flat_map(|&r| [self.baby(r), (r - self.baby(r)).rem_euclid(slots as i64)]);
        steps.filter(|&r| r != 0).collect()
    }

    /// The product itself: `rotation -> values`.
    fn diagonals(&self, encoder: &Encoder) -> BTreeMap<i64, Vec<Complex64>> {
        let n = self.n as usize;
        let identity = BTreeMap::from([(0, vec![Complex64::ONE; n])]);
        self.lengths.iter().fold(identity, |product, &len| {
            let mut next: BTreeMap<i64, Vec<Complex64>> = BTreeMap::new();
            for (rotation, values) in encoder.butterfly(n, len, self.inverse) {
                for (inner, inner_values) in &product {
                    let total = self.signed(rotation as i64 + inner);
                    let sum = next.entry(total).or_insert_with(|| vec![Complex64::ZERO; n]);
                    for (i, s) in sum.iter_mut().enumerate() {
                        *s += values[i] * inner_values[(i + rotation) % n];
                    }
                }
            }
            next
        })
    }

    /// Encodes `factor` times the matrix for ciphertexts of `limbs` limbs, at exactly the scale of the prime they are then
    /// rescaled by. With `split` the result fills twice the slots, followed by `-i` times itself: the real parts of that are
    /// the real and the imaginary parts of the result.
    pub(super) fn encode<B: Backend>(
        &self,
        evaluator: &Evaluator<B>,
        factor: f64,
        limbs: usize,
        split: bool,
    ) -> Result<Matrix<B::Packed>> {
        let mut diagonals = self.diagonals(evaluator.encoder());
        diagonals.values_mut().flatten().for_each(|z| *z *= factor);
        if split {
            diagonals.values_mut().for_each(|values| values.extend_from_within(..));
            diagonals
                .values_mut()
                .flat_map(|values| values.iter_mut().skip(self.n as usize))
                .for_each(|z| *z *= -Complex64::I);
        }
        let basis = evaluator.params().key_basis(limbs);
        Ok(evaluator.encode_matrix(&diagonals, |r| self.baby(r), evaluator.last_prime(limbs), basis)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(shape: &Shape, encoder: &Encoder, x: &[Complex64]) -> Vec<Complex64> {
        let diagonals = shape.diagonals(encoder);
        assert!(diagonals.len() <= 31, "sparse");
        let n = x.len() as i64;
        (0..n).map(|i| diagonals.iter().map(|(r, d)| d[i as usize] * x[(i + r).rem_euclid(n) as usize]).sum()).collect()
    }

    #[test]
    fn groups_invert_each_other_and_stay_sparse() {
        let encoder = Encoder::new(11);
        let x: Vec<Complex64> = (0..1024).map(|k| Complex64::new(f64::from(k % 7), f64::from(k % 5))).collect();
        let there = shapes(1024, 3, false, Steps::FewKeys).iter().fold(x.clone(), |x, g| apply(g, &encoder, &x));
        let back = shapes(1024, 3, true, Steps::FewKeys).iter().fold(there, |x, g| apply(g, &encoder, &x));
        assert!(back.iter().zip(&x).all(|(a, b)| (a - b).norm() < 1e-9));
    }
}
