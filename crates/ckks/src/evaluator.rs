//! Arithmetic on ciphertexts with explicit limbs and scales. The engines of `hetal-circuits` add
//! levels and the rule of one scale for each level.

mod linear;

pub use linear::{GiantStep, LinearTransform, RotationSteps};

use crate::backend::{Backend, Halves, Pair};
use crate::encoder::rounded;
use crate::{Ciphertext, Encoder, Error, EvaluationKeys, KeyId, Params, Plaintext, Result, SwitchingKey};
use hetal_ring::{Basis, Modulus, automorphism, prime};
use num_complex::Complex64;
use std::sync::Arc;

/// Ciphertexts whose scales differ by more than this factor cannot be added. 2^-40 is below the
/// precision of every set.
const SCALE_TOLERANCE: f64 = 1.0 / (1u64 << 40) as f64;

/// The operations of the scheme on one backend.
pub struct Evaluator<B: Backend> {
    params: Arc<Params>,
    backend: Arc<B>,
    encoder: Encoder,
    /// The primes of the chain, then the special ones, each with the residue of `X^(N/2)`.
    moduli: Vec<(Modulus, u64)>,
}

/// The real coefficients of an encoded vector, stored by the backend. It can be encoded many times
/// with different factors.
pub struct Pattern<B: Backend> {
    reals: B::Reals,
    /// Index and value of the largest coefficient.
    largest: (usize, f64),
}

type Ct<B> = Ciphertext<<B as Backend>::Poly>;
/// A ciphertext's polynomials, and a constant for each limb.
type Term<'a, B> = (Pair<'a, <B as Backend>::Poly>, Halves);

impl<B: Backend> Evaluator<B> {
    /// An evaluator for a parameter set on a backend.
    pub fn new(params: Arc<Params>, backend: Arc<B>) -> Self {
        let log_n = params.log_n();
        let with_unit = |&q: &u64| {
            let modulus = Modulus::new(q)?;
            let unit = modulus.pow(prime::primitive_root(&modulus, log_n)?, 1 << (log_n - 1));
            Some((modulus, unit))
        };
        let moduli = params.chain().iter().chain(params.special()).filter_map(with_unit).collect();
        Self { encoder: Encoder::new(log_n), params, backend, moduli }
    }

    /// The parameter set.
    pub fn params(&self) -> &Arc<Params> {
        &self.params
    }

    /// The backend.
    pub fn backend(&self) -> &Arc<B> {
        &self.backend
    }

    /// The encoder.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// Encodes a vector modulo the primes of `basis`.
    pub fn encode(&self, values: &[Complex64], scale: f64, basis: Basis) -> Result<Plaintext<B::Poly>> {
        let coefficients = self.encoder.encode(values, scale)?;
        Ok(Plaintext { poly: self.backend.lift(basis, &coefficients), scale })
    }

    /// Prepares a vector that is encoded many times with different factors.
    pub fn pattern(&self, values: &[Complex64]) -> Result<Pattern<B>> {
        let coefficients = self.encoder.coefficients(values)?;
        let largest = (0..coefficients.len()).max_by(|&a, &b| coefficients[a].abs().total_cmp(&coefficients[b].abs()));
        let largest = largest.map_or((0, 0.0), |k| (k, coefficients[k]));
        Ok(Pattern { reals: self.backend.keep(&coefficients), largest })
    }

    /// Encodes `factor` times a vector modulo the primes of `basis`.
    pub fn encode_pattern(
        &self,
        pattern: &Pattern<B>,
        factor: f64,
        scale: f64,
        basis: Basis,
    ) -> Result<Plaintext<B::Poly>> {
        let (index, value) = pattern.largest;
        rounded(value, factor * scale, index)?;
        Ok(Plaintext { poly: self.backend.lift_scaled(basis, &pattern.reals, factor * scale), scale })
    }

    fn basis(limbs: usize) -> Basis {
        Basis { q: limbs, p: 0 }
    }

    /// The prime that a ciphertext of `limbs` limbs is rescaled by.
    pub fn last_prime(&self, limbs: usize) -> f64 {
        self.params.chain()[limbs - 1] as f64
    }

