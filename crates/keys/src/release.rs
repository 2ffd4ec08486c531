//! The release of decrypted values.
//!
//! A decryption is `m + e` with a noise `e` that depends linearly on the secret key. An attacker
//! who knows the ciphertext and `m`, and sees `m + e`, solves for the key (Li and Micciancio,
//! EUROCRYPT 2021). A released value is therefore `m + e` plus Gaussian noise that is large enough
//! to hide `e`, rounded:
//!
//! ```text
//! sigma = 2^security * noise * sqrt(numbers) * (1 + 1/64) / sqrt(2 pi)
//! ```
//!
//! Then all released values together are within statistical distance `2^-security` of values that
//! could be made without the secret key. `docs/security/releases.md` has the derivation and the
//! cost.

use crate::{Error, Private, Result};
use hetal_ckks::Complex64;
use hetal_ring::sampler::{Domain, SeedSource, normal_into};
use zeroize::Zeroize;

/// log2 of the probability that a number of the sampler, rounded to a sixteenth of its standard
/// deviation, differs from the exact one: an error of 2^-48 on average crosses a boundary with
/// probability 2^-44.
///
/// It counts on both sides of the comparison, so two bits are kept for it: `2^-security` of the
/// flooding and as much of the sampler stay below `1.5 * 2^-security`.
const LOG_SAMPLER_ERROR: f64 = -41.0;
/// The step of the first rounding, relative to the noise. It shifts numbers by as much.
const ROUNDING: f64 = 1.0 / 64.0;
/// The largest multiple of the step up to which doubles hold every multiple exactly.
const LARGEST_MULTIPLE: f64 = (1u64 << 52) as f64;

/// Decisions that the owner of a secret key makes before releasing anything under it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReleasePolicy {
    /// A bound on the noise of the numbers, their distance from values that do not depend on the
    /// secret key: in every release, the root of the mean of its squares. A bound on each number
    /// is one too. See [`estimate_noise`].
    pub noise: f64,
    /// The number of real values that will ever be released under the secret key. Releasing a value
    /// again counts again.
    pub numbers: u64,
    /// An observer gains at most `2^-security` in any attack on the secret key.
    pub security: u32,
    /// The largest useful standard error of a released number.
    pub error: f64,
}

/// Releases numbers under one secret key, as many as its policy says. The count lives as long as
/// this value: whoever releases again after a restart keeps [`Release::left`] beside the key,
/// written before anything is published.
///
/// ```
/// use hetal_keys::{Private, Release, ReleasePolicy};
/// use hetal_ring::sampler::OsSeeds;
///
/// let policy = ReleasePolicy { noise: 1e-9, numbers: 100, security: 16, error: 1e-3 };
/// let mut release = Release::new(policy).unwrap();
/// let logits = Private::new(vec![0.25, -1.5]);
/// let published = release.publish(&logits, &mut OsSeeds).unwrap();
/// assert!((published[0] - 0.25).abs() < 0.01);
/// assert_eq!(release.left(), 98);
/// ```
pub struct Release {
    sigma: f64,
    /// Numbers are rounded to multiples of this step before noise is added, so that all sums are
    /// exact. At most 1/64 of the noise.
    step: f64,
    /// Published numbers are multiples of this many steps: a power of two, at most sigma / 16 if
    /// that is at least one.
    coarse: f64,
    left: u64,
}

impl Release {
    /// Prepares the noise of a policy. Fails for a policy that cannot be kept.
    pub fn new(policy: ReleasePolicy) -> Result<Self> {
        let ReleasePolicy { noise, numbers, security, error } = policy;
        if !(noise > 0.0 && noise.is_finite() && noise.log2() > -500.0 && noise.log2() < 500.0) {
            return Err(Error::Policy("the bound on the noise is not a positive number"));
        }
        if numbers == 0 || security == 0 {
            return Err(Error::Policy("nothing to release, or no security"));
        }
        let log_numbers = libm::log2(numbers as f64);
        if LOG_SAMPLER_ERROR + log_numbers > -f64::from(security) {
            return Err(Error::Policy("security and the logarithm of the numbers exceed 41 bits together"));
        }
        let sigma = deviation(noise, numbers, security);
        if sigma > error || error.is_nan() {
            return Err(Error::TooImprecise { error: sigma, wanted: error });
        }
        let step = power_of_two_below(noise * ROUNDING);
        let coarse = power_of_two_below((sigma / 16.0 / step).max(1.0));
        Ok(Self { sigma, step, coarse, left: numbers })
    }

    /// Standard deviation of the added noise.
    pub fn sigma(&self) -> f64 {
        self.sigma
    }

