//! `ASoftmax`: the row-wise softmax of the paper (algorithm 1, corrected), with bootstraps where
//! levels run out.

use super::blocks::{BlockOps, BlockShape, Mask};
use crate::softmax::baselines::{EXPONENTIAL_9, Extension, INVERSE, SIGN_F, SIGN_G, paper_levels};
use crate::{Error, Result};
use hetal_circuits::polynomial::{Polynomial, PolynomialBasis, evaluate};
use hetal_circuits::{Complex64, Engine};

/// The paper's softmax of `c` classes in blocks whose columns repeat with period `c'`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperSoftmax {
    unit: BlockShape,
    classes: usize,
    extension: Extension,
    precise: bool,
}

/// Largest magnitudes where the paper's values are bootstrapped: logits and their differences reach
/// 256, the rest stays near 1.
const LOG_WIDE: u32 = 8;
/// See [`LOG_WIDE`].
const LOG_NARROW: u32 = 1;
/// Differences to the approximate maximum, extended, lie in `[-8, 8]`; near ties it is too low, and
/// exponentials pass 1.
const LOG_EXPONENTIAL: u32 = 4;

impl PaperSoftmax {
    /// The softmax on logits in `[-128, 128]`, with or without the correction of the domain
    /// extension.
    pub fn new(unit: BlockShape, classes: usize, precise: bool) -> Result<Self> {
        if classes < 2 || classes.next_power_of_two() > unit.columns() {
            return Err(Error::Invalid { what: "classes", value: classes as f64, must: "2 to the columns of a block" });
        }
        Ok(Self { unit, classes, extension: Extension::PAPER, precise })
    }

    /// Its levels: `44 + 10 log2 c'` with the correction.
    pub fn depth(&self) -> usize {
        paper_levels(self.classes, self.extension.index, self.precise)
    }

    fn padded(&self) -> usize {
        self.classes.next_power_of_two()
    }

    /// The probabilities, tiled to the right like the logits.
    pub fn evaluate<E: Engine>(&self, engine: &E, logits: &E::Ciphertext) -> Result<E::Ciphertext> {
        let run = SoftmaxRun { ops: BlockOps::new(engine, self.unit), softmax: self };
        let logits = run.with_levels(logits, 2, LOG_WIDE)?;
        let max = run.max(&logits)?;
        let x = run.extended(run.differences(&logits, &max)?)?;
        let exponential = run.exponential(x)?;
        let probabilities = run.divided(exponential)?;
        run.ops.rotation_sum(probabilities, -(self.padded() as i64), self.unit.columns() / self.padded())
    }
}

struct SoftmaxRun<'a, E: Engine> {
    ops: BlockOps<'a, E>,
    softmax: &'a PaperSoftmax,
}

