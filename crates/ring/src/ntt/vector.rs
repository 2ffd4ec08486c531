//! The transform on vectors of doubles: radix 4, depth first, signed residues that grow between
//! reductions.
//!
//! The stage of `m` blocks has the root `roots[m + b]` for block `b`. Pairs of stages are done at
//! once on quarters of a block, with the root of the block and the two of its halves. The stages
//! come in three groups:
//!
//! 1. Between blocks that fit in the first cache, seen as rows: a strip of columns at a time,
//!    through all these stages.
//! 2. Inside a block, down to squares of `LANES` vectors, and the half of a square's stages that is
//!    on whole vectors.
//! 3. After a transposition of a square, the other half with a root per lane.
//!
//! So the array goes through the caches twice. The first pass reads residues and the last writes
//! them; in between the memory holds doubles. The inverse does the same backwards.
//!
//! # Sizes
//!
//! In units of `q`: an integer of size `A` times a root (1/2 at most) has size `b(A)`, given with
//! [`Field::mul_factor`], if `A` is at most 4 (`q < 2^50`) or 2 (`q < 2^51`). Sums must stay below
//! `2^53`: 8 or 4 units. Three classes of moduli differ in where they reduce a value to 1/2:
//!
//! - `SMALL`, `q < 2^47`: `b(A) <= 1/2 + 3/128 A` and products may have any `A < 32`. Forward
//!   nothing is reduced: from `A = 1`, `A + b(A)` is 12 at most after 17 stages. Backward one of
//!   four outputs is, see `inverse4`.
//! - `MEDIUM`, `q < 2^50`.
//! - `LARGE`, `q < 2^51`.
//!
//! The bounds of the last two are with the butterflies.

mod butterflies;
mod roots;
#[cfg(test)]
mod tests;

use crate::Modulus;
use crate::simd::{Factor, Field, Simd, prefetch, vector_kernel};
use butterflies::{forward_heap, forward4, inverse_heap, inverse4, load, transpose};
pub(super) use roots::Roots;
use std::mem::MaybeUninit;

/// Smallest degree (its logarithm) done here: a pass, and then squares of 8 by 8 at most.
pub(super) const MIN_LOG_N: u32 = 7;

/// Most elements of a block, which is taken through its stages at once: with its roots, well inside
/// 32 KiB.
const MAX_BLOCK: usize = 2048;
/// Most blocks, at the largest degree.
const MAX_ROWS: usize = 128;
/// Columns taken through the stages between blocks at once: whole cache lines, of as many blocks as
/// there are.
const STRIP: usize = 32;
/// Squares of vectors done together, so that independent instructions are near each other.
const SQUARES: usize = 2;

const SMALL: u8 = 0;
const MEDIUM: u8 = 1;
const LARGE: u8 = 2;

/// Where a pass is in the transform.
const FIRST: u8 = 0;
const MIDDLE: u8 = 1;
const LAST: u8 = 2;

/// A strip: `MAX_ROWS` rows of `STRIP` doubles.
#[repr(align(64))]
struct Scratch([MaybeUninit<f64>; MAX_ROWS * STRIP]);

/// Rows of doubles: where they start and how far apart they are.
#[derive(Clone, Copy)]
struct RowPointers {
    start: *mut f64,
    stride: usize,
}

impl RowPointers {
    /// # Safety
    ///
    /// The element is in the array.
    #[inline(always)]
    unsafe fn at(self, row: usize, column: usize) -> *mut f64 {
        // SAFETY: the caller's.
        unsafe { self.start.add(row * self.stride + column) }
    }
}

vector_kernel! {
    pub(super) fn forward(table: &super::NttTable, a: &mut [u64])
        requires (fits(table, a)) = forward_any, else super::NttTable::forward_scalar
}

vector_kernel! {
    pub(super) fn inverse(table: &super::NttTable, a: &mut [u64], scale: u64)
        requires (fits(table, a)) = inverse_any, else super::NttTable::inverse_scalar
}

/// Whether `a` has the degree of the table, and the degree is one of those done here.
fn fits(table: &super::NttTable, a: &[u64]) -> bool {
    a.len() == table.degree() && table.is_vector()
}

