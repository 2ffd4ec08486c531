//! Parameter sets: a literal a person can write, and the validated set made of it.

use crate::security::{self, Security};
use crate::{Error, Result, SetTag};
use hetal_ring::{Basis, Isa, Modulus, RnsRing};
use std::borrow::Cow;

/// How the bootstrap evaluates `x mod q0`: through the complex exponential `exp(2 pi i K t)` of the centred, normalised
/// `t` in [-1, 1].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalMod {
    /// Bound on the multiples of `q0`: `|I| < k` but with negligible probability.
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

/// A parameter set as written down. Primes are named by the part of the chain they serve.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamsLiteral {
    /// Its name; `insecure-...` permits less than 128 bits.
    pub name: Cow<'static, str>,
    /// Log of the ring degree.
    pub log_n: u32,
    /// Nonzero coefficients of the secret.
    pub secret_weight: usize,
    /// Nonzero coefficients of the ephemeral secret that the modulus is raised under.
    pub sparse_weight: usize,
    /// Log of the scale of the highest usable level.
    pub log_scale: u32,
    /// Log of the message ratio: `q0` over the scale of the coefficients when the modulus is raised.
    pub log_message_ratio: u32,
    /// The prime that is always there.
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

/// A digit of a key-switch is at least this many bits below the special primes' product, so that its noise vanishes in
/// the rounding: the root of `N` coefficients of sigma 3.2 adds `log N / 2 + 2` bits, a centred uniform digit takes two back.
fn digit_margin_bits(log_n: u32) -> f64 {
    f64::from(log_n) / 2.0
}

/// Most primes of a set, special ones included.
pub const MAX_PRIMES: usize = 64;
/// Smallest bit length of a prime, less one: the reductions of signed numbers need 16.
const MIN_PRIME_BITS: u32 = 16;
/// Longest name of a set.
pub const MAX_NAME: usize = 64;
/// Most primes of a digit: what one base conversion takes.
const MAX_DIGIT_PRIMES: usize = hetal_ring::base_conversion::MAX_SOURCES;
/// Most digits: what one inner product takes, and a term that is added.
const MAX_DIGITS: usize = hetal_ring::kernels::MAX_DOT_TERMS - 1;

/// A validated parameter set.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    literal: ParamsLiteral,
    chain: Vec<u64>,
    /// Of the chain, then of the special primes.
    moduli: Vec<Modulus>,
    scales: Vec<f64>,
    digit_starts: Vec<usize>,
    id: [u8; 32],
}

