//! Ways to bring features to a common scale, and the statistics of columns they need.

use crate::{Error, Matrix, Result};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// How features are scaled before training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scaling {
    /// Columns are centred; all have one factor.
    #[default]
    None,
    /// Columns are centred and divided by their standard deviation. Training rows that are much
    /// longer than the others are shortened.
    Standard,
    /// Rows are divided by their length; then columns are centred.
    UnitRow,
    /// Values are replaced by their square roots, with their sign; then rows are divided by their
    /// length, and columns are centred.
    Sqrt,
}

impl Scaling {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Standard => "standard",
            Self::UnitRow => "unit-row",
            Self::Sqrt => "sqrt",
        }
    }

    /// The scaling of a name on the command line.
    pub fn named(name: &str) -> Option<Self> {
        [Self::None, Self::Standard, Self::UnitRow, Self::Sqrt].into_iter().find(|scaling| scaling.name() == name)
    }

    /// Whether rows are transformed in a way that weights cannot express.
    pub fn transforms_rows(self) -> bool {
        matches!(self, Self::UnitRow | Self::Sqrt)
    }

    /// The rows after the part that weights cannot express.
    pub fn transform(self, features: &Matrix) -> Cow<'_, Matrix> {
        if !self.transforms_rows() {
            return Cow::Borrowed(features);
        }
        let mut rows = features.clone();
        for i in 0..rows.rows() {
            let row = rows.row_mut(i);
            if self == Self::Sqrt {
                row.iter_mut().for_each(|x| *x = libm::copysign(libm::sqrt(x.abs()), *x));
            }
            let length = length(row);
            // A row of zeros has no direction.
            if length > 0.0 {
                row.iter_mut().for_each(|x| *x /= length);
            }
        }
        Cow::Owned(rows)
    }
}

/// The length of a row.
pub fn length(row: &[f64]) -> f64 {
    // The largest value is taken out, so that squares neither overflow nor vanish.
    let largest = row.iter().fold(0.0, |m: f64, x| if x.is_nan() { f64::NAN } else { m.max(x.abs()) });
    if largest > 0.0 && largest.is_finite() {
        largest * libm::sqrt(row.iter().map(|x| (x / largest) * (x / largest)).sum())
    } else {
        largest
    }
}

/// What replaces missing values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Imputation {
    /// The mean of the column.
    Mean,
    /// The median of the column.
    Median,
}

impl Imputation {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Median => "median",
        }
    }

    /// The value for each column, from the values that are there. NaN is missing.
    pub fn fit(self, features: &Matrix) -> Result<Vec<f64>> {
        let value = |column: usize| {
            let there = sorted_column(features, column);
            match (there.is_empty(), self) {
                (true, _) => Err(Error::EmptyColumn { column }),
                (false, Self::Mean) => Ok(mean(&there)),
                (false, Self::Median) => Ok(median(&there)),
            }
        };
        (0..features.columns()).map(value).collect()
    }
}

/// Rows whose missing values (NaN) are replaced by those of `fill`, one a column.
pub fn filled<'a>(features: &'a Matrix, fill: &[f64]) -> Cow<'a, Matrix> {
    if !features.values().iter().any(|x| x.is_nan()) {
        return Cow::Borrowed(features);
    }
    let value = |i: usize, j: usize| match features[(i, j)] {
        x if x.is_nan() => fill.get(j).copied().unwrap_or(x),
        x => x,
    };
    Cow::Owned(Matrix::from_fn(features.rows(), features.columns(), value))
}

/// Columns whose standard deviation is larger than that of their middle by this factor have
/// outliers. A normal column has a factor of 1.05, an exponential one of 1.1.
const OUTLIER_FACTOR: f64 = 10.0;
/// One in this many values at each end of a column does not belong to its middle, and at least one.
const ENDS: usize = 100;
/// Columns of fewer values have no middle.
const FEWEST_VALUES: usize = 10;
/// Columns whose deviation is below this share of their largest magnitude are constant: what is
/// left is rounding.
const ROUNDING: f64 = 1e-12;

/// Where a column lies and how far it spreads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColumnScale {
    /// The centre.
    pub centre: f64,
    /// The standard deviation; 0 for a constant column.
    pub deviation: f64,
    /// Whether both are those of the middle of the column, because it has outliers.
    pub has_outliers: bool,
}

