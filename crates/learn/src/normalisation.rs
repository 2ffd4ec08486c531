//! Normalisation of features, and its inverse on weights.

use crate::scaling::{ColumnScale, Scaling, filled, length, median};
use crate::{Error, Matrix, Result};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// `x' = factor scale (t(x) - shift)`, where `t` fills missing values in and transforms rows. The
/// client keeps it with the model. Factor, scales and shift are folded into the final weights; `t`
/// is applied to every row that is classified.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalisation {
    /// How rows are scaled. Models of earlier versions have none.
    #[serde(default)]
    scaling: Scaling,
    /// The values that replace missing ones, one a column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fill: Option<Vec<f64>>,
    shift: Vec<f64>,
    /// One a column; 0 for constant columns. `None` for 1 in every column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scale: Option<Vec<f64>>,
    factor: f64,
    row_norm: f64,
    /// The columns whose outliers do not count for their scale.
    #[serde(skip)]
    outliers: Vec<usize>,
}

/// Rows of other data may be longer than the longest training row by this factor.
pub const GUARD: f64 = 2.0;

/// Standardised training rows longer than the median row by this factor are shortened to it, so
/// that a few rows decide neither the scale nor the steps of all.
pub const LONGEST: f64 = 2.0;

/// Normalised rows to train with.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingRows {
    /// The rows.
    pub features: Matrix,
    /// How many were shortened.
    pub shortened: usize,
}

impl Normalisation {
    /// Centres columns and brings the longest row to `row_norm`, without scaling.
    pub fn fit(features: &Matrix, row_norm: f64) -> Result<Self> {
        Self::fit_scaled(features, Scaling::None, row_norm)
    }

    /// The normalisation of training rows without missing values: a scaling, and the factor that
    /// brings the longest row to `row_norm`.
    pub fn fit_scaled(features: &Matrix, scaling: Scaling, row_norm: f64) -> Result<Self> {
        if features.rows() == 0 {
            return Err(Error::NoRows);
        }
        if !(row_norm > 0.0 && row_norm.is_finite()) {
            return Err(Error::Invalid { what: "the length of a row", value: row_norm, must: "positive" });
        }
        let outliers = Vec::new();
        let mut fitted = Self { scaling, fill: None, shift: Vec::new(), scale: None, factor: 1.0, row_norm, outliers };
        let rows = scaling.transform(features);
        fitted.fit_columns(&rows);
        let mut lengths: Vec<f64> = (0..rows.rows()).map(|i| length(&fitted.row(rows.row(i)))).collect();
        lengths.sort_unstable_by(f64::total_cmp);
        let (longest, middle) = (lengths.last().copied().unwrap_or(0.0), median(&lengths));
        let longest = match scaling {
            Scaling::Standard if middle > 0.0 => longest.min(LONGEST * middle),
            _ => longest,
        };
        // Constant features carry no information at any scale.
        fitted.factor = if longest > 0.0 { row_norm / longest } else { 1.0 };
        Ok(fitted)
    }

    /// The same normalisation of rows whose missing values these replace, one a column.
    pub fn with_fill(self, fill: Vec<f64>) -> Self {
        Self { fill: Some(fill), ..self }
    }

    fn fit_columns(&mut self, rows: &Matrix) {
        let columns: Vec<ColumnScale> = (0..rows.columns()).map(|column| ColumnScale::fit(rows, column)).collect();
        let is_standard = self.scaling == Scaling::Standard;
        let scale = |column: &ColumnScale| match (column.deviation > 0.0, is_standard) {
            // Whatever a constant column holds later, it tells nothing.
            (false, _) => 0.0,
            (true, true) => 1.0 / column.deviation,
            (true, false) => 1.0,
        };
        let scales: Vec<f64> = columns.iter().map(scale).collect();
        let centre = |(j, column): (usize, &ColumnScale)| match column.has_outliers && !is_standard {
            true => (0..rows.rows()).map(|i| rows[(i, j)]).sum::<f64>() / rows.rows() as f64,
            false => column.centre,
        };
        self.shift = columns.iter().enumerate().map(centre).collect();
        self.scale = scales.iter().any(|&scale| scale != 1.0).then_some(scales);
        self.outliers = (0..columns.len()).filter(|&j| is_standard && columns[j].has_outliers).collect();
    }