    /// A copy with fewer limbs, the scale unchanged.
    pub fn truncated(&self, a: &Ct<B>, limbs: usize) -> Result<Ct<B>> {
        self.check_params("truncation", a)?;
        if limbs == 0 || limbs > a.limbs {
            return Err(Error::OutOfLimbs { operation: "truncation", needs: limbs, has: a.limbs });
        }
        let cut = |p: &B::Poly| self.backend.copy_truncated(p, Self::basis(limbs));
        Ok(Ciphertext { c0: cut(&a.c0), c1: cut(&a.c1), limbs, scale: a.scale, set: a.set })
    }

    /// Fails for a ciphertext of another parameter set.
    fn check_params(&self, operation: &'static str, a: &Ct<B>) -> Result<()> {
        if a.set == self.params.tag() {
            Ok(())
        } else {
            Err(Error::MixedParams { operation, set: self.params.name().to_owned() })
        }
    }

    /// Fails if the scale of `a` is not `scale`.
    pub fn require_scale(&self, operation: &'static str, a: &Ct<B>, scale: f64) -> Result<()> {
        Self::same_scale(operation, a.scale, scale)
    }

    fn same_scale(operation: &'static str, a: f64, b: f64) -> Result<()> {
        // The comparison is false for scales that are not numbers.
        if (a / b - 1.0).abs() <= SCALE_TOLERANCE {
            return Ok(());
        }
        Err(Error::ScaleMismatch { operation, left: libm::log2(a), right: libm::log2(b) })
    }

    /// `a += b`; `b` may have more limbs.
    pub fn add_assign(&self, a: &mut Ct<B>, b: &Ct<B>) -> Result<()> {
        self.lower_to(a, b, "addition")?;
        self.backend.add_assign(&mut a.c0, &b.c0);
        self.backend.add_assign(&mut a.c1, &b.c1);
        Ok(())
    }

    /// `a -= b`; `b` may have more limbs.
    pub fn sub_assign(&self, a: &mut Ct<B>, b: &Ct<B>) -> Result<()> {
        self.lower_to(a, b, "subtraction")?;
        self.backend.sub_assign(&mut a.c0, &b.c0);
        self.backend.sub_assign(&mut a.c1, &b.c1);
        Ok(())
    }

    /// Checks scales, and truncates `a` to the limbs of `b` if it has more.
    fn lower_to(&self, a: &mut Ct<B>, b: &Ct<B>, operation: &'static str) -> Result<()> {
        self.check_params(operation, a)?;
        self.check_params(operation, b)?;
        Self::same_scale(operation, a.scale, b.scale)?;
        if a.limbs > b.limbs {
            self.backend.truncate(&mut a.c0, Self::basis(b.limbs));
            self.backend.truncate(&mut a.c1, Self::basis(b.limbs));
            a.limbs = b.limbs;
        }
        Ok(())
    }

    /// `a = -a`.
    pub fn neg_assign(&self, a: &mut Ct<B>) -> Result<()> {
        self.check_params("negation", a)?;
        self.backend.neg_assign(&mut a.c0);
        self.backend.neg_assign(&mut a.c1);
        Ok(())
    }

    /// `a += values`, slot by slot.
    pub fn add_plain_assign(&self, a: &mut Ct<B>, values: &[Complex64]) -> Result<()> {
        self.check_params("addition", a)?;
        let plain = self.encode(values, a.scale, Self::basis(a.limbs))?;
        self.backend.add_assign(&mut a.c0, &plain.poly);
        Ok(())
    }

    /// `a += c` in every slot.
    pub fn add_constant_assign(&self, a: &mut Ct<B>, c: Complex64) -> Result<()> {
        self.check_params("addition", a)?;
        let halves = self.constant(c, a.scale, a.limbs)?;
        self.backend.add_halves_assign(&mut a.c0, &halves);
        Ok(())
    }

    /// `a *= c` for an integer.
    pub fn mul_integer_assign(&self, a: &mut Ct<B>, c: i64) -> Result<()> {
        self.check_params("multiplication", a)?;
        self.mul_halves_assign(a, &self.integer(c, a.limbs));
        Ok(())
    }

    fn integer(&self, c: i64, limbs: usize) -> Vec<(u64, u64)> {
        self.moduli[..limbs].iter().map(|(q, _)| q.reduce_i128(c.into())).map(|r| (r, r)).collect()
    }

