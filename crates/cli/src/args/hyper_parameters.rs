//! Hyper-parameters on the command line.

use hetal_learn::Wishes;
use hetal_learn::nesterov::Momentum;

/// Hyper-parameters to ask the server for; it has defaults for all.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct WishArguments {
    /// Rows of a batch.
    #[arg(long, value_name = "ROWS", help_heading = "Hyper-parameters to ask for (left out: the server's defaults)")]
    pub batch: Option<usize>,
    /// The learning rate.
    #[arg(long, help_heading = "Hyper-parameters to ask for (left out: the server's defaults)")]
    pub rate: Option<f64>,
    /// Epochs without improvement before training stops.
    #[arg(long, value_name = "EPOCHS", help_heading = "Hyper-parameters to ask for (left out: the server's defaults)")]
    pub patience: Option<usize>,
    /// The most epochs.
    #[arg(long, help_heading = "Hyper-parameters to ask for (left out: the server's defaults)")]
    pub epochs: Option<usize>,
    /// Plain gradient descent instead of Nesterov's momentum.
    #[arg(long, help_heading = "Hyper-parameters to ask for (left out: the server's defaults)")]
    pub no_momentum: bool,
}

impl WishArguments {
    /// As the server understands them.
    pub fn wishes(&self) -> Wishes {
        let momentum = self.no_momentum.then_some(Momentum::None);
        Wishes { batch: self.batch, rate: self.rate, momentum, patience: self.patience, max_epochs: self.epochs }
    }
}
