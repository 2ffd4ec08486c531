//! Features and labels of training rows.

use crate::ui::progress;
use crate::{Error, Result};
use hetal_client::data::{Labels, ROW_NORM, Table, files};
use hetal_client::{Labelled, TrainingData};
use hetal_extract_api::Manifest;
use std::path::{Path, PathBuf};

/// Files with training rows and validation rows.
#[derive(clap::Args, Clone, Debug)]
pub struct Data {
    /// Features of the training rows: .npy, .npz, .safetensors or .csv.
    #[arg(long, value_name = "FILE", help_heading = "Rows")]
    pub features: PathBuf,
    /// Labels of the training rows in a file of their own (FILE#NAME selects an array or column).
    #[arg(long, value_name = "FILE", help_heading = "Rows")]
    pub labels: Option<String>,
    /// The column (CSV, by name or number) or the array (.npz, .safetensors) of the feature file
    /// that contains the labels.
    #[arg(long, conflicts_with = "labels", value_name = "NAME", help_heading = "Rows")]
    pub label_column: Option<String>,
    /// Features of validation rows. Without it, one row in eight of each class is used for
    /// validation.
    #[arg(long, value_name = "FILE", help_heading = "Rows")]
    pub validation: Option<PathBuf>,
    /// Labels of the validation rows.
    #[arg(long, requires = "validation", value_name = "FILE", help_heading = "Rows")]
    pub validation_labels: Option<String>,
    /// Length of the longest training row after scaling. A larger length learns faster and less
    /// steadily.
    #[arg(long, default_value_t = ROW_NORM, value_name = "LENGTH", help_heading = "Rows")]
    pub row_norm: f64,
    /// The manifest that `hetal extract` wrote with the features; the model stores it. The default
    /// is manifest.json next to the features.
    #[arg(long, value_name = "FILE", help_heading = "Rows")]
    pub manifest: Option<PathBuf>,
}

impl Data {
    /// Reads, splits and normalises the rows. Also returns their manifest, if there is one.
    pub fn read(&self) -> Result<(TrainingData, Option<Manifest>)> {
        let training = labelled(&self.features, self.labels.as_deref(), self.label_column.as_deref())?;
        let manifest = self.extraction(training.features.columns())?;
        let validation = self.validation.as_deref();
        let validation = validation
            .map(|path| labelled(path, self.validation_labels.as_deref(), self.label_column.as_deref()))
            .transpose()
            .map_err(with_validation_options)?;
        let named = |rows: Labelled, features: &Path, labels: Option<&str>| {
            // A manifest that was not named applies only to the labels written with it.
            let applies = self.manifest.is_some() || written_with_manifest(features, labels);
            named(rows, manifest.as_ref().filter(|_| applies))
        };
        let training = named(training, &self.features, self.labels.as_deref())?;
        let validation = match (validation, &self.validation) {
            (Some(rows), Some(features)) => Some(named(rows, features, self.validation_labels.as_deref())?),
            _ => None,
        };
        Ok((TrainingData::new(&training, validation.as_ref(), self.row_norm)?, manifest))
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
    let file = labels.map_or_else(|| features.to_owned(), |text| files::split_name(text).0);
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let written = |part| name == format!("labels_{part}.npy") || name == format!("{part}.safetensors");
    file.parent() == features.parent() && ["train", "val", "test"].into_iter().any(written)
}

/// Replaces the class numbers of rows by the class names of a manifest.
pub fn named(rows: Labelled, manifest: Option<&Manifest>) -> Result<Labelled> {
    let labels = names(rows.labels.clone(), manifest).map_err(|error| match error {
        Error::Client(error) => rows.fault(error).into(),
        other => other,
    })?;
    Ok(Labelled { labels, ..rows })
}

/// Replaces class numbers by the class names of a manifest.
pub fn names(labels: Labels, manifest: Option<&Manifest>) -> Result<Labels> {
    let (Labels::Numbers(numbers), Some(manifest)) = (&labels, manifest) else { return Ok(labels) };
    let name = |(row, label): (usize, &i64)| {
        let class = usize::try_from(*label).ok().and_then(|label| manifest.classes.get(label));
        class.cloned().ok_or_else(|| hetal_client::Error::UnknownClass { row: row + 1, label: label.to_string() })
    };
    Ok(Labels::Names(numbers.iter().enumerate().map(name).collect::<std::result::Result<_, _>>()?))
}

/// Reads the labels of a file, or of one array or column of it.
pub fn labels(text: &str) -> Result<Labels> {
    let (path, name) = files::split_name(text);
    Ok(files::labels(&path, name.as_deref())?)
}

/// Reads features with their labels.
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
