//! Hyper-parameters that a training requests.

use hetal_learn::Wishes;
use hetal_learn::nesterov::Momentum;

const HEADING: &str = "Hyper-parameters (default: what fits the rows, or the server's)";

/// Hyper-parameters to request.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct HyperParameterArguments {
    /// Rows of a batch.
    #[arg(long, value_name = "ROWS", help_heading = HEADING)]
    pub batch: Option<usize>,
    /// The learning rate.
    #[arg(long, help_heading = HEADING)]
    pub rate: Option<f64>,
    /// Checks of the validation rows without improvement before training stops.
    #[arg(long, value_name = "CHECKS", help_heading = HEADING)]
    pub patience: Option<usize>,
    /// The largest number of epochs.
    #[arg(long, help_heading = HEADING)]
    pub epochs: Option<usize>,
    /// Iterations between two checks of the validation rows. Each check takes a verdict, which
    /// tells the server two bits; a training takes at most 200.
    #[arg(long, value_name = "ITERATIONS", help_heading = HEADING)]
    pub check_every: Option<usize>,
    /// The strength of L2: alpha |W|^2 / 2 is added to the loss, biases left out. It is
    /// 1 / (C n) for scikit-learn's C and n training rows, or the sum of their weights. 0 is none.
    #[arg(long, help_heading = HEADING)]
    pub alpha: Option<f64>,
    /// Use gradient descent without Nesterov's momentum.
    #[arg(long, help_heading = HEADING)]
    pub no_momentum: bool,
}

impl HyperParameterArguments {
    /// The request to the server.
    pub fn wishes(&self) -> Wishes {
        let momentum = self.no_momentum.then_some(Momentum::None);
        Wishes {
            batch: self.batch,
            rate: self.rate,
            momentum,
            patience: self.patience,
            max_epochs: self.epochs,
            alpha: self.alpha,
            check_every: self.check_every,
        }
    }
}
