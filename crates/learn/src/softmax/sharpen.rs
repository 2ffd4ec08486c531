//! Normalise-and-sharpen on ciphertexts.

use super::{Constants, Schedule, SoftmaxStep};
use crate::{Geometry, Result, packing::mask};
use hetal_circuits::polynomial::{Polynomial, PolynomialBasis, PreparedPolynomial};
use hetal_circuits::{Complex64, Engine};

/// The softmax of logits packed as in [`Geometry`], with its bootstraps.
pub struct Sharpen<E: Engine> {
    constants: Constants,
    schedule: Schedule,
    exponential: PreparedPolynomial<E>,
    rows: usize,
    padded_classes: usize,
    end: usize,
}

impl<E: Engine> Sharpen<E> {
    /// Prepares the softmax for results of level `end`.
    pub fn new(engine: &E, constants: Constants, geometry: &Geometry, end: usize) -> Result<Self> {
        let constants = constants.checked()?;
        if constants.classes != geometry.classes() {
            return Err(crate::Error::NoConstants { classes: geometry.classes(), range: constants.range });
        }
        let schedule = Schedule::new(&constants, engine.top_level(), end)?;
        let mut polynomial = Polynomial::real(PolynomialBasis::Chebyshev, &constants.exponential);
        if geometry.classes() < geometry.padded_classes() {
            // Padded classes start at 0 and stay there: every step keeps zeros.
            let real = mask(geometry, 1.0, |j, i| geometry.class(j, i) < geometry.classes());
            polynomial = polynomial.times(&real);
        }
        let exponential = PreparedPolynomial::new(engine, &polynomial, engine.top_level())?;
        let (rows, padded_classes) = (geometry.rows(), geometry.padded_classes());
        Ok(Self { constants, schedule, exponential, rows, padded_classes, end })
    }

    /// The constants.
    pub fn constants(&self) -> &Constants {
        &self.constants
    }

    /// The bootstraps.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The probabilities, from `t = logit / scale` at any level: `t` is bootstrapped first.
    pub fn evaluate(&self, engine: &E, t: &E::Ciphertext) -> Result<E::Ciphertext> {
        self.evaluate_steps(engine, t, None)
    }

    /// The probabilities times the weights of their rows, whose level is
    /// [`crate::LevelPlan::row_weights`].
    pub fn evaluate_weighted(
        &self,
        engine: &E,
        t: &E::Ciphertext,
        row_weights: &E::Ciphertext,
    ) -> Result<E::Ciphertext> {
        if !self.constants.takes_row_weights() {
            return Err(crate::Error::Constants("this softmax has no place for the weights of rows".into()));
        }
        self.evaluate_steps(engine, t, Some(row_weights))
    }

    fn evaluate_steps(
        &self,
        engine: &E,
        t: &E::Ciphertext,
        row_weights: Option<&E::Ciphertext>,
    ) -> Result<E::Ciphertext> {
        let mut p = self.exponential.evaluate(engine, &engine.bootstrap_periodic(t, self.period(), 0)?)?;
        // The sum of the classes, if the previous step provides it.
        let mut sum = None;
        for (j, step) in self.constants.steps.iter().enumerate() {
            if self.schedule.cuts().contains(&j) {
                p = engine.bootstrap_periodic(&p, self.period(), self.constants.log_bound(j))?;
                sum = None;
            }
            let sum_wanted = self.wants_sum(j + 1);
            (p, sum) = self.step(engine, step, p, sum.take(), sum_wanted, row_weights)?;
        }
        Ok(engine.drop_to(&p, self.end)?)
    }

    /// Logits and probabilities repeat after so many slots.
    fn period(&self) -> usize {
        self.rows * self.padded_classes
    }

    /// Whether step `j` uses a sum that the previous step can provide.
    fn wants_sum(&self, j: usize) -> bool {
        self.constants.steps.get(j).is_some_and(SoftmaxStep::needs_sum) && !self.schedule.cuts().contains(&j)
    }

    fn step(
        &self,
        engine: &E,
        step: &SoftmaxStep,
        p: E::Ciphertext,
        sum: Option<E::Ciphertext>,
        sum_wanted: bool,
        row_weights: Option<&E::Ciphertext>,
    ) -> Result<(E::Ciphertext, Option<E::Ciphertext>)> {
        if *step == SoftmaxStep::Square {
            return Ok((engine.square(&p)?, None));
        }
        let sum = sum.map_or_else(|| self.class_sum(engine, &p), Ok)?;
        match step {
            SoftmaxStep::Normalise(a) => {
                let factor = engine.add_constant(&engine.neg(&sum)?, real(*a))?;
                // s (a - s) is one product; summing p again would be log2 c' rotations.
                let next = if sum_wanted { Some(engine.mul(&sum, &factor)?) } else { None };
                Ok((engine.mul(&p, &factor)?, next))
            }
            SoftmaxStep::Sharpen(quadratics) => {
                Ok((self.times_quadratics(engine, engine.square(&p)?, &sum, quadratics)?, None))
            }
            SoftmaxStep::Divide(quadratics) => {
                let weighted = row_weights.map_or_else(|| Ok(p.clone()), |weights| engine.mul(&p, weights))?;
                Ok((self.times_quadratics(engine, weighted, &sum, quadratics)?, None))
            }
            SoftmaxStep::Square => Ok((engine.square(&p)?, None)),
        }
    }

    /// A factor times the product of the quadratics `s^2 + b s + g`, as a tree.
    fn times_quadratics(
        &self,
        engine: &E,
        factor: E::Ciphertext,
        sum: &E::Ciphertext,
        quadratics: &[[f64; 2]],
    ) -> Result<E::Ciphertext> {
        let square = engine.square(sum)?;
        let mut factors = vec![factor];
        for [b, g] in quadratics {
            let linear = engine.linear_combination(&[(sum, real(*b))], real(*g))?;
            factors.push(engine.add(&square, &linear)?);
        }
        while factors.len() > 1 {
            let pairs = factors.chunks(2).map(|pair| match pair {
                [a, b] => engine.mul(a, b),
                rest => Ok(rest[0].clone()),
            });
            factors = pairs.collect::<hetal_circuits::Result<_>>()?;
        }
        Ok(factors.swap_remove(0))
    }

    /// The sum over the classes, in every slot: rotations only.
    fn class_sum(&self, engine: &E, p: &E::Ciphertext) -> Result<E::Ciphertext> {
        let mut sum = p.clone();
        let mut columns = 1;
        while columns < self.padded_classes {
            sum = engine.add(&sum, &engine.rotate(&sum, (columns * self.rows) as i64)?)?;
            columns *= 2;
        }
        Ok(sum)
    }
}

fn real(value: f64) -> Complex64 {
    Complex64::new(value, 0.0)
}