#[inline(always)]
unsafe fn forward_any<S: Simd>(_set: S, table: &super::NttTable, a: &mut [u64]) {
    let roots = table.vector_roots(S::LANES);
    // SAFETY: the caller's features; `a` has the table's degree and the roots its lanes.
    unsafe {
        match table.modulus.bits() {
            ..=47 => Transform::<S, SMALL>::new(&table.modulus, roots, a).forward(),
            48..=50 => Transform::<S, MEDIUM>::new(&table.modulus, roots, a).forward(),
            _ => Transform::<S, LARGE>::new(&table.modulus, roots, a).forward(),
        }
    }
}

#[inline(always)]
unsafe fn inverse_any<S: Simd>(_set: S, table: &super::NttTable, a: &mut [u64], scale: u64) {
    let roots = table.vector_roots(S::LANES);
    let q = &table.modulus;
    // The root of the last stage is minus that of the only block, see `inverse4` for the sign.
    let scaled_root = q.center(q.mul(q.reduce_i128(roots.upper[0].0[1] as i128), scale)) as f64;
    let scale = q.center(scale) as f64;
    // SAFETY: the caller's features; `a` has the table's degree and the roots its lanes.
    unsafe {
        let scale = Factor { value: S::splat(scale), ratio: S::splat(scale / q.q_f64) };
        let scaled_root = Factor { value: S::splat(scaled_root), ratio: S::splat(scaled_root / q.q_f64) };
        match q.bits() {
            ..=47 => Transform::<S, SMALL>::new(q, roots, a).inverse(scale, scaled_root),
            48..=50 => Transform::<S, MEDIUM>::new(q, roots, a).inverse(scale, scaled_root),
            _ => Transform::<S, LARGE>::new(q, roots, a).inverse(scale, scaled_root),
        }
    }
}

/// One transform under way, of the `n` elements at `a` seen as rows of one block each. All its
/// methods need the features of `S`.
struct Transform<S: Simd, const CLASS: u8> {
    field: Field<S>,
    a: *mut f64,
    /// Number of blocks, and the size of one: `LANES^2` times a power of 4.
    rows: usize,
    block: usize,
    upper: *const f64,
    squares: *const f64,
}

impl<S: Simd, const CLASS: u8> Transform<S, CLASS> {
    const SQUARE: usize = S::LANES * S::LANES;

    #[inline(always)]
    unsafe fn new(modulus: &Modulus, roots: &Roots, a: &mut [u64]) -> Self {
        let n = a.len();
        assert!(n.is_power_of_two() && n >= 1 << MIN_LOG_N && roots.lanes == S::LANES && roots.squares.len() * 8 == n);
        let mut block = Self::SQUARE;
        while 4 * block <= MAX_BLOCK && 4 * block < n {
            block *= 4;
        }
        let rows = n / block;
        assert!((2..=MAX_ROWS).contains(&rows));
        Self {
            // SAFETY: the caller's.
            field: unsafe { Field::new(modulus) },
            a: a.as_mut_ptr().cast(),
            rows,
            block,
            upper: roots.upper.as_ptr().cast(),
            squares: roots.squares.as_ptr().cast(),
        }
    }

    /// The root `k`, in all lanes.
    #[inline(always)]
    unsafe fn root(&self, k: usize) -> Factor<S> {
        // SAFETY: the caller passes indices of stages before the squares.
        unsafe { self.field.factor(S::splat(*self.upper.add(k))) }
    }

    #[inline(always)]
    unsafe fn forward(&self) {
        // SAFETY: strips are whole numbers of vectors, and blocks of squares, inside the array.
        unsafe {
            let mut scratch = Scratch([MaybeUninit::uninit(); MAX_ROWS * STRIP]);
            let scratch = RowPointers { start: scratch.0.as_mut_ptr().cast(), stride: STRIP };
            for column in (0..self.block).step_by(STRIP) {
                self.forward_strip(RowPointers { start: self.a.add(column), stride: self.block }, scratch);
            }
            for row in 0..self.rows {
                self.forward_row(row);
            }
        }
    }

