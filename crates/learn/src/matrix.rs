//! Plain matrices.

use crate::{Error, Result};

/// A matrix of `f64`, row by row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<f64>,
}

impl Matrix {
    /// A matrix with the given values, row by row.
    pub fn new(rows: usize, columns: usize, values: Vec<f64>) -> Result<Self> {
        if rows.checked_mul(columns) == Some(values.len()) {
            return Ok(Self { rows, columns, values });
        }
        Err(Error::Shape {
            what: "a matrix",
            rows: values.len().checked_div(columns).unwrap_or(0),
            columns,
            must_rows: rows,
            must_columns: columns,
        })
    }

    /// A matrix of zeros.
    pub fn zeros(rows: usize, columns: usize) -> Self {
        Self { rows, columns, values: vec![0.0; rows * columns] }
    }

    /// The matrix with `f(i, j)` in row `i`, column `j`.
    pub fn from_fn(rows: usize, columns: usize, mut f: impl FnMut(usize, usize) -> f64) -> Self {
        let values = (0..rows * columns).map(|k| f(k / columns, k % columns)).collect();
        Self { rows, columns, values }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> &[f64] {
        &self.values[i * self.columns..(i + 1) * self.columns]
    }

    /// Row `i`, to be written.
    pub fn row_mut(&mut self, i: usize) -> &mut [f64] {
        &mut self.values[i * self.columns..(i + 1) * self.columns]
    }

    /// All values, row by row.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Rows `range` as a matrix of their own.
    pub fn slice(&self, range: std::ops::Range<usize>) -> Self {
        let values = self.values[range.start * self.columns..range.end * self.columns].to_vec();
        Self { rows: range.len(), columns: self.columns, values }
    }

    /// `max |a_ij - b_ij|` of two matrices of one shape; infinite if a value is not a number.
    pub fn max_difference(&self, other: &Self) -> f64 {
        self.values
            .iter()
            .zip(&other.values)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, |m, d| if d.is_nan() { f64::INFINITY } else { d.max(m) })
    }

    /// `max |a_ij|`.
    pub fn max_magnitude(&self) -> f64 {
        self.values.iter().fold(0.0, |m: f64, v| m.max(v.abs()))
    }

    /// Fails unless the matrix has at most `rows` rows and exactly `columns` columns.
    pub(crate) fn require(&self, what: &'static str, rows: usize, columns: usize) -> Result<()> {
        if self.rows <= rows && self.columns == columns {
            return Ok(());
        }
        let (has_rows, has_columns) = (self.rows, self.columns);
        Err(Error::Shape { what, rows: has_rows, columns: has_columns, must_rows: rows, must_columns: columns })
    }
}

impl std::ops::Index<(usize, usize)> for Matrix {
    type Output = f64;
    fn index(&self, (i, j): (usize, usize)) -> &f64 {
        &self.values[i * self.columns + j]
    }
}

impl std::ops::IndexMut<(usize, usize)> for Matrix {
    fn index_mut(&mut self, (i, j): (usize, usize)) -> &mut f64 {
        &mut self.values[i * self.columns + j]
    }
}
