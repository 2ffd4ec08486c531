//! Polynomials modulo a product of primes, one limb per prime, in the NTT domain unless stated
//! otherwise.
//!
//! The primes are a chain `q_0 q_1 ...` and special primes `p_0 p_1 ...`. The [`Basis`] of a
//! [`Poly`] gives the number of primes of either kind, counted from the first.

mod division;
mod inner_product;
mod mod_up;
mod packed_poly;
mod rotation_sums;

pub use mod_up::{Digits, digit_ranges};
pub use packed_poly::PackedPoly;
pub use rotation_sums::BabyStep;

use crate::automorphism::Permutation;
use crate::base_conversion::{BaseConverter, ConversionTarget};
use crate::buffer::{Limb, Pool};
use crate::ntt::NttTable;
use crate::sampler::{self, Domain, Seed};
use crate::wiped_stack::with_wiped_stack;
use crate::{Isa, Modulus, kernels, packed};
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Entries of a limb that a tensor product works on at a time: four operands and three sums fit the
/// L2 cache.
const TENSOR_BLOCK: usize = 4096;

/// The streams of special primes are numbered from here, so that they never coincide with those of
/// the chain.
const SPECIAL_STREAM: u32 = 1 << 31;

/// How many primes of the chain, and how many special primes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Basis {
    /// Primes of the chain.
    pub q: usize,
    /// Special primes.
    pub p: usize,
}

impl Basis {
    /// Number of limbs.
    pub fn limbs(self) -> usize {
        self.q + self.p
    }
}

/// A polynomial in residue form: the limbs of the chain, then the special ones.
#[derive(Clone)]
pub struct Poly {
    basis: Basis,
    limbs: Vec<Limb>,
}

impl Poly {
    /// The primes it is reduced by.
    pub fn basis(&self) -> Basis {
        self.basis
    }

    /// Its limbs, in the order of the basis.
    pub fn limbs(&self) -> &[Limb] {
        &self.limbs
    }

    /// Its limbs, to write.
    pub fn limbs_mut(&mut self) -> &mut [Limb] {
        &mut self.limbs
    }

    /// Drops limbs: the same polynomial modulo fewer primes.
    pub fn truncate(&mut self, basis: Basis) {
        assert!(basis.q <= self.basis.q && basis.p <= self.basis.p);
        self.limbs.truncate(self.basis.q + basis.p);
        self.limbs.drain(basis.q..self.basis.q);
        self.basis = basis;
    }

    /// The limb of special prime `k`.
    fn special(&self, k: usize) -> &Limb {
        &self.limbs[self.basis.q + k]
    }
}

/// A converter from one set of primes with its constants for every other prime of the ring.
struct Conversion {
    converter: BaseConverter,
    /// By limb number in the full basis; `None` at the sources.
    targets: Vec<Option<ConversionTarget>>,
}

/// Primes a conversion starts from: `q_start .. q_end` of the chain, then the first `p` special
/// ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Sources {
    q_start: usize,
    q_end: usize,
    p: usize,
}

/// The ring `Z[X]/(X^n + 1)` modulo its primes, with all tables, and the operations on whole
/// polynomials.
pub struct RnsRing {
    log_n: u32,
    isa: Isa,
    q: Vec<NttTable>,
    p: Vec<NttTable>,
    pool: Arc<Pool>,
    packed_pool: Arc<Pool>,
    permutations: RwLock<HashMap<u64, Arc<Permutation>>>,
    conversions: RwLock<HashMap<Sources, Arc<Conversion>>>,
}

impl RnsRing {
    /// The ring of degree `2^log_n`, at least 128, with the given primes; `Err` names a number that
    /// is no NTT prime below 2^51.
    pub fn new(log_n: u32, q: &[u64], p: &[u64], isa: Isa) -> Result<Self, u64> {
        let tables = |primes: &[u64]| -> Result<Vec<_>, u64> {
            primes.par_iter().map(|&prime| NttTable::new(prime, log_n).ok_or(prime)).collect()
        };
        Ok(Self {
            log_n,
            isa,
            q: tables(q)?,
            p: tables(p)?,
            pool: Pool::new(1 << log_n),
            packed_pool: Pool::new(packed::words(1 << log_n)),
            permutations: RwLock::default(),
            conversions: RwLock::default(),
        })
    }

