//! Digits of a polynomial, and their inner product with a switching key.

use super::inner_product::{BLOCK, InnerProduct, KeyLimb, ProductTerms};
use super::{Basis, Conversion, PackedPoly, Poly, RnsRing, Sources};
use crate::buffer::Limb;
use crate::kernels;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// The most limbs that a conversion computes at a time: enough to amortise reading its sources, few
/// enough to stay in the cache until their transforms.
const TARGETS_AT_ONCE: usize = 7;

/// Splits the targets of a conversion into groups of nearly equal size, as many for every thread,
/// each with its first target. The result does not depend on the groups.
pub(super) fn groups<T>(targets: Vec<T>) -> Vec<(usize, Vec<T>)> {
    let count = targets.len();
    let groups = count.div_ceil(TARGETS_AT_ONCE).next_multiple_of(rayon::current_num_threads()).min(count);
    let first = |group: usize| group * count / groups;
    let mut targets = targets.into_iter();
    (0..groups).map(|g| (first(g), targets.by_ref().take(first(g + 1) - first(g)).collect())).collect()
}

/// A polynomial in digits: digit `j` is its centred remainder modulo the product of a few
/// consecutive primes, extended to all primes of the basis.
pub struct Digits {
    basis: Basis,
    /// Primes `ranges[j]` of the chain are those of digit `j`.
    ranges: Vec<Range<usize>>,
    /// The polynomial itself: digit `j` agrees with it modulo its own primes.
    source: Poly,
    others: Others,
}

/// The limbs of digits modulo the primes that are not their own.
enum Others {
    /// Computed for every limb of the basis.
    Kept(Vec<DigitsOfLimb>),
    /// Computed at use from the coefficients of every limb of the polynomial, multiplied by the
    /// constant of the conversion of its digit.
    Scaled { coefficients: Vec<Limb>, conversions: Vec<Arc<Conversion>> },
}

/// One limb of every digit; none where it is the polynomial's own.
type DigitsOfLimb = Vec<Option<Limb>>;

impl Digits {
    /// The primes the digits are extended to.
    pub fn basis(&self) -> Basis {
        self.basis
    }

    /// Number of digits.
    pub fn count(&self) -> usize {
        self.ranges.len()
    }

    /// Limb `i` of the polynomial itself.
    pub(super) fn source_limb(&self, i: usize) -> &Limb {
        &self.source.limbs[i]
    }

    /// Limb `i` of all digits.
    fn limb<'a>(&'a self, i: usize, others: &'a [Option<Limb>]) -> ProductTerms<&'a [u64]> {
        ProductTerms::new(others.iter().map(|other| &other.as_ref().unwrap_or_else(|| self.source_limb(i))[..]))
    }
}

/// The ranges of the digits that start at `starts`, of a polynomial with `q` limbs.
pub fn digit_ranges(q: usize, starts: &[usize]) -> Vec<Range<usize>> {
    let used: Vec<usize> = starts.iter().copied().take_while(|&start| start < q).collect();
    let ends = used.iter().skip(1).copied().chain([q]);
    used.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
}

impl RnsRing {
    /// Cuts `a` (over primes of the chain) into digits that begin at the primes `starts`, each
    /// extended to `a`'s primes and `p` special ones.
    pub fn decompose(&self, a: Poly, starts: &[usize], p: usize) -> Digits {
        let mut digits = self.decompose_for_one_use(a, starts, p);
        let limbs = (0..digits.basis.limbs()).collect();
        digits.others = Others::Kept(self.map_extended(&digits, limbs, |_, _, others| others));
        digits
    }

    /// [`RnsRing::decompose`] for digits that are used once. They are extended at use, a few limbs
    /// at a time, while these are in the cache.
    pub fn decompose_for_one_use(&self, a: Poly, starts: &[usize], p: usize) -> Digits {
        assert_eq!(a.basis.p, 0, "digits are of polynomials over the chain");
        let basis = Basis { q: a.basis.q, p };
        let ranges = digit_ranges(basis.q, starts);
        let conversions: Vec<Arc<Conversion>> =
            ranges.iter().map(|r| self.conversion(Sources { q_start: r.start, q_end: r.end, p: 0 })).collect();
        let coefficients = self.scaled_digits(&a, &ranges, &conversions);
        Digits { basis, ranges, source: a, others: Others::Scaled { coefficients, conversions } }
    }

    /// A polynomial over the chain and special primes as its own only digit: its coefficients are
    /// small.
    pub fn small_digit(&self, mut a: Poly) -> Digits {
        let basis = a.basis;
        let special = a.limbs.split_off(basis.q).into_iter().map(|limb| vec![Some(limb)]);
        let others = (0..basis.q).map(|_| vec![None]).chain(special).collect();
        a.basis.p = 0;
        Digits { basis, ranges: std::iter::once(0..basis.q).collect(), source: a, others: Others::Kept(others) }
    }

    /// Applies a function to every limb of all digits and its item, in parallel.
    pub(super) fn for_each_limb_of<T: Send>(
        &self,
        digits: &Digits,
        given: Vec<T>,
        work: impl Fn(usize, &ProductTerms<&[u64]>, T) + Sync,
    ) {
        assert_eq!(given.len(), digits.basis.limbs());
        if let Others::Kept(others) = &digits.others {
            let limbs = given.into_par_iter().zip(others).enumerate().with_min_len(self.grain());
            return limbs.for_each(|(i, (given, others))| work(i, &digits.limb(i, others), given));
        }
        self.map_extended(digits, given, |i, given, others| work(i, &digits.limb(i, &others), given));
    }

