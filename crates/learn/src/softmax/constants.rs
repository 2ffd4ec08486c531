//! The constants of normalise-and-sharpen for a number of classes and a range of logits.
//!
//! Logits are centred: they sum to zero over the classes. `p` starts as a polynomial of
//! `t = logit / scale`, near `exp(logit / F)`. Every step multiplies all classes by a common factor
//! or raises all of them to a power. So the ratios of the classes remain those of a softmax of
//! growing sharpness, and the last steps bring the sum `s` of the classes to 1.
//!
//! Two classes in a small range need no steps: their softmax is `(1 + tanh(logit)) / 2`, which one
//! polynomial approximates.

use super::Schedule;
use super::number::{Number, sum};
use crate::{Error, LevelPlan, Result};
use serde::{Deserialize, Serialize};

/// One step; `s` is the sum of `p` over the classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SoftmaxStep {
    /// `p <- p (a - s)`. One level.
    Normalise(f64),
    /// `p <- p^2`. One level.
    Square,
    /// `p <- p^2 (s^2 + b s + g) ...`, near `(p / s)^2`: one quadratic takes two levels, three take
    /// three.
    Sharpen(Vec<[f64; 2]>),
    /// `p <- w p (s^2 + b s + g) ...`, near `w p / s`, with three quadratics in three levels. `w`
    /// is the weight of the row, or 1 where rows have none. Only the last step divides.
    Divide(Vec<[f64; 2]>),
}

impl SoftmaxStep {
    /// The levels the step takes.
    pub fn depth(&self) -> usize {
        match self {
            SoftmaxStep::Normalise(_) | SoftmaxStep::Square => 1,
            SoftmaxStep::Sharpen(quadratics) | SoftmaxStep::Divide(quadratics) => {
                (quadratics.len() + 1).next_power_of_two().ilog2() as usize + 1
            }
        }
    }

    /// The degree in `p`.
    pub(super) fn degree(&self) -> f64 {
        match self {
            SoftmaxStep::Normalise(_) | SoftmaxStep::Square => 2.0,
            SoftmaxStep::Sharpen(quadratics) => 2.0 + 2.0 * quadratics.len() as f64,
            SoftmaxStep::Divide(quadratics) => 1.0 + 2.0 * quadratics.len() as f64,
        }
    }

    /// The step for sums that are larger by a factor.
    pub(super) fn scaled(self, factor: f64) -> Self {
        let all = |quadratics: Vec<[f64; 2]>| -> Vec<[f64; 2]> {
            quadratics.into_iter().map(|[b, g]| [b * factor, g * factor * factor]).collect()
        };
        match self {
            SoftmaxStep::Normalise(a) => SoftmaxStep::Normalise(a * factor),
            SoftmaxStep::Square => SoftmaxStep::Square,
            SoftmaxStep::Sharpen(quadratics) => SoftmaxStep::Sharpen(all(quadratics)),
            SoftmaxStep::Divide(quadratics) => SoftmaxStep::Divide(all(quadratics)),
        }
    }

    /// Whether the step uses the sum of the classes.
    pub fn needs_sum(&self) -> bool {
        !matches!(self, SoftmaxStep::Square)
    }
}

/// Everything that defines the approximation for one number of classes and one range.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constants {
    /// Number of classes.
    pub classes: usize,
    /// The error is stated for logits in `[-range, range]`.
    pub range: f64,
    /// `t = logit / scale` must lie in `[-1, 1]`; a little more than the range.
    pub scale: f64,
    /// The largest error of a probability found, without noise.
    pub error: f64,
    /// Chebyshev coefficients of the first `p` in `t`.
    pub exponential: Vec<f64>,
    /// The steps.
    pub steps: Vec<SoftmaxStep>,
    /// The largest sum of the classes before each step, and at the end.
    pub bounds: Vec<f64>,
}

impl Constants {
    /// The built-in constants for a number of classes and the smallest range that covers `range`.
    pub fn built_in(classes: usize, range: f64) -> Result<Self> {
        Self::for_plan(classes, range, LevelPlan::lowest())
    }

