//! Features and labels, validated.

use crate::{Error, Matrix, Result};
use std::ops::Range;

/// Rows of finite features, each with a label below `classes`.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelledMatrix {
    features: Matrix,
    labels: Vec<usize>,
    classes: usize,
}

/// The largest magnitude of a feature before normalisation. Sums of squares of such features stay
/// exact enough.
pub const MAX_FEATURE: f64 = 1e12;

impl LabelledMatrix {
    /// Features with their labels, [checked](Self::check).
    pub fn new(features: Matrix, labels: Vec<usize>, classes: usize) -> Result<Self> {
        Self::check(&features, &labels, classes)?;
        Ok(Self { features, labels, classes })
    }

    /// Checks that there are rows and columns, that every feature is finite and at most
    /// [`MAX_FEATURE`], and that every label is below `classes`.
    pub fn check(features: &Matrix, labels: &[usize], classes: usize) -> Result<()> {
        if features.rows() == 0 {
            return Err(Error::NoRows);
        }
        if features.rows() != labels.len() {
            return Err(Error::LabelCount { rows: features.rows(), labels: labels.len() });
        }
        if features.columns() == 0 {
            return Err(Error::Invalid { what: "features of a row", value: 0.0, must: "at least 1" });
        }
        // The comparison also finds NaN.
        let good = |v: &f64| v.abs() <= MAX_FEATURE;
        if let Some(place) = features.values().iter().position(|v| !good(v)) {
            let (row, column) = (place / features.columns(), place % features.columns());
            let value = features[(row, column)];
            return Err(match value.is_finite() {
                true => Error::OutOfRange { row, column, value, limit: MAX_FEATURE },
                false => Error::NotFinite { row, column, value },
            });
        }
        match labels.iter().position(|&label| label >= classes) {
            Some(row) => Err(Error::Label { row, label: labels[row], classes }),
            None => Ok(()),
        }
    }

    /// Fails unless every class has rows, which training needs.
    pub fn for_training(features: Matrix, labels: Vec<usize>, classes: usize) -> Result<Self> {
        let set = Self::new(features, labels, classes)?;
        match (0..classes).find(|class| !set.labels.contains(class)) {
            Some(class) => Err(Error::EmptyClass { class }),
            None => Ok(set),
        }
    }

    /// The features, one row per sample.
    pub fn features(&self) -> &Matrix {
        &self.features
    }

    /// The labels.
    pub fn labels(&self) -> &[usize] {
        &self.labels
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.features.rows()
    }

    /// The rows of each batch, in order; the last one may be shorter.
    pub fn batches(&self, batch: usize) -> Result<Vec<Range<usize>>> {
        if batch > self.rows() {
            return Err(Error::BatchTooLarge { batch, rows: self.rows() });
        }
        if batch == 0 {
            return Err(Error::Invalid { what: "batch", value: 0.0, must: "at least 1" });
        }
        Ok((0..self.rows()).step_by(batch).map(|start| start..(start + batch).min(self.rows())).collect())
    }

    /// The features and the labels.
    pub fn into_parts(self) -> (Matrix, Vec<usize>) {
        (self.features, self.labels)
    }

    /// The same labels with other features, of as many rows.
    pub fn with_features(&self, features: Matrix) -> Result<Self> {
        Self::new(features, self.labels.clone(), self.classes)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn features() -> Matrix {
        Matrix::from_fn(4, 3, |i, j| (i + j) as f64)
    }

    #[test]
    fn errors_name_the_place() {
        let mut x = features();
        x[(2, 1)] = f64::NAN;
        assert!(matches!(
            LabelledMatrix::new(x.clone(), vec![0; 4], 2),
            Err(Error::NotFinite { row: 2, column: 1, .. })
        ));
        x[(2, 1)] = f64::INFINITY;
        let infinite = LabelledMatrix::new(x, vec![0; 4], 2).unwrap_err();
        assert_eq!(infinite.to_string(), "row 3, column 2: inf is not a finite number");
        let mut x = features();
        x[(1, 2)] = -2e12;
        let large = LabelledMatrix::new(x, vec![0; 4], 2).unwrap_err();
        let said = "row 2, column 3: -2e12 is out of range, must be at most 1e12 in magnitude: rescale the features";
        assert_eq!(large.to_string(), said);
        assert!(matches!(LabelledMatrix::new(Matrix::zeros(4, 0), vec![0; 4], 2), Err(Error::Invalid { .. })));
        let label = LabelledMatrix::new(features(), vec![0, 1, 0, 2], 2);
        assert_eq!(label, Err(Error::Label { row: 3, label: 2, classes: 2 }));
        assert_eq!(LabelledMatrix::new(Matrix::zeros(0, 3), vec![], 2), Err(Error::NoRows));
        assert_eq!(LabelledMatrix::new(features(), vec![0; 3], 2), Err(Error::LabelCount { rows: 4, labels: 3 }));
        assert_eq!(LabelledMatrix::for_training(features(), vec![0, 1, 0, 1], 3), Err(Error::EmptyClass { class: 2 }));
        assert!(LabelledMatrix::new(features(), vec![0, 1, 0, 1], 3).is_ok());
    }

    #[test]
    fn batches_cover_all_rows() {
        let set = LabelledMatrix::new(features(), vec![0, 1, 0, 1], 2).unwrap();
        assert_eq!(set.batches(3).unwrap(), [0..3, 3..4]);
        assert_eq!(set.batches(4).unwrap(), std::iter::once(0..4).collect::<Vec<_>>());
        assert_eq!(set.batches(5), Err(Error::BatchTooLarge { batch: 5, rows: 4 }));
        assert!(set.batches(0).is_err());
    }
}
