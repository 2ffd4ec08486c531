//! `hetal bench accuracy`: training on real features to early stopping, with and without the errors
//! of encryption.
//!
//! The validation loss chooses the row length and the learning rate. Test rows are used once, after
//! that choice.

use super::train;
use crate::Result;
use crate::bootstrap_noise::BootstrapNoise;
use crate::report::output::{print, print_table};
use crate::report::table::{TextTable, digits};
use crate::runner::engine::EngineKind;
use crate::runner::harness::Harness;
use crate::runner::{self, Experiment, GpuOptions};
use crate::tuning::{DataSplits, GridSearch, RATES, ROW_NORMS, Trial, grid_search, preset};
use hetal_circuits::clear::{KeyRequirements, Noise};
use hetal_circuits::{Complex64, Engine};
use hetal_learn::judge::accuracy;
use hetal_learn::{LevelPlan, Matrix, Wishes, reference};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Arguments of `hetal bench accuracy`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// A folder with features_{train,val,test}.npy and labels_{train,val,test}.npy.
    #[arg(long)]
    pub data: PathBuf,
    /// The benchmark whose batch and patience are used: facemask, snips, ...
    #[arg(long, default_value = "snips")]
    pub shape: String,
    /// The parameter set whose errors are simulated.
    #[arg(long, default_value = "full")]
    pub set: String,
    /// Print an array of JSON objects.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let data = DataSplits::load(&arguments.data, preset(&arguments.shape)?)?;
    let search = grid_search(&data, &data.agreement(&Wishes::default())?, &ROW_NORMS, &RATES)?;
    let errors = OperationErrors::measure(&arguments.set)?;
    let objects = vec![measure(&data, &search, &arguments.set, errors)?];
    if !arguments.json {
        print(false, &Value::Null, &format!("{}\n", search_table(&search.objects())));
    }
    print_table(arguments.json, &objects, table);
    Ok(())
}

/// The trials of a grid search as a table.
pub fn search_table(objects: &[Value]) -> TextTable {
    TextTable::from_objects(
        objects,
        &[
            ("row_norm", "row length"),
            ("rate", "rate"),
            ("validation_loss", "validation loss"),
            ("validation_accuracy", "validation accuracy"),
            ("best_epoch", "best epoch"),
            ("epochs", "epochs"),
            ("left_range", "left the range"),
            ("chosen", "chosen"),
        ],
    )
}

/// Trains with the best row length and rate and with the errors of a set; compares the accuracies.
pub fn measure(data: &DataSplits, search: &GridSearch, set: &str, errors: OperationErrors) -> Result<Value> {
    let Trial { row_norm, rate, result: exact } = search.best();
    let noise = errors.noise(set)?;
    let splits = data.normalised(*row_norm)?;
    let agreement = data.agreement(&Wishes { rate: Some(*rate), ..Wishes::default() })?;
    let noisy = train::train_with_noise(&splits, &agreement, noise, set)?;
    let test = &splits.test;
    let tested = |weights: &Matrix| -> Result<f64> {
        Ok(accuracy(&reference::logits(test.features(), weights)?, test.labels())?)
    };
    let (exact_accuracy, noisy_accuracy) = (tested(&exact.weights)?, tested(&noisy.weights)?);
    Ok(json!({
        "data": data.name,
        "rows": data.train.rows(),
        "batch": data.preset.batch,
        "patience": agreement.patience,
        "row_norm": row_norm,
        "rate": rate,
        "validation_loss": exact.loss,
        "noisy_validation_loss": noisy.loss,
        "best_epoch": exact.best_check,
        "noisy_best_epoch": noisy.best_check,
        "epochs": exact.checks,
        "noisy_epochs": noisy.checks,
        "test_accuracy": exact_accuracy,
        "noisy_test_accuracy": noisy_accuracy,
        "difference_points": 100.0 * (exact_accuracy - noisy_accuracy),
        "weights_relative_difference": noisy.weights.max_difference(&exact.weights) / exact.weights.max_magnitude(),
        "bootstrap_noise": noise.bootstrap,
        "operation_noise": noise.operation,
        "encryption_noise": noise.encryption,
    }))
}

