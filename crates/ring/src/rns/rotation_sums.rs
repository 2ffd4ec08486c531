//! Weighted sums of many automorphisms of one ciphertext-like pair, before any division by the
//! special primes.

use super::inner_product::{BLOCK, InnerProduct, KeyLimb, ProductTerms};
use super::{Digits, PackedPoly, Poly, RnsRing};
use crate::automorphism::Permutation;
use crate::buffer::Limb;
use crate::kernels::{self, MAX_DOT_TERMS, Scaled};
use crate::packed::{Packed, Residues};
use crate::{Isa, Modulus};
use std::ops::Range;
use std::sync::Arc;

/// The largest number of steps for which blocks of the full length [`BLOCK`] fit into the L2 cache.
/// With more steps, blocks are shorter.
const STEPS_OF_BLOCKS: usize = 8;
/// The shortest block. It is a multiple of 128, because packed residues come in groups of 128, and
/// several groups long, because longer stretches of a key are read faster.
const FEWEST_ENTRIES: usize = 512;

/// One automorphism and the switching key that follows it: a baby step of a matrix product that is
/// split into baby and giant steps.
pub struct BabyStep<'a> {
    /// `X -> X^galois`; 1 is the identity.
    pub galois: u64,
    /// The key of the automorphism. The identity has a key only if it changes the secret.
    pub key: Option<&'a [(PackedPoly, PackedPoly)]>,
}

