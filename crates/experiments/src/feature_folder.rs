//! Reads a folder of features and labels: `features_NAME.npy` and `labels_NAME.npy`.

use crate::{Error, Result};
use hetal_client::data::tables::{self, Options};
use hetal_client::data::{Labels, matrix as matrix_of};
use hetal_learn::{LabelledMatrix, Matrix};
use std::path::Path;

/// Reads a two-dimensional array of numbers.
pub fn matrix(path: &Path) -> Result<Matrix> {
    let options = Options { ignore_labels: true, ..Options::default() };
    Ok(matrix_of(tables::read(path, &options).map_err(hetal_client::Error::from)?)?)
}

/// Reads a one-dimensional array of class numbers.
pub fn labels(path: &Path) -> Result<Vec<usize>> {
    let bad = |reason: String| Error::File { path: path.display().to_string(), reason };
    let read = tables::read_labels(path, None, None, &Options::default()).map_err(hetal_client::Error::from)?;
    let (Labels::Integers(numbers), _) = read else {
        return Err(bad("the labels are texts: give class numbers from 0".to_owned()));
    };
    let class =
        |x: &i64| usize::try_from(*x).map_err(|_| bad(format!("label {x} is negative: give class numbers from 0")));
    numbers.iter().map(class).collect()
}

/// Training rows and one other set of rows with the same features.
pub struct TrainingAndOther {
    /// The training rows; every class is among them.
    pub training: LabelledMatrix,
    /// The other rows.
    pub other: LabelledMatrix,
}

/// Reads the rows `train` and the rows `other` of a folder.
pub fn training_and(folder: &Path, other: &str, classes: usize) -> Result<TrainingAndOther> {
    let (train, other) = (dataset(folder, "train", classes)?, dataset(folder, other, classes)?);
    let (rows, columns, must_columns) = (other.rows(), other.features().columns(), train.features().columns());
    if columns != must_columns {
        let what = "the second set of features";
        return Err(hetal_learn::Error::Shape { what, rows, columns, must_rows: rows, must_columns }.into());
    }
    let training = LabelledMatrix::for_training(train.features().clone(), train.labels().to_vec(), classes)?;
    Ok(TrainingAndOther { training, other })
}

/// Reads `features_NAME.npy` and `labels_NAME.npy` of a folder.
pub fn dataset(folder: &Path, name: &str, classes: usize) -> Result<LabelledMatrix> {
    let features = matrix(&folder.join(format!("features_{name}.npy")))?;
    Ok(LabelledMatrix::new(features, labels(&folder.join(format!("labels_{name}.npy")))?, classes)?)
}
