//! A folder of features and labels that benchmarks read: `features_NAME.npy`, `labels_NAME.npy`.

use crate::Result;
use hetal_client::data::{Labels, files};
use hetal_learn::{Dataset, Matrix};
use std::path::Path;

/// A two-dimensional array of numbers.
pub fn matrix(path: &Path) -> Result<Matrix> {
    Ok(files::features(path)?)
}

/// A one-dimensional array of class numbers.
pub fn labels(path: &Path) -> Result<Vec<usize>> {
    let bad = |reason: String| crate::Error::File { path: path.display().to_string(), reason };
    let Labels::Numbers(numbers) = files::labels(path, None)? else { return Err(bad("holds texts".to_owned())) };
    let class = |x: &i64| usize::try_from(*x).map_err(|_| bad(format!("label {x} is negative")));
    numbers.iter().map(class).collect()
}

/// Rows to train on, every class among them, and the rows `other` of the same features.
pub fn training_sets(folder: &Path, other: &str, classes: usize) -> Result<(Dataset, Dataset)> {
    let (train, other) = (dataset(folder, "train", classes)?, dataset(folder, other, classes)?);
    let (rows, columns, must_columns) = (other.rows(), other.features().columns(), train.features().columns());
    if columns != must_columns {
        let what = "the second set of features";
        return Err(hetal_learn::Error::Shape { what, rows, columns, must_rows: rows, must_columns }.into());
    }
    Ok((Dataset::for_training(train.features().clone(), train.labels().to_vec(), classes)?, other))
}

/// The rows `features_NAME.npy` and `labels_NAME.npy` of a folder.
pub fn dataset(folder: &Path, name: &str, classes: usize) -> Result<Dataset> {
    let features = matrix(&folder.join(format!("features_{name}.npy")))?;
    Ok(Dataset::new(features, labels(&folder.join(format!("labels_{name}.npy")))?, classes)?)
}
