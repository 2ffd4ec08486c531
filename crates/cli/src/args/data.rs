//! Features and labels, as named on the command line.

use crate::ui::progress;
use crate::{Error, Result};
use hetal_client::data::{Labels, ROW_NORM, Table, files};
use hetal_client::{Labelled, TrainingData};
use hetal_extract_api::Manifest;
use std::path::{Path, PathBuf};

/// Rows to learn from.
#[derive(clap::Args, Clone, Debug)]
pub struct Data {
    /// Features of the training rows: .npy, .npz, .safetensors or .csv.
    #[arg(long, value_name = "FILE", help_heading = "Rows")]
    pub features: PathBuf,
    /// Labels of the training rows: a file of them (FILE#NAME for one array or column of several).
    #[arg(long, value_name = "FILE", help_heading = "Rows")]
    pub labels: Option<String>,
    /// The column (CSV, by name or number) or the array (.npz, .safetensors) of the feature file that holds the labels.
    #[arg(long, conflicts_with = "labels", value_name = "NAME", help_heading = "Rows")]
    pub label_column: Option<String>,
    /// Features of rows to validate on. Without it, one row in eight of each class is set aside.
    #[arg(long, value_name = "FILE", help_heading = "Rows")]
    pub validation: Option<PathBuf>,
    /// Labels of those rows.
    #[arg(long, requires = "validation", value_name = "FILE", help_heading = "Rows")]
    pub validation_labels: Option<String>,
    /// The length that the longest training row is brought to. Longer learns faster and less steadily.
    #[arg(long, default_value_t = ROW_NORM, value_name = "LENGTH", help_heading = "Rows")]
    pub row_norm: f64,
    /// How the features were made, as `hetal extract` wrote it down: kept with the model. Without it, manifest.json beside the
    /// features.
    #[arg(long, value_name = "FILE", help_heading = "Rows")]
    pub manifest: Option<PathBuf>,
}

impl Data {
    /// Reads, splits and normalises the rows; with them, how they were made, where that is known.
    pub fn read(&self) -> Result<(TrainingData, Option<Manifest>)> {
        let training = labelled(&self.features, self.labels.as_deref(), self.label_column.as_deref())?;
        let manifest = self.extraction(training.features.columns())?;
        let validation = self.validation.as_deref();
        let validation = validation
            .map(|path| labelled(path, self.validation_labels.as_deref(), self.label_column.as_deref()))
            .transpose()
            .map_err(about_validation)?;
        let named = |rows: Labelled, features: &Path, labels: Option<&str>| {
            // A manifest that nobody named speaks of the labels that were written with it, and of no others.
            let speaks = self.manifest.is_some() || written_with_manifest(features, labels);
            named(rows, manifest.as_ref().filter(|_| speaks))
        };
        let training = named(training, &self.features, self.labels.as_deref())?;
        let validation = match (validation, &self.validation) {
            (Some(rows), Some(features)) => Some(named(rows, features, self.validation_labels.as_deref())?),
            _ => None,
        };
        Ok((TrainingData::new(&training, validation.as_ref(), self.row_norm)?, manifest))
    }

    /// The manifest that was given or lies beside the features; one that speaks of other features is refused, or left alone
    /// with a note where nobody named it.
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
                eprintln!("note: not kept with the model: {error}");
                Ok(None)
            }
        }
    }
}

/// Rows to validate on have options of their own.
fn about_validation(error: Error) -> Error {
    use hetal_client::Error::{NoLabels, NoValidationLabels, Rows};
    match error {
        Error::Client(Rows { file, error }) if matches!(*error, NoLabels) => {
            Error::Client(Rows { file, error: Box::new(NoValidationLabels) })
        }
        other => other,
    }
}

/// Whether labels are those that `hetal extract` wrote beside features and manifest: in a file of their own, or with the features.
fn written_with_manifest(features: &Path, labels: Option<&str>) -> bool {
    let file = labels.map_or_else(|| features.to_owned(), |text| files::split_name(text).0);
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let written = |part| name == format!("labels_{part}.npy") || name == format!("{part}.safetensors");
    file.parent() == features.parent() && ["train", "val", "test"].into_iter().any(written)
}

/// Rows with the names that a manifest has for the numbers of their classes.
pub fn named(rows: Labelled, manifest: Option<&Manifest>) -> Result<Labelled> {
    let labels = names(rows.labels.clone(), manifest).map_err(|error| match error {
        Error::Client(error) => rows.fault(error).into(),
        other => other,
    })?;
    Ok(Labelled { labels, ..rows })
}

/// Labels with the names that a manifest has for them.
pub fn names(labels: Labels, manifest: Option<&Manifest>) -> Result<Labels> {
    let (Labels::Numbers(numbers), Some(manifest)) = (&labels, manifest) else { return Ok(labels) };
    let name = |(row, label): (usize, &i64)| {
        let class = usize::try_from(*label).ok().and_then(|label| manifest.classes.get(label));
        class.cloned().ok_or_else(|| hetal_client::Error::UnknownClass { row: row + 1, label: label.to_string() })
    };
    Ok(Labels::Names(numbers.iter().enumerate().map(name).collect::<std::result::Result<_, _>>()?))
}

/// Labels of a file, or of one array or column in it.
pub fn labels(text: &str) -> Result<Labels> {
    let (path, name) = files::split_name(text);
    Ok(files::labels(&path, name.as_deref())?)
}

/// Features with their labels.
pub fn labelled(features: &Path, labels_in: Option<&str>, column: Option<&str>) -> Result<Labelled> {
    let file = features.display().to_string();
    let spinner = progress::spinner(format!("reading {file}"));
    let table = match labels_in {
        Some(elsewhere) => Table { features: files::features(features)?, labels: Some(labels(elsewhere)?) },
        None => files::table(features, column)?,
    };
    spinner.finish_and_clear();
    match Labelled::new(table, None) {
        Ok(rows) => Ok(Labelled { file, ..rows }),
        Err(error) => Err(hetal_client::Error::Rows { file, error: Box::new(error) }.into()),
    }
}