    /// Log of the degree.
    pub fn log_n(&self) -> u32 {
        self.log_n
    }

    /// The degree.
    pub fn degree(&self) -> usize {
        1 << self.log_n
    }

    /// The instruction set its kernels use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// All primes.
    pub fn full_basis(&self) -> Basis {
        Basis { q: self.q.len(), p: self.p.len() }
    }

    /// Bytes of limbs this ring holds from the system.
    pub fn pool_bytes(&self) -> usize {
        self.pool.bytes() + self.packed_pool.bytes()
    }

    /// The transform of limb `i` of polynomials in `basis`.
    pub fn table(&self, basis: Basis, i: usize) -> &NttTable {
        if i < basis.q { &self.q[i] } else { &self.p[i - basis.q] }
    }

    /// The prime of limb `i` of polynomials in `basis`.
    pub fn modulus(&self, basis: Basis, i: usize) -> &Modulus {
        self.table(basis, i).modulus()
    }

    /// A polynomial with arbitrary contents, to be overwritten.
    pub fn uninit(&self, basis: Basis) -> Poly {
        assert!(basis.q <= self.q.len() && basis.p <= self.p.len());
        Poly { basis, limbs: (0..basis.limbs()).map(|_| self.pool.take()).collect() }
    }

    /// The zero polynomial.
    pub fn zero(&self, basis: Basis) -> Poly {
        let mut poly = self.uninit(basis);
        self.for_each_limb(&mut poly, |_, _, limb| limb.fill(0));
        poly
    }

    /// A copy modulo fewer primes.
    pub fn copy_truncated(&self, a: &Poly, basis: Basis) -> Poly {
        assert!(basis.q <= a.basis.q && basis.p <= a.basis.p);
        let mut out = self.uninit(basis);
        self.for_each_limb(&mut out, |_, i, limb| limb.copy_from_slice(a.matching(basis, i)));
        out
    }

    /// Runs `f(table, i, limb)` for every limb, in parallel.
    pub fn for_each_limb(&self, a: &mut Poly, f: impl Fn(&NttTable, usize, &mut Limb) + Sync + Send) {
        let basis = a.basis;
        let grain = self.grain();
        a.limbs.par_iter_mut().enumerate().with_min_len(grain).for_each(|(i, limb)| f(self.table(basis, i), i, limb));
    }

    /// Limbs per task: limbs of small rings are too short for a task each.
    fn grain(&self) -> usize {
        ((1 << 13) >> self.log_n).max(1)
    }

    /// From coefficients to values.
    pub fn forward(&self, a: &mut Poly) {
        self.for_each_limb(a, |table, _, limb| table.forward(self.isa, limb));
    }

    /// From values to coefficients.
    pub fn inverse(&self, a: &mut Poly) {
        self.for_each_limb(a, |table, _, limb| table.inverse(self.isa, limb));
    }

    /// [`RnsRing::inverse`] of a polynomial that reveals a secret: nothing of it stays on the
    /// stack.
    pub fn inverse_secret(&self, a: &mut Poly) {
        self.for_each_limb(a, |table, _, limb| with_wiped_stack(|| table.inverse(self.isa, limb)));
    }

    /// `a += b`; `b` may have more limbs.
    pub fn add_assign(&self, a: &mut Poly, b: &Poly) {
        let basis = a.basis;
        self.for_each_limb(a, |t, i, limb| kernels::add_assign(self.isa, t.modulus(), limb, b.matching(basis, i)));
    }

    /// `a -= b`; `b` may have more limbs.
    pub fn sub_assign(&self, a: &mut Poly, b: &Poly) {
        let basis = a.basis;
        self.for_each_limb(a, |t, i, limb| kernels::sub_assign(self.isa, t.modulus(), limb, b.matching(basis, i)));
    }

    /// `a = -a`.
    pub fn neg_assign(&self, a: &mut Poly) {
        self.for_each_limb(a, |t, _, limb| kernels::neg_assign(self.isa, t.modulus(), limb));
    }

