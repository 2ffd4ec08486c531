//! Parameter sets: a literal that a person can write, and the validated set made from it.

mod bit_sizes;
mod built_in;
mod checks;
#[cfg(test)]
mod tests;

pub use bit_sizes::BitSizes;
pub use built_in::BUILT_IN;

use crate::security::{self, Security};
use crate::{Error, Result, SetTag};
use checks::{LOG_SECURE_FAILURE, check_numbers, eval_mod_fault, log_failure};
use hetal_ring::{Basis, Isa, Modulus, RnsRing};
use std::borrow::Cow;

/// How the bootstrap evaluates `x mod q0`: by the complex exponential `exp(2 pi i K t)` of the
/// centred and normalised `t` in [-1, 1].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalMod {
    /// Bound on the multiples of `q0`: `|I| < k` except with negligible probability.
    pub k: u32,
    /// Degree of the Chebyshev series of the exponential.
    pub degree: usize,
    /// Squarings after the series.
    pub squarings: usize,
    /// Whether one more level removes the third-order error of the sine.
    pub correction: bool,
}

/// Primes written in the source or read from a file.
pub type Primes = Cow<'static, [u64]>;

/// A parameter set as a literal. Primes are grouped by the part of the chain they serve.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamsLiteral {
    /// Its name; `insecure-...` permits less than 128 bits.
    pub name: Cow<'static, str>,
    /// Log of the ring degree.
    pub log_n: u32,
    /// Nonzero coefficients of the secret.
    pub secret_weight: usize,
    /// Nonzero coefficients of the ephemeral secret under which the modulus is raised.
    pub sparse_weight: usize,
    /// Log of the scale of the highest usable level.
    pub log_scale: u32,
    /// Log of the message ratio: `q0` over the scale of the coefficients when the modulus is
    /// raised.
    pub log_message_ratio: u32,
    /// The first prime, which every ciphertext has.
    pub q0: u64,
    /// Primes of the slots-to-coefficients matrices.
    pub slots_to_coeffs: Primes,
    /// Primes of the levels circuits use.
    pub usable: Primes,
    /// Primes of the approximate modular reduction.
    pub eval_mod_primes: Primes,
    /// Primes of the coefficients-to-slots matrices.
    pub coeffs_to_slots: Primes,
    /// Special primes of key-switching.
    pub special: Primes,
    /// The modular reduction.
    pub eval_mod: EvalMod,
}

/// Bits by which a digit of a key-switch is smaller than the product of the special primes, so that
/// its noise vanishes in the rounding. A sum over `N` coefficients of sigma 3.2 adds
/// `log N / 2 + 2` bits; a centred uniform digit takes two back.
fn digit_margin_bits(log_n: u32) -> f64 {
    f64::from(log_n) / 2.0
}

/// The most primes of a set, special ones included.
pub const MAX_PRIMES: usize = 64;
/// Primes are at least `2^MIN_PRIME_BITS`: the reductions of signed numbers need 16 bits.
const MIN_PRIME_BITS: u32 = 16;
/// Longest name of a set.
pub const MAX_NAME: usize = 64;
/// The most primes of a digit: one base conversion takes no more.
const MAX_DIGIT_PRIMES: usize = hetal_ring::base_conversion::MAX_SOURCES;
/// The most digits: one inner product takes no more, and one term that is added.
const MAX_DIGITS: usize = hetal_ring::kernels::MAX_DOT_TERMS - 1;

/// A validated parameter set.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    literal: ParamsLiteral,
    chain: Vec<u64>,
    /// The primes of the chain, then the special primes.
    moduli: Vec<Modulus>,
    scales: Vec<f64>,
    digit_starts: Vec<usize>,
    master_digit_starts: Vec<usize>,
    id: [u8; 32],
}

