//! The work on limbs that the scheme is built from. The CPU's is [`RnsRing`]; a GPU implements the same trait and gives the
//! same bytes.

use hetal_ring::rns::BabyStep;
use hetal_ring::{Basis, Digits, PackedPoly, Poly, RnsRing};

/// An automorphism `X -> X^galois` and the polynomials of the switching key that follows it.
pub struct KeyedAutomorphism<'a, P> {
    /// The automorphism; 1 is the identity.
    pub galois: u64,
    /// Its key. The identity has none where the secret stays the same, and one where it changes.
    pub key: Option<&'a [(P, P)]>,
}

/// Two polynomials of one ciphertext.
pub type Pair<'a, P> = (&'a P, &'a P);

/// Constants `x + y X^(n/2)`, one pair of residues for each limb: see [`RnsRing::mul_halves_assign`].
pub type Halves = Vec<(u64, u64)>;

/// Why a backend cannot go on. Nothing it gave since is valid; what left it before is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// No room.
    #[error("out of device memory: {needed} bytes more are needed, {free} of {total} are free")]
    OutOfMemory {
        /// Bytes asked for.
        needed: usize,
        /// Bytes free on the device.
        free: usize,
        /// Bytes of the device.
        total: usize,
    },
    /// The device refused or was lost.
    #[error("the device failed in {operation}: {reason}; what was saved before can be taken up on a working one")]
    Device {
        /// What was asked of it.
        operation: &'static str,
        /// Its words.
        reason: String,
    },
}

