//! The errors of encryption as measured, for runs in the clear.

use crate::{Error, Result, params};
use hetal_ckks::Params;

/// Deviations of a Gaussian model of a bootstrap's error, per real coordinate of a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BootstrapNoise {
    /// From the mean of `|error|`: a complex Gaussian of deviation `s` per coordinate has a Rayleigh-distributed magnitude, whose mean is
    /// `s sqrt(pi/2)`.
    pub typical: f64,
    /// From the largest `|error|` of all slots: the largest of `n` Rayleigh magnitudes is near `s sqrt(2 ln n)`. The errors' tails are
    /// heavier than a Gaussian's, so this is larger: pessimistic for most slots.
    pub pessimistic: f64,
}

impl BootstrapNoise {
    /// That of a set, where it was measured.
    pub fn of(set: &str) -> Result<Self> {
        let unmeasured = || Error::NotMeasured { set: set.to_owned() };
        let (mean, max) = params::measured_precision(set).ok_or_else(unmeasured)?;
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