impl<E: Engine> SoftmaxRun<'_, E> {
    /// `x` if it has enough levels, otherwise its bootstrap.
    fn with_levels(&self, x: &E::Ciphertext, levels: usize, log_bound: u32) -> Result<E::Ciphertext> {
        if self.ops.engine.level(x) >= levels {
            return Ok(x.clone());
        }
        Ok(self.ops.engine.bootstrap(x, log_bound)?)
    }

    fn times(&self, x: &E::Ciphertext, factor: f64) -> Result<E::Ciphertext> {
        Ok(self.ops.engine.mul_constant(x, Complex64::new(factor, 0.0))?)
    }

    fn odd(&self, x: &E::Ciphertext, coefficients: &[f64; 4]) -> Result<E::Ciphertext> {
        let all: Vec<f64> = coefficients.iter().flat_map(|&c| [0.0, c]).collect();
        let x = self.with_levels(x, 3, LOG_NARROW)?;
        Ok(evaluate(self.ops.engine, &x, &Polynomial::real(PolynomialBasis::Monomial, &all))?)
    }

    /// The approximate maximum of each row's classes, in all columns, by a tournament of
    /// comparisons.
    fn max(&self, logits: &E::Ciphertext) -> Result<E::Ciphertext> {
        let (engine, unit, softmax) = (self.ops.engine, self.ops.unit, self.softmax);
        let width = 2.0 * softmax.extension.max();
        let mut max = self.times(logits, 1.0 / width)?;
        let padded = softmax.padded();
        if softmax.classes < padded {
            let missing = unit.mask(|_, j| j % padded >= softmax.classes);
            max = engine.add_plain(&max, &missing.iter().map(|m| -0.5 * m).collect::<Vec<_>>())?;
        }
        let mut step = 1;
        while step < padded {
            max = self.larger(&max, &engine.rotate(&max, step as i64)?)?;
            step *= 2;
        }
        let max = self.with_levels(&max, 1, LOG_NARROW)?;
        let first = self.ops.first_column(&max)?;
        let everywhere = self.ops.rotation_sum(first, -1, unit.columns())?;
        Ok(engine.mul_integer(&everywhere, width as i64)?)
    }

    /// `b + (a - b) (f(g(g(a - b))) + 1) / 2`, near the larger of `a` and `b`.
    fn larger(&self, a: &E::Ciphertext, b: &E::Ciphertext) -> Result<E::Ciphertext> {
        let engine = self.ops.engine;
        let (a, b) = (self.with_levels(a, 1, LOG_NARROW)?, self.with_levels(b, 1, LOG_NARROW)?);
        let difference = engine.sub(&a, &b)?;
        let halved = SIGN_F.map(|c| c / 2.0);
        let sign = self.odd(&self.odd(&self.odd(&difference, &SIGN_G)?, &SIGN_G)?, &halved)?;
        let weight = self.with_levels(&engine.add_constant(&sign, Complex64::new(0.5, 0.0))?, 1, LOG_NARROW)?;
        Ok(engine.add(&b, &engine.mul(&difference, &weight)?)?)
    }

    /// Logits less their maximum in the first tile, 0 elsewhere.
    fn differences(&self, logits: &E::Ciphertext, max: &E::Ciphertext) -> Result<E::Ciphertext> {
        let classes = self.softmax.classes;
        let difference = self.ops.engine.sub(logits, max)?;
        let difference = self.with_levels(&difference, 1, LOG_WIDE)?;
        self.ops.masked(&difference, &Mask::new(self.ops.unit.mask(|_, j| j < classes)))
    }

    /// Domain extension: differences down to -256 become differences down to -8.
    fn extended(&self, mut x: E::Ciphertext) -> Result<E::Ciphertext> {
        let (engine, extension) = (self.ops.engine, self.softmax.extension);
        for i in (0..extension.index).rev() {
            x = self.with_levels(&x, 2, LOG_WIDE)?;
            let cube = engine.mul(&self.times(&x, extension.cubic(i))?, &engine.square(&x)?)?;
            x = engine.sub(&x, &cube)?;
        }
        if !self.softmax.precise {
            return Ok(x);
        }
        let (k3, k5) = extension.correction();
        let x = self.with_levels(&x, 3, LOG_EXPONENTIAL)?;
        Ok(evaluate(engine, &x, &Polynomial::real(PolynomialBasis::Monomial, &[0.0, 1.0, 0.0, k3, 0.0, -k5]))?)
    }

    /// `exp(x)` on `[-8, 8]` in the first tile, 0 elsewhere.
    fn exponential(&self, x: E::Ciphertext) -> Result<E::Ciphertext> {
        let (engine, classes) = (self.ops.engine, self.softmax.classes);
        let x = self.with_levels(&x, 4, LOG_EXPONENTIAL)?;
        let scaled: Vec<f64> = EXPONENTIAL_9.iter().enumerate().map(|(k, c)| libm::ldexp(*c, -3 * k as i32)).collect();
        let mut value = evaluate(engine, &x, &Polynomial::real(PolynomialBasis::Monomial, &scaled))?;
        for _ in 0..3 {
            value = engine.square(&self.with_levels(&value, 1, LOG_EXPONENTIAL)?)?;
        }
        let value = self.with_levels(&value, 1, LOG_EXPONENTIAL)?;
        self.ops.masked(&value, &Mask::new(self.ops.unit.mask(|_, j| j < classes)))
    }

    /// `x` over the sum of its columns, by Goldschmidt's inverse.
    fn divided(&self, x: E::Ciphertext) -> Result<E::Ciphertext> {
        let engine = self.ops.engine;
        let (range, rounds) = INVERSE;
        // One bootstrap serves the value and its sum.
        let x = self.with_levels(&x, 2, LOG_EXPONENTIAL)?;
        let sum = self.ops.sum_columns(x.clone())?;
        let linear = |slope: f64, constant: f64| {
            engine.linear_combination(&[(&sum, Complex64::new(slope, 0.0))], Complex64::new(constant, 0.0))
        };
        let (mut t, mut y) = (linear(-1.0 / range, 1.0)?, linear(-1.0 / (range * range), 2.0 / range)?);
        for _ in 0..rounds {
            t = engine.square(&self.with_levels(&t, 1, LOG_NARROW)?)?;
            let factor = self.with_levels(&engine.add_constant(&t, Complex64::ONE)?, 1, LOG_NARROW)?;
            y = engine.mul(&self.with_levels(&y, 1, LOG_NARROW)?, &factor)?;
        }
        let (x, y) = (self.with_levels(&x, 1, LOG_EXPONENTIAL)?, self.with_levels(&y, 1, LOG_NARROW)?);
        Ok(engine.mul(&x, &y)?)
    }
}