    /// The stages between blocks, on one strip. Reads residues.
    #[inline(always)]
    unsafe fn forward_strip(&self, a: RowPointers, scratch: RowPointers) {
        // SAFETY: as in `forward`.
        unsafe {
            let odd = self.rows.ilog2() % 2 == 1;
            let mut count = if odd { self.rows / 2 } else { self.rows / 4 };
            let to = if count == 1 { a } else { scratch };
            if odd {
                self.forward_first2(a, to);
            } else {
                self.forward_pass::<FIRST>(a, to, self.rows, 0);
            }
            while count > 1 {
                let to = if count == 4 { a } else { scratch };
                for part in 0..self.rows / count {
                    self.forward_pass::<MIDDLE>(scratch, to, count, part);
                }
                count /= 4;
            }
        }
    }

    /// The first stage alone. From residues (`A = 1`) to `1 + b(1)`: at most 1.75.
    #[inline(always)]
    unsafe fn forward_first2(&self, from: RowPointers, to: RowPointers) {
        // SAFETY: as in `forward`.
        unsafe {
            let (w, half) = (self.root(1), self.rows / 2);
            for row in 0..half {
                for column in (0..STRIP).step_by(S::LANES) {
                    let x0 = load::<S, FIRST>(from.at(row, column));
                    let x1 = load::<S, FIRST>(from.at(row + half, column));
                    let t = self.field.mul_factor(x1, w);
                    S::store(to.at(row, column), S::add(x0, t));
                    S::store(to.at(row + half, column), S::sub(x0, t));
                }
            }
        }
    }

    /// Two stages on part `part` of a strip: `count` rows.
    #[inline(always)]
    unsafe fn forward_pass<const PLACE: u8>(&self, from: RowPointers, to: RowPointers, count: usize, part: usize) {
        // SAFETY: as in `forward`; there are `rows / count` parts, and as many roots in this stage.
        unsafe {
            let k = self.rows / count + part;
            let (w1, w2, w3) = (self.root(k), self.root(2 * k), self.root(2 * k + 1));
            let quarter = count / 4;
            for row in part * count..part * count + quarter {
                if PLACE == FIRST {
                    prefetch_next_strip(from, row, quarter);
                }
                for column in (0..STRIP).step_by(S::LANES) {
                    let x = [
                        [load::<S, PLACE>(from.at(row, column))],
                        [load::<S, PLACE>(from.at(row + quarter, column))],
                        [load::<S, PLACE>(from.at(row + 2 * quarter, column))],
                        [load::<S, PLACE>(from.at(row + 3 * quarter, column))],
                    ];
                    let y = forward4::<S, CLASS, PLACE, 1>(&self.field, x, [w1], [w2], [w3]);
                    S::store(to.at(row, column), y[0][0]);
                    S::store(to.at(row + quarter, column), y[1][0]);
                    S::store(to.at(row + 2 * quarter, column), y[2][0]);
                    S::store(to.at(row + 3 * quarter, column), y[3][0]);
                }
            }
        }
    }

    /// The stages inside one block. Writes residues.
    #[inline(always)]
    unsafe fn forward_row(&self, row: usize) {
        // SAFETY: as in `forward`.
        unsafe {
            let base = self.a.add(row * self.block);
            let (mut parts, mut size) = (1, self.block);
            while size > Self::SQUARE {
                for part in 0..parts {
                    let k = (self.rows + row) * parts + part;
                    let (w1, w2, w3) = (self.root(k), self.root(2 * k), self.root(2 * k + 1));
                    let p = base.add(part * size);
                    for i in (0..size / 4).step_by(S::LANES) {
                        let p = [p.add(i), p.add(i + size / 4), p.add(i + size / 2), p.add(i + size / 4 * 3)];
                        let x = [[S::load(p[0])], [S::load(p[1])], [S::load(p[2])], [S::load(p[3])]];
                        let y = forward4::<S, CLASS, MIDDLE, 1>(&self.field, x, [w1], [w2], [w3]);
                        S::store(p[0], y[0][0]);
                        S::store(p[1], y[1][0]);
                        S::store(p[2], y[2][0]);
                        S::store(p[3], y[3][0]);
                    }
                }
                parts *= 4;
                size /= 4;
            }
            let roots = self.squares.add(row * self.block);
            for i in (0..self.block).step_by(Self::SQUARE) {
                self.forward_vectors(base.add(i), roots.add(i));
            }
            if self.block == Self::SQUARE {
                self.forward_lanes::<1>(base, roots);
            } else {
                for i in (0..self.block).step_by(Self::SQUARE * SQUARES) {
                    for line in (0..Self::SQUARE * SQUARES).step_by(8) {
                        prefetch(base.wrapping_add(self.block + i + line));
                        prefetch(roots.wrapping_add(self.block + i + line));
                    }
                    self.forward_lanes::<SQUARES>(base.add(i), roots.add(i));
                }
            }
        }
    }