    /// `a *= i^power`.
    pub fn mul_i_assign(&self, a: &mut Ct<B>, power: u32) -> Result<()> {
        self.check_params("multiplication", a)?;
        let halves = |&(q, unit): &(Modulus, u64)| match power & 3 {
            1 => (unit, q.neg(unit)),
            _ => (q.neg(unit), unit),
        };
        match power & 3 {
            0 => {}
            2 => self.neg_assign(a)?,
            _ => self.mul_halves_assign(a, &self.moduli[..a.limbs].iter().map(halves).collect::<Vec<_>>()),
        }
        Ok(())
    }

    fn mul_halves_assign(&self, a: &mut Ct<B>, halves: &[(u64, u64)]) {
        self.backend.mul_halves_assign(&mut a.c0, halves);
        self.backend.mul_halves_assign(&mut a.c1, halves);
    }

    /// The constant polynomial `round(scale c)` modulo the first primes, as its values at the two
    /// halves of the entries.
    fn constant(&self, c: Complex64, scale: f64, limbs: usize) -> Result<Halves> {
        let integer = |x: f64| {
            let scaled = (x * scale).round_ties_even();
            // Below 2^120 the conversion to `i128` is exact.
            if scaled.abs() < libm::exp2(120.0) {
                return Ok(scaled as i128);
            }
            Err(Error::NotEncodable { index: 0, value: x, log_scale: libm::log2(scale) })
        };
        let (re, im) = (integer(c.re)?, integer(c.im)?);
        let residues = |&(q, unit): &(Modulus, u64)| {
            let (re, im) = (q.reduce_i128(re), q.mul(q.reduce_i128(im), unit));
            (q.add(re, im), q.sub(re, im))
        };
        Ok(self.moduli[..limbs].iter().map(residues).collect())
    }

    fn constant_unless_zero(&self, c: Complex64, scale: f64, limbs: usize) -> Result<Option<Halves>> {
        if c == Complex64::ZERO { Ok(None) } else { self.constant(c, scale, limbs).map(Some) }
    }

    /// `sum_k c_k a_k + constant` at `limbs` limbs, rescaled once to exactly the scale `target`.
    pub fn linear_combination(
        &self,
        terms: &[(&Ct<B>, Complex64)],
        constant: Complex64,
        limbs: usize,
        target: f64,
    ) -> Result<Ct<B>> {
        self.require_limbs("linear combination", 2, limbs)?;
        let q = self.last_prime(limbs);
        let terms = self.linear_terms(terms, target * q, limbs)?;
        let constant = self.constant_unless_zero(constant, target * q, limbs)?;
        let (c0, c1) = self.backend.linear_sum(None, Self::basis(limbs), &terms, constant.as_ref());
        let mut out = self.rescale(Ciphertext { c0, c1, limbs, scale: target * q, set: self.params.tag() })?;
        out.scale = target;
        Ok(out)
    }