/// One limb of a step's pair, before its automorphism.
// There are a few of them at a time, nearly all of the large kind.
#[allow(clippy::large_enum_variant)]
enum RotatedProduct<'a> {
    Switched(InnerProduct<'a>),
    /// Multiples of the pair itself; `None` if they are zero.
    Same([Option<Scaled<'a>>; 2]),
}

impl RotatedProduct<'_> {
    fn write(&self, isa: Isa, q: &Modulus, range: Range<usize>, out: (&mut [u64], &mut [u64])) {
        match self {
            Self::Switched(product) => product.write(isa, q, range, out),
            Self::Same(halves) => {
                for (out, half) in [out.0, out.1].into_iter().zip(halves) {
                    let Some((a, s)) = half else {
                        out.fill(0);
                        continue;
                    };
                    out.copy_from_slice(&a[range.clone()]);
                    kernels::mul_scalar_assign(isa, q, out, *s);
                }
            }
        }
    }
}

impl RnsRing {
    /// For each row `w` of `weights`: `sum_b w_b sigma_b(P c0 + <d, k_b0>, <d, k_b1>)` over the
    /// primes of the digits, where `d` are the digits of `c1` and `P` is the product of the special
    /// primes. A step without a key contributes `(P c0, P c1)`. A weight is a polynomial over at
    /// least those primes, or absent.
    ///
    /// The work is done limb by limb and block by block. Every key and weight is read once,
    /// intermediate values stay in the cache, and the sums are complete before the division by `P`.
    pub fn rotation_sums(
        &self,
        c0: &Poly,
        digits: &Digits,
        steps: &[BabyStep<'_>],
        weights: &[Vec<Option<&PackedPoly>>],
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
        self.for_each_limb_of(digits, by_limb, |i, x, mut rows| {
            let products = self.rotated_products(i, c0, digits, x, steps);
            let weights: Vec<Vec<Option<Packed<'_>>>> =
                weights.iter().map(|row| row.iter().map(|w| w.map(|w| w.matching(basis, i))).collect()).collect();
            self.sum_blocks(self.modulus(basis, i), &products, &permutations, &weights, &mut rows);
        });
        out
    }

    /// Limb `i` of `(P c0 + <d, k_b0>, <d, k_b1>)` for every step `b`, not yet computed.
    fn rotated_products<'a>(
        &self,
        i: usize,
        c0: &'a Poly,
        digits: &'a Digits,
        x: &'a ProductTerms<&'a [u64]>,
        steps: &[BabyStep<'a>],
    ) -> Vec<RotatedProduct<'a>> {
        let basis = digits.basis();
        let p = self.special_product(basis.p, self.modulus(basis, i));
        let in_chain = i < basis.q;
        let lifted = |limb: Option<&'a Limb>| limb.map(|limb| (&limb[..], p));
        let c0 = in_chain.then(|| &c0.limbs[i]);
        let product = |step: &BabyStep<'a>| match step.key {
            Some(key) => RotatedProduct::Switched(InnerProduct {
                x,
                key: KeyLimb::new(key, basis, i, digits.count()),
                plus: [lifted(c0), None],
            }),
            None => RotatedProduct::Same([c0, in_chain.then(|| digits.source_limb(i))].map(lifted)),
        };
        steps.iter().map(product).collect()
    }

    /// One limb of every row's weighted sum.
    fn sum_blocks(
        &self,
        q: &Modulus,
        products: &[RotatedProduct<'_>],
        permutations: &[Arc<Permutation>],
        weights: &[Vec<Option<Packed<'_>>>],
        rows: &mut [(&mut Limb, &mut Limb)],
    ) {
        let block = (STEPS_OF_BLOCKS * BLOCK / products.len().next_power_of_two()).clamp(FEWEST_ENTRIES, BLOCK);
        let mut scratch = self.scratch_of(4 + 2 * products.len(), block);
        let mut blocks = scratch.blocks();
        let mut pair = || (blocks.next().unwrap_or_default(), blocks.next().unwrap_or_default());
        let (before, mut partial) = (pair(), pair());
        let mut rotated: Vec<(&mut [u64], &mut [u64])> = products.iter().map(|_| pair()).collect();
        let block = before.0.len();
        for start in (0..self.degree()).step_by(block) {
            for ((product, permutation), rotated) in products.iter().zip(permutations).zip(&mut rotated) {
                let part = permutation.part(start, block);
                product.write(self.isa, q, part.source(), (before.0, before.1));
                kernels::permute_into(self.isa, rotated.0, before.0, &part);
                kernels::permute_into(self.isa, rotated.1, before.1, &part);
            }
            for (row, weights) in rows.iter_mut().zip(weights) {
                let range = start..start + block;
                let out = (&mut row.0[range.clone()], &mut row.1[range.clone()]);
                self.weigh(q, &rotated, weights, range, out, &mut partial);
            }
        }
    }

    /// A block of one row's weighted sum.
    fn weigh(
        &self,
        q: &Modulus,
        rotated: &[(&mut [u64], &mut [u64])],
        weights: &[Option<Packed<'_>>],
        range: Range<usize>,
        out: (&mut [u64], &mut [u64]),
        partial: &mut (&mut [u64], &mut [u64]),
    ) {
        let mut terms = weights.iter().zip(rotated).filter_map(|(w, pair)| w.map(|w| (w.part(range.clone()), pair)));
        let mut first = true;
        loop {
            let mut w = [Packed::default(); MAX_DOT_TERMS];
            let (mut a, mut b): ([&[u64]; MAX_DOT_TERMS], [&[u64]; MAX_DOT_TERMS]) = Default::default();
            let mut count = 0;
            for (weight, pair) in terms.by_ref().take(MAX_DOT_TERMS) {
                (w[count], a[count], b[count]) = (weight, &*pair.0, &*pair.1);
                count += 1;
            }
            let (w, a, b) = (&w[..count], &a[..count], &b[..count]);
            match (count, first) {
                (0, true) => {
                    out.0.fill(0);
                    out.1.fill(0);
                    return;
                }
                (0, false) => return,
                (_, true) => kernels::packed_dot_pair_into(self.isa, q, (out.0, out.1), w, a, b),
                (_, false) => {
                    kernels::packed_dot_pair_into(self.isa, q, (partial.0, partial.1), w, a, b);
                    kernels::add_assign(self.isa, q, out.0, partial.0);
                    kernels::add_assign(self.isa, q, out.1, partial.1);
                }
            }
            first = false;
        }
    }

    /// The product of the first `p` special primes, modulo `q`.
    pub fn special_product(&self, p: usize, q: &crate::Modulus) -> u64 {
        self.p[..p].iter().fold(1, |product, t| q.mul(product, t.modulus().value() % q.value()))
    }
}
