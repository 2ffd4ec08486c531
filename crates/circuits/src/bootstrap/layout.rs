//! The matrices of a bootstrap and the number of limbs at which each is applied.

use super::dft::{self, DftShape};
use crate::{Error, KeyPlan, Result};
use hetal_ckks::Params;

/// The shape of a bootstrap, before its numbers are computed.
pub(super) struct BootstrapLayout {
    /// Slots after which the vectors repeat.
    pub(super) slots: usize,
    /// The rotation that comes before slots-to-coefficients, if it is not 0.
    pub(super) start: i64,
    /// Each with the limbs at which it is applied.
    pub(super) to_coefficients: Vec<(DftShape, usize)>,
    /// Rotations whose successive sums leave the coefficients of the vectors' subring, multiplied
    /// by `2^terms`.
    pub(super) trace: Vec<i64>,
    /// Each with the limbs at which it is applied.
    pub(super) to_slots: Vec<(DftShape, usize)>,
    /// Limbs the modulus is raised to.
    pub(super) raised_limbs: usize,
}

/// The shortest vectors worth a bootstrap of their own.
const FEWEST_SLOTS: usize = 16;

impl BootstrapLayout {
    /// For all slots.
    pub(super) fn full(params: &Params, plan: KeyPlan) -> Self {
        let stages = params.literal().coeffs_to_slots.len();
        Self::new(params, params.slots(), stages, params.chain().len(), plan)
    }

    /// For vectors that repeat after `slots` slots. Shorter vectors need fewer matrices. A prime of
    /// an unused matrix then serves to join the halves, otherwise a usable prime does.
    pub(super) fn sparse(params: &Params, slots: usize) -> Result<Self> {
        let most = params.slots() / 2;
        if !slots.is_power_of_two() || !(FEWEST_SLOTS..=most).contains(&slots) {
            return Err(Error::NoSparseBootstrap { slots, fewest: FEWEST_SLOTS, most });
        }
        let all = params.literal().coeffs_to_slots.len() as u32;
        if all == 0 {
            return Err(Error::NoBootstrap { set: params.name().to_owned() });
        }
        let most_butterflies = params.slots().ilog2().div_ceil(all);
        let stages = slots.ilog2().div_ceil(most_butterflies) as usize;
        let wanted = params.limbs(params.top_level()) + 1 + params.literal().eval_mod_primes.len() + stages;
        Ok(Self::new(params, slots, stages, wanted.min(params.chain().len()), KeyPlan::Fast))
    }

    fn new(params: &Params, slots: usize, stages: usize, raised_limbs: usize, plan: KeyPlan) -> Self {
        let mut to_coefficients = dft::shapes(slots, params.literal().slots_to_coeffs.len(), false, plan);
        let with_limbs = |shapes: Vec<DftShape>, from: usize| shapes.into_iter().zip((0..=from).rev()).collect();
        let mut to_slots = if slots == params.slots() {
            dft::shapes_of_raised(slots, stages, plan)
        } else {
            dft::shapes(slots, stages, true, plan)
        };
        let start = dft::align(&mut to_coefficients);
        dft::align(&mut to_slots);
        let doublings = std::iter::successors(Some(slots), |r| Some(2 * r));
        Self {
            slots,
            start,
            to_coefficients: with_limbs(to_coefficients, params.limbs(0)),
            trace: doublings.take_while(|&r| r < params.slots()).map(|r| r as i64).collect(),
            to_slots: with_limbs(to_slots, raised_limbs),
            raised_limbs,
        }
    }

    pub(super) fn is_sparse(&self) -> bool {
        !self.trace.is_empty()
    }

    /// Limbs after the exponential.
    pub(super) fn after_exponential(&self, params: &Params) -> usize {
        self.raised_limbs - self.to_slots.len() - params.literal().eval_mod_primes.len()
    }
}