impl Params {
    /// Validates a literal: distinct NTT primes and a working bootstrap. Unless the name begins
    /// with `insecure-`, the set must have 128 bits of security and bootstraps that fail with at
    /// most 2^-80.
    pub fn new(literal: ParamsLiteral) -> Result<Self> {
        let fail = |reason: String| Err(Error::Params { name: literal.name.to_string(), reason });
        if let Err(reason) = check_numbers(&literal) {
            return fail(reason);
        }
        let chain: Vec<u64> = std::iter::once(&literal.q0)
            .chain(&*literal.slots_to_coeffs)
            .chain(&*literal.usable)
            .chain(&*literal.eval_mod_primes)
            .chain(&*literal.coeffs_to_slots)
            .copied()
            .collect();
        let mut all: Vec<u64> = chain.iter().chain(&*literal.special).copied().collect();
        if all.len() > MAX_PRIMES {
            return fail(format!("{} primes are more than {MAX_PRIMES}", all.len()));
        }
        if let Some(q) = all.iter().find(|&&q| q >> MIN_PRIME_BITS == 0) {
            return fail(format!("the prime {q} is below 2^{MIN_PRIME_BITS}"));
        }
        if let Some(q) = all.iter().find(|&&q| q >> 51 != 0 || !hetal_ring::prime::is_ntt_prime(q, literal.log_n)) {
            return fail(format!("{q} is no prime below 2^51 that is 1 mod 2N"));
        }
        if let Some(q) = chain.iter().find(|&&q| q >> 50 != 0) {
            return fail(format!("the chain's prime {q} is not below 2^50"));
        }
        let moduli = all.iter().filter_map(|&q| Modulus::new(q)).collect();
        all.sort_unstable();
        if let Some(pair) = all.windows(2).find(|pair| pair[0] == pair[1]) {
            return fail(format!("the prime {} appears twice", pair[0]));
        }
        if literal.usable.is_empty() || literal.special.is_empty() {
            return fail("no usable level or no special prime".to_owned());
        }
        let series_levels = literal.eval_mod.degree.checked_ilog2().map_or(0, |l| l as usize + 1);
        let needed = series_levels + literal.eval_mod.squarings + usize::from(literal.eval_mod.correction);
        if literal.eval_mod_primes.len() != needed {
            return fail(format!("EvalMod takes {needed} primes, {} are given", literal.eval_mod_primes.len()));
        }
        if let Some(fault) = eval_mod_fault(&literal) {
            return fail(fault);
        }
        let matrices = [&literal.slots_to_coeffs, &literal.coeffs_to_slots];
        if matrices.iter().any(|primes| primes.is_empty() != (needed == 0)) {
            return fail(
                "a bootstrap needs primes for both kinds of matrices and for EvalMod, or there is none".to_owned(),
            );
        }
        let scales = scales(&literal);
        if let Some(scale) = scales.iter().find(|s| (libm::log2(**s) - f64::from(literal.log_scale)).abs() > 0.5) {
            return fail(format!("the usable primes let the scale drift to 2^{:.2}", libm::log2(*scale)));
        }
        let Some(digit_starts) =
            digit_starts(&chain, log2_product(&literal.special) - digit_margin_bits(literal.log_n))
        else {
            return fail("a prime of the chain is larger than the special primes allow".to_owned());
        };
        if literal.special.len() + 1 > MAX_DIGIT_PRIMES || digit_starts.len() > MAX_DIGITS {
            let (special, digits) = (literal.special.len(), digit_starts.len());
            return fail(format!(
                "{special} special primes and {digits} digits: at most {} and {MAX_DIGITS}",
                MAX_DIGIT_PRIMES - 1
            ));
        }
        let id = identify(&literal);
        let mut params = Self { literal, chain, moduli, scales, digit_starts, master_digit_starts: Vec::new(), id };
        params.master_digit_starts = params.cut_master_digits().unwrap_or_default();
        if !params.is_insecure_by_name() {
            let (log_n, weight) = (params.log_n(), params.literal.secret_weight);
            security::require(params.name(), log_n, weight, params.log_qp(params.full_basis()))?;
            if let Some(log_failure) = params.log_bootstrap_failure() {
                if log_failure > LOG_SECURE_FAILURE {
                    let (name, limit) = (params.literal.name.to_string(), LOG_SECURE_FAILURE);
                    return Err(Error::UnreliableBootstrap { name, log_failure, limit });
                }
                let log_qp = params.log_qp(params.key_basis(1));
                security::require("the ephemeral secret", log_n, params.literal.sparse_weight, log_qp)?;
            }
        }
        Ok(params)
    }

    /// The built-in set of that name.
    pub fn named(name: &str) -> Result<Self> {
        let literal = BUILT_IN.iter().find(|literal| literal.name == name);
        let names = || BUILT_IN.iter().map(|l| &*l.name).collect::<Vec<_>>().join(", ");
        literal.cloned().map_or_else(
            || Err(Error::Params { name: name.to_owned(), reason: format!("no such set; there are {}", names()) }),
            Self::new,
        )
    }

    /// The literal it was made from.
    pub fn literal(&self) -> &ParamsLiteral {
        &self.literal
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.literal.name
    }

    /// Whether its name says that it is insecure.
    pub fn is_insecure_by_name(&self) -> bool {
        self.literal.name.starts_with("insecure-")
    }

