//! Reference transform: radix 2, Shoup products, one pass per stage.

use crate::Modulus;

/// Powers of `psi` in bit-reversed order with their Shoup companions.
pub(super) struct Roots {
    forward: Vec<(u64, u64)>,
    inverse: Vec<(u64, u64)>,
}

impl Roots {
    pub(super) fn new(modulus: &Modulus, powers: &[u64]) -> Self {
        let with_companion = |w: u64| (w, modulus.shoup(w));
        let n = powers.len();
        let forward: Vec<_> = powers.iter().map(|&w| with_companion(w)).collect();
        // The inverse of block i's root at the stage of m blocks is minus the root of block m - 1 -
        // i: psi^(n/2m (2 brv(i) + 1)) times its mirror image is psi^n = -1.
        let mut inverse = vec![(1, modulus.shoup(1)); n];
        let mut m = 1;
        while m < n {
            for i in 0..m {
                inverse[m + i] = with_companion(modulus.neg(powers[2 * m - 1 - i]));
            }
            m *= 2;
        }
        Self { forward, inverse }
    }

    pub(super) fn forward(&self, q: &Modulus, a: &mut [u64]) {
        let mut half = a.len() / 2;
        let mut blocks = 1;
        while half > 0 {
            for (block, &(w, w_shoup)) in a.chunks_exact_mut(2 * half).zip(&self.forward[blocks..]) {
                let (low, high) = block.split_at_mut(half);
                for (x, y) in low.iter_mut().zip(high) {
                    let t = q.mul_shoup(*y, w, w_shoup);
                    *y = q.sub(*x, t);
                    *x = q.add(*x, t);
                }
            }
            half /= 2;
            blocks *= 2;
        }
    }

    /// Inverse transform times `scale`.
    pub(super) fn inverse(&self, q: &Modulus, a: &mut [u64], scale: u64) {
        let mut half = 1;
        let mut blocks = a.len() / 2;
        while blocks > 0 {
            for (block, &(w, w_shoup)) in a.chunks_exact_mut(2 * half).zip(&self.inverse[blocks..]) {
                let (low, high) = block.split_at_mut(half);
                for (x, y) in low.iter_mut().zip(high) {
                    let difference = q.sub(*x, *y);
                    *x = q.add(*x, *y);
                    *y = q.mul_shoup(difference, w, w_shoup);
                }
            }
            half *= 2;
            blocks /= 2;
        }
        let scale_shoup = q.shoup(scale);
        for x in a {
            *x = q.mul_shoup(*x, scale, scale_shoup);
        }
    }
}