    /// Published numbers are multiples of this.
    pub fn precision(&self) -> f64 {
        self.step * self.coarse
    }

    /// How many more numbers may be published.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The numbers with noise, rounded. They may be published.
    pub fn publish(&mut self, values: &Private<Vec<f64>>, seeds: &mut dyn SeedSource) -> Result<Vec<f64>> {
        let values = values.peek();
        let wanted = values.len() as u64;
        let left = self.left.checked_sub(wanted).ok_or(Error::Exhausted { wanted, left: self.left })?;
        let mut in_steps: Vec<f64> = values.iter().map(|x| (x / self.step).round()).collect();
        // The comparison also refuses values that are not numbers.
        let within = |x: &f64| x.abs() <= LARGEST_MULTIPLE;
        if let Some(index) = in_steps.iter().position(|x| !within(x)) {
            return Err(Error::NotReleasable { index });
        }
        self.left = left;
        let mut flood = vec![0.0; values.len()];
        normal_into(&seeds.next_seed(), Domain::Flooding, &mut flood);
        let published = in_steps.iter().zip(&flood).map(|(x, z)| self.flooded(*x, *z)).collect();
        flood.zeroize();
        in_steps.zeroize();
        Ok(published)
    }

    /// `x` steps plus `z` standard deviations, in integers and then rounded.
    fn flooded(&self, x: f64, z: f64) -> f64 {
        let sum = x as i128 + (z * (self.sigma / self.step)).round() as i128;
        let coarse = self.coarse as i128;
        let multiple = (sum + coarse / 2).div_euclid(coarse);
        multiple as f64 * self.precision()
    }
}

/// The standard deviation of the noise that a policy adds (`docs/security/releases.md` derives it).
///
/// All numbers together are shifted by at most `t = (1 + 1/64) noise sqrt(numbers)` in the 2-norm.
/// Gaussians of deviation `sigma` that are shifted by `t` have statistical distance
/// `erf(t / (2 sqrt(2) sigma))`, which is at most `t / (sqrt(2 pi) sigma)`.
pub fn deviation(noise: f64, numbers: u64, security: u32) -> f64 {
    let shift = (1.0 + ROUNDING) * noise * libm::sqrt(numbers as f64);
    shift * libm::exp2(f64::from(security)) / libm::sqrt(core::f64::consts::TAU)
}

/// The largest power of two that is at most `x`.
fn power_of_two_below(x: f64) -> f64 {
    libm::exp2(libm::floor(libm::log2(x)))
}

/// A bound on the noise of decrypted slots, from values whose exact result is known: four times the
/// largest difference in a real or imaginary part. The two bits are a margin for other inputs.
pub fn estimate_noise(decrypted: &Private<Vec<Complex64>>, exact: &[Complex64]) -> Result<f64> {
    let decrypted = decrypted.peek();
    let differences: Vec<Complex64> = decrypted.iter().zip(exact).map(|(a, b)| a - b).collect();
    if decrypted.len() != exact.len() || differences.iter().any(|d| !d.is_finite()) {
        return Err(Error::NoEstimate { got: decrypted.len(), expected: exact.len() });
    }
    Ok(noise_bound(differences.iter().map(|d| d.re.abs().max(d.im.abs())).fold(0.0, f64::max)))
}

