//! How rows are prepared for a training.

use hetal_client::data::{Preparation, ROW_NORM};
use hetal_learn::{Imputation, Scaling};

const HEADING: &str = "Preparation of rows (the model remembers it: give predict rows as they are)";

/// How rows are prepared.
#[derive(clap::Args, Clone, Debug)]
pub struct PreparationArguments {
    /// How features are scaled. What was chosen is printed.
    #[arg(long, value_enum, default_value = "auto", value_name = "METHOD", help_heading = HEADING)]
    pub scale: ScaleArgument,
    /// What replaces missing values: a statistic of the column, over the training rows. Without it
    /// missing values are refused.
    #[arg(long, value_enum, value_name = "STATISTIC", help_heading = HEADING)]
    pub impute: Option<ImputeArgument>,
    /// Length of the longest training row after scaling. A larger length learns faster and less
    /// steadily.
    #[arg(long, default_value_t = ROW_NORM, value_name = "LENGTH", help_heading = HEADING)]
    pub row_norm: f64,
}

/// How features are scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ScaleArgument {
    /// standard for tables. For features of pretrained networks: sqrt if none is negative, or none.
    #[default]
    Auto,
    /// Centre columns, scale all of them alike.
    None,
    /// Centre columns and divide them by their standard deviation, as StandardScaler does.
    Standard,
    /// Divide rows by their length, as Normalizer does.
    UnitRow,
    /// Take square roots, keeping signs, then divide rows by their length.
    Sqrt,
}

/// What replaces missing values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ImputeArgument {
    /// The mean of the column.
    Mean,
    /// The median of the column.
    Median,
}

impl PreparationArguments {
    /// The preparation that was asked for.
    pub fn preparation(&self) -> Preparation {
        let scaling = match self.scale {
            ScaleArgument::Auto => None,
            ScaleArgument::None => Some(Scaling::None),
            ScaleArgument::Standard => Some(Scaling::Standard),
            ScaleArgument::UnitRow => Some(Scaling::UnitRow),
            ScaleArgument::Sqrt => Some(Scaling::Sqrt),
        };
        let imputation = self.impute.map(|impute| match impute {
            ImputeArgument::Mean => Imputation::Mean,
            ImputeArgument::Median => Imputation::Median,
        });
        Preparation { scaling, imputation, row_norm: self.row_norm, ..Preparation::default() }
    }
}