    /// A hash of every number of the set. Objects of sets with different ids never mix.
    pub fn id(&self) -> &[u8; 32] {
        &self.id
    }

    /// The beginning of [`Params::id`], which ciphertexts carry.
    pub fn tag(&self) -> SetTag {
        let [a, b, c, d, e, f, g, h, ..] = self.id;
        SetTag(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }

    /// Log of the ring degree.
    pub fn log_n(&self) -> u32 {
        self.literal.log_n
    }

    /// The ring degree.
    pub fn degree(&self) -> usize {
        1 << self.literal.log_n
    }

    /// Complex slots of a ciphertext.
    pub fn slots(&self) -> usize {
        self.degree() / 2
    }

    /// All primes of the chain, `q0` first.
    pub fn chain(&self) -> &[u64] {
        &self.chain
    }

    /// The special primes.
    pub fn special(&self) -> &[u64] {
        &self.literal.special
    }

    /// The prime of limb `i` of polynomials in `basis`.
    pub fn modulus(&self, basis: Basis, i: usize) -> &Modulus {
        &self.moduli[if i < basis.q { i } else { self.chain.len() + i - basis.q }]
    }

    /// The ring of this set, with its tables, on the fastest kernels of this machine.
    ///
    /// ```
    /// let params = hetal_ckks::Params::named("insecure-toy11")?;
    /// let ring = params.ring()?;
    /// assert_eq!(ring.degree(), params.degree());
    /// # Ok::<(), hetal_ckks::Error>(())
    /// ```
    pub fn ring(&self) -> Result<RnsRing> {
        self.ring_on(Isa::detect())
    }

    /// The ring of this set on the kernels of a given instruction set.
    pub fn ring_on(&self, isa: Isa) -> Result<RnsRing> {
        let ring = RnsRing::new(self.log_n(), &self.chain, self.special(), isa);
        ring.map_err(|q| Error::Params {
            name: self.name().to_owned(),
            reason: format!("{q} is no prime for its ring"),
        })
    }

    /// Fails unless `ring` has the degree and exactly the primes of this set.
    pub fn check_ring(&self, ring: &RnsRing) -> Result<()> {
        let basis = self.full_basis();
        let same = ring.log_n() == self.log_n()
            && ring.full_basis() == basis
            && (0..basis.limbs()).all(|i| ring.modulus(basis, i).value() == self.modulus(basis, i).value());
        if same { Ok(()) } else { Err(Error::WrongRing { set: self.name().to_owned(), log_n: ring.log_n() }) }
    }

    /// All primes.
    pub fn full_basis(&self) -> Basis {
        Basis { q: self.chain.len(), p: self.literal.special.len() }
    }

    /// The number of usable levels, which is also the highest level.
    pub fn top_level(&self) -> usize {
        self.literal.usable.len()
    }

    /// Limbs of a ciphertext of a usable level. At level 0 the primes are left with which a
    /// bootstrap starts.
    pub fn limbs(&self, level: usize) -> usize {
        1 + self.literal.slots_to_coeffs.len() + level
    }

    /// The usable level of a ciphertext with that many limbs.
    pub fn level(&self, limbs: usize) -> Option<usize> {
        limbs.checked_sub(self.limbs(0)).filter(|&level| level <= self.top_level())
    }

    /// The scale of a usable level: `scale(l - 1) = scale(l)^2 / q_l`.
    pub fn scale(&self, level: usize) -> f64 {
        self.scales[level]
    }

    /// The scale of coefficients up to 1 modulo `q0`, as coefficients-to-slots and EvalMod take
    /// them: `q0` over the message ratio.
    pub fn coefficient_scale(&self) -> f64 {
        self.literal.q0 as f64 / f64::from(1u32 << self.literal.log_message_ratio)
    }

    /// The primes at which digits of a key-switch begin.
    pub fn digit_starts(&self) -> &[usize] {
        &self.digit_starts
    }

    /// The limbs at which digits of master keys begin: those of a polynomial over the primes of
    /// keys from the sparse secret, whose other special primes are the special ones of a master
    /// key. A set has master keys unless this is empty.
    pub fn master_digit_starts(&self) -> &[usize] {
        &self.master_digit_starts
    }

    /// Cuts the primes of keys from the sparse secret into digits below the product of the other
    /// special primes. `None` if a prime is larger, or if there are more digits than an inner
    /// product takes.
    ///
    /// A step of a derivation then adds noise of sigma `3.2 sqrt(digits N / 12)` at most, 2^9.2 at
    /// `full`. A digit needs no margin below the special primes, because keys from the sparse
    /// secret tolerate much more: see [`crate::derivation`].
    fn cut_master_digits(&self) -> Option<Vec<usize>> {
        let (own, others) = self.special().split_at(self.sparse_key_basis().p);
        let primes: Vec<u64> = self.chain.iter().chain(own).copied().collect();
        let starts = digit_starts(&primes, log2_product(others))?;
        (starts.len() <= MAX_DIGITS).then_some(starts)
    }

    /// The primes of a key from the sparse secret.
    pub fn sparse_key_basis(&self) -> Basis {
        Basis { q: self.chain.len(), p: self.special_for(1) }
    }

    /// Number of digits of a polynomial with `limbs` limbs.
    pub fn digits(&self, limbs: usize) -> usize {
        self.digit_starts.iter().take_while(|&&start| start < limbs).count()
    }

    /// Special primes of key-switches at `limbs` limbs. There are three kinds of keys, so that one
    /// key serves many levels: keys for `q0` alone, keys for the primes a bootstrap starts with,
    /// and keys for everything above, which use all special primes.
    pub fn special_for(&self, limbs: usize) -> usize {
        let all = self.literal.special.len();
        let kind = if limbs <= 1 { 1 } else { self.limbs(0) };
        if limbs > kind {
            return all;
        }
        let bits = log2_product(&self.chain[..kind]) + digit_margin_bits(self.log_n());
        (1..all).find(|&p| log2_product(&self.literal.special[..p]) >= bits).unwrap_or(all)
    }

    /// The primes of a key for `limbs` limbs. Keys from the sparse secret have fewer: see
    /// [`crate::KeyId::basis`].
    pub fn key_basis(&self, limbs: usize) -> Basis {
        Basis { q: limbs, p: self.special_for(limbs) }
    }

    /// log2 of the product of the primes of a basis.
    pub fn log_qp(&self, basis: Basis) -> f64 {
        log2_product(&self.chain[..basis.q]) + log2_product(&self.literal.special[..basis.p])
    }

    /// log2 of a bound on the probability that one bootstrap fails, over all its coefficients;
    /// `None` for a set without bootstraps. A failed bootstrap gives wrong numbers, and releasing
    /// them could reveal the secret.
    pub fn log_bootstrap_failure(&self) -> Option<f64> {
        (!self.literal.eval_mod_primes.is_empty()).then(|| log_failure(&self.literal))
    }

    /// The security of the whole set.
    pub fn security(&self) -> Security {
        security::estimate(self.log_n(), self.literal.secret_weight, self.log_qp(self.full_basis()))
    }
}

/// log2 of a product of primes.
pub fn log2_product(primes: &[u64]) -> f64 {
    primes.iter().map(|&q| libm::log2(q as f64)).sum()
}

fn scales(literal: &ParamsLiteral) -> Vec<f64> {
    let mut scales = vec![(1u64 << literal.log_scale) as f64];
    for &q in literal.usable.iter().rev() {
        let scale = scales[scales.len() - 1];
        scales.push(scale / q as f64 * scale);
    }
    scales.reverse();
    scales
}

/// Cuts the chain greedily into digits as long as the special primes allow. Fewer digits give
/// smaller keys and fewer transforms.
fn digit_starts(chain: &[u64], most_bits: f64) -> Option<Vec<usize>> {
    let mut starts = vec![0];
    let (mut primes, mut bits) = (0, 0.0);
    for (i, &q) in chain.iter().enumerate() {
        let log_q = libm::log2(q as f64);
        if primes == MAX_DIGIT_PRIMES || bits + log_q > most_bits {
            if primes == 0 {
                return None;
            }
            starts.push(i);
            (primes, bits) = (0, 0.0);
        }
        primes += 1;
        bits += log_q;
    }
    Some(starts)
}

fn identify(literal: &ParamsLiteral) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("hetal parameter set v1");
    let mut number = |x: u64| {
        hasher.update(&x.to_le_bytes());
    };
    number(literal.log_n.into());
    number(literal.secret_weight as u64);
    number(literal.sparse_weight as u64);
    number(literal.log_scale.into());
    number(literal.log_message_ratio.into());
    let EvalMod { k, degree, squarings, correction } = literal.eval_mod;
    for x in [u64::from(k), degree as u64, squarings as u64, correction.into(), literal.q0] {
        number(x);
    }
    for part in [
        &literal.slots_to_coeffs,
        &literal.usable,
        &literal.eval_mod_primes,
        &literal.coeffs_to_slots,
        &literal.special,
    ] {
        number(part.len() as u64);
        part.iter().for_each(|&q| number(q));
    }
    *hasher.finalize().as_bytes()
}