    /// The features with missing values replaced, if the normalisation replaces any.
    pub fn filled<'a>(&self, features: &'a Matrix) -> Cow<'a, Matrix> {
        self.fill.as_ref().map_or(Cow::Borrowed(features), |fill| filled(features, fill))
    }

    /// The features with missing values replaced and rows transformed: what weights cannot express.
    pub fn prepared<'a>(&self, features: &'a Matrix) -> Cow<'a, Matrix> {
        match (self.scaling.transforms_rows(), self.filled(features)) {
            (false, filled) => filled,
            (true, filled) => Cow::Owned(self.scaling.transform(&filled).into_owned()),
        }
    }

    /// The normalised features; a row beyond [`GUARD`] times the longest training row is an error.
    pub fn apply(&self, features: &Matrix) -> Result<Matrix> {
        features.require("features to normalise", usize::MAX, self.shift.len())?;
        self.apply_to_prepared(self.prepared(features).into_owned())
    }

    fn apply_to_prepared(&self, mut features: Matrix) -> Result<Matrix> {
        let guard = GUARD * self.row_norm;
        for i in 0..features.rows() {
            let row = self.row(features.row(i));
            let length = length(&row);
            if length.is_nan() || length > guard {
                return Err(Error::BeyondGuard { row: i, column: largest(&row), norm: length, guard });
            }
            features.row_mut(i).copy_from_slice(&row);
        }
        Ok(features)
    }

    /// The normalised features of training and validation rows, in place where they are not
    /// transformed. Standardised rows that are too long are shortened; without standardisation they
    /// are an error, as in [`Normalisation::apply`].
    pub fn training_rows(&self, features: Matrix) -> Result<TrainingRows> {
        features.require("features to normalise", usize::MAX, self.shift.len())?;
        let prepared = match self.prepared(&features) {
            Cow::Owned(prepared) => Some(prepared),
            Cow::Borrowed(_) => None,
        };
        let mut features = prepared.unwrap_or(features);
        if self.scaling != Scaling::Standard {
            return Ok(TrainingRows { features: self.apply_to_prepared(features)?, shortened: 0 });
        }
        let mut shortened = 0;
        for i in 0..features.rows() {
            let mut row = self.row(features.row(i));
            let length = length(&row);
            if !length.is_finite() {
                let guard = GUARD * self.row_norm;
                return Err(Error::BeyondGuard { row: i, column: largest(&row), norm: length, guard });
            }
            // Beyond what rounding adds to the longest row.
            if length > self.row_norm * (1.0 + 1e-9) {
                row.iter_mut().for_each(|x| *x *= self.row_norm / length);
                shortened += 1;
            }
            features.row_mut(i).copy_from_slice(&row);
        }
        Ok(TrainingRows { features, shortened })
    }

    /// The rows that [`Normalisation::apply`] refuses, counted from 0.
    pub fn beyond_guard(&self, features: &Matrix) -> Result<Vec<usize>> {
        features.require("features to normalise", usize::MAX, self.shift.len())?;
        let (features, guard) = (self.prepared(features), GUARD * self.row_norm);
        let is_beyond = |&i: &usize| {
            let length = length(&self.row(features.row(i)));
            length.is_nan() || length > guard
        };
        Ok((0..features.rows()).filter(is_beyond).collect())
    }

    /// Weights for prepared features ([`Normalisation::prepared`]), from weights for normalised
    /// ones: `w x' + b = (factor scale w) t(x) + b - factor scale w shift`.
    pub fn fold(&self, weights: &Matrix) -> Result<Matrix> {
        weights.require("weights to fold", usize::MAX, self.shift.len() + 1)?;
        let features = self.shift.len();
        let factor = |h: usize| if h == features { 1.0 } else { self.column_factor(h) };
        let mut folded = Matrix::from_fn(weights.rows(), features + 1, |k, h| weights[(k, h)] * factor(h));
        for k in 0..weights.rows() {
            let moved: f64 = folded.row(k).iter().zip(&self.shift).map(|(w, s)| w * s).sum();
            folded[(k, features)] = weights[(k, features)] - moved;
        }
        Ok(folded)
    }

    /// Weights for normalised features, from weights for prepared ones: the inverse of
    /// [`Normalisation::fold`]. Weights of constant columns, which fold to 0, become 0.
    pub fn unfold(&self, weights: &Matrix) -> Result<Matrix> {
        weights.require("weights to unfold", usize::MAX, self.shift.len() + 1)?;
        let features = self.shift.len();
        let moved = |k: usize| weights.row(k).iter().zip(&self.shift).map(|(w, s)| w * s).sum::<f64>();
        Ok(Matrix::from_fn(weights.rows(), features + 1, |k, h| match h {
            _ if h == features => weights[(k, h)] + moved(k),
            _ if self.column_factor(h) == 0.0 => 0.0,
            _ => weights[(k, h)] / self.column_factor(h),
        }))
    }

    /// The norm of the longest training row after normalisation.
    pub fn row_norm(&self) -> f64 {
        self.row_norm
    }

    /// How rows are scaled.
    pub fn scaling(&self) -> Scaling {
        self.scaling
    }

    /// The values that replace missing ones, one a column.
    pub fn fill(&self) -> Option<&[f64]> {
        self.fill.as_deref()
    }

    /// The columns whose outliers do not count for their scale.
    pub fn outliers(&self) -> &[usize] {
        &self.outliers
    }

    /// Whether it is one for rows of this many features, and all its numbers are finite.
    pub fn is_for(&self, features: usize) -> bool {
        let fits = |numbers: &[f64]| numbers.len() == features && numbers.iter().all(|x| x.is_finite());
        fits(&self.shift)
            && self.fill.as_deref().is_none_or(fits)
            && self.scale.as_deref().is_none_or(fits)
            && self.factor.is_finite()
            && self.factor > 0.0
    }

    fn column_factor(&self, column: usize) -> f64 {
        self.factor * self.scale.as_ref().map_or(1.0, |scale| scale[column])
    }

    fn row(&self, row: &[f64]) -> Vec<f64> {
        let value = |(j, (x, shift)): (usize, (&f64, &f64))| self.column_factor(j) * (x - shift);
        row.iter().zip(&self.shift).enumerate().map(value).collect()
    }
}

