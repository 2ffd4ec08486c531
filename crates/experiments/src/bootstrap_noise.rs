//! A Gaussian model of bootstrapping errors, for runs on plain numbers.

use crate::params::{ErrorLog2, measured_precision};
use crate::{Error, Result};
use hetal_ckks::Params;

/// Standard deviations of the error of a bootstrap, for each real coordinate of a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BootstrapNoise {
    /// The deviation that explains the mean of `|error|`.
    ///
    /// The magnitude of a complex Gaussian with deviation `s` per coordinate is Rayleigh
    /// distributed. Its mean is `s sqrt(pi/2)`.
    pub typical: f64,
    /// The deviation that explains the largest `|error|` of all slots.
    ///
    /// The largest of `n` Rayleigh magnitudes is close to `s sqrt(2 ln n)`. The measured errors
    /// have heavier tails than a Gaussian, so this deviation is pessimistic for most slots.
    pub pessimistic: f64,
}

impl BootstrapNoise {
    /// The noise of a parameter set whose errors were measured.
    pub fn of(set: &str) -> Result<Self> {
        let unmeasured = || Error::NotMeasured { set: set.to_owned() };
        let ErrorLog2 { mean, max } = measured_precision(set).ok_or_else(unmeasured)?;
        let slots = Params::named(set)?.slots() as f64;
        let rayleigh_mean = (std::f64::consts::PI / 2.0).sqrt();
        Ok(Self { typical: mean.exp2() / rayleigh_mean, pessimistic: max.exp2() / (2.0 * slots.ln()).sqrt() })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn deviations_of_full() {
        let noise = BootstrapNoise::of("full").unwrap();
        assert!((noise.typical.log2() - -25.73).abs() < 0.01 && (noise.pessimistic.log2() - -24.39).abs() < 0.01);
        assert!(matches!(BootstrapNoise::of("none"), Err(Error::NotMeasured { .. })));
    }
}
