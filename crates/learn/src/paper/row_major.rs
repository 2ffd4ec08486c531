//! `RowMajor` (Crockett 2020): `A^T B` row by row.

use super::blocks::{BlockOps, Blocks, Mask, check_shapes};
use crate::Result;
use hetal_circuits::Engine;

/// `A^T B` for `A` of `c` columns: column `i` of `A` is repeated over all columns, multiplied with
/// `B` and summed into row `i`. Three levels.
pub fn row_major<E: Engine>(
    engine: &E,
    a: &Blocks<E::Ciphertext>,
    b: &Blocks<E::Ciphertext>,
    c: usize,
) -> Result<Blocks<E::Ciphertext>> {
    check_shapes(engine, a, b, c, a.shape() == (b.shape().0, 1))?;
    let ops = BlockOps::new(engine, a.unit());
    let mut sums = vec![None; b.shape().1];
    for i in 0..c {
        let repeated = a.map(|block| {
            let column = ops.first_column(&engine.rotate(block, i as i64)?)?;
            ops.rotation_sum(column, -1, ops.unit.columns())
        })?;
        let mask = Mask::new(ops.unit.mask(|row, _| row == i));
        for (j, sum) in sums.iter_mut().enumerate() {
            let product = ops.dot(repeated.rows().iter().zip(b.rows()).map(|(a, b)| (&a[0], &b[j])))?;
            let part = ops.masked(&ops.sum_rows(product)?, &mask)?;
            *sum = Some(ops.accumulated(sum.take(), part)?);
        }
    }
    Blocks::new(ops.unit, vec![sums.into_iter().flatten().collect()])
}
