//! Reduction modulo `q0` by the complex exponential.
//!
//! With `z = e^(i theta)` and `theta = 2 pi m / q0`: `4/3 sin(theta) - 1/6 sin(2 theta) = theta -
//! theta^5/30 + ...`. The scaling is chosen so that no constant needs a level of its own. For
//! `Z = c z`, `w = Z (8c - Z) = 6c^2 (4/3 z - z^2/6)`, and `2 Im(w)` is the message if
//! `c^2 = R / (24 pi)`, with `R` the message ratio.

use super::{Ct, real};
use crate::Result;
use hetal_ckks::{Backend, Ciphertext, Complex64, EvaluationKeys, Evaluator, Params};
use std::collections::BTreeMap;
use std::f64::consts::PI;

/// Chebyshev polynomials below this are kept for the leaves of the series.
const LEAF_DEGREE: usize = 4;

/// The evaluation of `w` from `t`, with `theta = 2 pi K t`.
pub(super) struct Exponential {
    /// Chebyshev coefficients of `a exp(2 pi i K t / 2^r)`, with `a^(2^r) = c`.
    series: Vec<Complex64>,
    squarings: usize,
    /// `c`, when the correction is made.
    correction: Option<f64>,
}

impl Exponential {
    pub(super) fn new(params: &Params) -> Self {
        let eval_mod = params.literal().eval_mod;
        let ratio = f64::from(1u32 << params.literal().log_message_ratio);
        // Without the correction 2 Im(Z) itself is the message.
        let c = if eval_mod.correction { libm::sqrt(ratio / (24.0 * PI)) } else { ratio / (4.0 * PI) };
        let folds = f64::from(1u32 << eval_mod.squarings);
        let amplitude = libm::pow(c, 1.0 / folds);
        let frequency = 2.0 * PI * f64::from(eval_mod.k) / folds;
        let series = chebyshev(eval_mod.degree, |t| {
            Complex64::new(libm::cos(frequency * t), libm::sin(frequency * t)) * amplitude
        });
        Self { series, squarings: eval_mod.squarings, correction: eval_mod.correction.then_some(c) }
    }

    /// `w` of both halves, possibly at the same time.
    pub(super) fn evaluate_both<B: Backend>(
        &self,
        evaluator: &Evaluator<B>,
        (re, im): (&Ct<B>, &Ct<B>),
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<(Ct<B>, Ct<B>)> {
        let both = evaluator.backend().concurrently(vec![re, im], |t| self.evaluate(evaluator, t, keys));
        let mut both = both.into_iter().collect::<Result<Vec<_>>>()?;
        let (im, re) = (both.pop(), both.pop());
        Ok(re.zip(im).ok_or(hetal_ckks::Error::Empty("both halves"))?)
    }

    /// `w(t)` at exactly the scale of the top level. It has as many limbs fewer than `t` as EvalMod
    /// has primes.
    pub(super) fn evaluate<B: Backend>(
        &self,
        evaluator: &Evaluator<B>,
        t: &Ct<B>,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Ct<B>> {
        let params = evaluator.params();
        // Squares rescale S to S^2/q: roots of the target scale, from the last square back to the
        // series.
        let end = t.limbs - params.literal().eval_mod_primes.len();
        let squares = self.squarings + usize::from(self.correction.is_some());
        let mut target = params.scale(params.top_level());
        for limbs in end + 1..=end + squares {
            target = libm::sqrt(target * evaluator.last_prime(limbs));
        }
        let mut z =
            Series::new(evaluator, t, self.series.len() - 1, keys)?.evaluate(&self.series, end + squares, target)?;
        for _ in 0..self.squarings {
            z = evaluator.sum_of_products(&[(&z, &z)], keys)?;
        }
        if let Some(c) = self.correction {
            let mut rest = z.clone();
            evaluator.neg_assign(&mut rest)?;
            evaluator.add_constant_assign(&mut rest, real(8.0 * c))?;
            z = evaluator.sum_of_products(&[(&z, &rest)], keys)?;
        }
        Ok(z)
    }
}

/// Chebyshev coefficients of degree `degree` of a function on [-1, 1], by interpolation at many
/// more nodes.
fn chebyshev(degree: usize, f: impl Fn(f64) -> Complex64) -> Vec<Complex64> {
    let nodes = 4 * (degree + 1).next_power_of_two();
    let angle = |j: usize| PI * (j as f64 + 0.5) / nodes as f64;
    let values: Vec<Complex64> = (0..nodes).map(|j| f(libm::cos(angle(j)))).collect();
    let coefficient = |k: usize| -> Complex64 {
        let sum: Complex64 = (0..nodes).map(|j| values[j] * libm::cos(k as f64 * angle(j))).sum();
        sum * (if k == 0 { 1.0 } else { 2.0 } / nodes as f64)
    };
    (0..=degree).map(coefficient).collect()
}

/// Evaluates Chebyshev series at one ciphertext, in depth `ceil(log2(degree + 1))`, scales exact.
struct Series<'a, B: Backend> {
    evaluator: &'a Evaluator<B>,
    keys: &'a EvaluationKeys<B::Packed>,
    /// `T_k(t)` for `k < LEAF_DEGREE` and powers of two.
    basis: BTreeMap<usize, Ct<B>>,
}

impl<'a, B: Backend> Series<'a, B> {
    fn new(evaluator: &'a Evaluator<B>, t: &Ct<B>, degree: usize, keys: &'a EvaluationKeys<B::Packed>) -> Result<Self> {
        let mut series = Self { evaluator, keys, basis: BTreeMap::from([(1, t.clone())]) };
        for k in 2..LEAF_DEGREE.min(degree + 1) {
            series.add_polynomial(k)?;
        }
        let mut k = LEAF_DEGREE;
        while k <= degree {
            series.add_polynomial(k)?;
            k *= 2;
        }
        Ok(series)
    }

