//! `DiagATB`: products `A^T B` by diagonals, in two branches.

use super::blocks::{BlockOps, Blocks, Mask, check_shapes};
use crate::Result;
use hetal_circuits::Engine;

/// Whose levels the inner rotations cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Branch {
    /// `RotLeft` of `A`: for `level(A) >= level(B)`.
    RotateA,
    /// `PRotUp` of `B`: for `level(A) < level(B)`.
    RotateB,
}

/// `t A^T B`, repeated downwards, for `A` of `c` columns tiled to the right and `B` with as many
/// rows: the paper's algorithm 5. Without a branch, the levels choose.
pub fn diag_atb<E: Engine>(
    engine: &E,
    a: &Blocks<E::Ciphertext>,
    b: &Blocks<E::Ciphertext>,
    c: usize,
    t: f64,
    branch: Option<Branch>,
) -> Result<Blocks<E::Ciphertext>> {
    check_shapes(engine, a, b, c, a.shape() == (b.shape().0, 1))?;
    let ops = BlockOps::new(engine, a.unit());
    let branch = branch.unwrap_or_else(|| by_levels(engine, a, b));
    let complex = a.map(|block| ops.complexified(block, &ops.rotate_left(block, c / 2)?))?;
    let mut sums = vec![None; b.shape().1];
    for k in 0..c / 2 {
        let (left, right) = match branch {
            Branch::RotateA => (complex.map(|block| ops.rotate_left(block, k))?, b.clone()),
            Branch::RotateB => {
                let rotated = complex.map(|block| Ok(engine.rotate(block, k as i64)?))?;
                let others = ops.all_but_last(k);
                (rotated, b.map(|block| ops.partly_rotate_up(block, k, &others))?)
            }
        };
        let mask = Mask::new(ops.unit.diagonal_mask(-(k as i64), c, t));
        for (j, sum) in sums.iter_mut().enumerate() {
            let product = ops.dot(left.rows().iter().zip(right.rows()).map(|(a, b)| (&a[0], &b[j])))?;
            let part = ops.masked(&ops.sum_rows(product)?, &mask)?;
            *sum = Some(ops.accumulated(sum.take(), part)?);
        }
    }
    let real = sums.iter().flatten().map(|sum| ops.twice_real(sum)).collect::<Result<_>>()?;
    Blocks::new(ops.unit, vec![real])
}

fn by_levels<E: Engine>(engine: &E, a: &Blocks<E::Ciphertext>, b: &Blocks<E::Ciphertext>) -> Branch {
    let lowest = |m: &Blocks<E::Ciphertext>| m.rows().iter().flatten().map(|c| engine.level(c)).min();
    if lowest(a) < lowest(b) { Branch::RotateB } else { Branch::RotateA }
}