    /// [`Constants::built_in`] for a training whose rows may have weights. Weights take the place
    /// of one factor of the last normalisations, and no level.
    pub fn for_plan(classes: usize, range: f64, level_plan: LevelPlan) -> Result<Self> {
        let missing = || Error::NoConstants { classes, range };
        let tables: Vec<Constants> =
            serde_json::from_str(include_str!("constants.json")).map_err(|e| Error::Constants(e.to_string()))?;
        let weighted = level_plan.is_weighted();
        // A softmax of one polynomial has no place for weights.
        let fits = |t: &Self| t.classes >= classes && t.range >= range && !(weighted && t.is_tanh());
        let nearest = |a: &Self, b: &Self| a.range.total_cmp(&b.range).then(a.classes.cmp(&b.classes));
        let found = tables.into_iter().filter(fits).min_by(nearest).ok_or_else(missing)?.for_fewer(classes)?;
        if weighted { found.with_division()?.checked() } else { found.checked() }
    }

    /// The same steps for fewer classes. Fewer classes only narrow the ranges of the steps, once
    /// the first sum is scaled to its value for all classes.
    fn for_fewer(mut self, classes: usize) -> Result<Self> {
        if classes < 2 {
            return Err(Error::NoConstants { classes, range: self.range });
        }
        let factor = self.classes as f64 / classes as f64;
        if classes != self.classes {
            self.exponential.iter_mut().for_each(|c| *c *= factor);
            self.classes = classes;
        }
        Ok(self)
    }

    /// Checks the constants.
    pub fn checked(self) -> Result<Self> {
        let fail = |what: &str| Err(Error::Constants(what.into()));
        let finite = |v: &f64| v.is_finite();
        if self.classes < 2 || self.exponential.len() < 2 || self.steps.is_empty() != self.is_tanh() {
            return fail("no classes, polynomial or steps");
        }
        if self.bounds.len() != self.steps.len() + 1 || !self.bounds.iter().all(|&b| b > 0.0 && b.is_finite()) {
            return fail("a positive bound is needed before each step and at the end");
        }
        let sound = |step: &SoftmaxStep| match step {
            SoftmaxStep::Normalise(a) => a.is_finite(),
            SoftmaxStep::Square => true,
            SoftmaxStep::Sharpen(q) | SoftmaxStep::Divide(q) => {
                matches!(q.len(), 1 | 3) && q.iter().flatten().all(finite)
            }
        };
        if self.steps.iter().rev().skip(1).any(|step| matches!(step, SoftmaxStep::Divide(_))) {
            return fail("only the last step divides");
        }
        if !(self.scale > 0.0 && self.exponential.iter().all(finite) && self.steps.iter().all(sound)) {
            return fail("a number is not finite or a step has neither one nor three quadratics");
        }
        Ok(self)
    }

    /// Whether the polynomial is the softmax of two classes, without steps.
    pub fn is_tanh(&self) -> bool {
        self.classes == 2 && self.steps.is_empty()
    }

    /// Whether it can be multiplied by the weights of rows.
    pub fn takes_row_weights(&self) -> bool {
        matches!(self.steps.last(), Some(SoftmaxStep::Divide(_)))
    }

    /// Levels of the first polynomial.
    pub fn exponential_depth(&self) -> usize {
        self.exponential.len().next_power_of_two().ilog2() as usize
    }

    /// All levels of the approximation.
    pub fn depth(&self) -> usize {
        self.exponential_depth() + self.steps.iter().map(SoftmaxStep::depth).sum::<usize>()
    }

    /// `ceil(log2)` of the largest value before a step, at least 0: the bound of a bootstrap at
    /// this point.
    pub fn log_bound(&self, step: usize) -> u32 {
        let bound = self.bounds.get(step).copied().unwrap_or(1.0);
        (0..64).find(|&log| bound <= libm::ldexp(1.0, log)).unwrap_or(64) as u32
    }

    /// The approximation of a row of logits, in place.
    pub fn evaluate<T: Number>(&self, row: &mut [T]) {
        self.evaluate_disturbed(row, |_, _| {});
    }

    /// The approximation of a row of logits, in place. `disturb(values, bound)` is called wherever
    /// the schedule bootstraps values up to `bound`, the logits included.
    pub fn evaluate_bootstrapped<T: Number>(
        &self,
        schedule: &Schedule,
        row: &mut [T],
        mut disturb: impl FnMut(&mut [T], f64),
    ) {
        disturb(row, self.scale);
        self.evaluate_disturbed(row, |j, p| {
            if schedule.cuts().contains(&j) {
                disturb(p, libm::ldexp(1.0, self.log_bound(j) as i32));
            }
        });
    }

