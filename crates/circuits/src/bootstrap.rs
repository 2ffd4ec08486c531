//! Bootstrapping: a ciphertext that has run out of levels becomes one of the same message with all of them.
//!
//! ```text
//! level 0 ── slots to coefficients ──> q0 ── raise the modulus ──> whole chain, message + q0 I
//!         ── coefficients to slots ──> real and imaginary halves t, |t| < 1
//!         ── exp(2 pi i K t) by a Chebyshev series and squarings ──> e^(i theta)
//!         ── theta = Im(4/3 z - z^2/6) + O(theta^5) ──> top level
//! ```
//!
//! Slots-to-coefficients comes first, on few limbs: its rounding is then not amplified by the last linear map, and it is
//! nearly free. The modulus is raised under an ephemeral sparse secret, so that `|I| < K` but with probability 2^-138.

mod dft;
mod eval_mod;

use crate::Result;
use eval_mod::Exponential;
use hetal_ckks::{Backend, Ciphertext, Complex64, EvaluationKeys, Evaluator, KeyId, Matrix, Params};
use hetal_ring::automorphism;
use std::collections::BTreeMap;

type Ct<B> = Ciphertext<<B as Backend>::Poly>;

/// Everything precomputed for bootstrapping one parameter set.
pub struct Bootstrapper<P> {
    /// The slots-to-coefficients matrices but the last.
    to_coefficients: Vec<Matrix<P>>,
    /// The last one, which carries the scaling of each message bound `2^b`.
    last_to_coefficients: BTreeMap<u32, Matrix<P>>,
    to_slots: Vec<Matrix<P>>,
    exponential: Exponential,
}

impl<P: Clone> Bootstrapper<P> {
    /// Encodes the matrices, for messages bounded by `2^b` for each `b` of `log_bounds`. Without bounds nothing is to be
    /// bootstrapped, and nothing is encoded.
    pub fn new<B: Backend<Poly = P>>(evaluator: &Evaluator<B>, log_bounds: &[u32]) -> Result<Self> {
        let params = evaluator.params();
        if log_bounds.is_empty() {
            let (to_coefficients, last_to_coefficients) = (Vec::new(), BTreeMap::new());
            let exponential = Exponential::new(params);
            return Ok(Self { to_coefficients, last_to_coefficients, to_slots: Vec::new(), exponential });
        }
        let literal = params.literal();
        let bottom = params.limbs(0);
        let q0 = literal.q0 as f64;

        let shapes = dft::shapes(params.slots(), literal.slots_to_coeffs.len(), false);
        let (last, first) = shapes.split_last().ok_or(crate::Error::Empty("slots-to-coefficients"))?;
        let to_coefficients = first
            .iter()
            .enumerate()
            .map(|(k, shape)| shape.encode(evaluator, 1.0, bottom - k))
            .collect::<Result<_>>()?;
        // Brings a message of the lowest level's scale, divided by its bound, to q0 over the message ratio.
        let target = q0 / f64::from(1u32 << literal.log_message_ratio);
        let last_to_coefficients = log_bounds
            .iter()
            .map(|&b| {
                let factor = target / params.scale(0) / f64::from(1u32 << b);
                Ok((b, last.encode(evaluator, factor, 2)?))
            })
            .collect::<Result<_>>()?;

        let shapes = dft::shapes(params.slots(), literal.coeffs_to_slots.len(), true);
        // t = x / (q0 K), and the halves are sums with the conjugate: 1/(2K), spread over the matrices.
        let factor = libm::pow(0.5 / f64::from(literal.eval_mod.k), 1.0 / shapes.len() as f64);
        let to_slots = shapes
            .iter()
            .enumerate()
            .map(|(k, shape)| shape.encode(evaluator, factor, params.chain().len() - k))
            .collect::<Result<_>>()?;
        Ok(Self { to_coefficients, last_to_coefficients, to_slots, exponential: Exponential::new(params) })
    }

    /// Limbs of all encoded matrices.
    pub fn encoded_limbs(&self) -> usize {
        let matrices = self.to_coefficients.iter().chain(self.last_to_coefficients.values()).chain(&self.to_slots);
        matrices.map(Matrix::encoded_limbs).sum()
    }

    /// The message of `a` (level 0, real and imaginary parts at most `2^log_bound`) at the top level.
    pub fn bootstrap<B: Backend<Poly = P>>(
        &self,
        evaluator: &Evaluator<B>,
        a: &Ct<B>,
        log_bound: u32,
        keys: &EvaluationKeys<P>,
    ) -> Result<Ct<B>> {
        self.bootstrap_observed(evaluator, a, log_bound, keys, &mut |_| {})
    }

