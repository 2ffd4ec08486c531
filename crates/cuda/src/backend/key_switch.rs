//! Digits, their inner products with keys, and weighted sums of automorphisms.

use super::{CudaBackend, CudaPoly};
use crate::ffi::arguments::{DigitsArgs, InnerProductArgs, KeyArgs, RotatedArgs, StepArgs, WeighArgs};
use crate::memory::{Buffer, DeviceTable};
use crate::plan::Conversion;
use crate::source::{Kernel, MAX_DIGITS, MAX_ROWS, MAX_SOURCES, MAX_STEPS};
use hetal_ckks::backend::KeyedAutomorphism;
use hetal_ring::{Basis, automorphism, digit_ranges};
use std::ops::Range;
use std::sync::Arc;

/// Rotated pairs are made and weighed a few limbs at a time, so that they stay in the GPU's cache
/// in between.
const ROTATED_BYTES: usize = 32 << 20;

/// A polynomial on the device cut into digits, each extended to all primes of the basis.
pub struct CudaDigits {
    basis: Basis,
    ranges: Vec<Range<usize>>,
    source: CudaPoly,
    /// Every limb of every digit; nothing where the source has them all.
    extended: Option<Buffer>,
}

impl CudaDigits {
    /// A polynomial that is its own only digit.
    pub(super) fn small(a: CudaPoly) -> Self {
        Self { basis: a.basis, ranges: std::iter::once(0..a.basis.q).collect(), source: a, extended: None }
    }

    fn args(&self) -> DigitsArgs {
        let mut starts = [self.basis.q as u32; MAX_DIGITS + 1];
        for (start, range) in starts.iter_mut().zip(&self.ranges) {
            *start = range.start as u32;
        }
        DigitsArgs {
            source: self.source.address(),
            // Of the only digit, limb by limb as the source.
            extended: self.extended.as_ref().map_or(self.source.address(), Buffer::address),
            count: self.ranges.len() as u32,
            limbs: self.basis.limbs() as u32,
            starts,
            unused: 0,
        }
    }

    /// The halves of a key for these digits, and the chain's primes it is over.
    fn key(&self, key: &[(CudaPoly, CudaPoly)]) -> (KeyArgs, u32) {
        assert!(key.len() >= self.ranges.len());
        let used = &key[..self.ranges.len()];
        let over = used[0].0.basis;
        let fits = |k: &CudaPoly| k.basis == over && over.q >= self.basis.q && over.p >= self.basis.p;
        assert!(used.iter().all(|(b, a)| fits(b) && fits(a)), "a key over the digits' primes");
        let mut halves = [[0; 2]; MAX_DIGITS];
        for (half, (b, a)) in halves.iter_mut().zip(used) {
            *half = [b.address(), a.address()];
        }
        (KeyArgs { halves }, over.q as u32)
    }
}

/// What is added to an inner product `u`: `accumulator + (u + P lifted + (plain, 0))(X^galois)`.
pub(super) struct Added<'a> {
    pub(super) accumulator: Option<&'a (CudaPoly, CudaPoly)>,
    pub(super) lifted: [Option<&'a CudaPoly>; 2],
    pub(super) plain: Option<&'a CudaPoly>,
    pub(super) galois: u64,
}

impl Default for Added<'_> {
    fn default() -> Self {
        Self { accumulator: None, lifted: [None; 2], plain: None, galois: 1 }
    }
}

impl CudaBackend {
    pub(super) fn digits(&self, a: CudaPoly, starts: &[usize], p: usize) -> CudaDigits {
        assert_eq!(a.basis.p, 0, "digits are of polynomials over the chain");
        let basis = Basis { q: a.basis.q, p };
        let ranges = digit_ranges(basis.q, starts);
        assert!((1..=MAX_DIGITS).contains(&ranges.len()) && ranges.iter().all(|r| r.len() <= MAX_SOURCES));
        let extended = self.pool.take(ranges.len() * basis.limbs());
        let key = (basis, ranges.iter().map(|r| r.start).collect());
        let make = |_: &_| Conversion::of_digits(&self.constants, &self.device, &ranges, basis);
        if let Some(plan) = self.made(&self.decompositions, key, make) {
            self.convert(&plan, [a.address(); 2], extended.address());
            self.forward(&plan.forward, extended.address());
        }
        CudaDigits { basis, ranges, source: a, extended: Some(extended) }
    }

    /// The product of the first `p` special primes modulo each prime of the chain.
    fn special_products(&self, p: usize) -> Option<Arc<DeviceTable>> {
        let make = |&p: &usize| DeviceTable::new(&self.device, &self.constants.special_products(p));
        self.made(&self.special_products, p, make)
    }

