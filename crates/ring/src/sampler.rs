//! Random sampling: ChaCha20 streams from 32-byte seeds, and the distributions of the scheme.
//!
//! A seed is used for one object only. Within an object [`Domain`] separates the streams (it is the
//! nonce of the cipher), so no two polynomials share key stream.

use crate::Modulus;
use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Standard deviation of errors, the value the security table is computed for.
pub const SIGMA: f64 = 3.2;
/// Errors beyond 10 sigma have probability under 2^-75 and are left out.
const TAIL: usize = 32;

/// 32 bytes that determine one random object.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Seed(pub [u8; 32]);

/// A source of seeds. Products use [`OsSeeds`], tests use [`TestSeeds`].
pub trait SeedSource {
    /// A fresh seed.
    fn next_seed(&mut self) -> Seed;
}

/// Fresh seeds from the operating system.
#[derive(Default)]
pub struct OsSeeds;

impl SeedSource for OsSeeds {
    fn next_seed(&mut self) -> Seed {
        // Filled in place: no copy is left behind.
        let mut seed = Seed([0; 32]);
        // Without randomness keys would leak, so the program must stop.
        #[allow(clippy::expect_used)]
        getrandom::fill(&mut seed.0).expect("the operating system gave no randomness");
        seed
    }
}

/// A reproducible sequence of seeds. **Insecure**: for known-answer tests and self-tests only.
pub struct TestSeeds(ChaCha20);

impl TestSeeds {
    /// The sequence named by `label`.
    pub fn insecure(label: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&label.to_le_bytes());
        Self(ChaCha20::new(&key.into(), &[0xA5; 12].into()))
    }
}

impl SeedSource for TestSeeds {
    fn next_seed(&mut self) -> Seed {
        let mut seed = [0; 32];
        self.0.apply_keystream(&mut seed);
        Seed(seed)
    }
}

/// The stream of a seed: each polynomial of an object has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// The uniform half, one stream per digit and prime.
    Uniform {
        /// Digit of a switching key, 0 elsewhere.
        digit: u32,
        /// Prime: its index, special primes from 2^31.
        prime: u32,
    },
    /// An error polynomial.
    Error {
        /// Which error of the object.
        index: u32,
    },
    /// A secret or ephemeral ternary polynomial.
    Ternary,
    /// Noise added to a released value.
    Flooding,
}

impl Domain {
    fn nonce(self) -> [u8; 12] {
        let (kind, a, b): (u32, u32, u32) = match self {
            Self::Uniform { digit, prime } => (1, digit, prime),
            Self::Error { index } => (2, index, 0),
            Self::Ternary => (3, 0, 0),
            Self::Flooding => (4, 0, 0),
        };
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&kind.to_le_bytes());
        nonce[4..8].copy_from_slice(&a.to_le_bytes());
        nonce[8..].copy_from_slice(&b.to_le_bytes());
        nonce
    }
}

/// 64-bit words of one stream, in blocks.
struct Words {
    cipher: ChaCha20,
    block: [u8; Self::BLOCK],
    used: usize,
}

impl Words {
    const BLOCK: usize = 4096;

    fn new(seed: &Seed, domain: Domain) -> Self {
        let cipher = ChaCha20::new((&seed.0).into(), &domain.nonce().into());
        Self { cipher, block: [0; Self::BLOCK], used: Self::BLOCK }
    }

    /// The bytes of at least one and at most `count` further words.
    #[inline]
    fn available(&mut self, count: usize) -> &[u8] {
        if self.used == Self::BLOCK {
            self.block.fill(0);
            self.cipher.apply_keystream(&mut self.block);
            self.used = 0;
        }
        let start = self.used;
        self.used = Self::BLOCK.min(start + 8 * count);
        &self.block[start..self.used]
    }

    #[inline]
    fn next(&mut self) -> u64 {
        word_at(self.available(1))
    }

    /// Uniform below `bound`, by rejection of words cut to its bit length.
    #[inline]
    fn below(&mut self, bound: u64) -> u64 {
        let mask = u64::MAX.checked_shr((bound - 1).leading_zeros()).unwrap_or(0);
        loop {
            let x = self.next() & mask;
            if x < bound {
                return x;
            }
        }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        self.block.zeroize();
    }
}

/// Uniform residues modulo `q`.
pub fn uniform_into(seed: &Seed, domain: Domain, q: &Modulus, out: &mut [u64]) {
    let mask = u64::MAX >> (q.value() - 1).leading_zeros();
    let mut words = Words::new(seed, domain);
    let mut filled = 0;
    while filled < out.len() {
        // Each word is written and kept by moving on: rejection without a branch that half the
        // words of some primes miss.
        for word in words.available(out.len() - filled).chunks_exact(8) {
            let x = word_at(word) & mask;
            out[filled] = x;
            filled += usize::from(x < q.value());
        }
    }
}

