//! `ColMajor` (Crockett 2020): `A B^T` column by column.

use super::blocks::{BlockOps, Blocks, Mask, check_shapes};
use crate::Result;
use hetal_circuits::Engine;

/// `A B^T` for `B` of `c` rows: row `i` of `B` is repeated over all rows, multiplied with `A` and
/// summed into column `i`. Three levels.
pub fn col_major<E: Engine>(
    engine: &E,
    a: &Blocks<E::Ciphertext>,
    b: &Blocks<E::Ciphertext>,
    c: usize,
) -> Result<Blocks<E::Ciphertext>> {
    check_shapes(engine, a, b, c, b.shape() == (1, a.shape().1))?;
    let ops = BlockOps::new(engine, a.unit());
    let mut sums = vec![None; a.shape().0];
    for i in 0..c {
        let mask = Mask::new(ops.unit.mask(|row, _| row == i));
        let repeated = b.map(|block| ops.sum_rows(ops.masked(block, &mask)?))?;
        for (row, sum) in a.rows().iter().zip(&mut sums) {
            let column = ops.sum_in_first_column(ops.dot(row.iter().zip(&repeated.rows()[0]))?)?;
            let part = engine.rotate(&column, -(i as i64))?;
            *sum = Some(ops.accumulated(sum.take(), part)?);
        }
    }
    Blocks::new(ops.unit, sums.into_iter().flatten().map(|sum| vec![sum]).collect())
}
