//! Features and labels, as named on the command line.

use crate::{Error, Result};
use hetal_client::files::{self, Labels};
use hetal_client::task::ROW_NORM;
use hetal_client::{Labelled, Task};
use std::path::{Path, PathBuf};

/// Rows to learn from.
#[derive(clap::Args, Clone, Debug)]
pub struct Data {
    /// Features of the training rows: .npy, .npz, .safetensors or .csv.
    #[arg(long)]
    pub features: PathBuf,
    /// Labels of the training rows: a file of them (FILE#NAME for one array or column of several).
    #[arg(long)]
    pub labels: Option<String>,
    /// The column (CSV, by name or number) or the array (.npz, .safetensors) of the feature file that holds the labels.
    #[arg(long, conflicts_with = "labels")]
    pub label_column: Option<String>,
    /// Features of rows to validate on. Without it, one row in eight of each class is set aside.
    #[arg(long)]
    pub validation: Option<PathBuf>,
    /// Labels of those rows.
    #[arg(long, requires = "validation")]
    pub validation_labels: Option<String>,
    /// The length that the longest training row is brought to. Longer learns faster and less steadily.
    #[arg(long, default_value_t = ROW_NORM)]
    pub row_norm: f64,
    /// How the features were made, as `hetal extract` wrote it down (JSON): kept with the model.
    #[arg(long)]
    pub manifest: Option<PathBuf>,
}

impl Data {
    /// Reads, splits and normalises the rows.
    pub fn task(&self) -> Result<Task> {
        let training = labelled(&self.features, self.labels.as_deref(), self.label_column.as_deref())?;
        let validation = self.validation.as_deref();
        let validation = validation
            .map(|path| labelled(path, self.validation_labels.as_deref(), self.label_column.as_deref()))
            .transpose()?;
        Ok(Task::new(&training, validation.as_ref(), self.row_norm)?)
    }

    /// The manifest, if one was given.
    pub fn extraction(&self) -> Result<Option<serde_json::Value>> {
        let Some(path) = &self.manifest else { return Ok(None) };
        let bad = |reason: String| Error::File { path: path.display().to_string(), reason };
        let text = std::fs::read(path).map_err(|e| bad(e.to_string()))?;
        serde_json::from_slice(&text).map(Some).map_err(|e| bad(e.to_string()))
    }
}

/// Labels of a file, or of one array or column in it.
pub fn labels(text: &str) -> Result<Labels> {
    let (path, name) = files::split_name(text);
    Ok(files::labels(&path, name.as_deref())?)
}

/// Features with their labels.
pub fn labelled(features: &Path, labels_in: Option<&str>, column: Option<&str>) -> Result<Labelled> {
    let table = files::table(features, column)?;
    Ok(Labelled::new(table, labels_in.map(labels).transpose()?)?)
}
