//! The arithmetic on limbs that the scheme is built from.
//!
//! [`Backend`] is the boundary between the scheme and the hardware. Everything above it, from
//! [`crate::Evaluator`] to training, is written once over this trait. [`RnsRing`] implements it for
//! the CPU, `hetal_cuda::CudaBackend` for an NVIDIA GPU. For the same inputs all backends give the
//! same bytes.
//!
//! ```text
//! circuits, training
//!        │
//!    Evaluator ── scales, limbs, keys
//!        │
//!     Backend  ── polynomials modulo primes: add, multiply, transform, convert bases
//!     ┌──┴───────────┐
//!  RnsRing        CudaBackend
//! ```

use hetal_ring::rns::BabyStep;
use hetal_ring::{Basis, Digits, PackedPoly, Poly, RnsRing};

/// An automorphism `X -> X^galois` and the switching key that follows it.
pub struct KeyedAutomorphism<'a, P> {
    /// The exponent of the automorphism; 1 is the identity.
    pub galois: u64,
    /// The digits of the switching key. The identity has a key only if it changes the secret.
    pub key: Option<&'a [(P, P)]>,
}

/// The two polynomials of a ciphertext.
pub type Pair<'a, P> = (&'a P, &'a P);

/// Constants `x + y X^(n/2)`, one pair of residues for each limb: see
/// [`RnsRing::mul_halves_assign`].
pub type Halves = Vec<(u64, u64)>;

/// Why a backend stopped. Results since the failure are invalid; data that left the backend before
/// it is valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The device has no memory left.
    #[error("out of device memory: {needed} bytes more are needed, {free} of {total} are free")]
    OutOfMemory {
        /// Bytes that were requested.
        needed: usize,
        /// Bytes free on the device.
        free: usize,
        /// Bytes of the device.
        total: usize,
    },
    /// The device reported an error or was lost.
    #[error("the device failed in {operation}: {reason}; what was saved before can be taken up on a working one")]
    Device {
        /// The operation that failed.
        operation: &'static str,
        /// The error of the device.
        reason: String,
    },
}