impl ColumnScale {
    /// Mean and standard deviation of a column, as of scikit-learn's `StandardScaler`. A few values
    /// far from all others would decide both: then they are those of the middle 98 %.
    pub fn fit(features: &Matrix, column: usize) -> Self {
        let values = sorted_column(features, column);
        let (centre, deviation) = moments(&values);
        let magnitude = values.first().zip(values.last()).map_or(0.0, |(a, b)| a.abs().max(b.abs()));
        if deviation <= ROUNDING * magnitude {
            return Self { centre, deviation: 0.0, has_outliers: false };
        }
        let cut = (values.len() / ENDS).max(1);
        if values.len() >= FEWEST_VALUES {
            let middle = &values[cut..values.len() - cut];
            let (mid, spread) = moments(middle);
            let reach = (mid - middle[0]).max(middle[middle.len() - 1] - mid);
            // A middle with far values of its own is a column of rare values, not of outliers.
            let is_compact = spread > ROUNDING * magnitude && reach <= OUTLIER_FACTOR * spread;
            if is_compact && deviation > OUTLIER_FACTOR * spread {
                return Self { centre: mid, deviation: spread, has_outliers: true };
            }
        }
        Self { centre, deviation, has_outliers: false }
    }
}

/// The values of a column that are there, in ascending order.
fn sorted_column(features: &Matrix, column: usize) -> Vec<f64> {
    let mut values: Vec<f64> =
        (0..features.rows()).map(|i| features[(i, column)]).filter(|value| !value.is_nan()).collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Mean and standard deviation. The values are centred first, so that rounding stays small.
fn moments(values: &[f64]) -> (f64, f64) {
    let Some(&first) = values.first() else { return (0.0, 0.0) };
    let count = values.len() as f64;
    let offset = values.iter().map(|x| x - first).sum::<f64>() / count;
    let centre = first + offset;
    let variance = values.iter().map(|x| (x - first - offset) * (x - first - offset)).sum::<f64>() / count;
    (centre, libm::sqrt(variance))
}

/// The median of values in ascending order.
pub fn median(values: &[f64]) -> f64 {
    match (values.len() / 2, values.len() % 2) {
        (0, 0) => 0.0,
        (half, 0) => values[half - 1] / 2.0 + values[half] / 2.0,
        (half, _) => values[half],
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn column(values: &[f64]) -> Matrix {
        Matrix::new(values.len(), 1, values.to_vec()).unwrap()
    }

    #[test]
    fn rows_get_length_one_and_zeros_stay() {
        let x = Matrix::new(3, 2, vec![3.0, 4.0, 0.0, 0.0, -9.0, 16.0]).unwrap();
        assert_eq!(Scaling::None.transform(&x).as_ref(), &x);
        assert_eq!(
            Scaling::UnitRow.transform(&x).values(),
            [0.6, 0.8, 0.0, 0.0, -9.0 / 337f64.sqrt(), 16.0 / 337f64.sqrt()]
        );
        assert_eq!(Scaling::Sqrt.transform(&x).row(2), [-0.6, 0.8]);
        assert!((length(&[3e200, 4e200]) - 5e200).abs() < 1e186, "squares would overflow");
        assert!(length(&[1.0, f64::NAN]).is_nan() && length(&[]) == 0.0);
    }

    #[test]
    fn ordinary_columns_have_mean_and_deviation() {
        let values: Vec<f64> = (0..200).map(|i| 1e6 + libm::sin(i as f64)).collect();
        let scale = ColumnScale::fit(&column(&values), 0);
        let mean = values.iter().sum::<f64>() / 200.0;
        let deviation = (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 200.0).sqrt();
        assert!((scale.centre - mean).abs() < 1e-8 && (scale.deviation - deviation).abs() < 1e-8);
        assert!(!scale.has_outliers);
    }

    #[test]
    fn constant_columns_have_no_deviation() {
        for value in [0.0, 7.0, 0.1, 1e-300, 123_456.789] {
            let scale = ColumnScale::fit(&column(&[value; 33]), 0);
            assert_eq!(scale.deviation, 0.0, "{value}");
            assert!((scale.centre - value).abs() <= 1e-15 * value, "{value}");
        }
    }

    #[test]
    fn a_few_outliers_do_not_decide_the_scale() {
        let mut values: Vec<f64> = (0..200).map(|i| libm::sin(i as f64)).collect();
        let before = ColumnScale::fit(&column(&values), 0);
        (values[17], values[80]) = (1e6, -3e5);
        let after = ColumnScale::fit(&column(&values), 0);
        assert!(after.has_outliers && (after.deviation / before.deviation - 1.0).abs() < 0.1, "{after:?}");
        // Rare values are not outliers, whether the cut leaves some of them or none.
        for rare in 1..8 {
            let values: Vec<f64> = (0..400).map(|i| if i < rare { 1000.0 } else { 0.0 }).collect();
            assert!(!ColumnScale::fit(&column(&values), 0).has_outliers, "{rare}");
        }
    }

    #[test]
    fn missing_values_are_left_out_of_means_and_medians() {
        let x = column(&[5.0, f64::NAN, 1.0, 9.0, f64::NAN, 2.0]);
        assert_eq!(Imputation::Mean.fit(&x).unwrap(), [4.25]);
        assert_eq!(Imputation::Median.fit(&x).unwrap(), [3.5]);
        assert_eq!(Imputation::Mean.fit(&column(&[f64::NAN; 2])), Err(Error::EmptyColumn { column: 0 }));
    }
}
