//! Fresh ciphertexts modulo `q0` whose coefficients are rounded: the smallest form of rows.
//!
//! The message is in the coefficients, where a bootstrap needs it after slots-to-coefficients. The
//! first half of a ciphertext loses its lowest bits, which hold less than the noise of a bootstrap.
//! Rounding is a public function of the ciphertext, so it reveals nothing.

use crate::ciphertext::expand_seed;
use crate::{Backend, Ciphertext, Params};
use hetal_ring::Basis;
use hetal_ring::sampler::Seed;

/// Bits of a rounded coefficient as owners send them. With 30 bits a rounding error is at most
/// `2^-31 q0`, which is `2^-23` of the bound at `full` and a few times the error of a bootstrap
/// there. Fewer bits would enlarge the noise that an export adds.
pub const ROUNDED_BITS: u32 = 30;

/// The fewest and the most bits that a rounded coefficient may have.
pub const ROUNDED_BITS_RANGE: std::ops::RangeInclusive<u32> = 20..=32;

/// The numbers in the slots after a lift.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LiftForm {
    /// Complex numbers.
    Complex = 0,
    /// Real numbers.
    Real = 1,
}

/// A fresh ciphertext modulo `q0` with rounded coefficients.
#[derive(Clone, PartialEq, Eq)]
pub struct RoundedCiphertext {
    /// The uppermost bits of the coefficients of `c0`.
    pub c0: Vec<u32>,
    /// The seed of the uniform half.
    pub seed: Seed,
    /// Bits of a coefficient, in [`ROUNDED_BITS_RANGE`] and fewer than those of `q0`.
    pub bits: u32,
    /// The numbers are multiplied by `2^log_bound` when they are lifted.
    pub log_bound: u32,
    /// The numbers in the slots.
    pub form: LiftForm,
}

impl RoundedCiphertext {
    /// Rounds coefficients below `q0` to `bits` bits. A coefficient that is rounded up to `2^(bits
    /// of q0)` becomes 0, which is as close to it modulo `q0`.
    pub fn round(params: &Params, c0: &[u64], seed: Seed, bits: u32, log_bound: u32, form: LiftForm) -> Self {
        let dropped = dropped_bits(params, bits);
        let mask = u64::MAX >> (64 - bits);
        let rounded = |c: &u64| (((c + (1 << (dropped - 1))) >> dropped) & mask) as u32;
        Self { c0: c0.iter().map(rounded).collect(), seed, bits, log_bound, form }
    }

    /// Coefficients below `q0`, each within `2^(dropped bits - 1)` of the one that was rounded,
    /// modulo `q0`.
    pub fn coefficients(&self, params: &Params) -> Vec<i64> {
        let (dropped, q0) = (dropped_bits(params, self.bits), params.literal().q0);
        let restored = |&u: &u32| {
            let c = u64::from(u) << dropped;
            // Below 2^(bits of q0), which is at most 2 q0.
            (if c >= q0 { c - q0 } else { c }) as i64
        };
        self.c0.iter().map(restored).collect()
    }

    /// The ciphertext modulo `q0`. Its scale is that of numbers up to 1, `q0` over the message
    /// ratio.
    pub fn expand<B: Backend>(&self, params: &Params, backend: &B) -> Ciphertext<B::Poly> {
        let basis = Basis { q: 1, p: 0 };
        let c0 = backend.lift(basis, &self.coefficients(params));
        let c1 = expand_seed(params, backend, &self.seed, 0, basis);
        Ciphertext { c0, c1, limbs: 1, scale: params.coefficient_scale(), set: params.tag() }
    }
}

/// Bits of a coefficient that rounding drops.
fn dropped_bits(params: &Params, bits: u32) -> u32 {
    q0_bits(params).saturating_sub(bits).max(1)
}

/// Bits of `q0`.
pub(crate) fn q0_bits(params: &Params) -> u32 {
    u64::BITS - params.literal().q0.leading_zeros()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// At both ends of the residues, around every rounding boundary there, for every number of
    /// bits.
    #[test]
    fn rounding_moves_a_coefficient_by_half_a_step_at_most() {
        for set in ["full", "small"] {
            let params = Params::named(set).unwrap();
            let q0 = params.literal().q0;
            for bits in ROUNDED_BITS_RANGE {
                let step = 1u64 << dropped_bits(&params, bits);
                let near = |x: u64| [x.wrapping_sub(1), x, x + 1];
                let places = [0, step / 2, step, 3 * step / 2, q0 / 2, q0 - step, q0 - step / 2, q0 - 1];
                let c0: Vec<u64> = places.into_iter().flat_map(near).filter(|&c| c < q0).collect();
                let seed = Seed([0; 32]);
                let rounded = RoundedCiphertext::round(&params, &c0, seed, bits, 0, LiftForm::Complex);
                assert!(rounded.c0.iter().all(|&u| u64::from(u) >> bits == 0));
                for (&c, back) in c0.iter().zip(rounded.coefficients(&params)) {
                    let difference = c.abs_diff(back as u64);
                    let distance = difference.min(q0 - difference);
                    assert!((0..q0 as i64).contains(&back) && distance <= step / 2, "{set}, {bits} bits: {c}, {back}");
                }
                // Every pattern of bits is a coefficient, and rounding it again gives it back
                // unless it is beyond q0.
                let all = [0, 1, u32::MAX >> (32 - bits)].to_vec();
                let read = RoundedCiphertext { c0: all.clone(), ..rounded }.coefficients(&params);
                assert!(read.iter().all(|&c| (0..q0 as i64).contains(&c)));
                assert_eq!((read[0], read[1]), (0, step as i64));
            }
        }
    }
}
