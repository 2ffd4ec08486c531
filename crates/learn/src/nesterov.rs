//! The recursion of Nesterov's accelerated gradient with L2, in numbers that cost no level.
//!
//! A step is `W' = decay V - rate G(V)` and `V' = W' + beta (W' - W)`, with
//! `decay = 1 - rate alpha` for weights and 1 for the bias. To multiply a ciphertext by `beta` or
//! `decay` would take a level in every iteration. So two ciphertexts `w` and `m` are kept with
//!
//! ```text
//! W = f / S w        V = g / S (w + k m)        S = 2^LOG_WEIGHT_SCALE
//! ```
//!
//! where `k` is an integer and `f` and `g` are numbers that the masks of the matrix products carry.
//! A step then only adds multiples of the scaled gradient `d = S rate / (decay g k) G`:
//!
//! ```text
//! w' = w + k m - k d        m' = m - d        f' = decay g
//! ```
//!
//! All of this is public. `k` is rounded down, and `beta` is what follows from it, so the recursion
//! is exact: the plaintext reference uses the same numbers.

use serde::{Deserialize, Serialize};

/// How gradients are turned into steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Momentum {
    /// `W <- W - rate G(W)`.
    None,
    /// `W' = V - rate G(V)`, `V' = W' + beta_t (W' - W)` with
    /// `beta_t = (lambda_t - 1) / lambda_(t+1)`, `lambda_1 = 1` and
    /// `lambda_(t+1) = (1 + sqrt(1 + 4 lambda_t^2)) / 2`.
    #[default]
    Nesterov,
}

/// The state of the sequence `lambda_t`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MomentumSchedule {
    momentum: Momentum,
    lambda: f64,
}

impl MomentumSchedule {
    /// The schedule before the first step.
    pub fn new(momentum: Momentum) -> Self {
        Self { momentum, lambda: 1.0 }
    }

    /// `beta_t` of the current step, which is 0 in the first step, and the schedule of the next
    /// step.
    pub fn advance(self) -> (f64, Self) {
        let next = (1.0 + libm::sqrt(1.0 + 4.0 * self.lambda * self.lambda)) / 2.0;
        match self.momentum {
            Momentum::None => (0.0, self),
            Momentum::Nesterov => ((self.lambda - 1.0) / next, Self { lambda: next, ..self }),
        }
    }
}

/// The weights are stored times `2^LOG_WEIGHT_SCALE`. Masks of 42 bits that divide by it again keep
/// 29 bits.
pub const LOG_WEIGHT_SCALE: u32 = 13;

/// Bound on the momentum when it is refreshed: `|V - W| <= 2^LOG_MOMENTUM_BOUND`. Steps on the real
/// data sets stay below 1. Values up to 64 times the bound only lose precision; a bootstrap would
/// wrap larger ones around. The stored momentum is divided by it.
pub const LOG_MOMENTUM_BOUND: u32 = 2;

/// Bound on the weights when they are refreshed, which happens with L2 only.
pub const LOG_WEIGHT_BOUND: u32 = 4;

/// `k` for `V = W + 4 m` at equal factors: after a refresh, and without momentum.
const UNIT: i64 = 1 << (LOG_WEIGHT_SCALE + LOG_MOMENTUM_BOUND);

/// The momentum is refreshed when `k` is below this: then `beta` is exact to 1 in 128.
const SMALLEST: i64 = UNIT >> 8;

/// The weights are refreshed when one of their factors is below this, with L2 only.
const SMALLEST_FACTOR: f64 = 1.0 / 16.0;

/// The public numbers of a model between two steps: see the module's description.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recursion {
    schedule: MomentumSchedule,
    multiple: i64,
    weight_factor: f64,
    lookahead_factor: f64,
}

/// The rate of a step and the strength of L2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepSize {
    /// The learning rate.
    pub rate: f64,
    /// The factor `alpha` of `alpha |W|^2 / 2` in the loss.
    pub alpha: f64,
}

impl StepSize {
    /// A step without L2.
    pub fn of(rate: f64) -> Self {
        Self { rate, alpha: 0.0 }
    }

