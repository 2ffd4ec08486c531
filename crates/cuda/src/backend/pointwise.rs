//! Operations entry by entry.

use super::{CudaBackend, CudaPoly};
use crate::ffi::arguments::{AutomorphismArgs, BinaryArgs, HalvesArgs, MulAddArgs, TensorArgs, TensorTerm};
use crate::source::{Kernel, MAX_LIMBS, MAX_TERMS};
use hetal_ckks::backend::Pair;
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
            constants: [[0.0; 2]; MAX_LIMBS],
        }
    }

    /// Sets constants for products: centred.
    fn set_factors(&self, args: &mut HalvesArgs, basis: Basis, halves: &[(u64, u64)]) {
        for (i, constants) in args.constants[..basis.limbs()].iter_mut().enumerate() {
            let m = self.constants.modulus(basis, i);
            let centred = |x: u64| m.center(x % m.value()) as f64;
            *constants = [centred(halves[i].0), centred(halves[i].1)];
        }
    }

    pub(super) fn scale_halves(&self, a: &mut CudaPoly, halves: &[(u64, u64)]) {
        let basis = a.basis;
        let (before, out) = self.rewrite(a);
        let mut args = self.halves_args(basis, out, (before.address(), basis), 0);
        self.set_factors(&mut args, basis, halves);
        self.launch(Kernel::MultiplyHalves, basis.limbs(), &args);
    }

    pub(super) fn add_scaled_halves(&self, acc: &mut CudaPoly, a: &CudaPoly, halves: &[(u64, u64)]) {
        let basis = acc.basis;
        let (before, out) = self.rewrite(acc);
        let mut args = self.halves_args(basis, out, (a.address(), a.basis), before.address());
        self.set_factors(&mut args, basis, halves);
        self.launch(Kernel::MultiplyHalvesAdd, basis.limbs(), &args);
    }

    pub(super) fn add_constant_halves(&self, a: &mut CudaPoly, halves: &[(u64, u64)]) {
        let basis = a.basis;
        let (before, out) = self.rewrite(a);
        let mut args = self.halves_args(basis, out, (before.address(), basis), 0);
        for (constants, &(x, y)) in args.constants[..basis.limbs()].iter_mut().zip(halves) {
            *constants = [x as f64, y as f64];
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
                *term = TensorTerm { factors: factors.map(CudaPoly::address), chain: factors.map(|f| f.basis.q as u32) };
            }
            self.launch(Kernel::TensorSum, basis.limbs(), &args);
        }
        out
    }
}