    /// The stages of a square on whole vectors.
    #[inline(always)]
    unsafe fn forward_vectors(&self, base: *mut f64, roots: *const f64) {
        // SAFETY: the square and its roots are inside their arrays.
        unsafe {
            let zero = S::splat(0.0);
            let mut x = [[zero]; 8];
            let mut w = [[self.field.factor(zero)]; 8];
            for k in 0..S::LANES {
                x[k] = [S::load(base.add(k * S::LANES))];
                w[k] = [self.field.factor(S::splat(*roots.add(k)))];
            }
            forward_heap::<S, CLASS, MIDDLE, 1>(&self.field, &mut x, &w);
            for k in 0..S::LANES {
                S::store(base.add(k * S::LANES), x[k][0]);
            }
        }
    }

    /// The last stages, inside vectors, of `K` squares. Writes residues.
    #[inline(always)]
    unsafe fn forward_lanes<const K: usize>(&self, base: *mut f64, roots: *const f64) {
        // SAFETY: the squares and their roots are inside their arrays.
        unsafe {
            let (f, zero) = (&self.field, S::splat(0.0));
            let mut x = [[zero; K]; 8];
            let mut w = [[f.factor(zero); K]; 8];
            for k in 0..S::LANES {
                for j in 0..K {
                    x[k][j] = S::load(base.add(j * Self::SQUARE + k * S::LANES));
                }
            }
            transpose::<S, K>(&mut x);
            for k in 1..S::LANES {
                for j in 0..K {
                    w[k][j] = f.factor(S::load(roots.add(j * Self::SQUARE + k * S::LANES)));
                }
            }
            forward_heap::<S, CLASS, LAST, K>(f, &mut x, &w);
            transpose::<S, K>(&mut x);
            for k in 0..S::LANES {
                for j in 0..K {
                    let p = base.add(j * Self::SQUARE + k * S::LANES).cast();
                    S::store_u(p, f.residue(f.reduce(x[k][j])));
                }
            }
        }
    }

    /// The inverse, with the scale and the root of the last stage times the scale.
    #[inline(always)]
    unsafe fn inverse(&self, scale: Factor<S>, scaled_root: Factor<S>) {
        // SAFETY: as in `forward`.
        unsafe {
            for row in 0..self.rows {
                self.inverse_row(row);
            }
            let mut scratch = Scratch([MaybeUninit::uninit(); MAX_ROWS * STRIP]);
            let scratch = RowPointers { start: scratch.0.as_mut_ptr().cast(), stride: STRIP };
            for column in (0..self.block).step_by(STRIP) {
                let a = RowPointers { start: self.a.add(column), stride: self.block };
                self.inverse_strip(a, scratch, scale, scaled_root);
            }
        }
    }

    /// The stages inside one block. Reads residues.
    #[inline(always)]
    unsafe fn inverse_row(&self, row: usize) {
        // SAFETY: as in `forward`.
        unsafe {
            let base = self.a.add(row * self.block);
            // The inverse of the root of block b of m is minus that of block m - 1 - b, see
            // `inverse4`.
            let mirror = self.rows - 1 - row;
            let roots = self.squares.add(mirror * self.block);
            if self.block == Self::SQUARE {
                self.inverse_lanes::<1>(base, roots);
            } else {
                let step = Self::SQUARE * SQUARES;
                for i in (0..self.block).step_by(step) {
                    self.inverse_lanes::<SQUARES>(base.add(i), roots.add(self.block - step - i));
                }
            }
            for i in (0..self.block).step_by(Self::SQUARE) {
                self.inverse_vectors(base.add(i), roots.add(self.block - Self::SQUARE - i));
            }
            let (mut parts, mut size) = (self.block / Self::SQUARE / 4, Self::SQUARE * 4);
            while parts > 0 {
                for part in 0..parts {
                    let k = (self.rows + mirror) * parts + (parts - 1 - part);
                    let (w1, w2, w3) = (self.root(k), self.root(2 * k + 1), self.root(2 * k));
                    let p = base.add(part * size);
                    for i in (0..size / 4).step_by(S::LANES) {
                        let p = [p.add(i), p.add(i + size / 4), p.add(i + size / 2), p.add(i + size / 4 * 3)];
                        let x = [[S::load(p[0])], [S::load(p[1])], [S::load(p[2])], [S::load(p[3])]];
                        let y = inverse4::<S, CLASS, 1>(&self.field, x, [w1], [w2], [w3]);
                        S::store(p[0], y[0][0]);
                        S::store(p[1], y[1][0]);
                        S::store(p[2], y[2][0]);
                        S::store(p[3], y[3][0]);
                    }
                }
                parts /= 4;
                size *= 4;
            }
        }
    }