    /// What a step multiplies the weights by.
    pub fn decay(self) -> f64 {
        1.0 - self.rate * self.alpha
    }

    /// The momentum beyond which weights that only decay would oscillate: with `s` the square root
    /// of `rate alpha`, `(1 - s) / (1 + s)`.
    fn largest_momentum(self) -> f64 {
        let root = libm::sqrt((self.rate * self.alpha).clamp(0.0, 1.0));
        (1.0 - root) / (1.0 + root)
    }
}

/// A number for the weights and one for the bias, which L2 does not touch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightsAndBias {
    /// For the weights.
    pub weights: f64,
    /// For the bias.
    pub bias: f64,
}

impl Recursion {
    /// The numbers before the first step.
    pub fn new(momentum: Momentum) -> Self {
        Self { schedule: MomentumSchedule::new(momentum), multiple: UNIT, weight_factor: 1.0, lookahead_factor: 1.0 }
    }

    /// `k`.
    pub fn multiple(&self) -> i64 {
        self.multiple
    }

    /// `f`, for the weights; 1 for the bias.
    pub fn weight_factor(&self) -> f64 {
        self.weight_factor
    }

    /// `g`, for the weights; 1 for the bias.
    pub fn lookahead_factor(&self) -> f64 {
        self.lookahead_factor
    }

    /// Whether `W = w / S` and `V = (w + k m) / S` without further factors.
    pub fn has_plain_weights(&self) -> bool {
        self.weight_factor == 1.0 && self.lookahead_factor == 1.0
    }

    /// Whether the model should be refreshed before the next step.
    pub fn needs_refresh(&self) -> bool {
        self.multiple < SMALLEST || self.weight_factor.min(self.lookahead_factor) < SMALLEST_FACTOR
    }

    /// The numbers after a refresh.
    pub fn refreshed(&self) -> Self {
        Self { multiple: UNIT, weight_factor: 1.0, lookahead_factor: 1.0, ..*self }
    }

    /// The factors of the refreshed momentum `(V - W) / 2^LOG_MOMENTUM_BOUND`: of `w` and of `m`.
    pub(crate) fn refreshing(&self) -> [WeightsAndBias; 2] {
        let unit = UNIT as f64;
        let k = self.multiple as f64 / unit;
        [
            WeightsAndBias { weights: (self.lookahead_factor - self.weight_factor) / unit, bias: 0.0 },
            WeightsAndBias { weights: self.lookahead_factor * k, bias: k },
        ]
    }

    /// `d` for a gradient of 1.
    pub fn gradient_factors(&self, step: StepSize) -> WeightsAndBias {
        let bias = libm::ldexp(step.rate, LOG_WEIGHT_SCALE as i32) / self.multiple as f64;
        WeightsAndBias { weights: bias / (step.decay() * self.lookahead_factor), bias }
    }

    /// [`Recursion::advance`], and a refresh if one is due.
    pub fn advance_refreshed(&self, step: StepSize) -> (Self, WeightsAndBias) {
        let (next, beta) = self.advance(step);
        (if next.needs_refresh() { next.refreshed() } else { next }, beta)
    }

