//! Features and labels of training rows.

use super::preparation::PreparationArguments;
use super::table::TableArguments;
use super::weights::{ChosenWeights, WeightArguments};
use crate::terminal::progress;
use crate::{Error, Result};
use hetal_client::data::tables::{self, Note, Options, Report};
use hetal_client::data::{Labels, Preparation, PreparationReport, Table};
use hetal_client::{Labelled, TrainingData};
use hetal_extract_api::Manifest;
use hetal_extract_api::sanitize_terminal;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Files with training rows and validation rows.
#[derive(clap::Args, Clone, Debug)]
pub struct DataArguments {
    /// Features of the training rows: .npy, .npz, .safetensors, .csv, .tsv, .jsonl, .parquet or
    /// .arrow.
    #[arg(long, value_name = "FILE", help_heading = "Rows")]
    pub features: PathBuf,
    /// Labels of the training rows in a file of their own (FILE#NAME selects an array or column).
    #[arg(long, value_name = "FILE", help_heading = "Rows")]
    pub labels: Option<String>,
    /// The column (by name, or by number; the first is 1) or the array (.npz, .safetensors) of the
    /// feature file that contains the labels.
    #[arg(long, conflicts_with = "labels", value_name = "NAME", help_heading = "Rows")]
    pub label_column: Option<String>,
    /// The feature columns, by name or by number (the first is 1), separated by commas. Without
    /// it, all columns but that of the labels.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = "Rows")]
    pub columns: Vec<String>,
    /// How the files are read.
    #[command(flatten)]
    pub table: TableArguments,
    /// Weights of rows and classes.
    #[command(flatten)]
    pub weights: WeightArguments,
    /// Features of validation rows. Without it, one row in 16 of each class is used for
    /// validation; of a table below 512 rows none are, and training rows are validated.
    #[arg(long, value_name = "FILE", help_heading = "Rows")]
    pub validation: Option<PathBuf>,
    /// Labels of the validation rows.
    #[arg(long, requires = "validation", value_name = "FILE", help_heading = "Rows")]
    pub validation_labels: Option<String>,
    /// How the rows are prepared.
    #[command(flatten)]
    pub preparation: PreparationArguments,
    /// The manifest that `hetal extract` wrote with the features; the model stores it. The default
    /// is manifest.json next to the features.
    #[arg(long, value_name = "FILE", help_heading = "Rows")]
    pub manifest: Option<PathBuf>,
}

/// The rows of a training, and what was found out about them.
pub struct ReadRows {
    /// The rows, split and normalised.
    pub task: TrainingData,
    /// The manifest of the features, if there is one.
    pub manifest: Option<Manifest>,
    /// The report on the training rows.
    pub report: Report,
    /// The weights that were chosen.
    pub weights: ChosenWeights,
}

impl DataArguments {
    /// Reads, splits and normalises the rows.
    pub fn read(&self) -> Result<ReadRows> {
        let options = self.table.options(self.label_column.as_deref(), &self.columns);
        let weight = self.weights.weight_column.clone();
        let options = Options { weight, keep_missing: self.preparation.impute.is_some(), ..options };
        let training = self.labelled(&self.features, self.labels.as_deref(), &options)?;
        let manifest = self.extraction(training.table.columns.len())?;
        // Validation rows have the columns of the training rows, in any order.
        let options = match training.table.names() {
            Some(names) => Options { columns: Vec::new(), drop: Vec::new(), expected: Some(names), ..options },
            None => options,
        };
        let weight = options.weight.clone().filter(|_| self.weights.validation_sample_weight.is_none());
        let options = Options { weight, ..options };
        let validation = self.validation.as_deref();
        let validation = validation
            .map(|path| self.labelled(path, self.validation_labels.as_deref(), &options))
            .transpose()
            .map_err(with_validation_options)?;
        let named = |rows: LabelledTable, features: &Path, labels: Option<&str>| {
            // A manifest that was not named applies only to the labels written with it.
            let applies = self.manifest.is_some() || written_with_manifest(features, labels);
            rows.named(manifest.as_ref().filter(|_| applies))
        };
        let training = named(training, &self.features, self.labels.as_deref())?;
        let report = Report::new(&training.table, None);
        let mut validation = match (validation, &self.validation) {
            (Some(rows), Some(features)) => {
                let rows = named(rows, features, self.validation_labels.as_deref())?;
                rows.table.notes.iter().for_each(|note| print_note(&rows.file, note));
                Some(rows.into_labelled()?)
            }
            _ => None,
        };
        training.require_trainable()?;
        let preparation = Preparation { from_network: manifest.is_some(), ..self.preparation.preparation() };
        let mut training = training.into_labelled()?;
        let weights = self.weights.apply(&mut training, validation.as_mut(), &self.table)?;
        let task = TrainingData::new(&training, validation.as_ref(), &preparation)?;
        Ok(ReadRows { weights: weights.of(&task), task, manifest, report })
    }

    fn labelled(&self, features: &Path, labels: Option<&str>, options: &Options) -> Result<LabelledTable> {
        LabelledTable::read(features, labels, options, &self.table.label_options())
    }

