//! Operations entry by entry.

use super::{CudaBackend, CudaPoly};
use crate::ffi::arguments::{
    AutomorphismArgs, BinaryArgs, HalvesArgs, LinearArgs, MulAddArgs, PlainArgs, PlainTerm, TensorArgs, TensorTerm,
    Word,
};
use crate::source::{Kernel, MAX_CONSTANTS, MAX_LIMBS, MAX_LINEAR, MAX_TERMS};
use hetal_ckks::backend::{Halves, Pair};
use hetal_ring::Basis;

impl CudaBackend {
    fn binary_args(&self, basis: Basis, out: u64, a: (u64, Basis), b: (u64, Basis)) -> BinaryArgs {
        assert!(basis.q <= a.1.q && basis.p <= a.1.p && basis.q <= b.1.q && basis.p <= b.1.p);
        BinaryArgs {
            primes: self.constants.primes.address(),
            out,
            a: a.0,
            b: b.0,
            q: basis.q as u32,
            full_q: self.constants.full.q as u32,
            a_q: a.1.q as u32,
            b_q: b.1.q as u32,
        }
    }

    /// `a = kernel(a, b)`.
    pub(super) fn binary_assign(&self, kernel: Kernel, a: &mut CudaPoly, b: &CudaPoly) {
        let basis = a.basis;
        let (before, out) = self.rewrite(a);
        let args = self.binary_args(basis, out, (before.address(), basis), (b.address(), b.basis));
        self.launch(kernel, basis.limbs(), &args);
    }

    pub(super) fn negate(&self, a: &mut CudaPoly) {
        let basis = a.basis;
        let (before, out) = self.rewrite(a);
        let itself = (before.address(), basis);
        self.launch(Kernel::Neg, basis.limbs(), &self.binary_args(basis, out, itself, itself));
    }

    pub(super) fn product(&self, a: &CudaPoly, b: &CudaPoly, basis: Basis) -> CudaPoly {
        let out = self.uninit(basis);
        let args = self.binary_args(basis, out.address(), (a.address(), a.basis), (b.address(), b.basis));
        self.launch(Kernel::Multiply, basis.limbs(), &args);
        out
    }

    pub(super) fn product_add(&self, acc: &mut CudaPoly, a: &CudaPoly, b: &CudaPoly) {
        let basis = acc.basis;
        let (before, out) = self.rewrite(acc);
        let operands = self.binary_args(basis, out, (a.address(), a.basis), (b.address(), b.basis));
        self.launch(Kernel::MultiplyAdd, basis.limbs(), &MulAddArgs { operands, accumulator: before.address() });
    }

    /// Arguments that read `a` and an accumulator, constants still zero.
    fn halves_args(&self, basis: Basis, out: u64, a: (u64, Basis), accumulator: u64) -> HalvesArgs {
        assert!(basis.q <= a.1.q && basis.p <= a.1.p);
        HalvesArgs {
            primes: self.constants.primes.address(),
            out,
            a: a.0,
            accumulator,
            q: basis.q as u32,
            full_q: self.constants.full.q as u32,
            a_q: a.1.q as u32,
            unused: 0,
            constants: [[0; 2]; MAX_LIMBS],
        }
    }

    /// Sets constants for products: centred.
    fn set_factors(&self, row: &mut [[Word; 2]], basis: Basis, halves: &[(u64, u64)]) {
        for (i, constants) in row[..basis.limbs()].iter_mut().enumerate() {
            let m = self.constants.modulus(basis, i);
            let centred = |x: u64| self.constants.centred(m, x % m.value());
            *constants = [centred(halves[i].0), centred(halves[i].1)];
        }
    }

    pub(super) fn scale_halves(&self, a: &mut CudaPoly, halves: &[(u64, u64)]) {
        let basis = a.basis;
        let (before, out) = self.rewrite(a);
        let mut args = self.halves_args(basis, out, (before.address(), basis), 0);
        self.set_factors(&mut args.constants, basis, halves);
        self.launch(Kernel::MultiplyHalves, basis.limbs(), &args);
    }

    pub(super) fn add_scaled_halves(&self, acc: &mut CudaPoly, a: &CudaPoly, halves: &[(u64, u64)]) {
        let basis = acc.basis;
        let (before, out) = self.rewrite(acc);
        let mut args = self.halves_args(basis, out, (a.address(), a.basis), before.address());
        self.set_factors(&mut args.constants, basis, halves);
        self.launch(Kernel::MultiplyHalvesAdd, basis.limbs(), &args);
    }

    pub(super) fn add_constant_halves(&self, a: &mut CudaPoly, halves: &[(u64, u64)]) {
        let basis = a.basis;
        let (before, out) = self.rewrite(a);
        let mut args = self.halves_args(basis, out, (before.address(), basis), 0);
        for (constants, &(x, y)) in args.constants[..basis.limbs()].iter_mut().zip(halves) {
            *constants = [self.constants.arithmetic.word(x as i64), self.constants.arithmetic.word(y as i64)];
        }
        self.launch(Kernel::AddHalves, basis.limbs(), &args);
    }

    pub(super) fn add_lifted(&self, a: &mut CudaPoly, b: &CudaPoly) {
        let basis = a.basis;
        let (before, out) = self.rewrite(a);
        if before.address() != out {
            self.copy_limbs((out, basis.q), (before.address(), basis.q), basis.p);
        }
        let chain = Basis { q: basis.q, p: 0 };
        let mut args = self.halves_args(chain, out, (b.address(), b.basis), before.address());
        let products = self.constants.special_products(basis.p);
        for (constants, product) in args.constants[..basis.q].iter_mut().zip(products) {
            *constants = [product; 2];
        }
        self.launch(Kernel::MultiplyHalvesAdd, basis.q, &args);
    }