fn largest(row: &[f64]) -> usize {
    (0..row.len()).max_by(|&a, &b| row[a].abs().total_cmp(&row[b].abs())).unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Imputation, reference};

    fn features() -> Matrix {
        Matrix::from_fn(6, 4, |i, j| libm::sin((7 * i + 3 * j) as f64) * 20.0 + 5.0 * j as f64)
    }

    #[test]
    fn rows_become_as_long_as_asked() {
        let x = features();
        let normalised = Normalisation::fit(&x, 3.0).unwrap().apply(&x).unwrap();
        let longest = (0..6).map(|i| length(normalised.row(i))).fold(0.0, f64::max);
        assert!((longest - 3.0).abs() < 1e-12);
        for j in 0..4 {
            assert!((0..6).map(|i| normalised[(i, j)]).sum::<f64>().abs() < 1e-12);
        }
    }

    #[test]
    fn folded_weights_give_the_same_logits() {
        let x = features();
        let normalisation = Normalisation::fit(&x, 3.0).unwrap();
        let w = Matrix::from_fn(3, 5, |k, h| libm::cos((2 * k + 5 * h) as f64));
        let before = reference::logits(&normalisation.apply(&x).unwrap(), &w).unwrap();
        let after = reference::logits(&x, &normalisation.fold(&w).unwrap()).unwrap();
        assert!(before.max_difference(&after) < 1e-12);
        let back = normalisation.unfold(&normalisation.fold(&w).unwrap()).unwrap();
        assert!(back.max_difference(&w) < 1e-12);
    }

    #[test]
    fn features_beyond_the_guard_are_refused() {
        let normalisation = Normalisation::fit(&features(), 3.0).unwrap();
        let mut x = features();
        x[(4, 2)] = 1e4;
        assert!(matches!(normalisation.apply(&x), Err(Error::BeyondGuard { row: 4, column: 2, .. })));
        x[(1, 0)] = -1e4;
        assert_eq!(normalisation.beyond_guard(&x).unwrap(), [1, 4]);
        assert!(Normalisation::fit(&Matrix::zeros(0, 4), 1.0).is_err());
        assert!(Normalisation::fit(&features(), -1.0).is_err());
        let constant = Matrix::from_fn(3, 2, |_, _| 7.0);
        assert_eq!(Normalisation::fit(&constant, 1.0).unwrap().apply(&constant).unwrap(), Matrix::zeros(3, 2));
    }

    /// Predictions on columns as they are equal those on scaled ones, whatever the scaling.
    #[test]
    fn every_scaling_folds_exactly() {
        let x = Matrix::from_fn(60, 4, |i, j| {
            let wave = libm::sin((7 * i + 3 * j) as f64);
            [1e5 + 58.0 * wave, 1e-3 * wave, 4.0, 0.5 + wave * wave][j]
        });
        let w = Matrix::from_fn(3, 5, |k, h| libm::cos((2 * k + 5 * h) as f64));
        for scaling in [Scaling::None, Scaling::Standard, Scaling::UnitRow, Scaling::Sqrt] {
            let normalisation = Normalisation::fit_scaled(&x, scaling, 10.0).unwrap();
            let scaled = reference::logits(&normalisation.apply(&x).unwrap(), &w).unwrap();
            let folded = normalisation.fold(&w).unwrap();
            let raw = reference::logits(&normalisation.prepared(&x), &folded).unwrap();
            assert!(scaled.max_difference(&raw) < 1e-9, "{scaling:?}: {}", scaled.max_difference(&raw));
            let again = normalisation.fold(&normalisation.unfold(&folded).unwrap()).unwrap();
            assert!(again.max_difference(&folded) < 1e-9 * folded.max_magnitude(), "{scaling:?}");
        }
    }

    /// All columns spread alike after standardisation, and a constant one is ignored for ever.
    #[test]
    fn standardised_columns_spread_alike() {
        let x = Matrix::from_fn(200, 3, |i, j| [1e4 * libm::sin(i as f64), libm::cos(i as f64), 7.0][j]);
        let normalisation = Normalisation::fit_scaled(&x, Scaling::Standard, 10.0).unwrap();
        let rows = normalisation.training_rows(x.clone()).unwrap();
        assert_eq!(rows.shortened, 0);
        let square = |j: usize| (0..200).map(|i| rows.features[(i, j)].powi(2)).sum::<f64>();
        assert!((square(0) / square(1) - 1.0).abs() < 1e-9 && square(2) == 0.0, "{} {}", square(0), square(1));
        let w = Matrix::from_fn(2, 4, |k, h| (1 + k + h) as f64);
        let mut changed = x.clone();
        (0..200).for_each(|i| changed[(i, 2)] = -1e5);
        assert!(normalisation.beyond_guard(&changed).unwrap().is_empty());
        let folded = normalisation.fold(&w).unwrap();
        let of = |x: &Matrix| reference::logits(x, &folded).unwrap();
        assert_eq!(of(&x), of(&changed));
    }

    /// Long rows are shortened in training, not in predictions.
    #[test]
    fn long_training_rows_are_shortened() {
        let mut x = Matrix::from_fn(100, 3, |i, j| libm::sin((3 * i + j) as f64));
        x[(5, 1)] = 1e5;
        let normalisation = Normalisation::fit_scaled(&x, Scaling::Standard, 10.0).unwrap();
        assert_eq!(normalisation.outliers(), [1]);
        let rows = normalisation.training_rows(x.clone()).unwrap();
        assert_eq!(rows.shortened, 1);
        assert!((length(rows.features.row(5)) - 10.0).abs() < 1e-9);
        let others = (0..100).filter(|&i| i != 5).map(|i| length(rows.features.row(i)));
        assert!(others.clone().fold(0.0, f64::max) > 4.0, "the outlier does not shrink the others");
        assert_eq!(normalisation.beyond_guard(&x).unwrap(), [5]);
        assert!(Normalisation::fit(&x, 10.0).unwrap().training_rows(x).is_ok());
    }

    #[test]
    fn missing_values_are_filled_in_before_all_else() {
        let mut x = Matrix::from_fn(40, 2, |i, j| libm::sin((i + j) as f64) + 2.0);
        (x[(3, 0)], x[(9, 0)]) = (f64::NAN, f64::NAN);
        let mean = (0..40).filter(|i| ![3, 9].contains(i)).map(|i| x[(i, 0)]).sum::<f64>() / 38.0;
        let fill = Imputation::Mean.fit(&x).unwrap();
        let normalisation = Normalisation::fit_scaled(&filled(&x, &fill), Scaling::Standard, 10.0).unwrap();
        assert!(normalisation.apply(&x).is_err(), "missing values are refused");
        let normalisation = normalisation.with_fill(fill);
        assert!(normalisation.apply(&x).unwrap()[(3, 0)].abs() < 1e-12, "the mean is the centre");
        assert!((normalisation.prepared(&x)[(9, 0)] - mean).abs() < 1e-12);
        assert!(normalisation.is_for(2) && !normalisation.is_for(3));
    }

    /// A normalisation of the first version has one factor.
    #[test]
    fn earlier_versions_are_read() {
        let old = r#"{"shift":[1.0,2.0],"factor":0.5,"row_norm":10.0}"#;
        let read: Normalisation = serde_json::from_str(old).unwrap();
        assert_eq!((read.scaling(), read.fill()), (Scaling::None, None));
        let x = Matrix::new(1, 2, vec![3.0, 6.0]).unwrap();
        assert_eq!(read.apply(&x).unwrap().values(), [1.0, 2.0]);
    }
}
