//! Parameter sets described by the bit sizes of their primes.

use super::{EvalMod, Params, ParamsLiteral};
use crate::{Error, Result};
use hetal_ring::prime;

/// Sizes that primes of the chain may have.
const CHAIN_BITS: std::ops::RangeInclusive<u32> = 17..=50;
/// Sizes that special primes may have.
const SPECIAL_BITS: std::ops::RangeInclusive<u32> = 17..=51;
/// Bits of `q0` above the scale in [`BitSizes::leveled`]: messages up to 2^9 survive decryption at
/// level 0.
const LEVELED_MESSAGE_BITS: u32 = 10;
/// Digits that [`BitSizes::leveled`] aims at.
const LEVELED_DIGITS: u64 = 4;
/// The largest size of the special primes of [`BitSizes::leveled`].
const LEVELED_SPECIAL_BITS: u64 = 50;
/// The most special primes of [`BitSizes::leveled`]: one conversion takes no more.
const LEVELED_MOST_SPECIAL: u64 = 7;
/// Candidates on either side of a target that are tried for a usable prime.
const SEARCH: u64 = 1 << 16;

/// A parameter set described by the bit sizes of its primes.
///
/// [`Params::from_bits`] finds the primes and applies the same checks as to a [`ParamsLiteral`]: a
/// set of less than 128 bits is refused unless its name begins with `insecure-`.
///
/// ```
/// use hetal_ckks::{Error, Params, params::BitSizes};
///
/// // Five multiplications at a scale of 2^30, without bootstrapping.
/// let params = Params::from_bits(&BitSizes::leveled("five-levels", 14, 5, 30))?;
/// assert_eq!(params.top_level(), 5);
/// assert!(params.security().bits() >= 128.0);
///
/// // The same chain in a ring of half the degree is not secure.
/// let small = Params::from_bits(&BitSizes::leveled("five-levels", 13, 5, 30));
/// assert!(matches!(small, Err(Error::Insecure { .. })));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitSizes {
    /// The name of the set; `insecure-...` permits less than 128 bits.
    pub name: String,
    /// Log of the ring degree.
    pub log_n: u32,
    /// Nonzero coefficients of the secret.
    pub secret_weight: usize,
    /// Nonzero coefficients of the ephemeral secret under which the bootstrap raises the modulus.
    pub sparse_weight: usize,
    /// Log of the scale, and the size of the usable primes.
    pub log_scale: u32,
    /// Number of usable levels.
    pub levels: usize,
    /// Log of the message ratio of the bootstrap.
    pub log_message_ratio: u32,
    /// Size of the prime `q0`.
    pub q0: u32,
    /// Sizes of the slots-to-coefficients primes.
    pub slots_to_coeffs: Vec<u32>,
    /// Sizes of the primes of the modular reduction.
    pub eval_mod_primes: Vec<u32>,
    /// Sizes of the coefficients-to-slots primes.
    pub coeffs_to_slots: Vec<u32>,
    /// Sizes of the special primes.
    pub special: Vec<u32>,
    /// The modular reduction of the bootstrap.
    pub eval_mod: EvalMod,
}

impl BitSizes {
    /// A set of `levels` multiplications at scale `2^log_scale` that cannot bootstrap.
    pub fn leveled(name: &str, log_n: u32, levels: usize, log_scale: u32) -> Self {
        let q0 = (log_scale + LEVELED_MESSAGE_BITS).min(*CHAIN_BITS.end());
        let chain_bits = u64::from(q0) + levels as u64 * u64::from(log_scale);
        // About four digits for each key-switch, or as many as `q0` alone needs, and a margin for
        // the noise.
        let bits = chain_bits.div_ceil(LEVELED_DIGITS).max(q0.into()) + u64::from(log_n / 2) + 2;
        let count = bits.div_ceil(LEVELED_SPECIAL_BITS).min(LEVELED_MOST_SPECIAL);
        Self {
            name: name.to_owned(),
            log_n,
            secret_weight: if log_n < 15 { 256 } else { 512 },
            sparse_weight: 32,
            log_scale,
            levels,
            log_message_ratio: 0,
            q0,
            slots_to_coeffs: Vec::new(),
            eval_mod_primes: Vec::new(),
            coeffs_to_slots: Vec::new(),
            special: vec![bits.div_ceil(count).min(LEVELED_SPECIAL_BITS) as u32; count as usize],
            eval_mod: EvalMod { k: 1, degree: 0, squarings: 0, correction: false },
        }
    }