/// The noise bound for the largest observed difference: four times the difference, rounded up to a
/// power of two. Publishing the bound reveals only the magnitude of the difference, which depends
/// on the secret key.
pub fn noise_bound(difference: f64) -> f64 {
    if difference > 0.0 { libm::exp2(libm::ceil(libm::log2(4.0 * difference))) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hetal_ring::sampler::TestSeeds;

    const POLICY: ReleasePolicy = ReleasePolicy { noise: 1e-8, numbers: 1 << 20, security: 12, error: 0.1 };

    #[test]
    fn sigma_follows_the_formula_and_precision_follows_sigma() {
        let release = Release::new(POLICY).unwrap();
        let expected = 1e-8 * (65.0 / 64.0) * 4096.0 * 1024.0 / 2.506_628_274_631;
        assert!((release.sigma() - expected).abs() < 1e-12);
        assert!(release.precision() <= release.sigma() / 16.0 && release.precision() > release.sigma() / 64.0);
        assert_eq!(release.precision().log2().fract(), 0.0);
        assert!(release.step <= POLICY.noise / 64.0 && release.step > POLICY.noise / 128.0);
        // Where sigma is small against the noise, nothing is finer than the step.
        let weak = Release::new(ReleasePolicy { numbers: 1, security: 1, ..POLICY }).unwrap();
        assert!(weak.coarse <= 8.0, "{}", weak.coarse);
    }

    /// The distance of a Gaussian and itself shifted by all that the policy allows, by numerical
    /// integration, is the probability that was promised, and not far below it.
    #[test]
    fn the_distance_is_what_the_security_says() {
        for security in [1, 4, 10] {
            let sigma = deviation(3.0, 25, security);
            let shift = 3.0 * 5.0 * (1.0 + ROUNDING) / sigma;
            let density = |x: f64| libm::exp(-x * x / 2.0) / libm::sqrt(core::f64::consts::TAU);
            let h = 1e-3;
            let difference = |k: i32| (density(f64::from(k) * h) - density(f64::from(k) * h - shift)).abs();
            let distance = (-12_000..=14_000).map(difference).sum::<f64>() * h / 2.0;
            let promised = libm::exp2(-f64::from(security));
            assert!(distance <= promised * 1.000_001 && distance > 0.9 * promised, "{security}: {distance}");
        }
    }

    #[test]
    fn published_numbers_have_the_noise_that_was_promised() {
        let mut release = Release::new(POLICY).unwrap();
        let value = 0.123_456_789;
        let out = release.publish(&Private::new(vec![value; 1 << 18]), &mut TestSeeds::insecure(1)).unwrap();
        assert!(out.iter().all(|y| (y / release.precision()).fract() == 0.0));
        let n = out.len() as f64;
        let mean = out.iter().sum::<f64>() / n;
        let deviation = (out.iter().map(|y| (y - value).powi(2)).sum::<f64>() / n).sqrt();
        assert!((mean - value).abs() < 6.0 * release.sigma() / n.sqrt(), "{mean}");
        assert!((deviation / release.sigma() - 1.0).abs() < 0.01, "{deviation}");
        let again = release.publish(&Private::new(vec![value; 1 << 18]), &mut TestSeeds::insecure(2)).unwrap();
        assert!(again != out);
    }

    #[test]
    fn no_more_is_published_than_was_planned() {
        let mut release = Release::new(ReleasePolicy { numbers: 10, ..POLICY }).unwrap();
        let six = Private::new(vec![1.0; 6]);
        assert!(release.publish(&six, &mut TestSeeds::insecure(1)).is_ok());
        assert_eq!(release.publish(&six, &mut TestSeeds::insecure(1)), Err(Error::Exhausted { wanted: 6, left: 4 }));
        assert_eq!(release.left(), 4);
    }

    #[test]
    fn policies_that_cannot_be_kept_are_refused() {
        let error = |policy| Release::new(policy).err().unwrap();
        for noise in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(error(ReleasePolicy { noise, ..POLICY }), Error::Policy(_)));
        }
        assert!(matches!(error(ReleasePolicy { numbers: 0, ..POLICY }), Error::Policy(_)));
        assert!(matches!(error(ReleasePolicy { security: 24, error: 1e9, ..POLICY }), Error::Policy(_)));
        assert!(matches!(error(ReleasePolicy { security: 20, ..POLICY }), Error::TooImprecise { .. }));
    }

    #[test]
    fn values_that_cannot_be_rounded_are_refused() {
        let mut release = Release::new(POLICY).unwrap();
        for value in [f64::NAN, f64::INFINITY, 1e10] {
            let values = Private::new(vec![0.0, value]);
            let error = release.publish(&values, &mut TestSeeds::insecure(1)).unwrap_err();
            assert!(matches!(error, Error::NotReleasable { index: 1, .. }), "{error}");
        }
        assert_eq!(release.left(), POLICY.numbers, "a refusal costs nothing");
    }

    #[test]
    fn noise_is_not_estimated_from_what_is_no_number() {
        let exact = [Complex64::ONE; 2];
        let estimate = |values: Vec<Complex64>| estimate_noise(&Private::new(values), &exact);
        assert!((estimate(vec![Complex64::new(1.25, 0.0), Complex64::ONE]).unwrap() - 1.0).abs() < 1e-12);
        assert_eq!([0.3, 1e-7, 0.0].map(noise_bound), [2.0, libm::exp2(-21.0), 0.0], "only a size is told");
        for values in [vec![Complex64::ONE], vec![Complex64::ONE, Complex64::new(f64::NAN, 0.0)]] {
            assert!(matches!(estimate(values), Err(Error::NoEstimate { .. })));
        }
    }

    #[test]
    fn private_values_print_nothing() {
        assert_eq!(format!("{:?}", Private::new(vec![1.0])), "Private(..)");
    }
}