    /// `start + sum_k c_k a_k` over pairs, and `constant` on the first of the sums.
    pub(super) fn sum_of_multiples(
        &self,
        start: Option<(CudaPoly, CudaPoly)>,
        basis: Basis,
        terms: &[(Pair<'_, CudaPoly>, Halves)],
        constant: Option<&Halves>,
    ) -> (CudaPoly, CudaPoly) {
        // One row of the constants is for the last launch's constant.
        let at_once = (MAX_CONSTANTS / basis.limbs() - 1).clamp(1, MAX_LINEAR);
        let launches = terms.len().div_ceil(at_once).max(1);
        let mut sum = start;
        for number in 0..launches {
            let chunk = &terms[number * at_once..terms.len().min((number + 1) * at_once)];
            let constant = constant.filter(|_| number + 1 == launches);
            let out = (self.uninit(basis), self.uninit(basis));
            let mut args = self.linear_args(basis, sum.as_ref(), &out, chunk.len());
            for (k, ((a0, a1), halves)) in chunk.iter().enumerate() {
                assert!(a0.basis == a1.basis && basis.q <= a0.basis.q && basis.p <= a0.basis.p);
                (args.terms[k], args.chain[k]) = ([a0.address(), a1.address()], a0.basis.q as u32);
                let row = &mut args.constants[k * basis.limbs()..(k + 1) * basis.limbs()];
                self.set_factors(row, basis, halves);
            }
            if let Some(constant) = constant {
                args.has_constant = 1;
                let row = &mut args.constants[chunk.len() * basis.limbs()..][..basis.limbs()];
                let word = |x: u64| self.constants.arithmetic.word(x as i64);
                row.iter_mut().zip(constant).for_each(|(c, &(x, y))| *c = [word(x), word(y)]);
            }
            self.launch(Kernel::LinearSum, basis.limbs(), &args);
            sum = Some(out);
        }
        sum.unwrap_or_else(|| (self.uninit(basis), self.uninit(basis)))
    }

    fn linear_args(
        &self,
        basis: Basis,
        start: Option<&(CudaPoly, CudaPoly)>,
        out: &(CudaPoly, CudaPoly),
        count: usize,
    ) -> LinearArgs {
        assert!(start.is_none_or(|(a, b)| a.basis == basis && b.basis == basis));
        LinearArgs {
            primes: self.constants.primes.address(),
            out: [out.0.address(), out.1.address()],
            start: start.map_or([0; 2], |(a, b)| [a.address(), b.address()]),
            q: basis.q as u32,
            full_q: self.constants.full.q as u32,
            count: count as u32,
            has_constant: 0,
            limbs: basis.limbs() as u32,
            unused: 0,
            terms: [[0; 2]; MAX_LINEAR],
            chain: [0; MAX_LINEAR],
            constants: [[0; 2]; MAX_CONSTANTS],
        }
    }

    pub(super) fn permuted(&self, a: &CudaPoly, galois: u64) -> CudaPoly {
        let out = self.uninit(a.basis);
        let args = AutomorphismArgs { out: out.address(), a: a.address(), galois: galois as u32, unused: 0 };
        self.launch(Kernel::Automorphism, a.basis.limbs(), &args);
        out
    }

    pub(super) fn sum_of_tensors(
        &self,
        terms: &[(Pair<'_, CudaPoly>, Pair<'_, CudaPoly>)],
        basis: Basis,
    ) -> [CudaPoly; 3] {
        let out = [self.uninit(basis), self.uninit(basis), self.uninit(basis)];
        for (number, chunk) in terms.chunks(MAX_TERMS).enumerate() {
            let mut args = TensorArgs {
                primes: self.constants.primes.address(),
                out: [out[0].address(), out[1].address(), out[2].address()],
                q: basis.q as u32,
                full_q: self.constants.full.q as u32,
                count: chunk.len() as u32,
                accumulate: u32::from(number > 0),
                terms: [TensorTerm { factors: [0; 4], chain: [0; 4] }; MAX_TERMS],
            };
            for (term, &((a0, a1), (b0, b1))) in args.terms.iter_mut().zip(chunk) {
                let factors = [a0, a1, b0, b1];
                assert!(factors.iter().all(|f| basis.q <= f.basis.q && basis.p <= f.basis.p));
                *term =
                    TensorTerm { factors: factors.map(CudaPoly::address), chain: factors.map(|f| f.basis.q as u32) };
            }
            self.launch(Kernel::TensorSum, basis.limbs(), &args);
        }
        out
    }

    pub(super) fn sum_of_plain_products(
        &self,
        terms: &[(Pair<'_, CudaPoly>, &CudaPoly)],
        basis: Basis,
    ) -> (CudaPoly, CudaPoly) {
        let out = (self.uninit(basis), self.uninit(basis));
        for (number, chunk) in terms.chunks(MAX_TERMS).enumerate() {
            let mut args = PlainArgs {
                primes: self.constants.primes.address(),
                out: [out.0.address(), out.1.address()],
                q: basis.q as u32,
                full_q: self.constants.full.q as u32,
                count: chunk.len() as u32,
                accumulate: u32::from(number > 0),
                terms: [PlainTerm { factors: [0; 3], chain: [0; 3], unused: 0 }; MAX_TERMS],
            };
            for (term, &((a0, a1), b)) in args.terms.iter_mut().zip(chunk) {
                let factors = [a0, a1, b];
                assert!(factors.iter().all(|f| basis.q <= f.basis.q && basis.p <= f.basis.p));
                (term.factors, term.chain) = (factors.map(CudaPoly::address), factors.map(|f| f.basis.q as u32));
            }
            self.launch(Kernel::PlainSum, basis.limbs(), &args);
        }
        out
    }
}
