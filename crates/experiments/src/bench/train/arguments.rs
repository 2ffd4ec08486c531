//! Arguments of `hetal bench train`.

use crate::runner::GpuOptions;
use crate::runner::engine::EngineKind;
use crate::runner::key_plan::ExperimentKeys;
use crate::tuning::preset;
use crate::{Error, Result};
use hetal_circuits::KeyPlan;
use hetal_learn::RowForm;
use hetal_learn::agreement::Preset;
use std::path::PathBuf;

/// Whether the row-shifted versions of all batches stay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum VersionsKept {
    /// As many as fit.
    Auto,
    /// All of them.
    Resident,
    /// None: they are computed again each time a batch is used.
    Remade,
}

/// The form in which rows are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EncryptedForm {
    /// In slots.
    Slots,
    /// In coefficients: they are lifted before the first iteration.
    Coefficients,
}

impl From<EncryptedForm> for RowForm {
    fn from(form: EncryptedForm) -> Self {
        match form {
            EncryptedForm::Slots => Self::Slots,
            EncryptedForm::Coefficients => Self::Coefficients,
        }
    }
}

/// A training circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CircuitChoice {
    /// The classifier in one ciphertext, normalise-and-sharpen.
    Ours,
    /// DiagABT, ASoftmax, DiagATB, weights tiled over many ciphertexts.
    Paper,
}

impl CircuitChoice {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            CircuitChoice::Ours => "ours",
            CircuitChoice::Paper => "paper",
        }
    }
}

/// Arguments of `hetal bench train`.
#[derive(Clone, clap::Args)]
pub struct Arguments {
    /// The benchmark: mnist, cifar10, facemask, dermamnist, snips, or one of them with -large.
    #[arg(long, default_value = "snips")]
    pub shape: String,
    /// Rows of a batch, instead of the benchmark's.
    #[arg(long, conflicts_with_all = ["data", "patience"])]
    pub batch: Option<usize>,
    /// Features of a row, instead of the benchmark's.
    #[arg(long, conflicts_with_all = ["data", "patience"])]
    pub features: Option<usize>,
    /// Classes, instead of the benchmark's.
    #[arg(long, conflicts_with_all = ["data", "patience"])]
    pub classes: Option<usize>,
    /// Where iterations run.
    #[arg(long, value_enum, default_value = "clear")]
    pub engine: EngineKind,
    /// The circuit that runs on the engine. The other one runs on plain numbers for comparison.
    #[arg(long, value_enum, default_value = "ours")]
    pub circuit: CircuitChoice,
    /// The parameter set.
    #[arg(long, default_value = "full")]
    pub set: String,
    /// A folder with features_{train,test}.npy and labels_{train,test}.npy, instead of random
    /// features.
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// Training rows of --data that are used (without --patience).
    #[arg(long, default_value_t = 2048)]
    pub rows: usize,
    /// Batches of random features.
    #[arg(long, default_value_t = 1)]
    pub batches: usize,
    /// The number of iterations.
    #[arg(long, default_value_t = 1)]
    pub iterations: usize,
    /// Train on all rows of --data until this many epochs bring no improvement on
    /// features_val.npy.
    #[arg(long, requires = "data")]
    pub patience: Option<usize>,
    /// Length of the longest row after scaling (with --patience; by default the best on the
    /// validation rows).
    #[arg(long)]
    pub row_norm: Option<f64>,
    /// The learning rate (by default the paper's; with --patience the best on the validation rows).
    #[arg(long)]
    pub rate: Option<f64>,
    /// The form in which rows are encrypted.
    #[arg(long, value_enum, default_value = "slots")]
    pub rows_form: EncryptedForm,
    /// Which row-shifted versions of the features stay in memory.
    #[arg(long, value_enum, default_value = "auto")]
    pub versions: VersionsKept,
    /// The keys.
    #[command(flatten)]
    pub keys: ExperimentKeys,
    /// The number of the GPU.
    #[arg(long, default_value_t = 0)]
    pub device: usize,
    /// Only report the device memory that the training needs. Works without a GPU.
    #[arg(long)]
    pub plan: bool,
    /// Time the kernels of one more iteration on the GPU.
    #[arg(long)]
    pub profile: bool,
    /// Print an array of JSON objects.
    #[arg(long)]
    pub json: bool,
}

impl Arguments {
    /// Whether the shape differs from the paper's.
    pub(super) fn is_custom(&self) -> bool {
        self.batch.or(self.features).or(self.classes).is_some()
    }

    /// The name of the shape in reports.
    pub(super) fn shape_name(&self) -> &str {
        if self.is_custom() { "custom" } else { &self.shape }
    }

    /// The benchmark, with the values that replace the paper's.
    pub(super) fn preset(&self) -> Result<Preset> {
        let paper = *preset(&self.shape)?;
        if [self.batch, self.features, self.classes].contains(&Some(0)) {
            return Err(Error::EmptyShape);
        }
        Ok(Preset {
            batch: self.batch.unwrap_or(paper.batch),
            features: self.features.unwrap_or(paper.features),
            classes: self.classes.unwrap_or(paper.classes),
            ..paper
        })
    }

    /// How many keys bootstraps use.
    pub(super) fn key_plan(&self) -> KeyPlan {
        self.keys.plan()
    }

    /// Whether bootstraps are recorded as graphs.
    ///
    /// Graphs save about a hundredth of the time and need memory, so `--versions remade` does
    /// without them.
    pub(super) fn graphs(&self) -> bool {
        self.versions != VersionsKept::Remade
    }

    pub(super) fn gpu_options(&self) -> GpuOptions {
        GpuOptions { device: self.device, key_plan: self.key_plan() }
    }
}