/// Exact arithmetic on polynomials modulo many primes.
///
/// A polynomial ([`Backend::Poly`]) has one limb for each prime of its [`Basis`]: the first `q`
/// primes of the chain, then the first `p` special primes. Limbs hold values of the polynomial (the
/// NTT domain), so products are products of entries. All operations are exact.
///
/// Operations return before their work is done if the backend queues work, as a GPU does. They
/// report no errors. [`Backend::health`] reports the first failure, and everything that leaves the
/// backend is checked against it.
pub trait Backend: Send + Sync + 'static {
    /// A polynomial modulo the primes of a [`Basis`], in the NTT domain.
    type Poly: Clone + Send + Sync;
    /// A polynomial that is only read: a part of a key or a diagonal of a matrix. It takes as
    /// little memory as the backend can compute from.
    type Packed: Send + Sync;
    /// The digits of a polynomial, each raised to the chain and special primes of a key-switch.
    type Digits: Send + Sync;
    /// Real coefficients, stored where the backend computes.
    type Reals: Send + Sync;
    /// What the backend remembers about repeated work: see [`Backend::repeat`].
    type Routine: Default + Send + Sync;

    /// The first failure, if there was one. After a failure operations do nothing; callers check at
    /// the end of each step.
    fn health(&self) -> Result<(), Failure> {
        Ok(())
    }

    // Polynomials and their limbs.

    /// The primes of a polynomial.
    fn basis(poly: &Self::Poly) -> Basis;
    /// The zero polynomial modulo the primes of `basis`.
    fn zero(&self, basis: Basis) -> Self::Poly;
    /// A copy modulo the primes of `basis`, which are among those of `a`.
    fn copy_truncated(&self, a: &Self::Poly, basis: Basis) -> Self::Poly;
    /// Drops the limbs of `a` that are not in `basis`.
    fn truncate(&self, a: &mut Self::Poly, basis: Basis);
    /// The polynomial of signed coefficients below 2^62 in size.
    fn lift(&self, basis: Basis, coefficients: &[i64]) -> Self::Poly;
    /// Stores real coefficients, one for each power of `X`, for [`Backend::lift_scaled`].
    fn keep(&self, coefficients: &[f64]) -> Self::Reals;
    /// [`Backend::lift`] of the coefficients times `factor`, rounded to nearest, ties to even.
    fn lift_scaled(&self, basis: Basis, coefficients: &Self::Reals, factor: f64) -> Self::Poly;
    /// Copies limbs from the host. Each residue is below its prime.
    fn upload(&self, basis: Basis, limbs: &[&[u64]]) -> Self::Poly;
    /// Copies the limbs to the host.
    fn download(&self, a: &Self::Poly) -> Result<Vec<Vec<u64>>, Failure>;
    /// Reads a polynomial limb by limb: `fill(i, limb)` writes limb `i`, of `degree` residues.
    ///
    /// Key loading calls this with a lock held, so neither this function nor `fill` may wait for a
    /// task of a thread pool.
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
    /// Writes a polynomial limb by limb: calls `see(i, limb)` for each limb in order.
    fn try_for_each_limb<E: From<Failure>>(
        &self,
        a: &Self::Poly,
        mut see: impl FnMut(usize, &[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.download(a)?.iter().enumerate().try_for_each(|(i, limb)| see(i, limb))
    }

    // Packed polynomials.

    /// Packs a polynomial. Key loading calls this with a lock held: see
    /// [`Backend::try_from_limbs`].
    fn pack(&self, a: Self::Poly) -> Self::Packed;
    /// The polynomial that was packed.
    fn unpack(&self, a: &Self::Packed) -> Self::Poly;
    /// Bytes of one limb of a packed polynomial.
    fn packed_limb_bytes(&self) -> usize;

    // Arithmetic, entry by entry.

    /// `a += b`. `b` has at least the limbs of `a`.
    fn add_assign(&self, a: &mut Self::Poly, b: &Self::Poly);
    /// `a -= b`. `b` has at least the limbs of `a`.
    fn sub_assign(&self, a: &mut Self::Poly, b: &Self::Poly);
    /// `a = -a`.
    fn neg_assign(&self, a: &mut Self::Poly);
    /// `a b` modulo the primes of `basis`, which both operands have.
    fn mul(&self, a: &Self::Poly, b: &Self::Poly, basis: Basis) -> Self::Poly;
    /// `acc += a b`.
    fn mul_add_assign(&self, acc: &mut Self::Poly, a: &Self::Poly, b: &Self::Poly);
    /// `a *= x + y X^(n/2)`, with one pair of values for each limb: the values of the constant at
    /// the two halves of the entries.
    fn mul_halves_assign(&self, a: &mut Self::Poly, halves: &[(u64, u64)]);
    /// `acc += sum_k c_k a_k` for constants as in [`Backend::mul_halves_assign`].
    fn add_products_with_halves(&self, acc: &mut Self::Poly, terms: &[(&Self::Poly, Halves)]);
    /// `a += x + y X^(n/2)`, with constants as in [`Backend::mul_halves_assign`].
    fn add_halves_assign(&self, a: &mut Self::Poly, halves: &[(u64, u64)]);
    /// `a += P b` for `b` over the chain alone, where `P` is the product of the special primes of
    /// `a`.
    fn add_lifted_assign(&self, a: &mut Self::Poly, b: &Self::Poly);
    /// `a(X^galois)`, for an odd exponent.
    fn automorphism(&self, a: &Self::Poly, galois: u64) -> Self::Poly;
    /// `sum_k (a0 b0, a0 b1 + a1 b0, a1 b1)` for pairs `(a0, a1)` and `(b0, b1)`: products of
    /// ciphertexts before relinearisation.
    fn tensor_sum(&self, terms: &[(Pair<'_, Self::Poly>, Pair<'_, Self::Poly>)], basis: Basis) -> [Self::Poly; 3];

    // Changes of basis and key-switching.

    /// The polynomial with the centred coefficients of `a`, which is modulo `q0` alone, modulo the
    /// primes of `basis`.
    fn raise(&self, a: &Self::Poly, basis: Basis) -> Self::Poly;
    /// The digits of `a`, each raised to all primes of `a` and the first `p` special primes. A
    /// digit is the part of `a` modulo the primes from one of `digit_starts` to the next.
    fn decompose(&self, a: Self::Poly, digit_starts: &[usize], p: usize) -> Self::Digits;
    /// [`Backend::decompose`] for digits that are used once. A backend may keep less of them.
    fn decompose_for_one_use(&self, a: Self::Poly, digit_starts: &[usize], p: usize) -> Self::Digits {
        self.decompose(a, digit_starts, p)
    }
    /// A polynomial over the chain and special primes, with small coefficients, as its only digit.
    fn small_digit(&self, a: Self::Poly) -> Self::Digits;
    /// `sum_j d_j key_j` over both halves of a switching key: the first part of a key-switch. The
    /// result is over the special primes too.
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
    /// `P sum_k w_k rot_k(c0, c1)` for each row `w` of `weights`, where `rot_k` is an automorphism
    /// of `steps` with its key-switch. All rotations share the digits of `c1`. A weight of `None`
    /// is zero.
    fn rotation_sums(
        &self,
        c0: &Self::Poly,
        digits: &Self::Digits,
        steps: &[KeyedAutomorphism<'_, Self::Packed>],
        weights: &[Vec<Option<&Self::Packed>>],
    ) -> Vec<(Self::Poly, Self::Poly)>;
    /// `a` divided by its special primes and by the last `drop_q` primes of its chain, rounded.
    fn divide(&self, a: Self::Poly, drop_q: usize) -> Self::Poly;

    // Compositions of the operations above that a backend may fuse.

    /// How many computations can usefully run at the same time. A long sum is worth as many partial
    /// sums.
    fn lanes(&self) -> usize {
        1
    }

    /// Applies `work` to independent items, some of them at the same time. Results keep the order
    /// of the items.
    fn concurrently<T: Send, R: Send>(&self, items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
        items.into_iter().map(work).collect()
    }

    /// Runs `work` on `inputs`, which have the same shapes in every call with one routine.
    ///
    /// A backend may record the operations of the first call and replay them later without calling
    /// `work`. Therefore `work` must queue the same operations for all inputs of these shapes, and
    /// everything else it reads must stay unchanged while the routine is in use.
    fn repeat<E>(
        &self,
        _routine: &Self::Routine,
        inputs: Vec<Self::Poly>,
        work: impl Fn(Vec<Self::Poly>) -> Result<Vec<Self::Poly>, E>,
    ) -> Result<Vec<Self::Poly>, E> {
        work(inputs)
    }

    /// [`Backend::divide`] of both polynomials, then the automorphism `X -> X^galois`.
    fn divide_pair(&self, a: (Self::Poly, Self::Poly), drop_q: usize, galois: u64) -> (Self::Poly, Self::Poly) {
        let (a, b) = (self.divide(a.0, drop_q), self.divide(a.1, drop_q));
        if galois == 1 { (a, b) } else { (self.automorphism(&a, galois), self.automorphism(&b, galois)) }
    }

    /// `start + sum_k c_k a_k` over pairs, and `constant` added to the first sum. Without `start`
    /// the sum begins at zero.
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

    /// `sum_k a_k p_k` over pairs. A sum of no terms is zero.
    fn plain_sum(&self, terms: &[(Pair<'_, Self::Poly>, &Self::Poly)], basis: Basis) -> (Self::Poly, Self::Poly) {
        let Some((((a0, a1), p), rest)) = terms.split_first() else { return (self.zero(basis), self.zero(basis)) };
        let (mut s0, mut s1) = (self.mul(a0, p, basis), self.mul(a1, p, basis));
        for ((a0, a1), p) in rest {
            self.mul_add_assign(&mut s0, a0, p);
            self.mul_add_assign(&mut s1, a1, p);
        }
        (s0, s1)
    }

    /// `acc + (u0 + v0, u1)(X^galois)` for the inner product `(u0, u1)` of `digits` and `key`.
    /// Without `acc` the sum begins at zero. If `v0` is over the chain alone, it is multiplied by
    /// the product of the special primes.
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
    /// Two items at a time: each also distributes its limbs over the threads and needs memory.
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
