//! Weighted sums of many automorphisms of one ciphertext-like pair, before any division by the special primes.

use super::{Digits, Poly, RnsRing};
use crate::automorphism::Permutation;
use crate::buffer::Limb;
use crate::kernels;
use rayon::prelude::*;
use std::sync::Arc;

/// Entries of a limb worked on at a time: the rotated pairs of eight steps then fit a core's own cache.
const BLOCK: usize = 2048;

/// One automorphism and the switching key that follows it.
pub struct BabyStep<'a> {
    /// `X -> X^galois`; 1 is the identity, which needs no key.
    pub galois: u64,
    /// The key of the automorphism.
    pub key: Option<&'a [(Poly, Poly)]>,
}

impl RnsRing {
    /// For each row `w` of `weights`: `sum_b w_b sigma_b(P c0 + <d, k_b0>, <d, k_b1>)`, over the digits' primes, where
    /// `d` are the digits of `c1` and `P` the product of the special primes; the identity contributes `(P c0, P c1)`.
    /// A weight is a polynomial over at least those primes, or absent.
    ///
    /// Limb by limb: every key and weight is read once, and nothing is divided by `P` before the sums are complete.
    pub fn rotation_sums(
        &self,
        c0: &Poly,
        digits: &Digits,
        steps: &[BabyStep<'_>],
        weights: &[Vec<Option<&Poly>>],
    ) -> Vec<(Poly, Poly)> {
        let basis = digits.basis();
        let permutations: Vec<Arc<Permutation>> = steps.iter().map(|s| self.permutation(s.galois)).collect();
        let mut out: Vec<(Poly, Poly)> = weights.iter().map(|_| (self.uninit(basis), self.uninit(basis))).collect();
        let mut by_limb: Vec<Vec<(&mut Limb, &mut Limb)>> = (0..basis.limbs()).map(|_| Vec::new()).collect();
        for (a, b) in &mut out {
            for (i, pair) in a.limbs.iter_mut().zip(&mut b.limbs).enumerate() {
                by_limb[i].push(pair);
            }
        }
        by_limb.into_par_iter().with_min_len(self.grain()).enumerate().for_each(|(i, mut rows)| {
            let rotated = self.rotated_limbs(i, c0, digits, steps, &permutations);
            self.weigh_limbs(i, digits, &rotated, weights, &mut rows);
        });
        out
    }

    /// Limb `i` of `sigma_b(P c0 + <d, k_b0>, <d, k_b1>)` for every step `b`.
    fn rotated_limbs(
        &self,
        i: usize,
        c0: &Poly,
        digits: &Digits,
        steps: &[BabyStep<'_>],
        permutations: &[Arc<Permutation>],
    ) -> Vec<(Limb, Limb)> {
        let basis = digits.basis();
        let q = self.modulus(basis, i);
        let p = self.special_product(basis.p, q);
        let lifted = |limb: &Limb| {
            let mut x = limb.clone();
            kernels::mul_scalar_assign(self.isa, q, &mut x, p);
            x
        };
        let in_chain = i < basis.q;
        let step = |(step, permutation): (&BabyStep<'_>, &Arc<Permutation>)| {
            let Some(key) = step.key else {
                let half = |limb: Option<&Limb>| limb.map_or_else(|| self.pool.take_zeroed(), lifted);
                return (half(in_chain.then(|| &c0.limbs[i])), half(in_chain.then(|| digits.source_limb(i))));
            };
            let (mut a, mut b) = (self.pool.take(), self.pool.take());
            let plus = [in_chain.then(|| (&c0.limbs[i][..], p)), None];
            self.inner_product_limb(digits, key, i, (&mut a, &mut b), plus);
            let (mut a_rotated, mut b_rotated) = (self.pool.take(), self.pool.take());
            kernels::permute_into(self.isa, &mut a_rotated, &a, permutation);
            kernels::permute_into(self.isa, &mut b_rotated, &b, permutation);
            (a_rotated, b_rotated)
        };
        steps.iter().zip(permutations).map(step).collect()
    }

    /// Limb `i` of every row's weighted sum.
    fn weigh_limbs(
        &self,
        i: usize,
        digits: &Digits,
        rotated: &[(Limb, Limb)],
        weights: &[Vec<Option<&Poly>>],
        rows: &mut [(&mut Limb, &mut Limb)],
    ) {
        let basis = digits.basis();
        let q = self.modulus(basis, i);
        let n = self.degree();
        let block = BLOCK.min(n);
        let mut partial = (vec![0; block], vec![0; block]);
        for start in (0..n).step_by(block) {
            let range = start..start + block;
            for (row, weights) in rows.iter_mut().zip(weights) {
                let terms: Vec<(&[u64], &[u64], &[u64])> = weights
                    .iter()
                    .zip(rotated)
                    .filter_map(|(w, (a, b))| {
                        w.map(|w| (&w.matching(basis, i)[range.clone()], &a[range.clone()], &b[range.clone()]))
                    })
                    .collect();
                let (out0, out1) = (&mut row.0[range.clone()], &mut row.1[range.clone()]);
                if terms.is_empty() {
                    out0.fill(0);
                    out1.fill(0);
                }
                for (chunk_number, chunk) in terms.chunks(kernels::MAX_DOT_TERMS).enumerate() {
                    let w: Vec<&[u64]> = chunk.iter().map(|t| t.0).collect();
                    let a: Vec<&[u64]> = chunk.iter().map(|t| t.1).collect();
                    let b: Vec<&[u64]> = chunk.iter().map(|t| t.2).collect();
                    if chunk_number == 0 {
                        kernels::dot_pair_into(self.isa, q, (out0, out1), &w, &a, &b);
                    } else {
                        kernels::dot_pair_into(self.isa, q, (&mut partial.0, &mut partial.1), &w, &a, &b);
                        kernels::add_assign(self.isa, q, out0, &partial.0);
                        kernels::add_assign(self.isa, q, out1, &partial.1);
                    }
                }
            }
        }
    }

    /// The product of the first `p` special primes, modulo `q`.
    pub fn special_product(&self, p: usize, q: &crate::Modulus) -> u64 {
        self.p[..p].iter().fold(1, |product, t| q.mul(product, t.modulus().value() % q.value()))
    }
}