    /// The numbers after a step, and its `beta`; both are 0 where there is no momentum.
    pub fn advance(&self, step: StepSize) -> (Self, WeightsAndBias) {
        let (nominal, schedule) = self.schedule.advance();
        let (before, after) = (self.weight_factor, step.decay() * self.lookahead_factor);
        let nominal = nominal.min(step.largest_momentum());
        let lookahead_factor = |beta: f64| after + beta * (after - before);
        let k = self.multiple as f64;
        let rounded = libm::floor(nominal * before * k / lookahead_factor(nominal));
        if rounded < 1.0 {
            let next = Self { schedule, multiple: UNIT, weight_factor: after, lookahead_factor: after };
            return (next, WeightsAndBias { weights: 0.0, bias: 0.0 });
        }
        let weights = rounded * after / (before * k + rounded * (before - after));
        let next = Self {
            schedule,
            multiple: rounded as i64,
            weight_factor: after,
            lookahead_factor: lookahead_factor(weights),
        };
        (next, WeightsAndBias { weights, bias: rounded / k })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `log2(1 / prod beta_t)` after 2, 3, 10 and 52 steps.
    #[test]
    fn products_of_beta_fall_slowly() {
        let (mut schedule, mut product) = (MomentumSchedule::new(Momentum::Nesterov), 1.0);
        for t in 1..=52 {
            let (beta, next) = schedule.advance();
            schedule = next;
            assert_eq!(beta == 0.0, t == 1);
            if t > 1 {
                product *= beta;
            }
            let expected = match t {
                2 => 1.8,
                3 => 3.0,
                10 => 7.1,
                52 => 13.6,
                _ => continue,
            };
            assert!((-libm::log2(product) - expected).abs() < 0.06, "{t}: {}", -libm::log2(product));
        }
    }

    #[test]
    fn plain_descent_has_no_momentum() {
        assert_eq!(MomentumSchedule::new(Momentum::None).advance(), (0.0, MomentumSchedule::new(Momentum::None)));
        let (next, beta) = Recursion::new(Momentum::None).advance(StepSize::of(1.0));
        assert_eq!((next, beta.weights), (Recursion::new(Momentum::None), 0.0));
    }

    /// The stored pair, on plain numbers, is the recursion that it stands for.
    #[test]
    fn the_stored_pair_follows_the_recursion() {
        for (rate, alpha) in [(1.0, 0.0), (0.5, 1e-3), (2.0, 0.01), (1.0, 0.1), (1.0, 0.5)] {
            let (step, scale) = (StepSize { rate, alpha }, libm::ldexp(1.0, LOG_WEIGHT_SCALE as i32));
            let mut numbers = Recursion::new(Momentum::Nesterov);
            let (mut w, mut m) = (0.3 * scale, 0.0);
            let (mut exact, mut ahead) = (0.3, 0.3);
            for t in 0..300 {
                // The gradient of (V - 1)^2 / 20 and some noise.
                let k = numbers.multiple() as f64;
                let v = numbers.lookahead_factor() / scale * (w + k * m);
                assert!((v - ahead).abs() < 1e-9 && v.abs() < 4.0, "{rate} {alpha} {t}: {v} {ahead}");
                let gradient = (ahead - 1.0) / 10.0 + 0.02 * libm::sin(f64::from(t));
                let d = numbers.gradient_factors(step).weights * gradient;
                (w, m) = (w + k * m - k * d, m - d);
                let (next, beta) = numbers.advance(step);
                let weights = step.decay() * ahead - rate * gradient;
                (ahead, exact) = (weights + beta.weights * (weights - exact), weights);
                assert!(beta.weights < 1.0 && beta.bias <= 1.0, "{beta:?}");
                numbers = next;
                if beta.weights == 0.0 {
                    m = 0.0;
                }
                if numbers.needs_refresh() {
                    let [of_w, of_m] = numbers.refreshing();
                    m = of_w.weights * w + of_m.weights * m;
                    w *= numbers.weight_factor();
                    numbers = numbers.refreshed();
                }
                assert!((numbers.weight_factor() / scale * w - exact).abs() < 1e-9, "{rate} {alpha} {t}");
            }
        }
    }

    /// Without L2 the momentum stays near the schedule's, and refreshes are few.
    #[test]
    fn rounding_costs_little_momentum() {
        let (mut numbers, mut schedule) =
            (Recursion::new(Momentum::Nesterov), MomentumSchedule::new(Momentum::Nesterov));
        let mut refreshes = Vec::new();
        for t in 1..=1000 {
            let (next, beta) = numbers.advance(StepSize::of(1.0));
            let (nominal, following) = schedule.advance();
            (numbers, schedule) = (next, following);
            assert!(beta.weights <= nominal && beta.weights > nominal - 0.008 && beta.weights == beta.bias);
            if numbers.needs_refresh() {
                numbers = numbers.refreshed();
                refreshes.push(t);
            }
        }
        assert_eq!(refreshes.len(), 3, "{refreshes:?}");
    }
}
