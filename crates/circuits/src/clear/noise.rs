//! A model of the errors of an encrypted engine.

use hetal_ckks::{Params, ROUNDED_BITS};
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
    /// Standard deviation of a rounded ciphertext of values up to 1; larger bounds scale it.
    pub rounding: f64,
    /// The seed of the generator. The same seed and the same circuit give the same errors.
    pub seed: u64,
}

/// log2 of the deviations of a built-in set, in the order of the fields of [`Noise`], as `hetal
/// bench releases --measure` prints them.
const MEASURED: [(&str, [f64; 3]); 4] = [
    ("full", [-32.8, -31.7, -25.9]),
    ("small", [-22.3, -21.2, -15.9]),
    ("insecure-toy11", [-35.3, -34.2, -27.1]),
    ("insecure-toy12", [-34.7, -33.6, -27.0]),
];

/// The smallest number of bits by which a precise bootstrap enlarges the error of the first one.
const PRECISE_BITS: i32 = 10;

impl Noise {
    /// The noise of a built-in parameter set, if it was measured.
    pub fn measured(set: &str) -> Option<Self> {
        let (_, deviations) = MEASURED.into_iter().find(|(name, _)| *name == set)?;
        let [encryption, operation, bootstrap] = deviations.map(libm::exp2);
        let params = Params::named(set).ok()?;
        // Rounding errors are uniform in a step of the uppermost bits.
        let step = params.literal().q0 as f64 * libm::exp2(-f64::from(ROUNDED_BITS));
        let rounding = step / params.coefficient_scale() / libm::sqrt(12.0);
        Some(Self { encryption, operation, bootstrap, rounding, seed: 0 })
    }

    /// The noise of a circuit whose inputs are lifts of values up to `2^log_bound`, instead of
    /// fresh encryptions.
    pub fn with_lifted_inputs(self, log_bound: u32) -> Self {
        let encryption = libm::ldexp(libm::hypot(self.rounding, self.bootstrap), log_bound as i32);
        Self { encryption, ..self }
    }

    /// Standard deviation of the error that the second bootstrap of a precise one leaves.
    pub(super) fn precise_bootstrap(&self) -> f64 {
        libm::ldexp(self.bootstrap, -PRECISE_BITS)
    }
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