    /// The first stages, inside vectors, of `K` squares. Reads residues.
    #[inline(always)]
    unsafe fn inverse_lanes<const K: usize>(&self, base: *mut f64, roots: *const f64) {
        // SAFETY: the squares and their roots are inside their arrays.
        unsafe {
            let (f, zero) = (&self.field, S::splat(0.0));
            let mut x = [[zero; K]; 8];
            let mut w = [[f.factor(zero); K]; 8];
            for k in 0..S::LANES {
                for j in 0..K {
                    // Vectors in reverse order: then the roots of the mirrored square are in the
                    // order of the lanes.
                    let p = base.add(j * Self::SQUARE + (S::LANES - 1 - k) * S::LANES);
                    x[k][j] = load::<S, FIRST>(p);
                    w[k][j] = f.factor(S::load(roots.add((K - 1 - j) * Self::SQUARE + k * S::LANES)));
                }
            }
            transpose::<S, K>(&mut x);
            inverse_heap::<S, CLASS, K>(f, &mut x, &w);
            transpose::<S, K>(&mut x);
            for k in 0..S::LANES {
                for j in 0..K {
                    S::store(base.add(j * Self::SQUARE + (S::LANES - 1 - k) * S::LANES), x[k][j]);
                }
            }
        }
    }

    /// The stages of a square on whole vectors.
    #[inline(always)]
    unsafe fn inverse_vectors(&self, base: *mut f64, roots: *const f64) {
        // SAFETY: the square and its roots are inside their arrays.
        unsafe {
            let zero = S::splat(0.0);
            let mut x = [[zero]; 8];
            let mut w = [[self.field.factor(zero)]; 8];
            for k in 0..S::LANES {
                x[k] = [S::load(base.add(k * S::LANES))];
                w[k] = [self.field.factor(S::splat(*roots.add(k)))];
            }
            inverse_heap::<S, CLASS, 1>(&self.field, &mut x, &w);
            for k in 0..S::LANES {
                S::store(base.add(k * S::LANES), x[k][0]);
            }
        }
    }

    /// The stages between blocks, on one strip. Writes residues.
    #[inline(always)]
    unsafe fn inverse_strip(&self, a: RowPointers, scratch: RowPointers, scale: Factor<S>, scaled_root: Factor<S>) {
        // SAFETY: as in `forward`.
        unsafe {
            let odd = self.rows.ilog2() % 2 == 1;
            let last = if odd { 2 } else { 4 };
            let mut count = 4;
            while count * last <= self.rows {
                let from = if count == 4 { a } else { scratch };
                for part in 0..self.rows / count {
                    self.inverse_pass(from, scratch, count, part);
                }
                count *= 4;
            }
            let from = if self.rows == last { a } else { scratch };
            if odd {
                self.inverse_last2(from, a, scale, scaled_root);
            } else {
                self.inverse_last4(from, a, scale, scaled_root);
            }
        }
    }

