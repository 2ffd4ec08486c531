//! Digits of a polynomial, and their inner product with a switching key.

use super::{Basis, Conversion, Poly, RnsRing, Sources};
use crate::buffer::Limb;
use crate::kernels::Scaled;
use crate::{Modulus, kernels};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Most limbs a conversion makes at a time: enough that reading its sources costs little, few enough that they are still in
/// the cache when their transforms begin.
const TARGETS_AT_ONCE: usize = 7;

/// Limbs a conversion makes at a time when `targets` are to be made in all, so that every thread has as much to do. The
/// result does not depend on it.
pub(super) fn targets_at_once(targets: usize) -> usize {
    let groups = targets.div_ceil(TARGETS_AT_ONCE).next_multiple_of(rayon::current_num_threads());
    targets.div_ceil(groups).max(1)
}

/// A polynomial cut into digits: digit `j` is its remainder modulo the product of a few consecutive primes, centred, and
/// extended to all primes of the basis.
pub struct Digits {
    basis: Basis,
    /// Primes `ranges[j]` of the chain are those of digit `j`.
    ranges: Vec<Range<usize>>,
    /// The polynomial itself: digit `j` agrees with it modulo its own primes.
    source: Poly,
    /// `extended[j]`: the other limbs of digit `j`, in the order of the basis.
    extended: Vec<Vec<Limb>>,
}

impl Digits {
    /// The primes the digits are extended to.
    pub fn basis(&self) -> Basis {
        self.basis
    }

    /// Number of digits.
    pub fn count(&self) -> usize {
        self.extended.len()
    }

    /// Limb `i` of the polynomial itself.
    pub(super) fn source_limb(&self, i: usize) -> &Limb {
        &self.source.limbs[i]
    }

    /// Limb `i` (of the basis) of digit `j`.
    pub(super) fn limb(&self, j: usize, i: usize) -> &Limb {
        let own = &self.ranges[j];
        if own.contains(&i) {
            &self.source.limbs[i]
        } else {
            &self.extended[j][if i < own.start { i } else { i - own.len() }]
        }
    }
}

/// The ranges of the digits that start at `starts`, of a polynomial with `q` limbs.
pub fn digit_ranges(q: usize, starts: &[usize]) -> Vec<Range<usize>> {
    let used: Vec<usize> = starts.iter().copied().take_while(|&start| start < q).collect();
    let ends = used.iter().skip(1).copied().chain([q]);
    used.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
}

impl RnsRing {
    /// Cuts `a` (over primes of the chain) into digits that begin at the primes `starts`, each extended to `a`'s primes
    /// and `p` special ones.
    pub fn decompose(&self, a: Poly, starts: &[usize], p: usize) -> Digits {
        assert_eq!(a.basis.p, 0, "digits are of polynomials over the chain");
        let basis = Basis { q: a.basis.q, p };
        let ranges = digit_ranges(basis.q, starts);
        let count = ranges.len();
        let conversions: Vec<Arc<Conversion>> =
            ranges.iter().map(|r| self.conversion(Sources { q_start: r.start, q_end: r.end, p: 0 })).collect();
        let scaled = self.scaled_digits(&a, &ranges, &conversions);
        let at_once = targets_at_once(ranges.iter().map(|own| basis.limbs() - own.len()).sum());
        let tasks: Vec<(usize, Vec<usize>)> = ranges
            .iter()
            .enumerate()
            .flat_map(|(j, own)| {
                let others: Vec<usize> = (0..basis.limbs()).filter(|i| !own.contains(i)).collect();
                others.chunks(at_once).map(|chunk| (j, chunk.to_vec())).collect::<Vec<_>>()
            })
            .collect();
        let limbs: Vec<Limb> = tasks
            .par_iter()
            .with_min_len(self.grain())
            .flat_map_iter(|(j, targets)| {
                let sources = words(&scaled[ranges[*j].clone()]);
                let mut out = self.converted(&conversions[*j], &sources, basis, targets);
                for (limb, &i) in out.iter_mut().zip(targets) {
                    self.table(basis, i).forward(self.isa, limb);
                }
                out
            })
            .collect();
        let mut limbs = limbs.into_iter();
        let extended = (0..count).map(|j| limbs.by_ref().take(basis.limbs() - ranges[j].len()).collect()).collect();
        Digits { basis, ranges, source: a, extended }
    }

    /// Coefficients of every limb times the constant of its digit's conversion.
    fn scaled_digits(&self, a: &Poly, ranges: &[Range<usize>], conversions: &[Arc<Conversion>]) -> Vec<Limb> {
        let places: Vec<(usize, usize)> =
            ranges.iter().enumerate().flat_map(|(j, range)| (0..range.len()).map(move |k| (j, k))).collect();
        let scale = |(i, &(j, k)): (usize, &(usize, usize))| {
            let mut limb = a.limbs[i].clone();
            self.q[i].inverse_scaled(self.isa, &mut limb, conversions[j].converter.hat_inverse(k));
            limb
        };
        places.par_iter().with_min_len(self.grain()).enumerate().map(scale).collect()
    }