    /// `a b` in the basis given; the operands may have more limbs.
    pub fn mul(&self, a: &Poly, b: &Poly, basis: Basis) -> Poly {
        let mut out = self.uninit(basis);
        self.for_each_limb(&mut out, |t, i, limb| {
            kernels::mul_into(self.isa, t.modulus(), limb, a.matching(basis, i), b.matching(basis, i));
        });
        out
    }

    /// `acc += a b`; the factors may have more limbs.
    pub fn mul_add_assign(&self, acc: &mut Poly, a: &Poly, b: &Poly) {
        let basis = acc.basis;
        self.for_each_limb(acc, |t, i, limb| {
            kernels::mul_add_assign(self.isa, t.modulus(), limb, a.matching(basis, i), b.matching(basis, i));
        });
    }

    /// Multiplies by constants `x + y X^(n/2)`: limb `i` by `halves[i].0` in the first half of its
    /// entries and by `halves[i].1` in the second.
    pub fn mul_halves_assign(&self, a: &mut Poly, halves: &[(u64, u64)]) {
        let middle = self.degree() / 2;
        self.for_each_limb(a, |t, i, limb| {
            let (first, second) = limb.split_at_mut(middle);
            kernels::mul_scalar_assign(self.isa, t.modulus(), first, halves[i].0);
            kernels::mul_scalar_assign(self.isa, t.modulus(), second, halves[i].1);
        });
    }

    /// `acc += sum_k a_k c_k` for constants as in [`RnsRing::mul_halves_assign`]; the `a_k` may
    /// have more limbs.
    pub fn add_products_with_halves(&self, acc: &mut Poly, terms: &[(&Poly, Vec<(u64, u64)>)]) {
        let middle = self.degree() / 2;
        let basis = acc.basis;
        self.for_each_limb(acc, |t, i, limb| {
            let limbs: Vec<&Limb> = terms.iter().map(|(a, _)| a.matching(basis, i)).collect();
            let (first, second) = limb.split_at_mut(middle);
            let a: Vec<&[u64]> = limbs.iter().map(|a| &a[..middle]).collect();
            let scalars: Vec<u64> = terms.iter().map(|(_, halves)| halves[i].0).collect();
            kernels::add_combination_assign(self.isa, t.modulus(), first, &a, &scalars);
            let a: Vec<&[u64]> = limbs.iter().map(|a| &a[middle..]).collect();
            let scalars: Vec<u64> = terms.iter().map(|(_, halves)| halves[i].1).collect();
            kernels::add_combination_assign(self.isa, t.modulus(), second, &a, &scalars);
        });
    }

    /// Adds a constant, given as in [`RnsRing::mul_halves_assign`].
    pub fn add_halves_assign(&self, a: &mut Poly, halves: &[(u64, u64)]) {
        let middle = self.degree() / 2;
        self.for_each_limb(a, |t, i, limb| {
            let (first, second) = limb.split_at_mut(middle);
            first.iter_mut().for_each(|v| *v = t.modulus().add(*v, halves[i].0));
            second.iter_mut().for_each(|v| *v = t.modulus().add(*v, halves[i].1));
        });
    }

    /// `a += P b` on the chain's limbs, where `P` is the product of `a`'s special primes (it
    /// vanishes on theirs).
    pub fn add_lifted_assign(&self, a: &mut Poly, b: &Poly) {
        let basis = a.basis;
        self.for_each_limb(a, |t, i, limb| {
            if i < basis.q {
                let p = self.special_product(basis.p, t.modulus());
                kernels::mul_scalar_add_assign(self.isa, t.modulus(), limb, &b.limbs[i], p);
            }
        });
    }

