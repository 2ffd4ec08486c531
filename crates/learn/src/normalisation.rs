//! Normalisation of features, and its inverse on weights.

use crate::{Error, Matrix, Result};
use serde::{Deserialize, Serialize};

/// `x' = factor (x - shift)`. The client keeps it with the model and folds it into the final
/// weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalisation {
    shift: Vec<f64>,
    factor: f64,
    row_norm: f64,
}

/// Rows of other data may be longer than the longest training row by this factor.
pub const GUARD: f64 = 2.0;

impl Normalisation {
    /// The shift to column means and the factor that brings the longest row to `row_norm`.
    pub fn fit(features: &Matrix, row_norm: f64) -> Result<Self> {
        if features.rows() == 0 {
            return Err(Error::NoRows);
        }
        if !(row_norm > 0.0 && row_norm.is_finite()) {
            return Err(Error::Invalid { what: "the length of a row", value: row_norm, must: "positive" });
        }
        let mut shift = vec![0.0; features.columns()];
        for i in 0..features.rows() {
            shift.iter_mut().zip(features.row(i)).for_each(|(s, x)| *s += x / features.rows() as f64);
        }
        let unscaled = Self { shift, factor: 1.0, row_norm };
        let longest = (0..features.rows()).map(|i| norm(&unscaled.row(features.row(i)))).fold(0.0, f64::max);
        // Constant features carry no information at any scale.
        let factor = if longest > 0.0 { row_norm / longest } else { 1.0 };
        Ok(Self { factor, ..unscaled })
    }

    /// The normalised features; a row beyond [`GUARD`] times the longest training row is an error.
    pub fn apply(&self, features: &Matrix) -> Result<Matrix> {
        features.require("features to normalise", usize::MAX, self.shift.len())?;
        let mut normalised = Matrix::zeros(features.rows(), features.columns());
        let guard = GUARD * self.row_norm;
        for i in 0..features.rows() {
            let row = self.row(features.row(i));
            let length = norm(&row);
            if length.is_nan() || length > guard {
                return Err(Error::BeyondGuard { row: i, column: largest(&row), norm: length, guard });
            }
            normalised.row_mut(i).copy_from_slice(&row);
        }
        Ok(normalised)
    }

    /// The rows that [`Normalisation::apply`] refuses, counted from 0.
    pub fn beyond_guard(&self, features: &Matrix) -> Result<Vec<usize>> {
        features.require("features to normalise", usize::MAX, self.shift.len())?;
        let guard = GUARD * self.row_norm;
        let is_beyond = |&i: &usize| {
            let length = norm(&self.row(features.row(i)));
            length.is_nan() || length > guard
        };
        Ok((0..features.rows()).filter(is_beyond).collect())
    }

    /// Weights for features as they are, from weights for normalised ones:
    /// `w x' + b = (factor w) x + b - factor w shift`.
    pub fn fold(&self, weights: &Matrix) -> Result<Matrix> {
        weights.require("weights to fold", usize::MAX, self.shift.len() + 1)?;
        let features = self.shift.len();
        let mut folded = Matrix::from_fn(weights.rows(), features + 1, |k, h| weights[(k, h)] * self.factor);
        for k in 0..weights.rows() {
            let moved: f64 = folded.row(k).iter().zip(&self.shift).map(|(w, s)| w * s).sum();
            folded[(k, features)] = weights[(k, features)] - moved;
        }
        Ok(folded)
    }

    /// Weights for normalised features, from weights for features as they are: the inverse of
    /// [`Normalisation::fold`].
    pub fn unfold(&self, weights: &Matrix) -> Result<Matrix> {
        weights.require("weights to unfold", usize::MAX, self.shift.len() + 1)?;
        let features = self.shift.len();
        let moved = |k: usize| weights.row(k).iter().zip(&self.shift).map(|(w, s)| w * s).sum::<f64>();
        Ok(Matrix::from_fn(weights.rows(), features + 1, |k, h| match h {
            _ if h == features => weights[(k, h)] + moved(k),
            _ => weights[(k, h)] / self.factor,
        }))
    }

    /// The norm of the longest training row after normalisation.
    pub fn row_norm(&self) -> f64 {
        self.row_norm
    }

    fn row(&self, row: &[f64]) -> Vec<f64> {
        row.iter().zip(&self.shift).map(|(x, s)| self.factor * (x - s)).collect()
    }
}

fn norm(row: &[f64]) -> f64 {
    libm::sqrt(row.iter().map(|x| x * x).sum())
}

fn largest(row: &[f64]) -> usize {
    (0..row.len()).max_by(|&a, &b| row[a].abs().total_cmp(&row[b].abs())).unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::reference;

    fn features() -> Matrix {
        Matrix::from_fn(6, 4, |i, j| libm::sin((7 * i + 3 * j) as f64) * 20.0 + 5.0 * j as f64)
    }

    #[test]
    fn rows_become_as_long_as_asked() {
        let x = features();
        let normalised = Normalisation::fit(&x, 3.0).unwrap().apply(&x).unwrap();
        let longest = (0..6).map(|i| norm(normalised.row(i))).fold(0.0, f64::max);
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
}