    /// The manifest that was given or that lies next to the features.
    ///
    /// A manifest of other features is an error if it was given. Otherwise it is ignored with a
    /// note.
    fn extraction(&self, columns: usize) -> Result<Option<Manifest>> {
        let beside = self.features.with_file_name(Manifest::FILE);
        let path = self.manifest.clone().or_else(|| beside.is_file().then_some(beside));
        let Some(path) = path else { return Ok(None) };
        let found = Manifest::open(&path).map_err(Error::from).and_then(|manifest| match manifest.model.columns {
            described if described == columns => Ok(manifest),
            described => {
                let (path, features) = (path.display().to_string(), self.features.display().to_string());
                Err(Error::OtherManifest { path, described, features, found: columns })
            }
        });
        match found {
            Ok(manifest) => Ok(Some(manifest)),
            Err(error) if self.manifest.is_some() => Err(error),
            Err(error) => {
                eprintln!("note: the model is stored without a manifest: {error}");
                Ok(None)
            }
        }
    }
}

/// The reports on rows and on their preparation as JSON.
pub fn data_value(report: &Report, preparation: &PreparationReport) -> Value {
    let mut value = serde_json::to_value(report).unwrap_or_default();
    value["preparation"] = serde_json::to_value(preparation).unwrap_or_default();
    value
}

/// Names the options of validation rows in an error about missing labels.
fn with_validation_options(error: Error) -> Error {
    use hetal_client::Error::{NoLabels, NoValidationLabels, Rows};
    match error {
        Error::Client(Rows { file, error }) if matches!(*error, NoLabels) => {
            Error::Client(Rows { file, error: Box::new(NoValidationLabels) })
        }
        other => other,
    }
}

/// Whether `hetal extract` wrote the labels together with the features and the manifest.
fn written_with_manifest(features: &Path, labels: Option<&str>) -> bool {
    let file = labels.map_or_else(|| features.to_owned(), |text| tables::split_name(text).0);
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let written = |part| name == format!("labels_{part}.npy") || name == format!("{part}.safetensors");
    file.parent() == features.parent() && ["train", "val", "test"].into_iter().any(written)
}

/// Replaces class numbers by the class names of a manifest.
pub fn names(labels: Labels, manifest: Option<&Manifest>) -> Result<Labels> {
    let (Labels::Integers(numbers), Some(manifest)) = (&labels, manifest) else { return Ok(labels) };
    let name = |(row, label): (usize, &i64)| {
        let class = usize::try_from(*label).ok().and_then(|label| manifest.classes.get(label));
        class.cloned().ok_or_else(|| hetal_client::Error::UnknownClass { row: row + 1, label: label.to_string() })
    };
    Ok(Labels::Texts(numbers.iter().enumerate().map(name).collect::<std::result::Result<_, _>>()?))
}

/// Reads the labels of `rows` rows from a file, or from one array or column of it. What was guessed
/// is printed.
pub fn labels(text: &str, rows: usize, options: &Options) -> Result<Labels> {
    let (path, name) = tables::split_name(text);
    let read = tables::read_labels(&path, name.as_deref(), Some(rows), options);
    let (labels, notes) = read.map_err(hetal_client::Error::from)?;
    notes.iter().for_each(|note| print_note(&path.display().to_string(), note));
    Ok(labels)
}

/// Prints what was guessed about a file.
pub fn print_note(file: &str, note: &Note) {
    eprintln!("note: {}: {note}", sanitize_terminal(file));
}

/// A table with one label per row.
pub struct LabelledTable {
    /// The table. It has labels.
    pub table: Table,
    /// Its file.
    pub file: String,
}

impl LabelledTable {
    /// Reads features with their labels.
    pub fn read(features: &Path, labels_in: Option<&str>, options: &Options, label_options: &Options) -> Result<Self> {
        let file = features.display().to_string();
        let spinner = progress::spinner(format!("reading {file}"));
        let label = options.label.clone().filter(|_| labels_in.is_none());
        let options = Options { label, ignore_labels: labels_in.is_some(), ..options.clone() };
        let mut table = tables::read(features, &options).map_err(hetal_client::Error::from)?;
        if let Some(elsewhere) = labels_in {
            table.labels = Some(labels(elsewhere, table.rows, label_options)?);
        }
        spinner.finish_and_clear();
        let fault = |error| Error::Client(hetal_client::Error::Rows { file: file.clone(), error: Box::new(error) });
        match &table.labels {
            None => Err(fault(hetal_client::Error::NoLabels)),
            Some(labels) if labels.len() != table.rows => {
                let (rows, labels) = (table.rows, labels.len());
                Err(fault(hetal_learn::Error::LabelCount { rows, labels }.into()))
            }
            Some(_) => Ok(Self { table, file }),
        }
    }

    /// Replaces class numbers by the class names of a manifest.
    pub fn named(mut self, manifest: Option<&Manifest>) -> Result<Self> {
        let labels = self.table.labels.take().map(|labels| names(labels, manifest)).transpose();
        self.table.labels = labels.map_err(|error| match error {
            Error::Client(error) => {
                hetal_client::Error::Rows { file: self.file.clone(), error: Box::new(error) }.into()
            }
            other => other,
        })?;
        Ok(self)
    }

    /// Refuses rows that no classifier can be trained on.
    pub fn require_trainable(&self) -> Result<()> {
        let error = |problem| tables::Error { path: self.file.clone().into(), problem };
        Ok(self.table.require_trainable().map_err(error).map_err(hetal_client::Error::from)?)
    }

    /// The rows for a training.
    pub fn into_labelled(self) -> Result<Labelled> {
        Ok(Labelled { file: self.file, ..Labelled::new(self.table, None)? })
    }
}