    /// The ciphertexts and constants of a sum whose terms all have the given scale.
    fn linear_terms<'a>(&self, terms: &[(&'a Ct<B>, Complex64)], scale: f64, limbs: usize) -> Result<Vec<Term<'a, B>>> {
        let term = |&(a, c): &(&'a Ct<B>, Complex64)| {
            self.check_params("linear combination", a)?;
            self.require_limbs("linear combination", limbs, a.limbs)?;
            Ok(((&a.c0, &a.c1), self.constant(c, scale / a.scale, limbs)?))
        };
        terms.iter().map(term).collect()
    }

    fn require_limbs(&self, operation: &'static str, needs: usize, has: usize) -> Result<()> {
        if has < needs { Err(Error::OutOfLimbs { operation, needs, has }) } else { Ok(()) }
    }

    /// Divides by the last prime.
    pub fn rescale(&self, a: Ct<B>) -> Result<Ct<B>> {
        self.check_params("rescale", &a)?;
        self.require_limbs("rescale", 2, a.limbs)?;
        let scale = a.scale / self.last_prime(a.limbs);
        let (c0, c1) = self.backend.divide_pair((a.c0, a.c1), 1, 1);
        Ok(Ciphertext { c0, c1, limbs: a.limbs - 1, scale, set: a.set })
    }

    /// `sum_k a_k p_k` at `limbs` limbs, without rescale; all products have one scale.
    pub fn sum_of_plain_products(&self, terms: &[(&Ct<B>, &Plaintext<B::Poly>)], limbs: usize) -> Result<Ct<B>> {
        let Some((first, plain)) = terms.first() else { return Err(Error::Empty("sum of plain products")) };
        let scale = first.scale * plain.scale;
        for (a, p) in terms {
            self.check_params("plain product", a)?;
            self.require_limbs("plain product", limbs, a.limbs.min(B::basis(&p.poly).q))?;
            Self::same_scale("sum of plain products", scale, a.scale * p.scale)?;
        }
        let pairs: Vec<_> = terms.iter().map(|(a, p)| ((&a.c0, &a.c1), &p.poly)).collect();
        let (c0, c1) = self.backend.plain_sum(&pairs, Self::basis(limbs));
        Ok(Ciphertext { c0, c1, limbs, scale, set: self.params.tag() })
    }

    /// `sum_k a_k b_k` at the lowest operand's limbs, with one relinearisation and one rescale.
    pub fn sum_of_products(&self, terms: &[(&Ct<B>, &Ct<B>)], keys: &EvaluationKeys<B::Packed>) -> Result<Ct<B>> {
        self.quadratic(terms, 1, &[], Complex64::ZERO, keys)
    }

    /// `factor * sum_k a_k b_k + sum_j c_j x_j + constant` at the lowest operand's limbs, with one
    /// relinearisation and one rescale. The `x_j` may have any scale.
    pub fn quadratic(
        &self,
        products: &[(&Ct<B>, &Ct<B>)],
        factor: i64,
        linear: &[(&Ct<B>, Complex64)],
        constant: Complex64,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Ct<B>> {
        let Some((first, second)) = products.first() else { return Err(Error::Empty("sum of products")) };
        let limbs = products.iter().map(|(a, b)| a.limbs.min(b.limbs)).min().unwrap_or(0);
        self.require_limbs("multiplication", 2, limbs)?;
        let scale = first.scale * second.scale;
        for (a, b) in products {
            self.check_params("multiplication", a)?;
            self.check_params("multiplication", b)?;
            Self::same_scale("sum of products", scale, a.scale * b.scale)?;
        }
        let key = keys.find(KeyId::Relinearisation, self.params.key_basis(limbs))?;
        // For a small factor it is cheaper to repeat the terms than to multiply their sums.
        let repeats = if (2..=3).contains(&factor) { factor as usize } else { 1 };
        let pairs: Vec<_> =
            products.iter().flat_map(|(a, b)| std::iter::repeat_n(((&a.c0, &a.c1), (&b.c0, &b.c1)), repeats)).collect();
        let mut d = self.backend.tensor_sum(&pairs, Self::basis(limbs));
        if factor != repeats as i64 {
            let halves = self.integer(factor, limbs);
            d.iter_mut().for_each(|d| self.backend.mul_halves_assign(d, &halves));
        }
        let [mut d0, mut d1, d2] = d;
        let linear = self.linear_terms(linear, scale, limbs)?;
        let constant = self.constant_unless_zero(constant, scale, limbs)?;
        if constant.is_some() || !linear.is_empty() {
            (d0, d1) = self.backend.linear_sum(Some((d0, d1)), Self::basis(limbs), &linear, constant.as_ref());
        }
        let u = self.switch(d2, key, [Some(&d0), Some(&d1)]);
        drop((d0, d1));
        let (c0, c1) = self.backend.divide_pair(u, 1, 1);
        let (scale, set) = (scale / self.last_prime(limbs), self.params.tag());
        Ok(Ciphertext { c0, c1, limbs: limbs - 1, scale, set })
    }

    /// `P` times a pair that decrypts to `d` under the key's target secret, plus `P` times the
    /// polynomials in `added`. The result is over the chain and the special primes of the key.
    fn switch(&self, d: B::Poly, key: &SwitchingKey<B::Packed>, added: [Option<&B::Poly>; 2]) -> (B::Poly, B::Poly) {
        let digits = self.backend.decompose_for_one_use(d, self.params.digit_starts(), key.basis.p);
        self.backend.inner_product_plus(&digits, &key.digits, added)
    }

    /// The automorphism that rotates slots left by `k`.
    pub fn galois_of_rotation(&self, k: i64) -> u64 {
        automorphism::rotation_to_galois(self.params.log_n(), k)
    }

    /// The automorphism of conjugation.
    pub fn galois_of_conjugation(&self) -> u64 {
        automorphism::conjugation(self.params.log_n())
    }

    /// Many automorphisms of one ciphertext, sharing its digits.
    pub fn automorphisms(&self, a: &Ct<B>, galois: &[u64], keys: &EvaluationKeys<B::Packed>) -> Result<Vec<Ct<B>>> {
        self.check_params("automorphism", a)?;
        let lookup = |basis: Basis| -> Result<Vec<Option<&Arc<SwitchingKey<B::Packed>>>>> {
            let key = |&g: &u64| if g == 1 { Ok(None) } else { keys.find(KeyId::Galois(g), basis).map(Some) };
            galois.iter().map(key).collect()
        };
        // At the lowest level a key for higher levels, with all special primes, works too.
        let mut basis = self.params.key_basis(a.limbs);
        let found = match lookup(basis) {
            Err(Error::MissingKey { .. }) => {
                basis.p = self.params.full_basis().p;
                lookup(basis)?
            }
            found => found?,
        };
        if found.iter().all(Option::is_none) {
            return Ok(vec![a.clone(); galois.len()]);
        }
        let digits = if found.iter().flatten().count() == 1 {
            self.backend.decompose_for_one_use(a.c1.clone(), self.params.digit_starts(), basis.p)
        } else {
            self.backend.decompose(a.c1.clone(), self.params.digit_starts(), basis.p)
        };
        let apply = |(&g, key): (&u64, Option<&Arc<SwitchingKey<B::Packed>>>)| {
            let Some(key) = key else { return a.clone() };
            let u = self.backend.inner_product_plus(&digits, &key.digits, [Some(&a.c0), None]);
            let (c0, c1) = self.backend.divide_pair(u, 0, g);
            Ciphertext { c0, c1, limbs: a.limbs, scale: a.scale, set: a.set }
        };
        Ok(self.backend.concurrently(galois.iter().zip(found).collect(), apply))
    }

    /// One automorphism.
    pub fn automorphism(&self, a: &Ct<B>, galois: u64, keys: &EvaluationKeys<B::Packed>) -> Result<Ct<B>> {
        self.automorphisms(a, &[galois], keys)?.pop().ok_or(Error::Empty("automorphism"))
    }

    /// Raises a ciphertext modulo `q0` to `limbs` limbs, under the ephemeral sparse secret. The
    /// message gains small multiples of `q0`.
    pub fn raise_modulus(
        &self,
        a: &Ct<B>,
        limbs: usize,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<RaisedCiphertext<B::Poly>> {
        let bottom = self.truncated(a, 1)?;
        let to_sparse = keys.find(KeyId::ToSparse, self.params.key_basis(1))?;
        let u = self.switch(bottom.c1, to_sparse, [Some(&bottom.c0), None]);
        let (c0, c1) = self.backend.divide_pair(u, 0, 1);
        let c0 = self.backend.raise(&c0, Self::basis(limbs));
        let c1 = self.backend.raise(&c1, KeyId::FromSparse(1).basis(&self.params, limbs));
        Ok(RaisedCiphertext { c0, c1, scale: a.scale })
    }

    /// Switches a raised ciphertext back to the ordinary secret.
    pub fn leave_sparse_secret(&self, a: RaisedCiphertext<B::Poly>, keys: &EvaluationKeys<B::Packed>) -> Result<Ct<B>> {
        let basis = B::basis(&a.c1);
        let key = keys.find(KeyId::FromSparse(1), basis)?;
        let u = self.backend.inner_product_plus(&self.backend.small_digit(a.c1), &key.digits, [Some(&a.c0), None]);
        let (c0, c1) = self.backend.divide_pair(u, 0, 1);
        Ok(Ciphertext { c0, c1, limbs: basis.q, scale: a.scale, set: self.params.tag() })
    }
}

/// A ciphertext with a raised modulus, under the ephemeral sparse secret. Its polynomials are as
/// small as modulo `q0`. Therefore the second polynomial is its own only digit, and a key from the
/// sparse secret has one pair and few special primes.
pub struct RaisedCiphertext<P> {
    pub(crate) c0: P,
    /// It has the special primes of the keys, too.
    pub(crate) c1: P,
    /// The scale of its message.
    pub scale: f64,
}