impl Params {
    /// Validates a literal: NTT primes, all different, a working bootstrap chain, 128 bits (or a name that says not).
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
        let params = Self { literal, chain, moduli, scales, digit_starts, id };
        if !params.is_insecure_by_name() {
            let (log_n, weight) = (params.log_n(), params.literal.secret_weight);
            security::require(params.name(), log_n, weight, params.log_qp(params.full_basis()))?;
            if !params.literal.eval_mod_primes.is_empty() {
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

    /// A hash of every number in it: objects of different sets never mix.
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

    /// Usable levels between bootstraps; also the highest level.
    pub fn top_level(&self) -> usize {
        self.literal.usable.len()
    }

    /// Limbs of a ciphertext of a usable level; level 0 keeps the primes the bootstrap starts with.
    pub fn limbs(&self, level: usize) -> usize {
        1 + self.literal.slots_to_coeffs.len() + level
    }

    /// The usable level of a ciphertext with that many limbs.
    pub fn level(&self, limbs: usize) -> Option<usize> {
        limbs.checked_sub(self.limbs(0)).filter(|&level| level <= self.top_level())
    }

    /// The one scale of a usable level: `scale(l - 1) = scale(l)^2 / q_l`.
    pub fn scale(&self, level: usize) -> f64 {
        self.scales[level]
    }

    /// The primes at which digits of a key-switch begin.
    pub fn digit_starts(&self) -> &[usize] {
        &self.digit_starts
    }

    /// Number of digits of a polynomial with `limbs` limbs.
    pub fn digits(&self, limbs: usize) -> usize {
        self.digit_starts.iter().take_while(|&&start| start < limbs).count()
    }

    /// Special primes of key-switches at `limbs` limbs. Three kinds of keys, so that one serves many levels: those for
    /// `q0` alone, those for the primes a bootstrap starts with, and those for everything above, which use all.
    pub fn special_for(&self, limbs: usize) -> usize {
        let all = self.literal.special.len();
        let kind = if limbs <= 1 { 1 } else { self.limbs(0) };
        if limbs > kind {
            return all;
        }
        let bits = log2_product(&self.chain[..kind]) + digit_margin_bits(self.log_n());
        (1..all).find(|&p| log2_product(&self.literal.special[..p]) >= bits).unwrap_or(all)
    }

    /// The primes a key for `limbs` limbs lives over; those from the sparse secret have fewer, see [`crate::KeyId::basis`].
    pub fn key_basis(&self, limbs: usize) -> Basis {
        Basis { q: limbs, p: self.special_for(limbs) }
    }

    /// log2 of the product of the primes of a basis.
    pub fn log_qp(&self, basis: Basis) -> f64 {
        log2_product(&self.chain[..basis.q]) + log2_product(&self.literal.special[..basis.p])
    }

    /// The security of the whole set.
    pub fn security(&self) -> Security {
        security::estimate(self.log_n(), self.literal.secret_weight, self.log_qp(self.full_basis()))
    }
}

/// Refuses numbers no circuit could work with, before anything is computed from them: a literal may come from outside.
fn check_numbers(literal: &ParamsLiteral) -> std::result::Result<(), String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if literal.name.is_empty() || literal.name.len() > MAX_NAME || !literal.name.chars().all(plain) {
        return Err(format!("a name is 1 to {MAX_NAME} of a-z, 0-9 and -"));
    }
    if !(10..=17).contains(&literal.log_n) {
        return Err(format!("log N = {} is outside 10..=17", literal.log_n));
    }
    let degree = 1u64 << literal.log_n;
    let EvalMod { k, degree: series, squarings, .. } = literal.eval_mod;
    let ranges = [
        ("secret weight", literal.secret_weight as u64, 1, degree),
        ("sparse weight", literal.sparse_weight as u64, 1, degree),
        ("log scale", literal.log_scale.into(), 1, 50),
        ("log message ratio", literal.log_message_ratio.into(), 0, 30),
        ("K of EvalMod", k.into(), 1, 1 << 12),
        ("degree of EvalMod", series as u64, 0, 1 << 12),
        ("squarings of EvalMod", squarings as u64, 0, 16),
    ];
    match ranges.iter().find(|(_, value, low, high)| !(low..=high).contains(&value)) {
        Some((what, value, low, high)) => Err(format!("{what} = {value} is outside {low}..={high}")),
        None => Ok(()),
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

/// Cuts the chain greedily into digits as long as the special primes allow: fewer digits make smaller keys and fewer
/// transforms, and small primes share a digit with more of their kind.
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

// EvalMod of all sets. K: a raised coefficient over q0 is a sum of 33 uniform numbers of [-1/2, 1/2] (the ephemeral
// secret has weight 32), which exceeds 15 with probability 2 (1.5^33 - 33 0.5^33) / 33! = 2^-102.4: 2^-86 for all
// coefficients of N = 2^16. Degree: the series' frequency is 2 pi K / 2^3 = 11.8, and the first Bessel coefficient left
// out, J_32(11.8), is 2^-37.3; what follows amplifies it at most 2^9 times, to 2^-28. Two squarings and degree 55 take as
// many levels, more relinearisations, and amplify the noise of T_32 more than a squaring does.

/// `full`: 13 usable levels at 132 bits. The toys have the same chain in a ring too small to be secure.
const fn like_full(name: &'static str, log_n: u32) -> ParamsLiteral {
    ParamsLiteral {
        name: Cow::Borrowed(name),
        log_n,
        secret_weight: 512,
        sparse_weight: 32,
        log_scale: 42,
        log_message_ratio: 8,
        q0: 1125899903827969,
        slots_to_coeffs: Cow::Borrowed(&[68718428161, 68724326401, 68724719617]),
        usable: Cow::Borrowed(&[
            4398044938241,
            4398043496449,
            4398042972161,
            4398042185729,
            4398052147201,
            4398052540417,
            4398053588993,
            4398054506497,
            4398054899713,
            4398055555073,
            4398058045441,
            4398034845697,
            4398063157249,
        ]),
        eval_mod_primes: Cow::Borrowed(&[
            1125899902124033,
            1125899887312897,
            1125899886395393,
            1125899885740033,
            1125899884167169,
            1125899884036097,
            1125899883642881,
            1125899883380737,
            1125899882987521,
        ]),
        coeffs_to_slots: Cow::Borrowed(&[1125899879710721, 1125899877875713, 1125899870404609]),
        special: Cow::Borrowed(&[
            2251799813554177,
            2251799810670593,
            2251799809884161,
            2251799807131649,
            2251799806345217,
            2251799805165569,
            2251799799267329,
        ]),
        eval_mod: EvalMod { k: 15, degree: 31, squarings: 3, correction: true },
    }
}

/// `small`: half the degree, for inference and low-precision work. The squarings of EvalMod come with ever smaller primes:
/// their noise is amplified less than that of what precedes them, and the bits saved pay for a third
/// coefficients-to-slots matrix, which takes 126 diagonals where two matrices take 383.
const SMALL: ParamsLiteral = ParamsLiteral {
    name: Cow::Borrowed("small"),
    log_n: 15,
    secret_weight: 512,
    sparse_weight: 32,
    log_scale: 31,
    log_message_ratio: 9,
    q0: 4398044938241,
    slots_to_coeffs: Cow::Borrowed(&[268369921, 268238849]),
    usable: Cow::Borrowed(&[2146041857, 2148728833, 2148794369, 2146959361, 2147352577]),
    eval_mod_primes: Cow::Borrowed(&[
        68720066561,
        274879414273,
        1099512938497,
        4398043496449,
        4398042972161,
        4398042513409,
        4398042185729,
        4398038450177,
    ]),
    coeffs_to_slots: Cow::Borrowed(&[4398037794817, 4398035304449, 4398034911233]),
    special: Cow::Borrowed(&[35184368877569, 35184368025601, 35184367828993]),
    eval_mod: EvalMod { k: 15, degree: 31, squarings: 3, correction: false },
};

/// Every set that has a name.
pub static BUILT_IN: [ParamsLiteral; 4] =
    [like_full("full", 16), SMALL, like_full("insecure-toy11", 11), like_full("insecure-toy12", 12)];

/// A bootstrap overflows with at most this probability over all coefficients, as log2.
const LOG_OVERFLOW: f64 = -60.0;
/// The series of a bootstrap is wrong by at most this much of the message's bound, as log2.
const LOG_SERIES_ERROR: f64 = -10.0;

/// What is wrong with the range and the degree of EvalMod, if something is.
///
/// A coefficient of the raised message is a multiple `I` of `q0` more than it should be; `I` is, but for less than one, the sum of
/// `weight + 1` numbers uniform in `[-1/2, 1/2]`, for whose tail Chernoff's bound is taken. The Chebyshev series of
/// `exp(i z t)` leaves out coefficients of which the first is `2 J_(d+1)(z) <= 2 (z/2)^(d+1) / (d+1)!`; squarings double an error,
/// and the message is smaller than `q0` by its ratio.
fn eval_mod_fault(literal: &ParamsLiteral) -> Option<String> {
    let eval_mod = literal.eval_mod;
    if eval_mod.degree == 0 {
        return None;
    }
    let (terms, k) = (literal.sparse_weight as f64 + 1.0, f64::from(eval_mod.k));
    let exponent = |s: f64| terms * libm::log(2.0 * libm::sinh(s / 2.0) / s) - s * k;
    let tail = (1..=4000).map(|i| exponent(f64::from(i) / 20.0)).fold(0.0, f64::min) / std::f64::consts::LN_2 + 1.0;
    let overflow = tail + f64::from(literal.log_n);
    // A sum of so many numbers cannot be larger than half of them.
    if terms > 2.0 * k && overflow > LOG_OVERFLOW {
        return Some(format!("EvalMod's range K = {k} is exceeded with probability 2^{overflow:.0}"));
    }
    let half = std::f64::consts::PI * k / libm::exp2(eval_mod.squarings as f64);
    let next = eval_mod.degree as f64 + 1.0;
    let dropped = 1.0 + next * libm::log2(half) - libm::lgamma(next + 1.0) / std::f64::consts::LN_2;
    let error = dropped + eval_mod.squarings as f64 + f64::from(literal.log_message_ratio);
    (error > LOG_SERIES_ERROR).then(|| format!("a series of degree {} is wrong by 2^{error:.0}", eval_mod.degree))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_set_is_valid_and_secure_or_says_so() {
        for literal in &BUILT_IN {
            let params = Params::named(&literal.name).unwrap();
            assert!(params.is_insecure_by_name() || params.security().bits() >= 128.0, "{}", params.name());
            assert_eq!(
                params.limbs(params.top_level()) + literal.eval_mod_primes.len() + literal.coeffs_to_slots.len(),
                params.chain().len()
            );
        }
        let full = Params::named("full").unwrap();
        assert_eq!(full.top_level(), 13);
        assert!((full.security().bits() - 132.2).abs() < 0.2, "{}", full.security());
    }

    #[test]
    fn digits_fit_under_the_special_primes() {
        let full = Params::named("full").unwrap();
        assert_eq!(full.digit_starts(), [0, 8, 16, 23]);
        assert_eq!([29, 23, 17, 16, 8].map(|limbs| full.digits(limbs)), [4, 3, 3, 2, 1]);
        assert_eq!(full.special_for(29), 7);
        assert_eq!(full.special_for(4), 4);
        assert_eq!(full.special_for(1), 2);
    }

    #[test]
    fn bad_literals_are_refused_with_a_reason() {
        let broken = |change: fn(&mut ParamsLiteral)| {
            let mut literal = like_full("full", 16);
            change(&mut literal);
            Params::new(literal).unwrap_err().to_string()
        };
        assert!(broken(|l| l.log_n = 15).contains("under 128 bits"));
        assert!(broken(|l| l.q0 += 2).contains("no prime"));
        assert!(broken(|l| l.q0 = 1125899902124033).contains("appears twice"));
        assert!(broken(|l| l.eval_mod.degree = 15).contains("EvalMod takes 8"));
        assert!(broken(|l| l.coeffs_to_slots = Cow::Borrowed(&[])).contains("both kinds"));
        assert!(broken(|l| l.log_scale = 44).contains("drift"));
        assert!(broken(|l| l.special = Cow::Borrowed(&[])).contains("special"));
        assert!(broken(|l| l.name = "../full".into()).contains("a name is"));
        assert!(broken(|l| l.log_n = 64).contains("log N = 64"));
        assert!(broken(|l| l.log_scale = 4000).contains("log scale"));
        assert!(broken(|l| l.secret_weight = usize::MAX).contains("secret weight"));
        assert!(broken(|l| l.eval_mod.squarings = usize::MAX).contains("squarings"));
        assert!(broken(|l| l.q0 = 2).contains("below 2^16"));
        assert!(broken(|l| l.usable = vec![4398044938241; 100].into()).contains("more than 64"));
        assert!(broken(|l| l.sparse_weight = 16).contains("ephemeral"));
        assert!(broken(|l| l.special = l.special[..2].to_vec().into()).contains("digits"));
        assert!(
            broken(|l| l.special.to_mut().extend(hetal_ring::prime::ntt_primes_below(45, 16, 2))).contains("special")
        );
        assert!(Params::named("huge").unwrap_err().to_string().contains("insecure-toy11"));
    }

    #[test]
    fn the_name_decides_nothing_but_the_permission() {
        let toy = Params::named("insecure-toy11").unwrap();
        assert_eq!(toy.security(), Security::None);
        assert_ne!(toy.id(), Params::named("insecure-toy12").unwrap().id());
        let renamed = Params::new(like_full("insecure-other", 11)).unwrap();
        assert_eq!((toy.id(), toy.tag()), (renamed.id(), renamed.tag()));
    }

    #[test]
    fn a_bootstrap_that_cannot_work_is_refused() {
        let full = Params::named("full").unwrap().literal().clone();
        let refused = |change: fn(&mut ParamsLiteral)| {
            let mut literal = full.clone();
            literal.name = "insecure-other".into();
            change(&mut literal);
            Params::new(literal).err().map(|e| e.to_string()).unwrap_or_default()
        };
        assert_eq!(refused(|_| ()), "");
        assert!(refused(|l| l.eval_mod.k = 7).contains("is exceeded"), "{}", refused(|l| l.eval_mod.k = 7));
        assert!(refused(|l| l.sparse_weight = 128).contains("is exceeded"));
        assert!(refused(|l| l.eval_mod.degree = 16).contains("is wrong by"));
    }
}