    /// `T_(i+j) = 2 T_i T_j - T_(i-j)` with `i`, `j` as equal as they can be: depth `ceil(log2 k)`.
    fn add_polynomial(&mut self, k: usize) -> Result<()> {
        let (i, j) = (k.div_ceil(2), k / 2);
        let (a, b) = (&self.basis[&i], &self.basis[&j]);
        let minus_one = real(-1.0);
        let product = match self.basis.get(&(i - j)) {
            Some(difference) => {
                self.evaluator.quadratic(&[(a, b)], 2, &[(difference, minus_one)], Complex64::ZERO, self.keys)?
            }
            None => self.evaluator.quadratic(&[(a, b)], 2, &[], minus_one, self.keys)?,
        };
        self.basis.insert(k, product);
        Ok(())
    }

    /// `sum_k c_k T_k` with `limbs` limbs and exactly the scale `target`.
    fn evaluate<'b>(&'b self, coefficients: &[Complex64], limbs: usize, target: f64) -> Result<Ct<B>> {
        let before_rescale = target * self.evaluator.last_prime(limbs + 1);
        let mut rest = coefficients.to_vec();
        let mut quotients: Vec<(Vec<Complex64>, &Ct<B>)> = Vec::new();
        while let Some(m) = self.split_point(rest.len() - 1, limbs + 1) {
            let (quotient, remainder) = divide(&rest, m);
            quotients.push((quotient, &self.basis[&m]));
            rest = remainder;
        }
        let product = |(quotient, factor): (Vec<Complex64>, &'b Ct<B>)| {
            Ok((self.evaluate(&quotient, limbs + 1, before_rescale / factor.scale)?, factor))
        };
        let products = self.evaluator.backend().concurrently(quotients, product);
        let products: Vec<(Ct<B>, &Ct<B>)> = products.into_iter().collect::<Result<_>>()?;
        let linear: Vec<(&Ct<B>, Complex64)> =
            rest.iter().enumerate().skip(1).map(|(k, &c)| (&self.basis[&k], c)).collect();
        let mut out: Ciphertext<_> = if products.is_empty() {
            self.evaluator.linear_combination(&linear, rest[0], limbs + 1, target)?
        } else {
            let products: Vec<(&Ct<B>, &Ct<B>)> = products.iter().map(|(a, b)| (a, *b)).collect();
            self.evaluator.quadratic(&products, 1, &linear, rest[0], self.keys)?
        };
        // Equal but for the last bit of a double.
        out.scale = target;
        Ok(out)
    }

    /// The polynomial to divide a series of that degree by, or `None` when its terms are all at
    /// hand with `limbs` limbs.
    fn split_point(&self, degree: usize, limbs: usize) -> Option<usize> {
        let at_hand = |k: usize| self.basis.get(&k).is_some_and(|t| t.limbs >= limbs);
        if (1..=degree).all(at_hand) {
            return None;
        }
        Some(1 << degree.ilog2())
    }
}

/// `(q, r)` with `p = q T_m + r`, `r` of degree below `m`, from
/// `T_m T_j = (T_(m+j) + T_(m-j)) / 2`.
fn divide(p: &[Complex64], m: usize) -> (Vec<Complex64>, Vec<Complex64>) {
    let mut quotient = p[m..].to_vec();
    let mut remainder = p[..m].to_vec();
    for (j, q) in quotient.iter_mut().enumerate().skip(1) {
        remainder[m - j] -= *q;
        *q *= 2.0;
    }
    (quotient, remainder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluate(series: &[Complex64], t: f64) -> Complex64 {
        series.iter().enumerate().map(|(k, c)| c * libm::cos(k as f64 * libm::acos(t))).sum()
    }

    #[test]
    fn division_recomposes() {
        let p: Vec<Complex64> = (0..15).map(|k| Complex64::new(1.0 / f64::from(k + 1), f64::from(k))).collect();
        let (q, r) = divide(&p, 8);
        for t in [-0.9, -0.1, 0.3, 1.0] {
            let t8 = libm::cos(8.0 * libm::acos(t));
            assert!((evaluate(&q, t) * t8 + evaluate(&r, t) - evaluate(&p, t)).norm() < 1e-12);
        }
    }

    #[test]
    fn the_chain_of_constants_reduces_modulo_q0() {
        for set in ["full", "small"] {
            let params = Params::named(set).unwrap();
            let e = Exponential::new(&params);
            let k = f64::from(params.literal().eval_mod.k);
            let ratio = f64::from(1u32 << params.literal().log_message_ratio);
            for multiple in [1.0 - k, -3.0, 0.0, 7.0, k - 1.0] {
                for message in [-1.0, -0.25, 0.0, 0.7, 1.0] {
                    let t = (multiple + message / ratio) / k;
                    let mut z = evaluate(&e.series, t);
                    (0..e.squarings).for_each(|_| z *= z);
                    let w = e.correction.map_or(z, |c| z * (8.0 * c - z));
                    // The sine alone is off by theta^3/6 in units of R/2pi.
                    let tolerance = if e.correction.is_some() { 2e-8 } else { 3e-5 };
                    assert!(
                        (2.0 * w.im - message).abs() < tolerance,
                        "{set}: {message} + {multiple} q0 -> {}",
                        2.0 * w.im
                    );
                }
            }
        }
    }
}
