//! The arrays that benchmarks read.

use crate::Result;
use hetal_client::files::{self, Labels};
use hetal_learn::{Dataset, Matrix};
use std::path::Path;

/// A two-dimensional array of numbers.
pub fn matrix(path: &Path) -> Result<Matrix> {
    Ok(files::table(path, None)?.features)
}

/// A one-dimensional array of class numbers.
pub fn labels(path: &Path) -> Result<Vec<usize>> {
    let bad = |reason: String| crate::Error::File { path: path.display().to_string(), reason };
    let Labels::Numbers(numbers) = files::labels(path, None)? else { return Err(bad("holds texts".to_owned())) };
    let class = |x: &i64| usize::try_from(*x).map_err(|_| bad(format!("label {x} is negative")));
    numbers.iter().map(class).collect()
}

/// The rows `features_NAME.npy` and `labels_NAME.npy` of a folder.
pub fn dataset(folder: &Path, name: &str, classes: usize) -> Result<Dataset> {
    let features = matrix(&folder.join(format!("features_{name}.npy")))?;
    Ok(Dataset::new(features, labels(&folder.join(format!("labels_{name}.npy")))?, classes)?)
}