    /// The limbs `targets` of `basis` of what `sources` stand for, as coefficients.
    pub(super) fn converted(
        &self,
        conversion: &Conversion,
        sources: &[&[u64]],
        basis: Basis,
        targets: &[usize],
    ) -> Vec<Limb> {
        let constants: Vec<_> = targets.iter().map(|&i| conversion.target(self.full_basis(), basis, i)).collect();
        let mut limbs: Vec<Limb> = targets.iter().map(|_| self.pool.take()).collect();
        let mut out: Vec<&mut [u64]> = limbs.iter_mut().map(|limb| &mut limb[..]).collect();
        conversion.converter.convert(self.isa, sources, &constants, &mut out);
        limbs
    }

    /// `(sum_j d_j k_j0, sum_j d_j k_j1)` over the digits' primes; the key's polynomials may have more limbs and digits.
    pub fn inner_product(&self, digits: &Digits, key: &[(Poly, Poly)]) -> (Poly, Poly) {
        self.inner_product_plus(digits, key, [None, None])
    }

    /// [`RnsRing::inner_product`] plus `P (c0, c1)`, each of them if given, where `P` is the product of the special primes.
    pub fn inner_product_plus(&self, digits: &Digits, key: &[(Poly, Poly)], added: [Option<&Poly>; 2]) -> (Poly, Poly) {
        let basis = digits.basis;
        let mut out = (self.uninit(basis), self.uninit(basis));
        self.for_each_limb_pair(&mut out, |q, i, limbs| {
            let p = self.special_product(basis.p, q);
            let plus = added.map(|c| c.filter(|_| i < basis.q).map(|c| (&c.limbs[i][..], p)));
            self.inner_product_limb(digits, key, i, limbs, plus);
        });
        out
    }

    /// `acc + (u0 + v0, u1)(X^galois)` for the inner product `(u0, u1)`; nothing to start with is zero. Limb by limb: what is
    /// between the inner product and the sum stays in the cache.
    pub fn add_switched(
        &self,
        acc: Option<(Poly, Poly)>,
        v0: &Poly,
        digits: &Digits,
        key: &[(Poly, Poly)],
        galois: u64,
    ) -> (Poly, Poly) {
        let basis = digits.basis;
        let permutation = self.permutation(galois);
        let first = acc.is_none();
        let mut out = acc.unwrap_or_else(|| (self.uninit(basis), self.uninit(basis)));
        self.for_each_limb_pair(&mut out, |q, i, (out0, out1)| {
            let (mut a, mut b) = (self.pool.take(), self.pool.take());
            let plus = [Some((&v0.matching(basis, i)[..], 1)), None];
            self.inner_product_limb(digits, key, i, (&mut a, &mut b), plus);
            for (out, x) in [(out0, &a), (out1, &b)] {
                if first {
                    kernels::permute_into(self.isa, out, x, &permutation);
                } else {
                    kernels::add_permuted_assign(self.isa, q, out, x, &permutation);
                }
            }
        });
        out
    }

    /// Limb `i` of the inner product of digits and a key, plus what is given.
    pub(super) fn inner_product_limb(
        &self,
        digits: &Digits,
        key: &[(Poly, Poly)],
        i: usize,
        (out0, out1): (&mut Limb, &mut Limb),
        plus: [Option<Scaled<'_>>; 2],
    ) {
        assert!(key.len() >= digits.count());
        let basis = digits.basis;
        let x: Vec<&[u64]> = (0..digits.count()).map(|j| &digits.limb(j, i)[..]).collect();
        let half = |pick: fn(&(Poly, Poly)) -> &Poly| -> Vec<&[u64]> {
            key[..digits.count()].iter().map(|k| &pick(k).matching(basis, i)[..]).collect()
        };
        let (y0, y1) = (half(|k| &k.0), half(|k| &k.1));
        kernels::dot_pair_plus_into(self.isa, self.modulus(basis, i), (out0, out1), &x, &y0, &y1, plus);
    }

    /// Does something to the limbs of a pair over the same primes, in parallel.
    fn for_each_limb_pair(
        &self,
        pair: &mut (Poly, Poly),
        work: impl Fn(&Modulus, usize, (&mut Limb, &mut Limb)) + Sync,
    ) {
        let basis = pair.0.basis;
        let limbs = pair.0.limbs.par_iter_mut().zip(pair.1.limbs.par_iter_mut()).enumerate();
        limbs.with_min_len(self.grain()).for_each(|(i, limbs)| work(self.modulus(basis, i), i, limbs));
    }
}

/// Limbs as plain slices.
pub(super) fn words(limbs: &[Limb]) -> Vec<&[u64]> {
    limbs.iter().map(|limb| &limb[..]).collect()
}
