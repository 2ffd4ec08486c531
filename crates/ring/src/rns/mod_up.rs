//! Digits of a polynomial, and their inner product with a switching key.

use super::{Basis, Conversion, Poly, RnsRing, Sources};
use crate::buffer::Limb;
use crate::kernels;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

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
fn digit_ranges(q: usize, starts: &[usize]) -> Vec<Range<usize>> {
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
        let y = self.centred_digits(&a, &ranges, &conversions);
        let overflows: Vec<Limb> = (0..count)
            .into_par_iter()
            .with_min_len(self.grain())
            .map(|j| self.overflow(&conversions[j], &y[ranges[j].clone()]))
            .collect();
        let targets: Vec<(usize, usize)> = (0..count)
            .flat_map(|j| (0..basis.limbs()).map(move |i| (j, i)))
            .filter(|(j, i)| !ranges[*j].contains(i))
            .collect();
        let limbs: Vec<Limb> = targets
            .par_iter()
            .with_min_len(self.grain())
            .map(|&(j, i)| {
                let y = doubles(&y[ranges[j].clone()]);
                let target = conversions[j].target(self.full_basis(), basis, i);
                let mut out = self.pool.take();
                conversions[j].converter.convert_into(self.isa, target, &y, overflows[j].as_f64(), &mut out);
                self.table(basis, i).forward(self.isa, &mut out);
                out
            })
            .collect();
        let mut limbs = limbs.into_iter();
        let extended = (0..count).map(|j| limbs.by_ref().take(basis.limbs() - ranges[j].len()).collect()).collect();
        Digits { basis, ranges, source: a, extended }
    }

    /// `y_i` of every limb's digit (see [`crate::base_conversion`]), as doubles.
    fn centred_digits(&self, a: &Poly, ranges: &[Range<usize>], conversions: &[Arc<Conversion>]) -> Vec<Limb> {
        let places: Vec<(usize, usize)> =
            ranges.iter().enumerate().flat_map(|(j, range)| (0..range.len()).map(move |k| (j, k))).collect();
        places
            .par_iter()
            .with_min_len(self.grain())
            .enumerate()
            .map(|(i, &(j, k))| self.scaled_coefficients(a.limbs[i].clone(), &self.q[i], &conversions[j].converter, k))
            .collect()
    }

    /// Inverse transform of source limb `k`, times the converter's constant, centred, as doubles.
    pub(super) fn scaled_coefficients(
        &self,
        mut limb: Limb,
        table: &crate::ntt::NttTable,
        converter: &crate::base_conversion::BaseConverter,
        k: usize,
    ) -> Limb {
        table.inverse_scaled(self.isa, &mut limb, converter.hat_inverse(k));
        let mut y = self.pool.take();
        converter.center_into(self.isa, k, &limb, y.as_f64_mut());
        y
    }

    pub(super) fn overflow(&self, conversion: &Conversion, y: &[Limb]) -> Limb {
        let mut v = self.pool.take();
        conversion.converter.overflow_into(self.isa, &doubles(y), v.as_f64_mut());
        v
    }

    /// `(sum_j d_j k_j0, sum_j d_j k_j1)` over the digits' primes; the key's polynomials may have more limbs and digits.
    pub fn inner_product(&self, digits: &Digits, key: &[(Poly, Poly)]) -> (Poly, Poly) {
        assert!(key.len() >= digits.count());
        let basis = digits.basis;
        let mut out = (self.uninit(basis), self.uninit(basis));
        let pairs = out.0.limbs.par_iter_mut().zip(out.1.limbs.par_iter_mut()).enumerate();
        pairs.with_min_len(self.grain()).for_each(|(i, (out0, out1))| {
            let x: Vec<&[u64]> = (0..digits.count()).map(|j| &digits.limb(j, i)[..]).collect();
            let half = |pick: fn(&(Poly, Poly)) -> &Poly| -> Vec<&[u64]> {
                key[..digits.count()].iter().map(|k| &pick(k).matching(basis, i)[..]).collect()
            };
            kernels::dot_pair_into(
                self.isa,
                self.modulus(basis, i),
                (out0, out1),
                &x,
                &half(|k| &k.0),
                &half(|k| &k.1),
            );
        });
        out
    }
}

pub(super) fn doubles(limbs: &[Limb]) -> Vec<&[f64]> {
    limbs.iter().map(Limb::as_f64).collect()
}