    /// The approximation of a row of logits, in place, with `disturb(step, p)` called before each
    /// step.
    pub fn evaluate_disturbed<T: Number>(&self, row: &mut [T], mut disturb: impl FnMut(usize, &mut [T])) {
        row.iter_mut().for_each(|x| *x = chebyshev(&self.exponential, *x / self.scale));
        for (j, step) in self.steps.iter().enumerate() {
            disturb(j, row);
            apply(step, row);
        }
    }
}

/// One step on plain numbers.
pub(crate) fn apply<T: Number>(step: &SoftmaxStep, p: &mut [T]) {
    let s = sum(p);
    match step {
        SoftmaxStep::Normalise(a) => p.iter_mut().for_each(|p| *p = *p * (T::from(*a) - s)),
        SoftmaxStep::Square => p.iter_mut().for_each(|p| *p = *p * *p),
        SoftmaxStep::Sharpen(quadratics) => {
            let factor = product(quadratics, s);
            p.iter_mut().for_each(|p| *p = *p * *p * factor);
        }
        SoftmaxStep::Divide(quadratics) => {
            let factor = product(quadratics, s);
            p.iter_mut().for_each(|p| *p = *p * factor);
        }
    }
}

fn product<T: Number>(quadratics: &[[f64; 2]], s: T) -> T {
    quadratics.iter().fold(T::from(1.0), |f, &[b, g]| f * (s * s + s * b + g))
}

/// `sum_k c_k T_k(t)` (Clenshaw).
pub(crate) fn chebyshev<T: Number>(coefficients: &[f64], t: T) -> T {
    let (mut b1, mut b2) = (T::from(0.0), T::from(0.0));
    for &c in coefficients.iter().skip(1).rev() {
        (b1, b2) = (T::from(c) + t * 2.0 * b1 - b2, b1);
    }
    T::from(coefficients.first().copied().unwrap_or(0.0)) + t * b1 - b2
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::softmax::measure::Sampler;

    #[test]
    fn every_number_of_classes_has_constants() {
        for range in crate::judge::RANGES {
            for classes in 2..=128 {
                let constants = Constants::built_in(classes, range).unwrap();
                let error = Sampler::new(classes, range, 5).max_error(150, |row| constants.evaluate(row));
                assert!(error < 5e-5, "{classes} classes on {range}: {error:e}");
            }
        }
    }

    /// Before every step the sum of the classes is at most its bound, also at the ends of the
    /// scale.
    #[test]
    fn bounds_hold() {
        for classes in [2, 5, 10, 11, 100] {
            let constants = Constants::built_in(classes, 128.0).unwrap();
            let mut sampler = Sampler::new(classes, constants.scale, 6);
            for _ in 0..500 {
                for mut row in [sampler.uniform(), sampler.near_tie(), sampler.corner()] {
                    constants.evaluate_disturbed(&mut row, |j, p| {
                        let sum: f64 = p.iter().sum();
                        assert!(sum > 0.0 && sum <= constants.bounds[j], "step {j}: {sum}");
                    });
                }
            }
        }
    }

    #[test]
    fn smallest_covering_range_is_taken() {
        assert_eq!(Constants::built_in(7, 100.0).unwrap().range, 128.0);
        assert!(Constants::built_in(2, 16.0).unwrap().is_tanh() && !Constants::built_in(2, 32.0).unwrap().is_tanh());
        assert_eq!(Constants::built_in(3, 16.0).unwrap().range, 32.0);
        assert_eq!(Constants::built_in(7, 513.0), Err(Error::NoConstants { classes: 7, range: 513.0 }));
        assert!(Constants::built_in(129, 32.0).is_err());
        assert!(Constants::built_in(1, 32.0).is_err());
    }

    #[test]
    fn broken_constants_are_refused() {
        let good = Constants::built_in(3, 32.0).unwrap();
        let broken = [
            Constants { classes: 1, ..good.clone() },
            Constants { exponential: vec![f64::NAN, 1.0], ..good.clone() },
            Constants { steps: Vec::new(), bounds: vec![1.0], ..good.clone() },
            Constants { scale: 0.0, ..good.clone() },
            Constants { bounds: vec![1.0], ..good.clone() },
            Constants { steps: vec![SoftmaxStep::Sharpen(vec![[1.0, 1.0]; 2]); good.steps.len()], ..good.clone() },
        ];
        for constants in broken {
            assert!(matches!(constants.checked(), Err(Error::Constants(_))));
        }
    }
}
