//! `hetal bench tables`: accuracy with default settings on small tables, compared with
//! scikit-learn, and on folders of features.
//!
//! Rows are read, prepared and split as `hetal train` does, with the same [`Defaults`]. None was
//! chosen on splits 11 to 20, which are reported apart.

use crate::bench::accuracy::OperationErrors;
use crate::bench::train;
use crate::report::output::print_table;
use crate::report::table::{TextTable, digits};
use crate::runner::GpuOptions;
use crate::runner::engine::EngineKind;
use crate::tuning::{DataSplits, TrainingResult, train_plain};
use crate::{Error, Result};
use hetal_circuits::clear::Noise;
use hetal_client::data::tables::{self, Options};
use hetal_client::data::{Preparation, class_numbers};
use hetal_client::training::Defaults;
use hetal_client::{Labelled, TrainingData};
use hetal_learn::agreement::{Preset, check_every};
use hetal_learn::judge::{RANGES, accuracy};
use hetal_learn::split_mix::SplitMix64;
use hetal_learn::{Agreement, AgreementLimits, LabelledMatrix, Matrix, Wishes, reference};
use rayon::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The tables, in the order of the report.
const TABLES: [&str; 6] = ["iris", "wine", "breast-cancer", "digits", "separable", "separable-id"];
/// The splits of each table.
const SPLITS: usize = 20;
/// The splits that the defaults were chosen on.
const CHOSEN_ON: usize = 10;
/// The accuracy may be below scikit-learn's by this many points.
const TOLERATED_POINTS: f64 = 0.5;

/// Arguments of `hetal bench tables`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The folder of the tables and of scikit-learn's results.
    #[arg(long, default_value = "crates/experiments/data/tables")]
    pub data: PathBuf,
    /// Only these tables, separated by commas.
    #[arg(long, value_delimiter = ',', default_values = TABLES)]
    pub tables: Vec<String>,
    /// Instead of the tables: folders with features_{train,val,test}.npy and
    /// labels_{train,val,test}.npy.
    #[arg(long, value_delimiter = ',', value_name = "DIRS")]
    pub features: Vec<PathBuf>,
    /// Train on ciphertexts too, with one split of each table, and compare the predictions.
    #[arg(long, value_enum, value_name = "ENGINE")]
    pub engine: Option<EngineKind>,
    /// The split that ciphertexts are trained on.
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u64).range(1..=SPLITS as u64))]
    pub split: u64,
    /// At most this many epochs on ciphertexts, and as many in the clear.
    #[arg(long, value_name = "COUNT", requires = "engine")]
    pub epochs: Option<usize>,
    /// With --features: train with the measured errors of --set, too.
    #[arg(long, requires = "features")]
    pub noise: bool,
    /// The parameter set of the ciphertexts, or of the errors.
    #[arg(long, default_value = "insecure-toy11")]
    pub set: String,
    /// Print an array of JSON objects.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(engine) = arguments.engine {
        let compare = |name: &String| encrypted_report(arguments, name, engine);
        let objects: Vec<Value> = arguments.tables.iter().map(compare).collect::<Result<_>>()?;
        print_table(arguments.json, &objects, encrypted_table);
        return Ok(());
    }
    if !arguments.features.is_empty() {
        let noise = match arguments.noise {
            true => Some((OperationErrors::measure(&arguments.set)?.noise(&arguments.set)?, arguments.set.as_str())),
            false => None,
        };
        let objects: Vec<Value> =
            arguments.features.iter().map(|folder| folder_report(folder, noise)).collect::<Result<_>>()?;
        print_table(arguments.json, &objects, folder_table);
        return Ok(());
    }
    let theirs = read_json(&arguments.data.join("scikit-learn.json"))?;
    let report = |name: &String| table_report(&arguments.data, name, &theirs["tables"][name.as_str()]);
    let objects: Vec<Value> = arguments.tables.iter().map(report).collect::<Result<_>>()?;
    print_table(arguments.json, &objects, table);
    Ok(())
}

/// A table with all its rows.
struct LabelledTable {
    rows: Labelled,
    classes: Vec<String>,
    labels: Vec<usize>,
}

impl LabelledTable {
    fn read(folder: &Path, name: &str) -> Result<Self> {
        let read = tables::read(&folder.join(format!("{name}.csv")), &Options::labelled("target"));
        let rows = Labelled::new(read.map_err(hetal_client::Error::from)?, None)?;
        let classes = rows.labels.classes();
        let labels = class_numbers(&rows.labels, &classes)?;
        Ok(Self { rows, classes, labels })
    }