    /// Two stages on part `part` of a strip: `count` rows.
    #[inline(always)]
    unsafe fn inverse_pass(&self, from: RowPointers, to: RowPointers, count: usize, part: usize) {
        // SAFETY: as in `forward_pass`.
        unsafe {
            let k = 2 * (self.rows / count) - 1 - part;
            let (w1, w2, w3) = (self.root(k), self.root(2 * k + 1), self.root(2 * k));
            let quarter = count / 4;
            for row in part * count..part * count + quarter {
                for column in (0..STRIP).step_by(S::LANES) {
                    let x = [
                        [S::load(from.at(row, column))],
                        [S::load(from.at(row + quarter, column))],
                        [S::load(from.at(row + 2 * quarter, column))],
                        [S::load(from.at(row + 3 * quarter, column))],
                    ];
                    let y = inverse4::<S, CLASS, 1>(&self.field, x, [w1], [w2], [w3]);
                    S::store(to.at(row, column), y[0][0]);
                    S::store(to.at(row + quarter, column), y[1][0]);
                    S::store(to.at(row + 2 * quarter, column), y[2][0]);
                    S::store(to.at(row + 3 * quarter, column), y[3][0]);
                }
            }
        }
    }

    /// The last two stages; writes residues. As [`inverse4`], with products in place of the last
    /// reductions: of the sums of size `4 M`, which `LARGE` reduces first, and `2 b(2 M)`. The
    /// products are below 1.
    #[inline(always)]
    unsafe fn inverse_last4(&self, from: RowPointers, to: RowPointers, scale: Factor<S>, scaled_root: Factor<S>) {
        // SAFETY: as in `forward`.
        unsafe {
            let f = &self.field;
            let (w2, w3) = (self.root(3), self.root(2));
            let quarter = self.rows / 4;
            for row in 0..quarter {
                for column in (0..STRIP).step_by(S::LANES) {
                    let x0 = S::load(from.at(row, column));
                    let x1 = S::load(from.at(row + quarter, column));
                    let x2 = S::load(from.at(row + 2 * quarter, column));
                    let x3 = S::load(from.at(row + 3 * quarter, column));
                    let (s0, s1) = (S::add(x0, x1), S::add(x2, x3));
                    let [[d0], [d1]] = f.mul_factors([[S::sub(x1, x0)], [S::sub(x3, x2)]], [[w2], [w3]]);
                    let (mut sum, mut difference) = (S::add(s0, s1), S::sub(s1, s0));
                    if CLASS == LARGE {
                        (sum, difference) = (f.reduce(sum), f.reduce(difference));
                    }
                    let [[y0], [y2]] = f.mul_factors([[sum], [difference]], [[scale], [scaled_root]]);
                    let [[y1], [y3]] = f.mul_factors([[S::add(d0, d1)], [S::sub(d1, d0)]], [[scale], [scaled_root]]);
                    S::store_u(to.at(row, column).cast(), f.residue(y0));
                    S::store_u(to.at(row + quarter, column).cast(), f.residue(y1));
                    S::store_u(to.at(row + 2 * quarter, column).cast(), f.residue(y2));
                    S::store_u(to.at(row + 3 * quarter, column).cast(), f.residue(y3));
                }
            }
        }
    }

    /// The last stage alone; writes residues. Sums and differences are `2 M`, and their products
    /// below 1.
    #[inline(always)]
    unsafe fn inverse_last2(&self, from: RowPointers, to: RowPointers, scale: Factor<S>, scaled_root: Factor<S>) {
        // SAFETY: as in `forward`.
        unsafe {
            let (f, half) = (&self.field, self.rows / 2);
            for row in 0..half {
                for column in (0..STRIP).step_by(S::LANES) {
                    let (x0, x1) = (S::load(from.at(row, column)), S::load(from.at(row + half, column)));
                    let factors = [[scale], [scaled_root]];
                    let [[y0], [y1]] = f.mul_factors([[S::add(x0, x1)], [S::sub(x1, x0)]], factors);
                    S::store_u(to.at(row, column).cast(), f.residue(y0));
                    S::store_u(to.at(row + half, column).cast(), f.residue(y1));
                }
            }
        }
    }
}

/// Asks for what four rows have in the next strip: it is too far from row to row for the CPU to
/// foresee.
#[inline(always)]
fn prefetch_next_strip(a: RowPointers, row: usize, quarter: usize) {
    for k in 0..4 {
        for line in (0..STRIP).step_by(8) {
            prefetch(a.start.wrapping_add((row + k * quarter) * a.stride + STRIP + line));
        }
    }
}
