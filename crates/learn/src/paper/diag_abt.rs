//! `DiagABT`: products `A B^T` by diagonals.

use super::blocks::{BlockOps, Blocks, Mask, check_shapes};
use crate::Result;
use hetal_circuits::Engine;

/// `t A B^T`, repeated to the right, for `A` of any shape and `B` of `c` rows tiled downwards: the
/// paper's algorithm 2. Three levels below the lower of `A` and `B`.
pub fn diag_abt<E: Engine>(
    engine: &E,
    a: &Blocks<E::Ciphertext>,
    b: &Blocks<E::Ciphertext>,
    c: usize,
    t: f64,
) -> Result<Blocks<E::Ciphertext>> {
    check_shapes(engine, a, b, c, b.shape() == (1, a.shape().1))?;
    let ops = BlockOps::new(engine, a.unit());
    let complex = b.map(|block| ops.complexified(block, &ops.rotate_up(block, c / 2)?))?;
    let mut sums = vec![None; a.shape().0];
    for k in 0..c / 2 {
        let shifted = complex.map(|block| ops.rotate_up(block, k))?;
        let mask = Mask::new(ops.unit.diagonal_mask(k as i64, c, t));
        for (row, sum) in a.rows().iter().zip(&mut sums) {
            let product = ops.dot(row.iter().zip(&shifted.rows()[0]))?;
            let part = ops.masked(&ops.sum_columns(product)?, &mask)?;
            *sum = Some(ops.accumulated(sum.take(), part)?);
        }
    }
    let real = sums.iter().flatten().map(|sum| Ok(vec![ops.twice_real(sum)?])).collect::<Result<_>>()?;
    Blocks::new(ops.unit, real)
}