#[inline(always)]
fn word_at(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// A polynomial with exactly `weight` coefficients in {-1, 1} at uniform positions, the rest 0.
///
/// Positions are drawn by a Fisher-Yates shuffle, whose memory accesses depend on the secret. Run
/// it only on a machine whose caches nobody else observes, such as the data owner's. `weight <= n`.
pub fn ternary_fixed_weight(seed: &Seed, n: usize, weight: usize) -> Vec<i8> {
    assert!(weight <= n);
    let mut words = Words::new(seed, Domain::Ternary);
    let mut places: Vec<u32> = (0..n as u32).collect();
    let mut out = vec![0; n];
    for k in 0..weight {
        let chosen = k + words.below((n - k) as u64) as usize;
        places.swap(k, chosen);
        out[places[k] as usize] = 1 - 2 * (words.next() & 1) as i8;
    }
    places.zeroize();
    out
}

/// Uniform coefficients in {-1, 0, 1}: the ephemeral secret of public-key encryption.
pub fn ternary_uniform(seed: &Seed, n: usize) -> Vec<i8> {
    let mut words = Words::new(seed, Domain::Ternary);
    (0..n).map(|_| words.below(3) as i8 - 1).collect()
}

/// Discrete Gaussian of standard deviation [`SIGMA`] by inversion: every sample is compared with
/// every entry of a fixed table of integers, so that time and memory accesses do not depend on the
/// result.
pub struct Gaussian {
    /// `2^63 P(|x| <= k)`, rounded up.
    thresholds: [u64; TAIL],
}

impl Default for Gaussian {
    fn default() -> Self {
        Self::new()
    }
}

impl Gaussian {
    /// The table, by a portable exponential so that all machines have the same one.
    pub fn new() -> Self {
        let density = |k: usize| libm::exp(-((k * k) as f64) / (2.0 * SIGMA * SIGMA));
        // Summed from the small end, so that rounding is below 2^-52 of the total.
        let total = 1.0 + 2.0 * (1..=TAIL).rev().map(density).sum::<f64>();
        let mut thresholds = [0; TAIL];
        for (k, threshold) in thresholds.iter_mut().enumerate() {
            let beyond = 2.0 * (k + 1..=TAIL).rev().map(density).sum::<f64>();
            *threshold = (1 << 63) - (beyond / total * (1u64 << 63) as f64) as u64;
        }
        Self { thresholds }
    }

    /// Fills `out` with samples.
    pub fn sample_into(&self, seed: &Seed, domain: Domain, out: &mut [i64]) {
        let mut words = Words::new(seed, domain);
        for x in out {
            let word = words.next();
            let (sign, u) = ((word >> 63) as i64, word & (u64::MAX >> 1));
            let magnitude: i64 = self.thresholds.iter().map(|&t| i64::from(u >= t)).sum();
            *x = (magnitude ^ -sign) + sign;
        }
    }
}

/// Standard normal numbers by the Box-Muller transform, for the noise of released values: within
/// 2^-48 of exact ones on average. The code is neither integer-only nor constant-time, so it is for
/// the owner's machine and never for ciphertexts.
pub fn normal_into(seed: &Seed, domain: Domain, out: &mut [f64]) {
    let mut words = Words::new(seed, domain);
    for pair in out.chunks_mut(2) {
        // Never 0, so that the logarithm is finite; the tail ends at 9.4 standard deviations,
        // beyond which are 2^-68.
        let u = (words.next() as f64 + 0.5) / 2f64.powi(64);
        let turn = (words.next() >> 11) as f64 / 2f64.powi(53);
        let radius = libm::sqrt(-2.0 * libm::log(u));
        let (sin, cos) = libm::sincos(2.0 * std::f64::consts::PI * turn);
        for (z, direction) in pair.iter_mut().zip([cos, sin]) {
            *z = radius * direction;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed(k: u8) -> Seed {
        Seed([k; 32])
    }

    #[test]
    fn streams_are_separate_and_reproducible() {
        let q = Modulus::new(1125899903827969).unwrap();
        let draw = |seed: &Seed, domain| {
            let mut out = vec![0; 64];
            uniform_into(seed, domain, &q, &mut out);
            out
        };
        let here = Domain::Uniform { digit: 0, prime: 3 };
        assert_eq!(draw(&seed(1), here), draw(&seed(1), here));
        for other in [
            Domain::Uniform { digit: 1, prime: 3 },
            Domain::Uniform { digit: 3, prime: 0 },
            Domain::Error { index: 0 },
            Domain::Ternary,
        ] {
            assert_ne!(draw(&seed(1), here), draw(&seed(1), other));
        }
        assert_ne!(draw(&seed(1), here), draw(&seed(2), here));
    }

    #[test]
    fn uniform_fills_the_range_evenly() {
        for value in [97u64, 12289, 2251799813554177] {
            let q = Modulus::new(value).unwrap();
            let mut out = vec![0; 1 << 16];
            uniform_into(&seed(3), Domain::Uniform { digit: 0, prime: 0 }, &q, &mut out);
            assert!(out.iter().all(|&x| x < value));
            // 16 bins of 4096 expected: chi-square with 15 degrees of freedom stays under 50 but
            // once in 10^5.
            let mut bins = [0f64; 16];
            for &x in &out {
                bins[(u128::from(x) * 16 / u128::from(value)) as usize] += 1.0;
            }
            let width = |b: u128| ((b + 1) * u128::from(value)).div_ceil(16) - (b * u128::from(value)).div_ceil(16);
            let chi: f64 = (0..16)
                .map(|b| {
                    let expected = 65536.0 * width(b as u128) as f64 / value as f64;
                    (bins[b] - expected).powi(2) / expected
                })
                .sum();
            assert!(chi < 50.0, "q {value}: chi-square {chi}");
        }
    }

    #[test]
    fn ternary_has_its_weight_and_balance() {
        assert!(ternary_fixed_weight(&seed(4), 64, 64).iter().all(|c| c.abs() == 1));
        let s = ternary_fixed_weight(&seed(4), 1 << 16, 512);
        assert_eq!(s.iter().filter(|&&x| x != 0).count(), 512);
        let plus = s.iter().filter(|&&x| x == 1).count();
        assert!((180..=332).contains(&plus), "{plus} of 512");
        let quarter = s[..1 << 14].iter().filter(|&&x| x != 0).count();
        assert!((70..=190).contains(&quarter), "{quarter} in the first quarter");
        let u = ternary_uniform(&seed(5), 30000);
        for value in -1..=1i8 {
            let count = u.iter().filter(|&&x| x == value).count();
            assert!((9500..10500).contains(&count), "{value}: {count}");
        }
    }

    #[test]
    fn gaussian_matches_its_density() {
        let n = 1 << 20;
        let mut out = vec![0; n];
        Gaussian::new().sample_into(&seed(6), Domain::Error { index: 0 }, &mut out);
        let mean = out.iter().sum::<i64>() as f64 / n as f64;
        let variance = out.iter().map(|&x| (x * x) as f64).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.02, "mean {mean}");
        assert!((variance.sqrt() - SIGMA).abs() < 0.02, "sigma {}", variance.sqrt());
        let total: f64 = (-32i32..=32).map(|k| (-f64::from(k * k) / (2.0 * SIGMA * SIGMA)).exp()).sum();
        for k in -12i32..=12 {
            let expected = n as f64 * (-f64::from(k * k) / (2.0 * SIGMA * SIGMA)).exp() / total;
            let seen = out.iter().filter(|&&x| x == i64::from(k)).count() as f64;
            assert!((seen - expected).abs() < 6.0 * expected.sqrt() + 1.0, "{k}: {seen} for {expected}");
        }
    }

    #[test]
    fn uniform_residues_are_the_words_of_the_stream_below_the_modulus() {
        let domain = Domain::Uniform { digit: 0, prime: 0 };
        for q in [12289, 68718428161, 68724326401, 4398052147201, 1125899903827969] {
            let q = Modulus::new(q).unwrap();
            let mut out = vec![0; 3000];
            uniform_into(&seed(9), domain, &q, &mut out);
            let mut words = Words::new(&seed(9), domain);
            assert!(out.iter().all(|&x| x == words.below(q.value())), "{}", q.value());
        }
    }

    #[test]
    fn normal_numbers_have_their_moments_and_tails() {
        let mut z = vec![0.0; 1_000_001];
        normal_into(&seed(5), Domain::Flooding, &mut z);
        let moment = |k: i32| z.iter().map(|x| x.powi(k)).sum::<f64>() / z.len() as f64;
        for (k, expected) in [(1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)] {
            assert!((moment(k) - expected).abs() < 0.03, "moment {k}: {}", moment(k));
        }
        for (bound, expected) in [(1.0, 0.317_310_5), (2.0, 0.045_500_3), (3.0, 0.002_699_8)] {
            let beyond = z.iter().filter(|x| x.abs() > bound).count() as f64 / z.len() as f64;
            assert!((beyond - expected).abs() < 6.0 * f64::sqrt(expected / z.len() as f64), "{bound}: {beyond}");
        }
        let neighbours: f64 = z.windows(2).map(|w| w[0] * w[1]).sum::<f64>() / z.len() as f64;
        assert!(neighbours.abs() < 0.01, "{neighbours}");
    }

    #[test]
    fn seeds_do_not_repeat() {
        let mut os = OsSeeds;
        assert!(os.next_seed() != os.next_seed());
        let mut fixed = TestSeeds::insecure(1);
        assert!(fixed.next_seed() != fixed.next_seed());
        assert!(TestSeeds::insecure(1).next_seed() == TestSeeds::insecure(1).next_seed());
        assert!(TestSeeds::insecure(1).next_seed() != TestSeeds::insecure(2).next_seed());
    }
}
