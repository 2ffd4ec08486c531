//! Matrices in blocks of one ciphertext each, and the row and column operations on them.

use crate::{Error, Matrix, Result};
use hetal_circuits::{Complex64, Engine, Multiplication};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The shape `s0 x s1` of a block: `s0 s1` slots, row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockShape {
    rows: usize,
    columns: usize,
}

impl BlockShape {
    /// A block shape; both numbers are powers of two.
    pub fn new(rows: usize, columns: usize) -> Result<Self> {
        for (what, value) in [("rows of a block", rows), ("columns of a block", columns)] {
            if !value.is_power_of_two() {
                return Err(Error::Invalid { what, value: value as f64, must: "a power of two" });
            }
        }
        Ok(Self { rows, columns })
    }

    /// Rows of a block (`s0`).
    pub fn rows(self) -> usize {
        self.rows
    }

    /// Columns of a block (`s1`).
    pub fn columns(self) -> usize {
        self.columns
    }

    /// Slots of a block.
    pub fn slots(self) -> usize {
        self.rows * self.columns
    }

    /// The slots with `f(i, j)` in row `i`, column `j`.
    pub fn fill(self, f: impl Fn(usize, usize) -> Complex64) -> Vec<Complex64> {
        (0..self.slots()).map(|slot| f(slot / self.columns, slot % self.columns)).collect()
    }

    /// 1 where the condition holds, 0 elsewhere.
    pub fn mask(self, holds: impl Fn(usize, usize) -> bool) -> Vec<Complex64> {
        self.fill(|i, j| if holds(i, j) { Complex64::ONE } else { Complex64::ZERO })
    }

    /// `t (M^(k, c) - i M^(k + c/2, c)) / 2` with `M^(k, c)[i, j] = 1` where `j = i + k mod c`: the
    /// paper's complexified diagonal mask.
    pub fn diagonal_mask(self, k: i64, c: usize, t: f64) -> Vec<Complex64> {
        let c = c as i64;
        self.fill(|i, j| match (j as i64 - i as i64 - k).rem_euclid(c) {
            0 => Complex64::new(t / 2.0, 0.0),
            d if d == c / 2 => Complex64::new(0.0, -t / 2.0),
            _ => Complex64::ZERO,
        })
    }
}

/// A matrix of blocks, `blocks[i][j]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocks<T> {
    unit: BlockShape,
    blocks: Vec<Vec<T>>,
}

impl Blocks<Vec<Complex64>> {
    /// Cuts a matrix into blocks, padded with zeros.
    pub fn pack(matrix: &Matrix, unit: BlockShape) -> Self {
        let (down, right) = (matrix.rows().div_ceil(unit.rows), matrix.columns().div_ceil(unit.columns));
        let entry = |i: usize, j: usize| {
            let inside = i < matrix.rows() && j < matrix.columns();
            Complex64::new(if inside { matrix[(i, j)] } else { 0.0 }, 0.0)
        };
        let block = |a: usize, b: usize| unit.fill(|i, j| entry(a * unit.rows + i, b * unit.columns + j));
        Self { unit, blocks: (0..down).map(|a| (0..right).map(|b| block(a, b)).collect()).collect() }
    }

    /// Cuts a matrix of at most `s0` rows into blocks, repeated downwards to fill them. Its rows
    /// are padded to `c`.
    pub fn pack_tiled_down(matrix: &Matrix, c: usize, unit: BlockShape) -> Result<Self> {
        check_tile(c, unit.rows)?;
        matrix.require("a matrix to tile", c, matrix.columns())?;
        let entry = |i: usize, j: usize| if i % c < matrix.rows() { matrix[(i % c, j)] } else { 0.0 };
        Ok(Self::pack(&Matrix::from_fn(unit.rows, matrix.columns(), entry), unit))
    }

    /// Cuts a matrix of at most `s1` columns into blocks, repeated to the right to fill them. Its
    /// columns are padded to `c`.
    pub fn pack_tiled_right(matrix: &Matrix, c: usize, unit: BlockShape) -> Result<Self> {
        check_tile(c, unit.columns)?;
        if matrix.columns() > c {
            matrix.require("a matrix to tile", matrix.rows(), c)?;
        }
        let entry = |i: usize, j: usize| if j % c < matrix.columns() { matrix[(i, j % c)] } else { 0.0 };
        Ok(Self::pack(&Matrix::from_fn(matrix.rows(), unit.columns, entry), unit))
    }

