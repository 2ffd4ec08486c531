//! The public numbers of Nesterov's accelerated gradient.

/// How gradients become steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Momentum {
    /// `W <- W - rate G(W)`.
    None,
    /// `W' = V - rate G(V)`, `V' = W' + beta_t (W' - W)` with `beta_t = (lambda_t - 1) / lambda_(t+1)`, `lambda_1 = 1` and
    /// `lambda_(t+1) = (1 + sqrt(1 + 4 lambda_t^2)) / 2`.
    #[default]
    Nesterov,
}

/// Where the sequence of `lambda_t` stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    momentum: Momentum,
    lambda: f64,
}

impl Pace {
    /// The pace of step 1.
    pub fn new(momentum: Momentum) -> Self {
        Self { momentum, lambda: 1.0 }
    }

    /// `beta_t` of the current step (0 in the first), and the pace of the next.
    pub fn advance(self) -> (f64, Self) {
        let next = (1.0 + libm::sqrt(1.0 + 4.0 * self.lambda * self.lambda)) / 2.0;
        match self.momentum {
            Momentum::None => (0.0, self),
            Momentum::Nesterov => ((self.lambda - 1.0) / next, Self { lambda: next, ..self }),
        }
    }
}
