//! The schedule of Nesterov's accelerated gradient. Its numbers are public.

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
    }
}
