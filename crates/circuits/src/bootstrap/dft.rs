//! The map between coefficients and slots, as a product of a few sparse matrices.

use crate::Result;
use hetal_ckks::{Backend, Complex64, Encoder, Evaluator, Matrix};
use hetal_ring::Basis;
use std::collections::BTreeMap;

/// Inner rotations of a matrix that share their digits: more of them cost keys, fewer cost outer rotations.
const BABY_STEPS: i64 = 8;

/// A product of consecutive butterflies.
pub(super) struct Group {
    /// `rotation -> values`, rotations in `-n/2 .. n/2` (or `0 .. n` for the group that wraps around).
    diagonals: BTreeMap<i64, Vec<Complex64>>,
    /// All rotations are multiples of it.
    stride: i64,
}

/// The butterflies of `n` slots in `count` groups, in the order in which they are applied: short ones first from
/// (bit-reversed) coefficients to slots, long ones first for the inverse.
pub(super) fn groups(encoder: &Encoder, n: usize, count: usize, inverse: bool) -> Vec<Group> {
    let mut lengths: Vec<usize> = (1..=n.ilog2()).map(|k| 1 << k).collect();
    if inverse {
        lengths.reverse();
    }
    let mut rest = &lengths[..];
    (0..count)
        .map(|k| {
            let (now, later) = rest.split_at(rest.len().div_ceil(count - k));
            rest = later;
            Group::new(encoder, n, now, inverse)
        })
        .collect()
}

impl Group {
    fn new(encoder: &Encoder, n: usize, lengths: &[usize], inverse: bool) -> Self {
        let identity = BTreeMap::from([(0, vec![Complex64::ONE; n])]);
        let product = lengths.iter().fold(identity, |product, &len| {
            let mut next: BTreeMap<i64, Vec<Complex64>> = BTreeMap::new();
            for (rotation, values) in encoder.butterfly(n, len, inverse) {
                for (inner, inner_values) in &product {
                    let total = (rotation as i64 + inner).rem_euclid(n as i64);
                    let sum = next.entry(total).or_insert_with(|| vec![Complex64::ZERO; n]);
                    for (i, s) in sum.iter_mut().enumerate() {
                        *s += values[i] * inner_values[(i + rotation) % n];
                    }
                }
            }
            next
        });
        let stride = lengths.iter().min().map_or(1, |&len| len as i64 / 2);
        let half = n as i64 / 2;
        let wraps = lengths.contains(&n);
        let signed = |r: i64| if !wraps && r >= half { r - n as i64 } else { r };
        Self { diagonals: product.into_iter().map(|(r, v)| (signed(r), v)).collect(), stride }
    }

    /// Encodes `factor` times the matrix at exactly the scale of the prime it is rescaled by.
    pub(super) fn encode<B: Backend>(
        &self,
        evaluator: &Evaluator<B>,
        factor: f64,
        limbs: usize,
        basis: Basis,
    ) -> Result<Matrix<B::Poly>> {
        let scaled = |values: &Vec<Complex64>| values.iter().map(|z| z * factor).collect();
        let diagonals = self.diagonals.iter().map(|(&r, values)| (r, scaled(values))).collect();
        let window = BABY_STEPS * self.stride;
        Ok(evaluator.encode_matrix(&diagonals, |r| r.rem_euclid(window), evaluator.last_prime(limbs), basis)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(group: &Group, x: &[Complex64]) -> Vec<Complex64> {
        let n = x.len() as i64;
        (0..n)
            .map(|i| group.diagonals.iter().map(|(r, d)| d[i as usize] * x[(i + r).rem_euclid(n) as usize]).sum())
            .collect()
    }

    #[test]
    fn groups_invert_each_other_and_stay_sparse() {
        let encoder = Encoder::new(11);
        let x: Vec<Complex64> = (0..1024).map(|k| Complex64::new(f64::from(k % 7), f64::from(k % 5))).collect();
        let forward = groups(&encoder, 1024, 3, false);
        let backward = groups(&encoder, 1024, 3, true);
        assert!(forward.iter().chain(&backward).all(|g| g.diagonals.len() <= 31));
        let there = forward.iter().fold(x.clone(), |x, g| apply(g, &x));
        let back = backward.iter().fold(there, |x, g| apply(g, &x));
        assert!(back.iter().zip(&x).all(|(a, b)| (a - b).norm() < 1e-9));
    }
}