    /// The inner product of digits and key, and what is added to it, turned by an automorphism.
    pub(super) fn digits_times_key(
        &self,
        digits: &CudaDigits,
        key: &[(CudaPoly, CudaPoly)],
        added: &Added<'_>,
    ) -> (CudaPoly, CudaPoly) {
        let basis = digits.basis;
        let out = (self.uninit(basis), self.uninit(basis));
        let (key, key_q) = digits.key(key);
        let Some(products) = self.special_products(basis.p) else { return out };
        let fits = |p: &CudaPoly, needs: Basis| p.basis.q >= needs.q && p.basis.p >= needs.p;
        let chain = Basis { q: basis.q, p: 0 };
        assert!(added.lifted.iter().flatten().all(|d| fits(d, chain)) && added.plain.is_none_or(|d| fits(d, basis)));
        assert!(added.accumulator.is_none_or(|(a, b)| a.basis == basis && b.basis == basis));
        let args = InnerProductArgs {
            primes: self.constants.primes.address(),
            out: [out.0.address(), out.1.address()],
            accumulator: added.accumulator.map_or([0; 2], |(a, b)| [a.address(), b.address()]),
            lifted: added.lifted.map(|d| d.map_or(0, CudaPoly::address)),
            plain: added.plain.map_or(0, CudaPoly::address),
            special_product: products.address(),
            q: basis.q as u32,
            full_q: self.constants.full.q as u32,
            key_q,
            plain_q: added.plain.map_or(0, |d| d.basis.q as u32),
            inverse: automorphism::inverse(self.constants.log_n, added.galois) as u32,
            unused: 0,
            digits: digits.args(),
            key,
        };
        self.launch(Kernel::InnerProduct, basis.limbs(), &args);
        out
    }

    pub(super) fn sums_of_rotations(
        &self,
        c0: &CudaPoly,
        digits: &CudaDigits,
        steps: &[KeyedAutomorphism<'_, CudaPoly>],
        weights: &[Vec<Option<&CudaPoly>>],
    ) -> Vec<(CudaPoly, CudaPoly)> {
        let basis = digits.basis;
        assert!(c0.basis.q >= basis.q && weights.iter().all(|row| row.len() == steps.len()));
        if steps.is_empty() {
            let zero = || hetal_ckks::Backend::zero(self, basis);
            return weights.iter().map(|_| (zero(), zero())).collect();
        }
        let out: Vec<(CudaPoly, CudaPoly)> = weights.iter().map(|_| (self.uninit(basis), self.uninit(basis))).collect();
        let Some(products) = self.special_products(basis.p) else { return out };
        let group = steps.len().min(MAX_STEPS);
        let at_once = (ROTATED_BYTES / (2 * group * self.limb_bytes())).clamp(1, basis.limbs());
        let rotated = self.pool.take(2 * group * at_once);
        for first in (0..basis.limbs()).step_by(at_once) {
            let limbs = first..basis.limbs().min(first + at_once);
            for (chunk, steps) in steps.chunks(MAX_STEPS).enumerate() {
                self.rotate_limbs(c0, digits, steps, &products, &rotated, limbs.clone());
                let place = chunk * MAX_STEPS;
                for (rows, out) in weights.chunks(MAX_ROWS).zip(out.chunks(MAX_ROWS)) {
                    let rows: Vec<&[Option<&CudaPoly>]> = rows.iter().map(|r| &r[place..place + steps.len()]).collect();
                    self.weigh_limbs(basis, &rotated, &rows, out, chunk > 0, limbs.clone());
                }
            }
        }
        out
    }

    /// Limbs `limbs` of `sigma_b(P c0 + <d, k_b0>, <d, k_b1>)` for every step `b`.
    fn rotate_limbs(
        &self,
        c0: &CudaPoly,
        digits: &CudaDigits,
        steps: &[KeyedAutomorphism<'_, CudaPoly>],
        products: &DeviceTable,
        rotated: &Buffer,
        limbs: Range<usize>,
    ) {
        let identity =
            StepArgs { key: KeyArgs { halves: [[0; 2]; MAX_DIGITS] }, inverse: 1, key_q: 0, is_identity: 1, unused: 0 };
        let mut args = RotatedArgs {
            primes: self.constants.primes.address(),
            c0: c0.address(),
            special_product: products.address(),
            rotated: rotated.address(),
            q: digits.basis.q as u32,
            full_q: self.constants.full.q as u32,
            first: limbs.start as u32,
            steps_count: steps.len() as u32,
            digits: digits.args(),
            steps: [identity; MAX_STEPS],
        };
        for (step, arg) in steps.iter().zip(&mut args.steps) {
            if let Some(key) = step.key {
                let (key, key_q) = digits.key(key);
                let inverse = automorphism::inverse(self.constants.log_n, step.galois) as u32;
                *arg = StepArgs { key, inverse, key_q, is_identity: 0, unused: 0 };
            }
        }
        self.launch(Kernel::RotatedPairs, limbs.len(), &args);
    }

    /// Limbs `limbs` of every row's weighted sum.
    fn weigh_limbs(
        &self,
        basis: Basis,
        rotated: &Buffer,
        rows: &[&[Option<&CudaPoly>]],
        out: &[(CudaPoly, CudaPoly)],
        accumulate: bool,
        limbs: Range<usize>,
    ) {
        let mut args = WeighArgs {
            primes: self.constants.primes.address(),
            rotated: rotated.address(),
            out: [[0; 2]; MAX_ROWS],
            q: basis.q as u32,
            full_q: self.constants.full.q as u32,
            first: limbs.start as u32,
            steps_count: rows[0].len() as u32,
            rows: rows.len() as u32,
            accumulate: u32::from(accumulate),
            weights: [[0; MAX_ROWS]; MAX_STEPS],
            weight_q: [[0; MAX_ROWS]; MAX_STEPS],
        };
        for (r, (row, (out0, out1))) in rows.iter().zip(out).enumerate() {
            args.out[r] = [out0.address(), out1.address()];
            for (b, weight) in row.iter().enumerate() {
                if let Some(w) = weight {
                    assert!(basis.q <= w.basis.q && basis.p <= w.basis.p);
                    args.weights[b][r] = w.address();
                    args.weight_q[b][r] = w.basis.q as u32;
                }
            }
        }
        self.launch(Kernel::Weigh, limbs.len(), &args);
    }
}