    /// `(sum a0 b0, sum a0 b1 + a1 b0, sum a1 b1)` over pairs `((a0, a1), (b0, b1))`, in the basis
    /// given.
    pub fn tensor_sum(&self, terms: &[((&Poly, &Poly), (&Poly, &Poly))], basis: Basis) -> [Poly; 3] {
        let mut out = [self.uninit(basis), self.uninit(basis), self.uninit(basis)];
        let [d0, d1, d2] = &mut out;
        let limbs = d0.limbs.par_iter_mut().zip(&mut d1.limbs).zip(&mut d2.limbs).enumerate();
        limbs.with_min_len(self.grain()).for_each(|(i, ((d0, d1), d2))| {
            let q = self.modulus(basis, i);
            let block = TENSOR_BLOCK.min(self.degree());
            let mut scratch = vec![0; 3 * block];
            for start in (0..self.degree()).step_by(block) {
                let range = start..start + block;
                let out = [&mut d0[range.clone()], &mut d1[range.clone()], &mut d2[range.clone()]];
                self.tensor_block(q, terms, |a| &a.matching(basis, i)[range.clone()], out, &mut scratch);
            }
        });
        out
    }

    /// A block of all three sums, with `entries(a)` for that of a polynomial.
    fn tensor_block<'a>(
        &self,
        q: &Modulus,
        terms: &[((&'a Poly, &'a Poly), (&'a Poly, &'a Poly))],
        entries: impl Fn(&'a Poly) -> &'a [u64],
        [d0, d1, d2]: [&mut [u64]; 3],
        scratch: &mut [u64],
    ) {
        let (cross, rest) = scratch.split_at_mut(d0.len());
        let (x, y) = rest.split_at_mut(d0.len());
        for (number, chunk) in terms.chunks(kernels::MAX_DOT_TERMS).enumerate() {
            let a0: Vec<&[u64]> = chunk.iter().map(|t| entries(t.0.0)).collect();
            let a1: Vec<&[u64]> = chunk.iter().map(|t| entries(t.0.1)).collect();
            let b0: Vec<&[u64]> = chunk.iter().map(|t| entries(t.1.0)).collect();
            let b1: Vec<&[u64]> = chunk.iter().map(|t| entries(t.1.1)).collect();
            if number == 0 {
                kernels::dot_pair_into(self.isa, q, (d0, d1), &a0, &b0, &b1);
                kernels::dot_pair_into(self.isa, q, (d2, cross), &a1, &b1, &b0);
            } else {
                kernels::dot_pair_into(self.isa, q, (x, y), &a0, &b0, &b1);
                kernels::add_assign(self.isa, q, d0, x);
                kernels::add_assign(self.isa, q, d1, y);
                kernels::dot_pair_into(self.isa, q, (x, cross), &a1, &b1, &b0);
                kernels::add_assign(self.isa, q, d2, x);
            }
            kernels::add_assign(self.isa, q, d1, cross);
        }
    }

    /// `a(X^galois)`.
    pub fn automorphism(&self, a: &Poly, galois: u64) -> Poly {
        let permutation = self.permutation(galois);
        let mut out = self.uninit(a.basis);
        self.for_each_limb(&mut out, |_, i, limb| {
            kernels::permute_into(self.isa, limb, &a.limbs[i], &permutation.whole())
        });
        out
    }

    /// The residues of signed coefficients below 2^62, in the NTT domain. Branch-free in the
    /// coefficients.
    pub fn lift(&self, basis: Basis, coefficients: &[i64]) -> Poly {
        assert_eq!(coefficients.len(), self.degree());
        let mut out = self.uninit(basis);
        self.for_each_limb(&mut out, |table, _, limb| self.lift_limb(table, coefficients, limb));
        out
    }

    /// [`RnsRing::lift`] of coefficients that reveal a secret: nothing of them stays on the stack.
    pub fn lift_secret(&self, basis: Basis, coefficients: &[i64]) -> Poly {
        assert_eq!(coefficients.len(), self.degree());
        let mut out = self.uninit(basis);
        self.for_each_limb(&mut out, |table, _, limb| {
            with_wiped_stack(|| self.lift_limb(table, coefficients, limb));
        });
        out
    }

    fn lift_limb(&self, table: &NttTable, coefficients: &[i64], limb: &mut [u64]) {
        for (x, &c) in limb.iter_mut().zip(coefficients) {
            *x = table.modulus().reduce_i64(c);
        }
        table.forward(self.isa, limb);
    }

