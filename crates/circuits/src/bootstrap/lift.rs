//! Lifts: vectors in coefficient form, freshly encrypted modulo `q0`, become ciphertexts of the top
//! level.
//!
//! A lift is a bootstrap without slots-to-coefficients: its owner places the numbers in the
//! coefficients, where the butterflies of coefficients-to-slots expect them (bit-reversed). The
//! owner also applies the inverse of EvalMod's function, so that its systematic error cancels.

use super::{Bootstrapper, Ct, Form, LARGEST_LOG_BOUND, recombine};
use crate::{Error, Result};
use hetal_ckks::{Backend, Complex64, EvaluationKeys, Evaluator, LiftForm, Params};
use std::f64::consts::PI;

/// The largest magnitude of a part of a number, in bounds. At the message ratio of `full` this is
/// an angle of pi/4, where EvalMod's function has the slope 0.94; its slope is 0 at 73 bounds, and
/// it folds at 128. So a bound may be a 32nd of the largest number, with as much less noise.
pub const MAX_BOUNDS: f64 = 32.0;

/// Newton steps. The start is off by at most 2^-5 of itself (the sine alone, at [`MAX_BOUNDS`]),
/// and each step at least squares that.
const NEWTON_STEPS: usize = 4;

/// The coefficients that a lift with the bound `2^log_bound` takes to `values`: real parts, then
/// imaginary parts, each bit-reversed. They are integers, at the scale
/// [`Params::coefficient_scale`]. Parts may be up to [`MAX_BOUNDS`] bounds.
pub fn coefficients(params: &Params, values: &[Complex64], log_bound: u32, form: LiftForm) -> Result<Vec<i64>> {
    let slots = params.slots();
    if values.len() != slots {
        return Err(Error::SlotCount { got: values.len(), slots });
    }
    if log_bound > LARGEST_LOG_BOUND {
        return Err(Error::BoundTooLarge { log_bound, largest: LARGEST_LOG_BOUND });
    }
    let (bound, inverse) = (f64::from(1u32 << log_bound), InverseOfEvalMod::new(params));
    let scale = params.coefficient_scale();
    let mut out = vec![0; 2 * slots];
    for (slot, z) in values.iter().enumerate() {
        let place = hetal_ring::ntt::bit_reverse(slot, slots.trailing_zeros());
        let im = if form == LiftForm::Complex { z.im } else { 0.0 };
        for (place, part) in [(place, z.re), (slots + place, im)] {
            if part.is_nan() || part.abs() > MAX_BOUNDS * bound {
                let (operation, value) = ("a lift", part.abs());
                return Err(Error::OutOfRange { operation, slot, value, bound: MAX_BOUNDS * bound });
            }
            out[place] = (scale * inverse.apply(part / bound)).round_ties_even() as i64;
        }
    }
    Ok(out)
}

/// The numbers that a lift makes of decrypted coefficients, divided by their scale: what
/// [`coefficients`] was given, up to the error of the ciphertext.
pub fn values(params: &Params, coefficients: &[f64], log_bound: u32, form: LiftForm) -> Result<Vec<Complex64>> {
    let slots = params.slots();
    if coefficients.len() != 2 * slots {
        return Err(Error::SlotCount { got: coefficients.len(), slots: 2 * slots });
    }
    let (bound, function) = (f64::from(1u32 << log_bound.min(LARGEST_LOG_BOUND)), InverseOfEvalMod::new(params));
    let part = |place: usize| bound * function.eval_mod(function.angle * coefficients[place]).0 / function.angle;
    let value = |slot: usize| {
        let place = hetal_ring::ntt::bit_reverse(slot, slots.trailing_zeros());
        Complex64::new(part(place), if form == LiftForm::Complex { part(slots + place) } else { 0.0 })
    };
    Ok((0..slots).map(value).collect())
}

/// The inverse of what EvalMod makes of a message instead of the message itself.
struct InverseOfEvalMod {
    /// A message of 1 as an angle.
    angle: f64,
    correction: bool,
}

impl InverseOfEvalMod {
    fn new(params: &Params) -> Self {
        let literal = params.literal();
        let ratio = f64::from(1u32 << literal.log_message_ratio);
        Self { angle: 2.0 * PI / ratio, correction: literal.eval_mod.correction }
    }

    /// EvalMod's function of an angle and its derivative.
    fn eval_mod(&self, theta: f64) -> (f64, f64) {
        let (sin, cos) = (libm::sin(theta), libm::cos(theta));
        if self.correction {
            // 4/3 sin x - 1/6 sin 2x, with the derivative 4/3 cos x - 1/3 cos 2x.
            (sin * (4.0 - cos) / 3.0, (4.0 * cos - 2.0 * cos * cos + 1.0) / 3.0)
        } else {
            (sin, cos)
        }
    }

    fn apply(&self, value: f64) -> f64 {
        let target = self.angle * value;
        let step = |theta: f64| {
            let (at, slope) = self.eval_mod(theta);
            theta - (at - target) / slope
        };
        (0..NEWTON_STEPS).fold(target, |theta, _| step(theta)) / self.angle
    }
}