    fn fail<T>(&self, reason: String) -> Result<T> {
        Err(Error::Params { name: self.name.clone(), reason })
    }

    fn check(&self) -> Result<()> {
        if !(10..=17).contains(&self.log_n) {
            return self.fail(format!("log N = {} is outside 10..=17", self.log_n));
        }
        if self.levels > super::MAX_PRIMES {
            return self.fail(format!("{} levels are more than {} primes", self.levels, super::MAX_PRIMES));
        }
        let chain = [self.q0, self.log_scale];
        let matrices = self.slots_to_coeffs.iter().chain(&self.eval_mod_primes).chain(&self.coeffs_to_slots);
        if let Some(bits) = chain.iter().chain(matrices).find(|bits| !CHAIN_BITS.contains(bits)) {
            return self.fail(format!("a prime of the chain of {bits} bits is outside {CHAIN_BITS:?} bits"));
        }
        if let Some(bits) = self.special.iter().find(|bits| !SPECIAL_BITS.contains(bits)) {
            return self.fail(format!("a special prime of {bits} bits is outside {SPECIAL_BITS:?} bits"));
        }
        Ok(())
    }

    /// The primes of the usable levels, lowest level first. From the top level down, each prime is
    /// the one that brings the scale of the next level nearest to `2^log_scale`, so that the scales
    /// do not drift apart.
    fn usable(&self, taken: &mut Vec<u64>) -> Result<Vec<u64>> {
        let ideal = libm::exp2(f64::from(self.log_scale));
        let (mut scale, mut primes) = (ideal, Vec::with_capacity(self.levels));
        for _ in 0..self.levels {
            let Some(q) = nearest(scale * (scale / ideal), self.log_n, taken) else {
                return self.fail(format!("there are too few primes of {} bits", self.log_scale));
            };
            scale *= scale / q as f64;
            taken.push(q);
            primes.push(q);
        }
        primes.reverse();
        Ok(primes)
    }

    /// The largest free primes of the given sizes.
    fn below(&self, sizes: &[u32], taken: &mut Vec<u64>) -> Result<Vec<u64>> {
        let mut primes = Vec::with_capacity(sizes.len());
        for &bits in sizes {
            let candidates = prime::ntt_primes_below(bits, self.log_n, taken.len() + 1);
            let Some(q) = candidates.into_iter().find(|q| !taken.contains(q)) else {
                return self.fail(format!("there are too few primes of {bits} bits"));
            };
            taken.push(q);
            primes.push(q);
        }
        Ok(primes)
    }

    fn literal(&self) -> Result<ParamsLiteral> {
        self.check()?;
        let mut taken = Vec::new();
        let usable = self.usable(&mut taken)?;
        Ok(ParamsLiteral {
            name: self.name.clone().into(),
            log_n: self.log_n,
            secret_weight: self.secret_weight,
            sparse_weight: self.sparse_weight,
            log_scale: self.log_scale,
            log_message_ratio: self.log_message_ratio,
            q0: self.below(&[self.q0], &mut taken)?[0],
            slots_to_coeffs: self.below(&self.slots_to_coeffs, &mut taken)?.into(),
            usable: usable.into(),
            eval_mod_primes: self.below(&self.eval_mod_primes, &mut taken)?.into(),
            coeffs_to_slots: self.below(&self.coeffs_to_slots, &mut taken)?.into(),
            special: self.below(&self.special, &mut taken)?.into(),
            eval_mod: self.eval_mod,
        })
    }
}

impl Params {
    /// The set of a description by bit sizes. It is checked like every other set, against the same
    /// security bound.
    pub fn from_bits(sizes: &BitSizes) -> Result<Self> {
        Self::new(sizes.literal()?)
    }
}

