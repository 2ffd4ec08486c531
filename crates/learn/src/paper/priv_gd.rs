//! PrivGD's products (Jin et al. 2020): one ciphertext per column, one per entry.

use crate::{Error, Matrix, Result};
use hetal_circuits::{Complex64, Engine};

/// The slots of every column of a matrix (column-majored packing).
pub fn pack_columns(matrix: &Matrix, slots: usize) -> Result<Vec<Vec<Complex64>>> {
    matrix.require("a matrix of one column per ciphertext", slots, matrix.columns())?;
    let entry = |i: usize, j: usize| if i < matrix.rows() { matrix[(i, j)] } else { 0.0 };
    let column = |j: usize| (0..slots).map(|i| Complex64::new(entry(i, j), 0.0)).collect();
    Ok((0..matrix.columns()).map(column).collect())
}

/// The slots of every entry of a matrix, repeated (replicated packing), row by row.
pub fn pack_replicated(matrix: &Matrix, slots: usize) -> Vec<Vec<Vec<Complex64>>> {
    let entry = |i: usize, j: usize| vec![Complex64::new(matrix[(i, j)], 0.0); slots];
    (0..matrix.rows()).map(|i| (0..matrix.columns()).map(|j| entry(i, j)).collect()).collect()
}

/// The columns of `A B^T`, for the columns of `A` and the replicated entries `b[k][j]` of `B`:
/// `b c` products, no rotation. One level.
pub fn abt<E: Engine>(engine: &E, a: &[E::Ciphertext], b: &[Vec<E::Ciphertext>]) -> Result<Vec<E::Ciphertext>> {
    let column = |row: &Vec<E::Ciphertext>| {
        if row.len() != a.len() {
            let (rows, columns) = (b.len(), row.len());
            return Err(Error::Shape { what: "B", rows, columns, must_rows: rows, must_columns: a.len() });
        }
        let mut sum: Option<E::Ciphertext> = None;
        for (x, w) in a.iter().zip(row) {
            let product = engine.mul(x, w)?;
            sum = Some(match sum {
                Some(sum) => engine.add(&sum, &product)?,
                None => product,
            });
        }
        sum.ok_or(hetal_circuits::Error::Empty("a product of matrices").into())
    };
    b.iter().map(column).collect()
}

/// The replicated entries of `A^T B`, for the columns of both: `b c` products and sums over all
/// slots. One level.
pub fn atb<E: Engine>(engine: &E, a: &[E::Ciphertext], b: &[E::Ciphertext]) -> Result<Vec<Vec<E::Ciphertext>>> {
    let entry = |x: &E::Ciphertext, y: &E::Ciphertext| -> Result<E::Ciphertext> {
        let mut sum = engine.mul(x, y)?;
        let mut by = 1;
        while by < engine.slots() {
            sum = engine.add(&sum, &engine.rotate(&sum, by as i64)?)?;
            by *= 2;
        }
        Ok(sum)
    };
    a.iter().map(|x| b.iter().map(|y| entry(x, y)).collect()).collect()
}
