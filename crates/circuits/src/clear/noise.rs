//! A model of the errors of an encrypted engine.

use num_complex::Complex64;

/// Gaussian errors in the real and the imaginary part of every slot.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Noise {
    /// Standard deviation of a fresh encryption.
    pub encryption: f64,
    /// Standard deviation added by each rescale (a level drop is one) and by each key-switch.
    pub operation: f64,
    /// Standard deviation added by a bootstrap of values up to 1 (`log_bound = 0`); larger bounds
    /// scale it.
    pub bootstrap: f64,
    /// The seed of the generator. The same seed and the same circuit give the same errors.
    pub seed: u64,
}

/// Adds errors of deviation `sigma`. The generator starts from the seed and the values themselves,
/// so that the errors do not depend on the order in which threads work.
pub(super) fn disturb(values: &mut [Complex64], sigma: f64, seed: u64) {
    if sigma == 0.0 {
        return;
    }
    let mut generator = SplitMix(values.iter().fold(seed, |h, v| mix(mix(h ^ v.re.to_bits()) ^ v.im.to_bits())));
    for v in values {
        *v += generator.gaussian() * sigma;
    }
}

/// Steele, Lea and Flood's SplitMix64.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in (0, 1].
    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 * (-53f64).exp2()
    }

    /// Two independent standard normals (Box and Muller).
    fn gaussian(&mut self) -> Complex64 {
        let radius = libm::sqrt(-2.0 * libm::log(self.uniform()));
        let angle = core::f64::consts::TAU * self.uniform();
        Complex64::new(radius * libm::cos(angle), radius * libm::sin(angle))
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