    /// Training and test rows: three in ten rows of each class, rounded down, are test rows.
    fn split(&self, number: u64) -> (Vec<usize>, Vec<usize>) {
        let mut left = vec![0; self.classes.len()];
        self.labels.iter().for_each(|&label| left[label] += 1);
        left.iter_mut().for_each(|count| *count = *count * 3 / 10);
        let is_test = |row: &usize| {
            let left = &mut left[self.labels[*row]];
            *left > 0 && std::mem::replace(left, *left - 1) > 0
        };
        let (test, training) = SplitMix64(number).permutation(self.labels.len()).into_iter().partition(is_test);
        (training, test)
    }

    /// Trains with the defaults on a split, for at most `epochs` epochs.
    fn train(&self, number: u64, epochs: Option<usize>) -> Result<DefaultTraining> {
        let (training, test) = self.split(number);
        let data = TrainingData::new(&self.rows.selected(&training), None, &Preparation::default())?;
        let tested = self.rows.selected(&test);
        DefaultTraining::new(data, &tested.features, test.iter().map(|&row| self.labels[row]).collect(), epochs)
    }
}

/// A training with the default settings, and its test rows.
struct DefaultTraining {
    data: TrainingData,
    agreement: Agreement,
    splits: DataSplits,
    plain: TrainingResult,
    test_features: Matrix,
    test_labels: Vec<usize>,
}

impl DefaultTraining {
    fn new(data: TrainingData, test_features: &Matrix, test_labels: Vec<usize>, epochs: Option<usize>) -> Result<Self> {
        let agreement = agreement(&data)?;
        let max_epochs = epochs.map_or(agreement.max_epochs, |epochs| epochs.min(agreement.max_epochs));
        let agreement = Agreement { max_epochs, ..agreement };
        let classes = data.classes.len();
        // The test rows of the splits serve the comparison of engines only.
        let normalised = data.normalisation.training_rows(test_features.clone())?.features;
        let preset = Preset {
            name: "table",
            batch: agreement.batch,
            features: data.features(),
            classes,
            rate: agreement.rate,
            training_rows: data.training.rows(),
            validation_rows: data.validation.rows(),
            epochs: agreement.max_epochs,
        };
        let splits = DataSplits {
            name: String::new(),
            preset,
            train: data.training.clone(),
            validation: data.validation.clone(),
            test: LabelledMatrix::new(normalised, test_labels.clone(), classes)?,
        };
        let plain = train_plain(&splits, &agreement)?;
        Ok(Self { data, agreement, splits, plain, test_features: test_features.clone(), test_labels })
    }

    /// Logits of the test rows as they are, with the normalisation folded into the weights.
    fn test_logits(&self, weights: &Matrix) -> Result<Matrix> {
        let normalisation = &self.data.normalisation;
        let folded = normalisation.fold(weights)?;
        Ok(reference::logits(&normalisation.prepared(&self.test_features), &folded)?)
    }

    fn accuracy(&self) -> Result<f64> {
        self.accuracy_of(&self.plain.weights)
    }

    /// The accuracy of weights for normalised features on the test rows.
    fn accuracy_of(&self, weights: &Matrix) -> Result<f64> {
        Ok(accuracy(&self.test_logits(weights)?, &self.test_labels)?)
    }

    /// The agreement with the first range whose end the logits do not come near. `hetal train`
    /// would widen to it.
    fn in_range(&self) -> Agreement {
        let largest = self.largest_logit();
        let range = RANGES.into_iter().skip(1).find(|range| largest <= 0.7 * range);
        Agreement { range: range.unwrap_or(RANGES[RANGES.len() - 1]), ..self.agreement.clone() }
    }

    /// The largest magnitude of a logit in training.
    fn largest_logit(&self) -> f64 {
        self.plain.ranges.iter().fold(0.0, |m, &(low, high)| m.max(-low).max(high))
    }
}

/// What a client with the defaults and a server of the default configuration agree on.
pub(super) fn agreement(data: &TrainingData) -> Result<Agreement> {
    let defaults = Defaults::new(data);
    let wishes = defaults.fill(&Wishes::default(), data.training.rows(), None);
    let agreement = AgreementLimits::default().agree(&wishes)?;
    let batches = data.training.rows().div_ceil(agreement.batch);
    let check_every = check_every(wishes.check_every, 0, batches, agreement.max_epochs)?;
    // A training in the clear has no range.
    Ok(Agreement { range: RANGES[RANGES.len() - 1], check_every, ..agreement })
}