    /// The uniform polynomial of a public seed, as digit `digit` of its object. Limbs are
    /// independent streams, so a truncation of the polynomial is the polynomial of fewer primes.
    pub fn uniform(&self, seed: &Seed, digit: u32, basis: Basis) -> Poly {
        let mut a = self.uninit(basis);
        self.for_each_limb(&mut a, |table, i, limb| uniform_limb_into(seed, digit, basis, i, table.modulus(), limb));
        a
    }

    /// The polynomial whose coefficients are the centred residues of `a` modulo `q_0` (its only
    /// prime), in another basis.
    pub fn raise(&self, a: &Poly, basis: Basis) -> Poly {
        assert_eq!(a.basis, Basis { q: 1, p: 0 });
        let conversion = self.conversion(Sources { q_start: 0, q_end: 1, p: 0 });
        let mut coefficients = a.limbs[0].clone();
        self.q[0].inverse_scaled(self.isa, &mut coefficients, conversion.converter.hat_inverse(0));
        let mut out = self.uninit(basis);
        self.for_each_limb(&mut out, |table, i, limb| {
            if i == 0 {
                limb.copy_from_slice(&a.limbs[0]);
                return;
            }
            let target = conversion.target(self.full_basis(), basis, i);
            conversion.converter.convert(self.isa, &[&coefficients], &[target], &mut [limb]);
            table.forward(self.isa, limb);
        });
        out
    }

    fn permutation(&self, galois: u64) -> Arc<Permutation> {
        let known = self.permutations.read().unwrap_or_else(PoisonError::into_inner).get(&galois).cloned();
        known.unwrap_or_else(|| {
            let permutation = Arc::new(Permutation::new(self.log_n, galois));
            let mut cache = self.permutations.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(cache.entry(galois).or_insert(permutation))
        })
    }

    fn conversion(&self, sources: Sources) -> Arc<Conversion> {
        let known = self.conversions.read().unwrap_or_else(PoisonError::into_inner).get(&sources).cloned();
        known.unwrap_or_else(|| {
            let built = Arc::new(self.build_conversion(sources));
            let mut cache = self.conversions.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(cache.entry(sources).or_insert(built))
        })
    }

    fn build_conversion(&self, sources: Sources) -> Conversion {
        let full = self.full_basis();
        let is_source =
            |i: usize| (sources.q_start..sources.q_end).contains(&i) || (full.q..full.q + sources.p).contains(&i);
        let (from, to): (Vec<usize>, Vec<usize>) = (0..full.limbs()).partition(|&i| is_source(i));
        let from: Vec<Modulus> = from.iter().map(|&i| *self.modulus(full, i)).collect();
        let converter = BaseConverter::new(&from);
        let mut targets: Vec<Option<ConversionTarget>> = (0..full.limbs()).map(|_| None).collect();
        for i in to {
            targets[i] = Some(converter.target(self.modulus(full, i)));
        }
        Conversion { converter, targets }
    }
}

/// Limb `i`, modulo `q`, of the polynomial in `basis` that [`RnsRing::uniform`] gives.
pub fn uniform_limb_into(seed: &Seed, digit: u32, basis: Basis, i: usize, q: &Modulus, out: &mut [u64]) {
    let prime = if i < basis.q { i as u32 } else { SPECIAL_STREAM + (i - basis.q) as u32 };
    sampler::uniform_into(seed, Domain::Uniform { digit, prime }, q, out);
}

impl Conversion {
    /// The constants for limb `i` of polynomials in `basis`, in a ring whose full basis is `full`.
    #[allow(clippy::expect_used)]
    fn target(&self, full: Basis, basis: Basis, i: usize) -> &ConversionTarget {
        let number = if i < basis.q { i } else { full.q + i - basis.q };
        self.targets[number].as_ref().expect("a source limb is never a target")
    }
}

impl Poly {
    /// The limb that belongs to limb `i` of `basis`, which is no larger than this polynomial's.
    fn matching(&self, basis: Basis, i: usize) -> &Limb {
        if i < basis.q { &self.limbs[i] } else { self.special(i - basis.q) }
    }
}

#[cfg(test)]
mod tests;