/// The free NTT prime nearest to `target`.
fn nearest(target: f64, log_n: u32, taken: &[u64]) -> Option<u64> {
    let step = 1u64 << (log_n + 1);
    let middle = (target / step as f64) as u64;
    let candidates = (0..SEARCH).flat_map(|k| [middle.checked_sub(k), Some(middle + 1 + k)]).flatten();
    let mut free = candidates.map(|k| k * step + 1).filter(|q| !taken.contains(q) && q >> 50 == 0);
    free.find(|&q| prime::is_prime(q))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Security;

    /// The sizes of the built-in set `full`.
    fn like_full(name: &str, log_n: u32) -> BitSizes {
        BitSizes {
            name: name.to_owned(),
            log_n,
            secret_weight: 512,
            sparse_weight: 32,
            log_scale: 42,
            levels: 13,
            log_message_ratio: 8,
            q0: 50,
            slots_to_coeffs: vec![36; 3],
            eval_mod_primes: vec![50; 9],
            coeffs_to_slots: vec![50; 3],
            special: vec![51; 7],
            eval_mod: EvalMod { k: 15, degree: 31, squarings: 3, correction: true },
        }
    }

    #[test]
    fn sizes_of_full_give_a_set_as_strong_as_full() {
        let (ours, full) = (Params::from_bits(&like_full("mine", 16)).unwrap(), Params::named("full").unwrap());
        assert_eq!((ours.top_level(), ours.chain().len()), (full.top_level(), full.chain().len()));
        // Security is known from a table of moduli: of a set of one's own, that it is at least 128.
        assert!(ours.security().bits() >= 128.0, "{}", ours.security());
        assert!(
            (ours.log_qp(ours.full_basis()) - full.log_qp(full.full_basis())).abs() < 0.1,
            "{} bits",
            ours.log_qp(ours.full_basis())
        );
        for level in 0..=ours.top_level() {
            assert!((libm::log2(ours.scale(level)) - 42.0).abs() < 1e-3, "level {level}");
        }
    }

    #[test]
    fn less_than_128_bits_needs_the_word_insecure() {
        let refused = Params::from_bits(&like_full("mine", 15)).unwrap_err();
        assert!(matches!(refused, Error::Insecure { log_n: 15, .. }), "{refused}");
        let toy = Params::from_bits(&like_full("insecure-mine", 11)).unwrap();
        assert_eq!(toy.security(), Security::None);
        assert!(matches!(Params::from_bits(&BitSizes::leveled("deep", 14, 12, 40)), Err(Error::Insecure { .. })));
    }

    #[test]
    fn leveled_sets_keep_their_scale() {
        for (log_n, levels, log_scale) in [(14, 5, 30), (14, 3, 45), (15, 12, 40), (16, 30, 40)] {
            let params = Params::from_bits(&BitSizes::leveled("leveled", log_n, levels, log_scale)).unwrap();
            assert_eq!((params.top_level(), params.limbs(0)), (levels, 1));
            for level in 0..=levels {
                let drift = libm::log2(params.scale(level)) - f64::from(log_scale);
                assert!(drift.abs() < 0.01, "N = 2^{log_n}, level {level}: {drift}");
            }
        }
    }

    #[test]
    fn impossible_sizes_are_refused_with_a_reason() {
        let refused = |change: fn(&mut BitSizes)| {
            let mut sizes = like_full("mine", 16);
            change(&mut sizes);
            Params::from_bits(&sizes).unwrap_err().to_string()
        };
        assert!(refused(|s| s.q0 = 51).contains("51 bits is outside"));
        assert!(refused(|s| s.special[0] = 60).contains("special prime of 60 bits"));
        assert!(refused(|s| s.log_n = 40).contains("log N = 40"));
        assert!(refused(|s| s.levels = 1000).contains("1000 levels"));
        assert!(refused(|s| s.slots_to_coeffs = vec![18; 3]).contains("too few primes of 18 bits"));
    }
}
