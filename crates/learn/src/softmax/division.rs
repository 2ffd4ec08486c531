//! The weights of rows inside the softmax.
//!
//! `k` normalisations at the end multiply `p` by a polynomial of degree `2^k - 1` in the sum `s`,
//! together the minimax polynomial of that degree near `1/s`. They take `k` levels, which is the
//! least for a product of `2^k` factors. A further product with the weight `w` would take a level
//! more. With a polynomial of degree `2^k - 2` there are again `2^k` factors, and `w` is one of
//! them: [`SoftmaxStep::Divide`].
//!
//! The minimax polynomial `G` near `1/s` on `[1/R, 1]` is known:
//!
//! ```text
//! 1 - s G(s) = T_d(x) / T_d(x0),   x = (1 + 1/R - 2 s) / (1 - 1/R),   x0 = x(0) = cosh(theta)
//! ```
//!
//! with `d = 2^k - 1` and Chebyshev's `T_d`. Its roots are those of `T_d(x) = T_d(x0)` but `x0`
//! itself: `x = cosh(theta + 2 pi i m / d)`. The roots of `m` and `d - m` are conjugate and share a
//! quadratic.

use super::constants::{Constants, SoftmaxStep};
use crate::{Error, Result};
use hetal_circuits::Complex64;
use std::f64::consts::TAU;

/// Normalisations that a division replaces. It takes as many levels.
pub const DIVISION_DEPTH: usize = 3;

/// `d`: one more than the degree of the division in `s`.
const DEGREE: usize = (1 << DIVISION_DEPTH) - 1;

impl Constants {
    /// The same softmax with a division instead of the last normalisations, so that it can be
    /// multiplied by the weights of rows.
    pub(super) fn with_division(self) -> Result<Self> {
        let missing = || Error::Constants("the softmax does not end with three normalisations".into());
        let kept = self.steps.len().checked_sub(DIVISION_DEPTH).ok_or_else(missing)?;
        let (steps, last) = self.steps.split_at(kept);
        let [SoftmaxStep::Normalise(a), SoftmaxStep::Normalise(_), SoftmaxStep::Normalise(_)] = last else {
            return Err(missing());
        };
        // A normalisation of sums in [b/R, b] has the constant a = b (1 + 1/R).
        let old = self.bounds[kept];
        let division = Division::new(a / old - 1.0);
        // `p` is scaled so that the quadratics need no leading coefficient.
        let new = libm::pow(division.leading, 1.0 / DEGREE as f64);
        let mut scaled = vec![SoftmaxStep::Divide(division.quadratics).scaled(new)];
        let mut bounds = vec![1.0 + division.error, new];
        let mut change = new / old;
        for (step, bound) in steps.iter().zip(&self.bounds).rev() {
            change = libm::pow(change, 1.0 / step.degree());
            scaled.push(step.clone().scaled(change));
            bounds.push(bound * change);
        }
        scaled.reverse();
        bounds.reverse();
        let exponential = self.exponential.iter().map(|c| c * change).collect();
        Ok(Self { exponential, steps: scaled, bounds, error: self.error + division.error, ..self })
    }
}

/// The minimax polynomial near `1/s`, as a product.
struct Division {
    /// `[b, g]` of each factor `s^2 + b s + g`.
    quadratics: Vec<[f64; 2]>,
    leading: f64,
    /// The largest `|1 - s G(s)|`.
    error: f64,
}

impl Division {
    /// On `[smallest, 1]`.
    fn new(smallest: f64) -> Self {
        let (sum, difference) = (1.0 + smallest, 1.0 - smallest);
        let theta = libm::acosh(sum / difference);
        let error = 1.0 / libm::cosh(DEGREE as f64 * theta);
        let quadratic = |m: usize| {
            let angle = TAU * m as f64 / DEGREE as f64;
            let x = Complex64::new(libm::cosh(theta) * libm::cos(angle), libm::sinh(theta) * libm::sin(angle));
            let root = (sum - x * difference) / 2.0;
            [-2.0 * root.re, root.norm_sqr()]
        };
        // T_d leads with 2^(d-1) x^d, and x with -2 s / (1 - 1/R); d is odd.
        let leading = libm::ldexp(libm::pow(2.0 / difference, DEGREE as f64), DEGREE as i32 - 1) * error;
        Self { quadratics: (1..=DEGREE / 2).map(quadratic).collect(), leading, error }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::softmax::measure::Sampler;
    use crate::{LevelPlan, judge::RANGES, softmax::Schedule};

    #[test]
    fn a_division_is_as_near_to_the_inverse_as_it_says() {
        for ratio in [1.003, 1.3, 2.5, 8.0] {
            let division = Division::new(1.0 / ratio);
            let value = |s: f64| {
                let product: f64 = division.quadratics.iter().map(|[b, g]| s * s + b * s + g).product();
                s * division.leading * product
            };
            let sums = (0..=2000).map(|i| 1.0 / ratio + (1.0 - 1.0 / ratio) * f64::from(i) / 2000.0);
            let worst = sums.map(|s| (value(s) - 1.0).abs()).fold(0.0, f64::max);
            assert!((worst - division.error).abs() < 1e-4 * division.error + 1e-12, "{ratio}: {worst:e}");
        }
    }

    /// Weighted rows take as many bootstraps as others, with about the same error.
    #[test]
    fn weights_of_rows_cost_no_bootstrap_and_little_accuracy() {
        for range in RANGES.into_iter().filter(|&range| range >= 32.0) {
            for classes in [2, 3, 5, 7, 8, 10, 12, 16, 20, 64, 128] {
                let plain = Constants::built_in(classes, range).unwrap();
                let weighted = Constants::for_plan(classes, range, LevelPlan::weighted()).unwrap();
                let cuts = |constants: &Constants| {
                    Schedule::new(constants, 13, LevelPlan::weighted().probabilities()).unwrap().cuts().len()
                };
                assert_eq!((weighted.depth(), cuts(&weighted)), (plain.depth(), cuts(&plain)), "{classes} on {range}");
                let error = Sampler::new(classes, range, 3).max_error(2000, |row| weighted.evaluate(row));
                assert!(error <= 1.1 * weighted.error && error < 2e-5, "{classes} on {range}: {error:e}");
            }
        }
    }

    #[test]
    fn only_normalisations_become_a_division() {
        let good = Constants::built_in(3, 32.0).unwrap();
        let refused = |steps: Vec<SoftmaxStep>| {
            let bounds = vec![1.0; steps.len() + 1];
            matches!(Constants { steps, bounds, ..good.clone() }.with_division(), Err(Error::Constants(_)))
        };
        assert!(refused(good.steps[..2].to_vec()) && refused(Vec::new()));
        assert!(refused(vec![SoftmaxStep::Square; 5]));
        // Two classes in the smallest range have no steps: weighted rows take the next range.
        assert_eq!(Constants::for_plan(2, 16.0, LevelPlan::weighted()).unwrap().range, 32.0);
    }
}
