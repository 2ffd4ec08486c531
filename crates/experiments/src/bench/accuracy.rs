//! `hetal bench accuracy`: trainings of real features to early stopping, exactly and with the errors of encryption.
//!
//! The length features are brought to and the learning rate are chosen by the loss on validation rows. Test rows are looked at once,
//! after that.

use super::train;
use crate::Result;
use crate::noise::BootstrapNoise;
use crate::report::output;
use crate::report::table::{Table, digits};
use crate::runner::engine::EngineKind;
use crate::runner::harness::Harness;
use crate::runner::{self, Experiment, GpuOptions};
use crate::tuning::{Choice, RATES, ROW_NORMS, Sets, choose, preset};
use hetal_circuits::clear::{KeyRequirements, Noise};
use hetal_circuits::{Complex64, Engine};
use hetal_learn::judge::accuracy;
use hetal_learn::{LevelPlan, Matrix, Wishes, reference};
use serde_json::{Value, json};
use std::path::PathBuf;

/// What `hetal bench accuracy` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// A folder with features_{train,val,test}.npy and labels_{train,val,test}.npy.
    #[arg(long)]
    pub data: PathBuf,
    /// The benchmark whose batch and patience are used: facemask, snips, ...
    #[arg(long, default_value = "snips")]
    pub shape: String,
    /// The parameter set whose errors are made.
    #[arg(long, default_value = "full")]
    pub set: String,
    /// Print an array of JSON objects.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let data = Sets::load(&arguments.data, preset(&arguments.shape)?)?;
    let choice = choose(&data, &data.agreement(&Wishes::default())?, &ROW_NORMS, &RATES)?;
    let errors = OperationErrors::measure(&arguments.set)?;
    let objects = vec![report(&data, &choice, &arguments.set, errors)?];
    super::show(&objects, arguments.json, |_| {
        output::print(false, &Value::Null, &format!("{}\n", choice_table(&choice.objects())));
        table(&objects)
    });
    Ok(())
}

/// A table of what was tried.
pub fn choice_table(objects: &[Value]) -> Table {
    Table::of(
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

/// Trains the chosen way with the errors of a set, and compares the test accuracies.
pub fn report(data: &Sets, choice: &Choice, set: &str, errors: OperationErrors) -> Result<Value> {
    let (row_norm, rate, exact) = choice.best();
    let (encryption, operation) = errors.deviations();
    let noise = Noise { encryption, operation, bootstrap: BootstrapNoise::of(set)?.typical, seed: 1 };
    let (sets, agreement) =
        (data.normalised(*row_norm)?, data.agreement(&Wishes { rate: Some(*rate), ..Wishes::default() })?);
    let noisy = train::with_noise(&sets, &agreement, noise, set)?;
    let test = &sets.test;
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
        "best_epoch": exact.best_epoch,
        "noisy_best_epoch": noisy.best_epoch,
        "epochs": exact.epochs,
        "noisy_epochs": noisy.epochs,
        "test_accuracy": exact_accuracy,
        "noisy_test_accuracy": noisy_accuracy,
        "difference_points": 100.0 * (exact_accuracy - noisy_accuracy),
        "weights_relative_difference": noisy.weights.max_difference(&exact.weights) / exact.weights.max_magnitude(),
        "bootstrap_noise": noise.bootstrap,
        "operation_noise": noise.operation,
        "encryption_noise": noise.encryption,
    }))
}

/// A table of reports.
pub fn table(objects: &[Value]) -> Table {
    let mut table = Table::new(&[
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

/// Mean `|error|` over the slots of a fresh ciphertext, and of one rotation and one multiplication of it, its own error included.
#[derive(Clone, Copy, Debug)]
pub struct OperationErrors {
    /// Of an encryption.
    pub encryption: f64,
    /// Of a rotation.
    pub rotation: f64,
    /// Of a multiplication with relinearisation and rescale.
    pub multiplication: f64,
}

impl OperationErrors {
    /// Measures them under encryption, on this machine's CPU.
    pub fn measure(set: &str) -> Result<Self> {
        runner::run(&OneOfEach, EngineKind::Cpu, set, GpuOptions::default())
    }

    /// The deviations per real coordinate of an encryption and of the worse operation, by the mean of a Rayleigh distribution.
    pub fn deviations(&self) -> (f64, f64) {
        let deviation = |mean: f64| mean / (std::f64::consts::PI / 2.0).sqrt();
        (deviation(self.encryption), deviation(self.rotation.max(self.multiplication)))
    }
}

struct OneOfEach;

impl Experiment for OneOfEach {
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