/// Trains on all splits of a table. Returns a flat object.
fn table_report(folder: &Path, name: &str, theirs: &Value) -> Result<Value> {
    let table = LabelledTable::read(folder, name)?;
    let first: Vec<usize> = table.split(1).1.into_iter().take(8).collect();
    let same = theirs["first_test_rows"]
        .as_array()
        .is_some_and(|rows| *rows == json!(first).as_array().cloned().unwrap_or_default());
    let their: Vec<f64> = theirs["accuracy"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    if !same || their.len() != SPLITS {
        let path = folder.join("scikit-learn.json").display().to_string();
        return Err(Error::File {
            path,
            reason: format!("no results for the splits of {name}: run scripts/tables.py"),
        });
    }
    let one =
        |split: usize| table.train(split as u64 + 1, None).and_then(|training| Ok((training.accuracy()?, training)));
    let trained: Vec<(f64, DefaultTraining)> = (0..SPLITS).into_par_iter().map(one).collect::<Result<_>>()?;
    let ours: Vec<f64> = trained.iter().map(|(accuracy, _)| *accuracy).collect();
    let points = |range: std::ops::Range<usize>| 100.0 * (mean(&ours[range.clone()]) - mean(&their[range]));
    let largest = |of: &dyn Fn(&DefaultTraining) -> f64| trained.iter().map(|(_, t)| of(t)).fold(0.0, f64::max);
    let iterations: Vec<f64> = trained.iter().map(|(_, training)| training.plain.ranges.len() as f64).collect();
    let last = &trained[SPLITS - 1].1;
    Ok(json!({
        "table": name,
        "training_rows": last.data.training.rows(),
        "validation_rows": last.data.preparation.validation_rows,
        "validates_on_training_rows": last.data.preparation.validates_on_training_rows,
        "test_rows": last.test_labels.len(),
        "columns": last.data.features(),
        "classes": last.data.classes.len(),
        "scaling": last.data.preparation.scaling.name(),
        "batch": last.agreement.batch,
        "rate": last.agreement.rate,
        "alpha": last.agreement.alpha,
        "iterations": mean(&iterations),
        "largest_logit": largest(&DefaultTraining::largest_logit),
        "accuracy_1_to_10": mean(&ours[..CHOSEN_ON]),
        "accuracy_11_to_20": mean(&ours[CHOSEN_ON..]),
        "scikit_learn_1_to_10": mean(&their[..CHOSEN_ON]),
        "scikit_learn_11_to_20": mean(&their[CHOSEN_ON..]),
        "points_1_to_10": points(0..CHOSEN_ON),
        "points_11_to_20": points(CHOSEN_ON..SPLITS),
        "points": points(0..SPLITS),
        "holds": points(0..SPLITS) >= -TOLERATED_POINTS,
        "accuracy": ours,
    }))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Reports as a table.
fn table(objects: &[Value]) -> TextTable {
    let titles = [
        "table",
        "rows",
        "columns",
        "iterations",
        "scikit-learn",
        "hetal 1-10",
        "points",
        "hetal 11-20",
        "points",
        "all",
        "holds",
    ];
    let mut table = TextTable::new(&titles);
    for object in objects {
        let number = |name: &str| object[name].as_f64().unwrap_or(f64::NAN);
        let percent = |name: &str| format!("{:.2} %", 100.0 * number(name));
        let points = |name: &str| format!("{:+.2}", number(name));
        table.push(vec![
            object["table"].as_str().unwrap_or_default().to_owned(),
            object["training_rows"].to_string(),
            object["columns"].to_string(),
            digits(number("iterations").round()),
            format!("{}, {}", percent("scikit_learn_1_to_10"), percent("scikit_learn_11_to_20")),
            percent("accuracy_1_to_10"),
            points("points_1_to_10"),
            percent("accuracy_11_to_20"),
            points("points_11_to_20"),
            points("points"),
            if object["holds"] == true { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table
}

/// The prepared training rows of a split of a table, and its normalised test rows.
pub(super) fn table_data(folder: &Path, name: &str, split: u64) -> Result<(TrainingData, LabelledMatrix)> {
    let training = LabelledTable::read(folder, name)?.train(split, None)?;
    Ok((training.data, training.splits.test))
}

/// The prepared rows of a folder of features, and its normalised test rows.
pub(super) fn folder_data(folder: &Path) -> Result<(TrainingData, LabelledMatrix)> {
    let (data, test, labels) = folder_rows(folder)?;
    let features = data.normalisation.training_rows(test.features)?.features;
    let classes = data.classes.len();
    Ok((data, LabelledMatrix::new(features, labels, classes)?))
}

/// The prepared rows of a folder of features, its test rows, and their classes.
fn folder_rows(folder: &Path) -> Result<(TrainingData, Labelled, Vec<usize>)> {
    let options = Options::default();
    let part = |name: &str| -> Result<Labelled> {
        let (features, labels) =
            (folder.join(format!("features_{name}.npy")), folder.join(format!("labels_{name}.npy")));
        let table = tables::read(&features, &options).map_err(hetal_client::Error::from)?;
        let labels =
            tables::read_labels(&labels, None, Some(table.rows), &options).map_err(hetal_client::Error::from)?;
        Ok(Labelled::new(table, Some(labels.0))?)
    };
    let (train, validation, test) = (part("train")?, part("val")?, part("test")?);
    let data = TrainingData::new(&train, Some(&validation), &Preparation::default())?;
    let labels = class_numbers(&test.labels, &data.classes)?;
    Ok((data, test, labels))
}

/// Trains on a folder of features with the defaults, and again with the errors of a set, if they
/// are given. Returns a flat object.
fn folder_report(folder: &Path, noise: Option<(Noise, &str)>) -> Result<Value> {
    let (data, test, labels) = folder_rows(folder)?;
    let training = DefaultTraining::new(data, &test.features, labels, None)?;
    let noisy = noise.map(|(noise, set)| {
        let result = train::train_with_noise(&training.splits, &training.in_range(), noise, set)?;
        let difference = result.weights.max_difference(&training.plain.weights);
        Ok::<_, Error>((training.accuracy_of(&result.weights)?, difference / training.plain.weights.max_magnitude()))
    });
    let noisy = noisy.transpose()?;
    Ok(json!({
        "folder": folder.file_name().map(|name| name.to_string_lossy().into_owned()),
        "rows": training.data.training.rows(),
        "scaling": training.data.preparation.scaling.name(),
        "batch": training.agreement.batch,
        "rate": training.agreement.rate,
        "alpha": training.agreement.alpha,
        "iterations": training.plain.ranges.len(),
        "largest_logit": training.largest_logit(),
        "validation_loss": training.plain.loss,
        "validation_accuracy": training.plain.validation_accuracy,
        "test_accuracy": training.accuracy()?,
        "noisy_test_accuracy": noisy.map(|(accuracy, _)| accuracy),
        "weights_relative_difference": noisy.map(|(_, difference)| difference),
    }))
}

fn folder_table(objects: &[Value]) -> TextTable {
    let fields = ["folder", "rows", "scaling", "batch", "rate", "alpha", "iterations", "largest_logit"];
    let more = ["validation_loss", "validation_accuracy", "test_accuracy"];
    let noisy = ["noisy_test_accuracy", "weights_relative_difference"];
    let has_noise = objects.iter().any(|object| !object[noisy[0]].is_null());
    let noisy = noisy.into_iter().filter(|_| has_noise);
    let fields: Vec<(&str, &str)> = fields.into_iter().chain(more).chain(noisy).map(|name| (name, name)).collect();
    TextTable::from_objects(objects, &fields)
}

/// Trains one split of a table on an engine and compares its predictions. Returns a flat object.
fn encrypted_report(arguments: &Arguments, name: &str, engine: EngineKind) -> Result<Value> {
    let training = LabelledTable::read(&arguments.data, name)?.train(arguments.split, arguments.epochs)?;
    let agreement = training.in_range();
    let result = train::train_on(engine, &arguments.set, GpuOptions::default(), &training.splits, &agreement)?;
    let (plain, encrypted) = (&training.plain, &result);
    let logits = (training.test_logits(&plain.weights)?, training.test_logits(&encrypted.weights)?);
    let predicted = |logits: &Matrix| -> Vec<usize> {
        (0..logits.rows()).map(|i| hetal_learn::judge::predicted(logits.row(i))).collect()
    };
    let (ours, theirs) = (predicted(&logits.0), predicted(&logits.1));
    Ok(json!({
        "table": name,
        "engine": engine.name(),
        "set": arguments.set,
        "split": arguments.split,
        "range": agreement.range,
        "checks": encrypted.checks,
        "plain_checks": plain.checks,
        "best": encrypted.best_check,
        "plain_best": plain.best_check,
        "accuracy": accuracy(&logits.1, &training.test_labels)?,
        "plain_accuracy": accuracy(&logits.0, &training.test_labels)?,
        "different_predictions": ours.iter().zip(&theirs).filter(|(a, b)| a != b).count(),
        "weights_relative_difference": encrypted.weights.max_difference(&plain.weights) / plain.weights.max_magnitude(),
    }))
}

fn encrypted_table(objects: &[Value]) -> TextTable {
    let fields = ["table", "engine", "range", "checks", "plain_checks", "accuracy", "plain_accuracy"];
    let more = ["different_predictions", "weights_relative_difference"];
    let fields: Vec<(&str, &str)> = fields.into_iter().chain(more).map(|name| (name, name)).collect();
    TextTable::from_objects(objects, &fields)
}

fn read_json(path: &Path) -> Result<Value> {
    let bad = |reason: String| Error::File { path: path.display().to_string(), reason };
    let text = std::fs::read_to_string(path)
        .map_err(|e| bad(format!("{e}; run the command in the root of the repository, or give --data")))?;
    serde_json::from_str(&text).map_err(|e| bad(e.to_string()))
}