/// Exact arithmetic on polynomials in residue form. See the methods of [`RnsRing`] of the same names for definitions.
#[allow(missing_docs)]
pub trait Backend: Send + Sync + 'static {
    type Poly: Clone + Send + Sync;
    /// Polynomials that are only read, keys and matrices, in as little memory as they can be used from.
    type Packed: Send + Sync;
    type Digits: Send + Sync;
    /// Real coefficients, kept where the work is done.
    type Reals: Send + Sync;
    /// What is remembered of work that is done again and again: see [`Backend::repeat`].
    type Routine: Default + Send + Sync;

    /// The first failure, if there was one. Operations only queue work, so none of them returns one: they do nothing once
    /// something failed, and whoever uses them looks here at the end of each step. What leaves a backend is checked.
    fn health(&self) -> Result<(), Failure> {
        Ok(())
    }
    fn basis(poly: &Self::Poly) -> Basis;
    fn zero(&self, basis: Basis) -> Self::Poly;
    fn copy_truncated(&self, a: &Self::Poly, basis: Basis) -> Self::Poly;
    fn truncate(&self, a: &mut Self::Poly, basis: Basis);
    /// Residues of signed coefficients below 2^62.
    fn lift(&self, basis: Basis, coefficients: &[i64]) -> Self::Poly;
    /// Keeps the coefficients of a polynomial, one for each power.
    fn keep(&self, coefficients: &[f64]) -> Self::Reals;
    /// [`Backend::lift`] of the coefficients times `factor`, rounded to even.
    fn lift_scaled(&self, basis: Basis, coefficients: &Self::Reals, factor: f64) -> Self::Poly;
    /// From limbs on the host, each residue below its prime.
    fn upload(&self, basis: Basis, limbs: &[&[u64]]) -> Self::Poly;
    /// To limbs on the host.
    fn download(&self, a: &Self::Poly) -> Result<Vec<Vec<u64>>, Failure>;
    /// From limbs of `degree` residues that `fill(i, limb)` writes one after the other. Called while keys are loaded, with
    /// a lock held: neither this nor `fill` may wait for a task of a thread pool.
    fn try_from_limbs<E>(
        &self,
        degree: usize,
        basis: Basis,
        mut fill: impl FnMut(usize, &mut [u64]) -> Result<(), E>,
    ) -> Result<Self::Poly, E> {
        let mut limbs = vec![vec![0; degree]; basis.limbs()];
        limbs.iter_mut().enumerate().try_for_each(|(i, limb)| fill(i, limb))?;
        Ok(self.upload(basis, &limbs.iter().map(Vec::as_slice).collect::<Vec<_>>()))
    }
    /// Shows the limbs one after the other.
    fn try_for_each_limb<E: From<Failure>>(
        &self,
        a: &Self::Poly,
        mut see: impl FnMut(usize, &[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.download(a)?.iter().enumerate().try_for_each(|(i, limb)| see(i, limb))
    }

    /// Packs a polynomial. Called while keys are loaded, see [`Backend::try_from_limbs`].
    fn pack(&self, a: Self::Poly) -> Self::Packed;
    fn unpack(&self, a: &Self::Packed) -> Self::Poly;
    /// Bytes of a limb of what is packed.
    fn packed_limb_bytes(&self) -> usize;

    fn add_assign(&self, a: &mut Self::Poly, b: &Self::Poly);
    fn sub_assign(&self, a: &mut Self::Poly, b: &Self::Poly);
    fn neg_assign(&self, a: &mut Self::Poly);
    fn mul(&self, a: &Self::Poly, b: &Self::Poly, basis: Basis) -> Self::Poly;
    fn mul_add_assign(&self, acc: &mut Self::Poly, a: &Self::Poly, b: &Self::Poly);
    fn mul_halves_assign(&self, a: &mut Self::Poly, halves: &[(u64, u64)]);
    fn add_products_with_halves(&self, acc: &mut Self::Poly, terms: &[(&Self::Poly, Halves)]);
    fn add_halves_assign(&self, a: &mut Self::Poly, halves: &[(u64, u64)]);
    fn add_lifted_assign(&self, a: &mut Self::Poly, b: &Self::Poly);
    fn automorphism(&self, a: &Self::Poly, galois: u64) -> Self::Poly;
    fn tensor_sum(&self, terms: &[(Pair<'_, Self::Poly>, Pair<'_, Self::Poly>)], basis: Basis) -> [Self::Poly; 3];

    fn raise(&self, a: &Self::Poly, basis: Basis) -> Self::Poly;
    fn decompose(&self, a: Self::Poly, digit_starts: &[usize], p: usize) -> Self::Digits;
    /// [`Backend::decompose`] for digits that are used once.
    fn decompose_for_one_use(&self, a: Self::Poly, digit_starts: &[usize], p: usize) -> Self::Digits {
        self.decompose(a, digit_starts, p)
    }
    /// A polynomial over the chain and special primes, with small coefficients, as its own only digit.
    fn small_digit(&self, a: Self::Poly) -> Self::Digits;
    fn inner_product(&self, digits: &Self::Digits, key: &[(Self::Packed, Self::Packed)]) -> (Self::Poly, Self::Poly);
    /// [`Backend::inner_product`] plus `P (c0, c1)`, each of them if given.
    fn inner_product_plus(
        &self,
        digits: &Self::Digits,
        key: &[(Self::Packed, Self::Packed)],
        added: [Option<&Self::Poly>; 2],
    ) -> (Self::Poly, Self::Poly) {
        let (mut u0, mut u1) = self.inner_product(digits, key);
        for (u, c) in [&mut u0, &mut u1].into_iter().zip(added) {
            if let Some(c) = c {
                self.add_lifted_assign(u, c);
            }
        }
        (u0, u1)
    }
    fn rotation_sums(
        &self,
        c0: &Self::Poly,
        digits: &Self::Digits,
        steps: &[KeyedAutomorphism<'_, Self::Packed>],
        weights: &[Vec<Option<&Self::Packed>>],
    ) -> Vec<(Self::Poly, Self::Poly)>;
    fn divide(&self, a: Self::Poly, drop_q: usize) -> Self::Poly;

    // Compositions of the above that a backend may do at once.

    /// How many computations may go on at the same time: a sum of many parts is worth as many partial sums.
    fn lanes(&self) -> usize {
        1
    }

    /// The same work on things that do not depend on each other, on some of them at the same time. Results keep their order.
    fn concurrently<T: Send, R: Send>(&self, items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
        items.into_iter().map(work).collect()
    }

    /// `work` on `inputs`, as before on others of the same shapes. A backend may remember how it was done and do the same again
    /// without asking: whatever else the work reads must be there, unchanged, as long as the routine is used, and it must queue
    /// the same operations for all inputs of these shapes.
    fn repeat<E>(
        &self,
        _routine: &Self::Routine,
        inputs: Vec<Self::Poly>,
        work: impl Fn(Vec<Self::Poly>) -> Result<Vec<Self::Poly>, E>,
    ) -> Result<Vec<Self::Poly>, E> {
        work(inputs)
    }

    /// [`Backend::divide`] of both, then `X -> X^galois`.
    fn divide_pair(&self, a: (Self::Poly, Self::Poly), drop_q: usize, galois: u64) -> (Self::Poly, Self::Poly) {
        let (a, b) = (self.divide(a.0, drop_q), self.divide(a.1, drop_q));
        if galois == 1 { (a, b) } else { (self.automorphism(&a, galois), self.automorphism(&b, galois)) }
    }

    /// `start + sum_k c_k a_k` over pairs, and `constant` on the first of the sums; nothing to start with is zero.
    fn linear_sum(
        &self,
        start: Option<(Self::Poly, Self::Poly)>,
        basis: Basis,
        terms: &[(Pair<'_, Self::Poly>, Halves)],
        constant: Option<&Halves>,
    ) -> (Self::Poly, Self::Poly) {
        let (mut s0, mut s1) = start.unwrap_or_else(|| (self.zero(basis), self.zero(basis)));
        if !terms.is_empty() {
            let firsts: Vec<_> = terms.iter().map(|((a, _), halves)| (*a, halves.clone())).collect();
            let seconds: Vec<_> = terms.iter().map(|((_, a), halves)| (*a, halves.clone())).collect();
            self.add_products_with_halves(&mut s0, &firsts);
            self.add_products_with_halves(&mut s1, &seconds);
        }
        if let Some(constant) = constant {
            self.add_halves_assign(&mut s0, constant);
        }
        (s0, s1)
    }

    /// `sum_k a_k p_k` over pairs; nothing is zero.
    fn plain_sum(&self, terms: &[(Pair<'_, Self::Poly>, &Self::Poly)], basis: Basis) -> (Self::Poly, Self::Poly) {
        let Some((((a0, a1), p), rest)) = terms.split_first() else { return (self.zero(basis), self.zero(basis)) };
        let (mut s0, mut s1) = (self.mul(a0, p, basis), self.mul(a1, p, basis));
        for ((a0, a1), p) in rest {
            self.mul_add_assign(&mut s0, a0, p);
            self.mul_add_assign(&mut s1, a1, p);
        }
        (s0, s1)
    }

    /// `acc + (u0 + v0, u1)(X^galois)` for the inner product `(u0, u1)`; nothing to start with is zero. A `v0` over the chain
    /// alone is meant times the product of the special primes.
    fn add_switched(
        &self,
        acc: Option<(Self::Poly, Self::Poly)>,
        v0: &Self::Poly,
        digits: &Self::Digits,
        key: &[(Self::Packed, Self::Packed)],
        galois: u64,
    ) -> (Self::Poly, Self::Poly) {
        let (mut u0, u1) = self.inner_product(digits, key);
        if Self::basis(v0).p > 0 {
            self.add_assign(&mut u0, v0);
        } else {
            self.add_lifted_assign(&mut u0, v0);
        }
        let (mut u0, mut u1) = (self.automorphism(&u0, galois), self.automorphism(&u1, galois));
        if let Some((a0, a1)) = acc {
            self.add_assign(&mut u0, &a0);
            self.add_assign(&mut u1, &a1);
        }
        (u0, u1)
    }
}

impl Backend for RnsRing {
    type Poly = Poly;
    type Packed = PackedPoly;
    type Digits = Digits;
    type Reals = Vec<f64>;
    type Routine = ();

    fn basis(poly: &Poly) -> Basis {
        poly.basis()
    }
    fn zero(&self, basis: Basis) -> Poly {
        self.zero(basis)
    }
    fn copy_truncated(&self, a: &Poly, basis: Basis) -> Poly {
        self.copy_truncated(a, basis)
    }
    fn truncate(&self, a: &mut Poly, basis: Basis) {
        a.truncate(basis);
    }
    fn lift(&self, basis: Basis, coefficients: &[i64]) -> Poly {
        self.lift(basis, coefficients)
    }
    fn keep(&self, coefficients: &[f64]) -> Vec<f64> {
        coefficients.to_vec()
    }
    fn lift_scaled(&self, basis: Basis, coefficients: &Vec<f64>, factor: f64) -> Poly {
        let rounded: Vec<i64> = coefficients.iter().map(|c| (c * factor).round_ties_even() as i64).collect();
        self.lift(basis, &rounded)
    }
    fn upload(&self, basis: Basis, limbs: &[&[u64]]) -> Poly {
        let mut out = self.zero(basis);
        self.for_each_limb(&mut out, |_, i, limb| limb.copy_from_slice(limbs[i]));
        out
    }
    fn download(&self, a: &Poly) -> Result<Vec<Vec<u64>>, Failure> {
        Ok(a.limbs().iter().map(|limb| limb.to_vec()).collect())
    }
    fn try_from_limbs<E>(
        &self,
        _degree: usize,
        basis: Basis,
        mut fill: impl FnMut(usize, &mut [u64]) -> Result<(), E>,
    ) -> Result<Poly, E> {
        let mut out = self.uninit(basis);
        out.limbs_mut().iter_mut().enumerate().try_for_each(|(i, limb)| fill(i, limb))?;
        Ok(out)
    }
    fn try_for_each_limb<E: From<Failure>>(
        &self,
        a: &Poly,
        mut see: impl FnMut(usize, &[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        a.limbs().iter().enumerate().try_for_each(|(i, limb)| see(i, limb))
    }
    fn pack(&self, a: Poly) -> PackedPoly {
        self.pack(&a)
    }
    fn unpack(&self, a: &PackedPoly) -> Poly {
        self.unpack(a)
    }
    fn packed_limb_bytes(&self) -> usize {
        8 * hetal_ring::packed::words(self.degree())
    }
    fn add_assign(&self, a: &mut Poly, b: &Poly) {
        self.add_assign(a, b);
    }
    fn sub_assign(&self, a: &mut Poly, b: &Poly) {
        self.sub_assign(a, b);
    }
    fn neg_assign(&self, a: &mut Poly) {
        self.neg_assign(a);
    }
    fn mul(&self, a: &Poly, b: &Poly, basis: Basis) -> Poly {
        self.mul(a, b, basis)
    }
    fn mul_add_assign(&self, acc: &mut Poly, a: &Poly, b: &Poly) {
        self.mul_add_assign(acc, a, b);
    }
    fn mul_halves_assign(&self, a: &mut Poly, halves: &[(u64, u64)]) {
        self.mul_halves_assign(a, halves);
    }
    fn add_products_with_halves(&self, acc: &mut Poly, terms: &[(&Poly, Halves)]) {
        self.add_products_with_halves(acc, terms);
    }
    fn add_halves_assign(&self, a: &mut Poly, halves: &[(u64, u64)]) {
        self.add_halves_assign(a, halves);
    }
    fn add_lifted_assign(&self, a: &mut Poly, b: &Poly) {
        self.add_lifted_assign(a, b);
    }
    fn automorphism(&self, a: &Poly, galois: u64) -> Poly {
        self.automorphism(a, galois)
    }
    fn tensor_sum(&self, terms: &[(Pair<'_, Poly>, Pair<'_, Poly>)], basis: Basis) -> [Poly; 3] {
        self.tensor_sum(terms, basis)
    }
    fn raise(&self, a: &Poly, basis: Basis) -> Poly {
        self.raise(a, basis)
    }
    fn decompose(&self, a: Poly, digit_starts: &[usize], p: usize) -> Digits {
        self.decompose(a, digit_starts, p)
    }
    fn decompose_for_one_use(&self, a: Poly, digit_starts: &[usize], p: usize) -> Digits {
        self.decompose_for_one_use(a, digit_starts, p)
    }
    fn small_digit(&self, a: Poly) -> Digits {
        self.small_digit(a)
    }
    fn inner_product(&self, digits: &Digits, key: &[(PackedPoly, PackedPoly)]) -> (Poly, Poly) {
        self.inner_product(digits, key)
    }
    fn inner_product_plus(
        &self,
        digits: &Digits,
        key: &[(PackedPoly, PackedPoly)],
        added: [Option<&Poly>; 2],
    ) -> (Poly, Poly) {
        self.inner_product_plus(digits, key, added)
    }
    fn add_switched(
        &self,
        acc: Option<(Poly, Poly)>,
        v0: &Poly,
        digits: &Digits,
        key: &[(PackedPoly, PackedPoly)],
        galois: u64,
    ) -> (Poly, Poly) {
        self.add_switched(acc, v0, digits, key, galois)
    }
    fn rotation_sums(
        &self,
        c0: &Poly,
        digits: &Digits,
        steps: &[KeyedAutomorphism<'_, PackedPoly>],
        weights: &[Vec<Option<&PackedPoly>>],
    ) -> Vec<(Poly, Poly)> {
        let steps: Vec<BabyStep<'_>> = steps.iter().map(|s| BabyStep { galois: s.galois, key: s.key }).collect();
        self.rotation_sums(c0, digits, &steps, weights)
    }
    fn divide(&self, a: Poly, drop_q: usize) -> Poly {
        self.divide(a, drop_q)
    }
    fn lanes(&self) -> usize {
        rayon::current_num_threads().min(2)
    }
    /// Two at a time: each of them shares out its limbs, too, and needs memory of its own.
    fn concurrently<T: Send, R: Send>(&self, items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
        let mut out = Vec::with_capacity(items.len());
        let mut items = items.into_iter();
        while let Some(first) = items.next() {
            match items.next() {
                Some(second) => out.extend(<[R; 2]>::from(rayon::join(|| work(first), || work(second)))),
                None => out.push(work(first)),
            }
        }
        out
    }
}