/// Reports as a table.
pub fn table(objects: &[Value]) -> TextTable {
    let mut table = TextTable::new(&[
        "data",
        "rows",
        "row length",
        "rate",
        "best epoch / epochs",
        "with noise",
        "test accuracy",
        "with noise",
        "points lost",
        "weights differ by",
    ]);
    for object in objects {
        let number = |name: &str| object[name].as_f64().unwrap_or(f64::NAN);
        let percent = |name: &str| format!("{:.2} %", 100.0 * number(name));
        let epochs = |best: &str, all: &str| format!("{} / {}", object[best], object[all]);
        table.push(vec![
            object["data"].as_str().unwrap_or("").to_owned(),
            object["rows"].to_string(),
            digits(number("row_norm")),
            digits(number("rate")),
            epochs("best_epoch", "epochs"),
            epochs("noisy_best_epoch", "noisy_epochs"),
            percent("test_accuracy"),
            percent("noisy_test_accuracy"),
            format!("{:.2}", number("difference_points")),
            digits(number("weights_relative_difference")),
        ]);
    }
    table
}

/// The mean `|error|` over the slots after one operation.
///
/// The errors of a rotation and a multiplication include the error of the fresh ciphertext.
#[derive(Clone, Copy, Debug)]
pub struct OperationErrors {
    /// After an encryption.
    pub encryption: f64,
    /// After a rotation.
    pub rotation: f64,
    /// After a multiplication with relinearisation and rescale.
    pub multiplication: f64,
}

impl OperationErrors {
    /// Measures the errors of a set on the CPU.
    pub fn measure(set: &str) -> Result<Self> {
        runner::run(&MeasureErrors, EngineKind::Cpu, set, GpuOptions::default())
    }

    /// The Gaussian noise of a set: these errors and those of its bootstraps.
    ///
    /// A mean `|error|` is converted to a deviation by the mean of a Rayleigh distribution.
    pub fn noise(&self, set: &str) -> Result<Noise> {
        let deviation = |mean: f64| mean / (std::f64::consts::PI / 2.0).sqrt();
        Ok(Noise {
            encryption: deviation(self.encryption),
            operation: deviation(self.rotation.max(self.multiplication)),
            bootstrap: BootstrapNoise::of(set)?.typical,
            seed: 1,
            ..Noise::default()
        })
    }
}

/// One encryption, one rotation and one multiplication.
struct MeasureErrors;

impl Experiment for MeasureErrors {
    type Output = OperationErrors;

    fn required_keys(&self) -> Result<KeyRequirements> {
        let level = LevelPlan::lowest().probabilities();
        Ok(KeyRequirements { rotations: vec![(1, level)], relinearisation: Some(level), ..KeyRequirements::default() })
    }

    fn run<H: Harness>(&self, harness: &H) -> Result<OperationErrors> {
        let engine = harness.engine();
        let slots = engine.slots();
        let values: Vec<Complex64> = (0..slots).map(|i| Complex64::from_polar(1.0, (i * i) as f64)).collect();
        let ct = harness.encrypt(&values, LevelPlan::lowest().probabilities())?;
        let mean = |got: Vec<Complex64>, expected: &dyn Fn(usize) -> Complex64| {
            got.iter().enumerate().map(|(i, v)| (v - expected(i)).norm()).sum::<f64>() / slots as f64
        };
        let fresh = harness.decrypt(&ct)?;
        let rotated = harness.decrypt(&engine.rotate(&ct, 1)?)?;
        let squared = harness.decrypt(&engine.square(&ct)?)?;
        Ok(OperationErrors {
            encryption: mean(fresh, &|i| values[i]),
            rotation: mean(rotated, &|i| values[(i + 1) % slots]),
            multiplication: mean(squared, &|i| values[i] * values[i]),
        })
    }
}