    /// [`Bootstrapper::bootstrap`], which names each stage as it ends: for profiles.
    pub fn bootstrap_observed<B: Backend<Poly = P>>(
        &self,
        evaluator: &Evaluator<B>,
        a: &Ct<B>,
        log_bound: u32,
        keys: &EvaluationKeys<P>,
        ended: &mut dyn FnMut(&'static str),
    ) -> Result<Ct<B>> {
        let bottom = self.slots_to_coefficients(evaluator, a, log_bound, keys)?;
        ended("slots_to_coefficients");
        let raised = evaluator.raise_modulus(&bottom, keys)?;
        ended("raise_modulus");
        let (re, im) = self.coefficients_to_slots(evaluator, raised, keys)?;
        ended("coefficients_to_slots");
        let (re, im) = self.exponential.evaluate_both(evaluator, (&re, &im), keys)?;
        let mut out = recombine(evaluator, re, im, keys)?;
        ended("eval_mod");
        if log_bound > 0 {
            evaluator.mul_integer_assign(&mut out, 1 << log_bound);
        }
        out.scale = evaluator.params().scale(evaluator.params().top_level());
        Ok(out)
    }

    /// A ciphertext modulo `q0` whose coefficients are the slots of `a` (bit-reversed), at `q0` over the message ratio.
    fn slots_to_coefficients<B: Backend<Poly = P>>(
        &self,
        evaluator: &Evaluator<B>,
        a: &Ct<B>,
        log_bound: u32,
        keys: &EvaluationKeys<P>,
    ) -> Result<Ct<B>> {
        let params = evaluator.params();
        let last = self.last_to_coefficients.get(&log_bound).ok_or(crate::Error::NoSuchBound {
            log_bound,
            prepared: self.last_to_coefficients.keys().copied().collect(),
        })?;
        let mut ct = evaluator.truncated(a, params.limbs(0))?;
        for matrix in self.to_coefficients.iter().chain([last]) {
            ct = evaluator.sum_of_transforms(&[(&ct, matrix)], keys)?;
        }
        Ok(ct)
    }

    /// The coefficients divided by `q0 K`, in two ciphertexts of real slots.
    fn coefficients_to_slots<B: Backend<Poly = P>>(
        &self,
        evaluator: &Evaluator<B>,
        raised: Ct<B>,
        keys: &EvaluationKeys<P>,
    ) -> Result<(Ct<B>, Ct<B>)> {
        let mut z = raised;
        z.scale = evaluator.params().literal().q0 as f64;
        for matrix in &self.to_slots {
            z = evaluator.sum_of_transforms(&[(&z, matrix)], keys)?;
        }
        let conjugate = evaluator.automorphism(&z, evaluator.galois_of_conjugation(), keys)?;
        let mut re = z.clone();
        evaluator.add_assign(&mut re, &conjugate)?;
        let mut im = z;
        evaluator.sub_assign(&mut im, &conjugate)?;
        evaluator.mul_i_assign(&mut im, 3);
        Ok((re, im))
    }
}

/// The keys bootstrapping needs: purpose and limbs.
pub fn keys(params: &Params) -> Vec<(KeyId, usize)> {
    let literal = params.literal();
    let mut wanted: BTreeMap<(KeyId, usize), usize> = BTreeMap::new();
    let mut want = |id: KeyId, limbs: usize| {
        let largest = wanted.entry((id, params.special_for(limbs))).or_default();
        *largest = limbs.max(*largest);
    };
    let all = params.chain().len();
    let low =
        dft::shapes(params.slots(), literal.slots_to_coeffs.len(), false).into_iter().zip((0..=params.limbs(0)).rev());
    let high = dft::shapes(params.slots(), literal.coeffs_to_slots.len(), true).into_iter().zip((0..=all).rev());
    for (shape, limbs) in low.chain(high) {
        for rotation in shape.rotations() {
            want(KeyId::Galois(automorphism::rotation_to_galois(params.log_n(), rotation)), limbs);
        }
    }
    let after_to_slots = all - literal.coeffs_to_slots.len();
    want(KeyId::Galois(automorphism::conjugation(params.log_n())), after_to_slots);
    want(KeyId::Relinearisation, after_to_slots);
    want(KeyId::ToSparse, 1);
    want(KeyId::FromSparse, all);
    wanted.into_iter().map(|((id, _), limbs)| (id, limbs)).collect()
}

/// `2 Im(w1) + 2i Im(w2) = -i (w1 + i w2) + i conj(w1 - i w2)`, with one conjugation.
fn recombine<B: Backend>(
    evaluator: &Evaluator<B>,
    w1: Ct<B>,
    mut w2: Ct<B>,
    keys: &EvaluationKeys<B::Poly>,
) -> Result<Ct<B>> {
    evaluator.mul_i_assign(&mut w2, 1);
    let mut difference = w1.clone();
    evaluator.sub_assign(&mut difference, &w2)?;
    let mut conjugate = evaluator.automorphism(&difference, evaluator.galois_of_conjugation(), keys)?;
    evaluator.mul_i_assign(&mut conjugate, 1);
    let mut sum = w1;
    evaluator.add_assign(&mut sum, &w2)?;
    evaluator.mul_i_assign(&mut sum, 3);
    evaluator.add_assign(&mut sum, &conjugate)?;
    Ok(sum)
}

/// `Complex64` of a real number.
fn real(x: f64) -> Complex64 {
    Complex64::new(x, 0.0)
}
