//! The last step of a sparse bootstrap.

use super::Ct;
use super::layout::BootstrapLayout;
use crate::Result;
use hetal_ckks::{Backend, Complex64, EvaluationKeys, Evaluator, Plaintext};

/// Joins the two halves of a vector that repeats, which lie side by side in twice its slots.
pub(super) struct Fold<B: Backend> {
    slots: i64,
    /// 1 on the real half, `i` on the imaginary one.
    units: Plaintext<B::Poly>,
    /// Limbs before they are joined, which costs one.
    pub(super) limbs: usize,
}

impl<B: Backend> Fold<B> {
    pub(super) fn new(evaluator: &Evaluator<B>, layout: &BootstrapLayout) -> Result<Self> {
        let params = evaluator.params();
        let limbs = layout.after_exponential(params);
        // The exponential ends at the scale of the top level.
        let target = params.scale(params.level(limbs - 1).unwrap_or(params.top_level()));
        let scale = evaluator.last_prime(limbs) * target / params.scale(params.top_level());
        let mut units = vec![Complex64::ONE; 2 * layout.slots];
        units.iter_mut().skip(layout.slots).for_each(|u| *u = Complex64::I);
        let basis = hetal_ring::Basis { q: limbs, p: 0 };
        Ok(Self { slots: layout.slots as i64, units: evaluator.encode(&units, scale, basis)?, limbs })
    }

    /// From `(re, im)` side by side to `re + i im` twice.
    pub(super) fn apply(
        &self,
        evaluator: &Evaluator<B>,
        halves: Ct<B>,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Ct<B>> {
        let product = evaluator.sum_of_plain_products(&[(&halves, &self.units)], self.limbs)?;
        let mut out = evaluator.rescale(product)?;
        let swapped = evaluator.automorphism(&out, evaluator.galois_of_rotation(self.slots), keys)?;
        evaluator.add_assign(&mut out, &swapped)?;
        Ok(out)
    }
}