impl<B: Backend> Bootstrapper<B> {
    /// The complex numbers of a vector in coefficient form, times `2^log_bound`, in the slots of a
    /// ciphertext of the top level. It needs no bound among those that the matrices were encoded
    /// for, and no keys beyond those of bootstraps.
    pub fn lift(
        &self,
        evaluator: &Evaluator<B>,
        a: &Ct<B>,
        log_bound: u32,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Ct<B>> {
        self.lifted(evaluator, Form::Lift(LiftForm::Complex), a, log_bound, keys)
    }

    /// [`Bootstrapper::lift`] of real numbers, with one exponential instead of two.
    pub fn lift_real(
        &self,
        evaluator: &Evaluator<B>,
        a: &Ct<B>,
        log_bound: u32,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Ct<B>> {
        self.lifted(evaluator, Form::Lift(LiftForm::Real), a, log_bound, keys)
    }

    fn lifted(
        &self,
        evaluator: &Evaluator<B>,
        form: Form,
        a: &Ct<B>,
        log_bound: u32,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Ct<B>> {
        if self.is_sparse() {
            return Err(Error::SparseEngine);
        }
        if log_bound > LARGEST_LOG_BOUND {
            return Err(Error::BoundTooLarge { log_bound, largest: LARGEST_LOG_BOUND });
        }
        let first_to_slots = self.to_slots.first().ok_or(Error::Empty("lift"))?;
        let work = |[a]: [Ct<B>; 1]| {
            let slots = self.slots_of_raised(evaluator, &a, (first_to_slots, &[]), keys, &mut |_| {})?;
            drop(a);
            let out = if form == Form::Lift(LiftForm::Real) {
                self.reduced_real_part(evaluator, slots, keys)?
            } else {
                let (re, im) = self.halves(evaluator, slots, keys)?;
                let (re, im) = self.exponential.evaluate_both(evaluator, (&re, &im), keys)?;
                recombine(evaluator, re, im, keys)?
            };
            Ok([self.times_bound(evaluator, out, 0)?])
        };
        // One routine serves all bounds.
        let input = (1, evaluator.params().coefficient_scale());
        let [out] = self.repeated(evaluator, (form, 0), input, [a], keys, work)?;
        self.times_bound(evaluator, out, log_bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against EvalMod's function in double precision, within 2^-30 of the bound.
    #[test]
    fn the_inverse_cancels_what_eval_mod_does() {
        for set in ["full", "small"] {
            let inverse = InverseOfEvalMod::new(&Params::named(set).unwrap());
            for step in -800..=800 {
                let value = MAX_BOUNDS * f64::from(step) / 800.0;
                let (found, _) = inverse.eval_mod(inverse.angle * inverse.apply(value));
                let error = (found / inverse.angle - value).abs();
                assert!(error < libm::exp2(-30.0), "{set}: {value} is off by {error:e}");
            }
        }
    }

    /// What the owner decrypts is what the server would lift.
    #[test]
    fn values_undo_coefficients() {
        let params = Params::named("insecure-toy11").unwrap();
        let of = |i: usize| Complex64::new((i as f64).sin() * 100.0, (i as f64 * 0.3).cos() * 100.0);
        let given: Vec<Complex64> = (0..params.slots()).map(of).collect();
        for form in [LiftForm::Complex, LiftForm::Real] {
            let integers = coefficients(&params, &given, 2, form).unwrap();
            let scaled: Vec<f64> = integers.iter().map(|&c| c as f64 / params.coefficient_scale()).collect();
            let found = values(&params, &scaled, 2, form).unwrap();
            let expected = |z: &Complex64| if form == LiftForm::Complex { *z } else { z.re.into() };
            assert!(found.iter().zip(&given).all(|(a, b)| (a - expected(b)).norm() < 1e-9));
        }
        assert!(values(&params, &[0.0; 4], 0, LiftForm::Real).is_err());
    }

    #[test]
    fn numbers_that_cannot_be_lifted_are_refused() {
        let params = Params::named("insecure-toy11").unwrap();
        let of = |value: f64, log_bound| {
            let mut values = vec![Complex64::ZERO; params.slots()];
            values[3] = Complex64::new(0.5, value);
            coefficients(&params, &values, log_bound, LiftForm::Complex)
        };
        assert!(of(32.0, 0).is_ok() && of(-128.0, 2).is_ok());
        for (value, log_bound) in [(32.01, 0), (-129.0, 2), (f64::NAN, 0), (f64::INFINITY, 3)] {
            assert!(matches!(of(value, log_bound), Err(Error::OutOfRange { slot: 3, .. })), "{value}");
        }
        assert!(matches!(of(0.0, 25), Err(Error::BoundTooLarge { .. })));
        let short = coefficients(&params, &[Complex64::ZERO; 4], 0, LiftForm::Real);
        assert!(matches!(short, Err(Error::SlotCount { got: 4, .. })));
    }
}
