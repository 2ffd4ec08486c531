//! The secret polynomial.

use hetal_ckks::Params;
use hetal_ring::sampler::{self, SeedSource};
use hetal_ring::{Basis, Poly, RnsRing};
use zeroize::Zeroize;

/// A secret key: a ternary polynomial of fixed weight. It is zeroised when dropped and has neither
/// `Debug` nor a serialiser.
pub struct SecretKey {
    coefficients: Vec<i8>,
}

impl SecretKey {
    /// A fresh secret of the set's weight.
    pub fn generate(params: &Params, seeds: &mut dyn SeedSource) -> Self {
        Self::of_weight(params, params.literal().secret_weight, seeds)
    }

    /// A fresh ephemeral secret for the modulus raise.
    pub(crate) fn sparse(params: &Params, seeds: &mut dyn SeedSource) -> Self {
        Self::of_weight(params, params.literal().sparse_weight, seeds)
    }

    fn of_weight(params: &Params, weight: usize, seeds: &mut dyn SeedSource) -> Self {
        Self { coefficients: sampler::ternary_fixed_weight(&seeds.next_seed(), params.degree(), weight) }
    }

    /// The secret with these coefficients, each -1, 0 or 1.
    pub(crate) fn from_coefficients(coefficients: Vec<i8>) -> Self {
        Self { coefficients }
    }

    /// Its coefficients, each -1, 0 or 1.
    pub(crate) fn coefficients(&self) -> &[i8] {
        &self.coefficients
    }

    /// The secret modulo the primes of `basis`, in the NTT domain.
    pub(crate) fn lift(&self, ring: &RnsRing, basis: Basis) -> SecretPoly {
        SecretPoly::new(ring, basis, &self.coefficients)
    }
}

impl Drop for SecretKey {
    fn drop(&mut self) {
        self.coefficients.zeroize();
    }
}

/// A polynomial that reveals the secret. It is zeroised when dropped.
pub(crate) struct SecretPoly(pub(crate) Poly);

impl SecretPoly {
    pub(crate) fn new(ring: &RnsRing, basis: Basis, coefficients: &[i8]) -> Self {
        let mut wide: Vec<i64> = coefficients.iter().map(|&c| c.into()).collect();
        let poly = Self(ring.lift_secret(basis, &wide));
        wide.zeroize();
        poly
    }
}

impl Drop for SecretPoly {
    fn drop(&mut self) {
        for limb in self.0.limbs_mut() {
            limb.zeroize();
        }
    }
}