    /// The upper left `rows x columns` part of the matrix.
    pub fn unpack(&self, rows: usize, columns: usize) -> Matrix {
        let unit = self.unit;
        let entry = |i: usize, j: usize| {
            let block = self.blocks.get(i / unit.rows).and_then(|row| row.get(j / unit.columns));
            block.map_or(0.0, |block| block[(i % unit.rows) * unit.columns + j % unit.columns].re)
        };
        Matrix::from_fn(rows, columns, entry)
    }
}

impl<T> Blocks<T> {
    /// A matrix of given blocks, all rows of one length.
    pub fn new(unit: BlockShape, blocks: Vec<Vec<T>>) -> Result<Self> {
        let width = blocks.first().map_or(0, Vec::len);
        if width == 0 || blocks.iter().any(|row| row.len() != width) {
            return Err(hetal_circuits::Error::Empty("a matrix of blocks").into());
        }
        Ok(Self { unit, blocks })
    }

    /// The shape of a block.
    pub fn unit(&self) -> BlockShape {
        self.unit
    }

    /// All blocks, row by row.
    pub fn rows(&self) -> &[Vec<T>] {
        &self.blocks
    }

    /// The number of blocks downwards and to the right.
    pub fn shape(&self) -> (usize, usize) {
        (self.blocks.len(), self.blocks.first().map_or(0, Vec::len))
    }

    /// Every block changed, for example encrypted.
    pub fn map<U>(&self, mut f: impl FnMut(&T) -> Result<U>) -> Result<Blocks<U>> {
        let row = |row: &Vec<T>| row.iter().map(&mut f).collect::<Result<Vec<U>>>();
        Ok(Blocks { unit: self.unit, blocks: self.blocks.iter().map(row).collect::<Result<_>>()? })
    }
}

fn check_tile(c: usize, of: usize) -> Result<()> {
    if c.is_power_of_two() && c > 1 && c <= of {
        return Ok(());
    }
    Err(Error::Invalid { what: "the period of a tiling", value: c as f64, must: "a power of two that fits the block" })
}

/// The operations of the paper on one block.
pub(crate) struct BlockOps<'a, E: Engine> {
    pub engine: &'a E,
    pub unit: BlockShape,
    first_column: Mask<E>,
}

/// A mask, encoded once for each level it is used at: encoding takes longer than a product on a
/// GPU.
pub(crate) struct Mask<E: Engine> {
    values: Vec<Complex64>,
    encoded: RefCell<BTreeMap<usize, E::Plaintext>>,
}

impl<E: Engine> Mask<E> {
    pub fn new(values: Vec<Complex64>) -> Self {
        Self { values, encoded: RefCell::default() }
    }
}

impl<'a, E: Engine> BlockOps<'a, E> {
    pub fn new(engine: &'a E, unit: BlockShape) -> Self {
        Self { engine, unit, first_column: Mask::new(unit.mask(|_, j| j == 0)) }
    }