    /// Extends digits for one use, limb by limb of the basis, with what is given for each.
    fn map_extended<T: Send, O: Send>(
        &self,
        digits: &Digits,
        given: Vec<T>,
        work: impl Fn(usize, T, DigitsOfLimb) -> O + Sync,
    ) -> Vec<O> {
        let group = |(first, given): (usize, Vec<T>)| {
            let limbs = self.extended(digits, first..first + given.len());
            given
                .into_iter()
                .zip(limbs)
                .zip(first..)
                .map(|((given, others), i)| work(i, given, others))
                .collect::<Vec<_>>()
        };
        groups(given).into_par_iter().with_min_len(self.grain()).flat_map_iter(group).collect()
    }

    /// Some limbs of all digits.
    fn extended(&self, digits: &Digits, limbs: Range<usize>) -> Vec<DigitsOfLimb> {
        let mut out: Vec<DigitsOfLimb> = limbs.clone().map(|_| Vec::with_capacity(digits.count())).collect();
        let Others::Scaled { coefficients, conversions } = &digits.others else { return out };
        for (digit, conversion) in digits.ranges.iter().zip(conversions) {
            let targets: Vec<usize> = limbs.clone().filter(|i| !digit.contains(i)).collect();
            let sources = words(&coefficients[digit.clone()]);
            let mut made = self.converted(conversion, &sources, digits.basis, &targets).into_iter();
            for (out, i) in out.iter_mut().zip(limbs.clone()) {
                let mut limb = if digit.contains(&i) { None } else { made.next() };
                limb.iter_mut().for_each(|limb| self.table(digits.basis, i).forward(self.isa, limb));
                out.push(limb);
            }
        }
        out
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

    /// `(sum_j d_j k_j0, sum_j d_j k_j1)` over the digits' primes; the key's polynomials may have
    /// more limbs and digits.
    pub fn inner_product(&self, digits: &Digits, key: &[(PackedPoly, PackedPoly)]) -> (Poly, Poly) {
        self.inner_product_plus(digits, key, [None, None])
    }

    /// [`RnsRing::inner_product`] plus `P (c0, c1)`, each of them if given, where `P` is the
    /// product of the special primes.
    pub fn inner_product_plus(
        &self,
        digits: &Digits,
        key: &[(PackedPoly, PackedPoly)],
        added: [Option<&Poly>; 2],
    ) -> (Poly, Poly) {
        let basis = digits.basis;
        let mut out = (self.uninit(basis), self.uninit(basis));
        self.for_each_limb_of(digits, limb_pairs(&mut out), |i, x, limbs| {
            let q = self.modulus(basis, i);
            let p = self.special_product(basis.p, q);
            let plus = added.map(|c| c.filter(|_| i < basis.q).map(|c| (&c.limbs[i][..], p)));
            let product = InnerProduct { x, key: KeyLimb::new(key, basis, i, digits.count()), plus };
            product.write(self.isa, q, 0..self.degree(), (limbs.0, limbs.1));
        });
        out
    }

    /// `acc + (u0 + v0, u1)(X^galois)` for the inner product `(u0, u1)`. Without `acc` the sum
    /// begins at zero. A `v0` over the chain alone is multiplied by the product of the special
    /// primes. The work is done block by block, so that intermediate values stay in the L1 cache.
    pub fn add_switched(
        &self,
        acc: Option<(Poly, Poly)>,
        v0: &Poly,
        digits: &Digits,
        key: &[(PackedPoly, PackedPoly)],
        galois: u64,
    ) -> (Poly, Poly) {
        let basis = digits.basis;
        let permutation = self.permutation(galois);
        let first = acc.is_none();
        let mut out = acc.unwrap_or_else(|| (self.uninit(basis), self.uninit(basis)));
        self.for_each_limb_of(digits, limb_pairs(&mut out), |i, x, (out0, out1)| {
            let q = self.modulus(basis, i);
            let v0 = if v0.basis.p > 0 {
                Some((&v0.matching(basis, i)[..], 1))
            } else {
                (i < basis.q).then(|| (&v0.limbs[i][..], self.special_product(basis.p, q)))
            };
            let plus = [v0, None];
            let product = InnerProduct { x, key: KeyLimb::new(key, basis, i, digits.count()), plus };
            let mut scratch = self.scratch(2);
            let mut blocks = scratch.blocks();
            let (Some(a), Some(b)) = (blocks.next(), blocks.next()) else { return };
            for part in permutation.parts(BLOCK) {
                product.write(self.isa, q, part.source(), (a, b));
                for (out, x) in [(&mut *out0, &*a), (&mut *out1, &*b)] {
                    let out = &mut out[part.range()];
                    if first {
                        kernels::permute_into(self.isa, out, x, &part);
                    } else {
                        kernels::add_permuted_assign(self.isa, q, out, x, &part);
                    }
                }
            }
        });
        out
    }
}

/// The limbs of a pair over the same primes.
fn limb_pairs(pair: &mut (Poly, Poly)) -> Vec<(&mut Limb, &mut Limb)> {
    pair.0.limbs.iter_mut().zip(&mut pair.1.limbs).collect()
}

/// Limbs as plain slices.
pub(super) fn words(limbs: &[Limb]) -> Vec<&[u64]> {
    limbs.iter().map(|limb| &limb[..]).collect()
}