    /// `x * mask`. One level.
    pub fn masked(&self, x: &E::Ciphertext, mask: &Mask<E>) -> Result<E::Ciphertext> {
        let level = self.engine.level(x);
        let mut encoded = mask.encoded.borrow_mut();
        let plain = match encoded.entry(level) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.engine.encode(&mask.values, Multiplication::at(level))?),
        };
        Ok(self.engine.mul_plain(x, plain)?)
    }

    /// Adds rotations by `step, 2 step, 4 step ...` below `end`: a sum of `end / step` rotations.
    pub fn rotation_sum(&self, mut x: E::Ciphertext, step: i64, count: usize) -> Result<E::Ciphertext> {
        let mut by = 1;
        while by < count {
            x = self.engine.add(&x, &self.engine.rotate(&x, step * by as i64)?)?;
            by *= 2;
        }
        Ok(x)
    }

    /// `SumRows`: every row the sum of all rows. No level.
    pub fn sum_rows(&self, x: E::Ciphertext) -> Result<E::Ciphertext> {
        self.rotation_sum(x, self.unit.columns as i64, self.unit.rows)
    }

    /// `SumCols`: every column the sum of all columns. One level.
    pub fn sum_columns(&self, x: E::Ciphertext) -> Result<E::Ciphertext> {
        let first = self.sum_in_first_column(x)?;
        self.rotation_sum(first, -1, self.unit.columns)
    }

    /// The sum of all columns in the first column, 0 elsewhere. One level.
    pub fn sum_in_first_column(&self, x: E::Ciphertext) -> Result<E::Ciphertext> {
        self.first_column(&self.rotation_sum(x, 1, self.unit.columns)?)
    }

    /// The first column, 0 elsewhere. One level.
    pub fn first_column(&self, x: &E::Ciphertext) -> Result<E::Ciphertext> {
        self.masked(x, &self.first_column)
    }

    /// `RotUp`: rows moved up by `k`, cyclically. No level.
    pub fn rotate_up(&self, x: &E::Ciphertext, k: usize) -> Result<E::Ciphertext> {
        Ok(self.engine.rotate(x, (k * self.unit.columns) as i64)?)
    }

    /// `RotLeft`: columns moved left by `k`, cyclically. One level unless `k` is 0.
    pub fn rotate_left(&self, x: &E::Ciphertext, k: usize) -> Result<E::Ciphertext> {
        let columns = self.unit.columns;
        if k.is_multiple_of(columns) {
            return Ok(x.clone());
        }
        let moved = self.engine.rotate(x, k as i64)?;
        let stay = self.masked(&moved, &Mask::new(self.unit.mask(|_, j| j < columns - k)))?;
        let wrapped = self.engine.rotate(&self.engine.sub(&moved, &stay)?, -(columns as i64))?;
        Ok(self.engine.add(&stay, &wrapped)?)
    }

    /// All columns but the last `k`.
    pub fn all_but_last(&self, k: usize) -> Mask<E> {
        Mask::new(self.unit.mask(|_, j| j + k < self.unit.columns))
    }

    /// `PRotUp`: the last `k` columns, which are not in `others`, moved up by one, cyclically. One
    /// level unless `k` is 0.
    pub fn partly_rotate_up(&self, x: &E::Ciphertext, k: usize, others: &Mask<E>) -> Result<E::Ciphertext> {
        if k == 0 {
            return Ok(x.clone());
        }
        let stay = self.masked(x, others)?;
        let moved = self.rotate_up(&self.engine.sub(x, &stay)?, 1)?;
        Ok(self.engine.add(&stay, &moved)?)
    }

    /// `x + i y`. No level.
    pub fn complexified(&self, x: &E::Ciphertext, y: &E::Ciphertext) -> Result<E::Ciphertext> {
        Ok(self.engine.add(x, &self.engine.mul_i(y, 1)?)?)
    }

    /// `sum_k a_k b_k`, each product with its own relinearisation as in the paper.
    pub fn dot<'c>(&self, pairs: impl Iterator<Item = (&'c E::Ciphertext, &'c E::Ciphertext)>) -> Result<E::Ciphertext>
    where
        E::Ciphertext: 'c,
    {
        let mut sum = None;
        for (a, b) in pairs {
            sum = Some(self.accumulated(sum, self.engine.mul(a, b)?)?);
        }
        sum.ok_or(hetal_circuits::Error::Empty("a product of matrices").into())
    }

    /// `sum + x`, where `None` stands for 0.
    pub fn accumulated(&self, sum: Option<E::Ciphertext>, x: E::Ciphertext) -> Result<E::Ciphertext> {
        Ok(match sum {
            Some(sum) => self.engine.add(&sum, &x)?,
            None => x,
        })
    }

    /// `x + conj x`: twice the real part.
    pub fn twice_real(&self, x: &E::Ciphertext) -> Result<E::Ciphertext> {
        Ok(self.engine.add(x, &self.engine.conjugate(x)?)?)
    }
}

/// Fails unless two matrices of blocks have one unit, that of the engine, and `same` is true of
/// their shapes.
pub(crate) fn check_shapes<E: Engine>(
    engine: &E,
    a: &Blocks<E::Ciphertext>,
    b: &Blocks<E::Ciphertext>,
    c: usize,
    same: bool,
) -> Result<()> {
    let unit = a.unit();
    if unit.slots() != engine.slots() {
        return Err(hetal_circuits::Error::SlotCount { got: unit.slots(), slots: engine.slots() }.into());
    }
    if unit != b.unit() || !same {
        let ((rows, columns), (must_rows, must_columns)) = (b.shape(), a.shape());
        return Err(Error::Shape { what: "the second matrix of blocks", rows, columns, must_rows, must_columns });
    }
    check_tile(c, unit.rows().min(unit.columns()))
}
