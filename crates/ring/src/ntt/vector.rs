//! The transform on vectors of doubles: radix 4, depth first, signed residues that grow between reductions.
//!
//! The stage of `m` blocks has the root `roots[m + b]` for block `b`. Pairs of stages are done at once on quarters of a
//! block, with the root of the block and the two of its halves. The stages come in three groups:
//!
//! 1. Between blocks that fit in the first cache, seen as rows: a strip of columns at a time, through all these stages.
//! 2. Inside a block, down to squares of `LANES` vectors, and the half of a square's stages that is on whole vectors.
//! 3. After a transposition of a square, the other half with a root per lane.
//!
//! So the array goes through the caches twice. The first pass reads residues and the last writes them; in between the
//! memory holds doubles. The inverse does the same backwards.
//!
//! # Sizes
//!
//! In units of `q`: an integer of size `A` times a root (1/2 at most) has size `b(A)`, given with
//! [`Field::mul_factor`], if `A` is at most 4 (`q < 2^50`) or 2 (`q < 2^51`). Sums must stay below `2^53`: 8 or 4
//! units. Three classes of moduli differ in where they reduce a value to 1/2:
//!
//! - `SMALL`, `q < 2^47`: `b(A) <= 1/2 + 3/128 A` and products may have any `A < 32`. Forward nothing is reduced: from
//!   `A = 1`, `A + b(A)` is 12 at most after 17 stages. Backward one of four outputs is, see `inverse4`.
//! - `MEDIUM`, `q < 2^50`.
//! - `LARGE`, `q < 2^51`.
//!
//! The bounds of the last two are with the butterflies.

use super::bit_reversed_powers;
use crate::Modulus;
use crate::simd::{Factor, Field, Simd, prefetch, to_double, vector_kernel};
use std::mem::MaybeUninit;

/// Smallest degree (its logarithm) done here: a pass, and then squares of 8 by 8 at most.
pub(super) const MIN_LOG_N: u32 = 7;

/// Most elements of a block, which is taken through its stages at once: with its roots, well inside 32 KiB.
const MAX_BLOCK: usize = 2048;
/// Most blocks, at the largest degree.
const MAX_ROWS: usize = 128;
/// Columns taken through the stages between blocks at once: whole cache lines, of as many blocks as there are.
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
struct Rows {
    start: *mut f64,
    stride: usize,
}

impl Rows {
    /// # Safety
    ///
    /// The element is in the array.
    #[inline(always)]
    unsafe fn at(self, row: usize, column: usize) -> *mut f64 {
        // SAFETY: the caller's.
        unsafe { self.start.add(row * self.stride + column) }
    }
}

/// One cache line of roots.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([f64; 8]);

/// The roots for vectors of `lanes` doubles, centred.
pub(super) struct Roots {
    lanes: usize,
    /// `roots[k]` for the stages before the squares: `n / lanes^2` of them.
    upper: Vec<Line>,
    /// For each square, `lanes` rows. Row 0 has the roots of the whole-vector stages in heap order (1, then 2 and 3,
    /// then 4 to 7; entry 0 is unused), row `k > 0` the root `k` of the same heap for each of the square's vectors.
    squares: Vec<Line>,
}

impl Roots {
    pub(super) fn new(modulus: &Modulus, psi: u64, log_n: u32, lanes: usize) -> Self {
        let n = 1usize << log_n;
        let powers: Vec<f64> =
            bit_reversed_powers(modulus, psi, log_n).into_iter().map(|w| modulus.center(w) as f64).collect();
        let count = n / (lanes * lanes);
        // Root `k` in heap order below block `b` of `m`.
        let below = |m: usize, b: usize, k: usize| {
            let level = k.ilog2();
            powers[(m << level) + (b << level) + (k - (1 << level))]
        };
        let mut squares = Vec::with_capacity(n);
        for square in 0..count {
            squares.push(0.0);
            squares.extend((1..lanes).map(|k| below(count, square, k)));
            for k in 1..lanes {
                squares.extend((0..lanes).map(|lane| below(count * lanes, square * lanes + lane, k)));
            }
        }
        Self { lanes, upper: lines(&powers[..count]), squares: lines(&squares) }
    }
}

/// The same numbers, from the start of a cache line.
fn lines(numbers: &[f64]) -> Vec<Line> {
    numbers
        .chunks(8)
        .map(|chunk| {
            let mut line = Line([0.0; 8]);
            line.0[..chunk.len()].copy_from_slice(chunk);
            line
        })
        .collect()
}

vector_kernel! {
    pub(super) fn forward(table: &super::NttTable, a: &mut [u64]) = forward_any, else super::NttTable::forward_scalar
}

vector_kernel! {
    pub(super) fn inverse(table: &super::NttTable, a: &mut [u64], scale: u64)
        = inverse_any, else super::NttTable::inverse_scalar
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

/// One transform under way, of the `n` elements at `a` seen as rows of one block each. All its methods need the
/// features of `S`.
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
            let scratch = Rows { start: scratch.0.as_mut_ptr().cast(), stride: STRIP };
            for column in (0..self.block).step_by(STRIP) {
                self.forward_strip(Rows { start: self.a.add(column), stride: self.block }, scratch);
            }
            for row in 0..self.rows {
                self.forward_row(row);
            }
        }
    }

    /// The stages between blocks, on one strip. Reads residues.
    #[inline(always)]
    unsafe fn forward_strip(&self, a: Rows, scratch: Rows) {
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
    unsafe fn forward_first2(&self, from: Rows, to: Rows) {
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
    unsafe fn forward_pass<const PLACE: u8>(&self, from: Rows, to: Rows, count: usize, part: usize) {
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
            let scratch = Rows { start: scratch.0.as_mut_ptr().cast(), stride: STRIP };
            for column in (0..self.block).step_by(STRIP) {
                let a = Rows { start: self.a.add(column), stride: self.block };
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
            // The inverse of the root of block b of m is minus that of block m - 1 - b, see `inverse4`.
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
                    // Vectors in reverse order: then the roots of the mirrored square are in the order of the lanes.
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
    unsafe fn inverse_strip(&self, a: Rows, scratch: Rows, scale: Factor<S>, scaled_root: Factor<S>) {
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
    unsafe fn inverse_pass(&self, from: Rows, to: Rows, count: usize, part: usize) {
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

    /// The last two stages; writes residues. As [`inverse4`], with products in place of the last reductions: of the
    /// sums of size `4 M`, which `LARGE` reduces first, and `2 b(2 M)`. The products are below 1.
    #[inline(always)]
    unsafe fn inverse_last4(&self, from: Rows, to: Rows, scale: Factor<S>, scaled_root: Factor<S>) {
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

    /// The last stage alone; writes residues. Sums and differences are `2 M`, and their products below 1.
    #[inline(always)]
    unsafe fn inverse_last2(&self, from: Rows, to: Rows, scale: Factor<S>, scaled_root: Factor<S>) {
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

/// Asks for what four rows have in the next strip: it is too far from row to row for the CPU to foresee.
#[inline(always)]
fn prefetch_next_strip(a: Rows, row: usize, quarter: usize) {
    for k in 0..4 {
        for line in (0..STRIP).step_by(8) {
            prefetch(a.start.wrapping_add((row + k * quarter) * a.stride + STRIP + line));
        }
    }
}

/// A vector of doubles, converted from residues if the place is `FIRST`.
#[inline(always)]
unsafe fn load<S: Simd, const PLACE: u8>(p: *const f64) -> S::F {
    // SAFETY: the caller's.
    unsafe { if PLACE == FIRST { to_double::<S>(S::load_u(p.cast())) } else { S::load(p) } }
}

/// Two stages: root `w1` on the pairs (0, 2) and (1, 3), then `w2` on (0, 1) and `w3` on (2, 3).
///
/// Sizes, with `M` for the inputs:
/// - `MEDIUM` reduces `x0`: outputs are `1/2 + b(M) + b(M + b(M))`, so that `M = 2.4` gives 2.3, with products of 3.3.
///   First come residues: from `M = 1`, unreduced, `1 + b(1) + b(1 + b(1))` is 2.4. The last pass does not reduce,
///   and ends below 4.4.
/// - `LARGE` reduces `x1` and, after the first stage, what `x0` became: outputs are `1/2 + b(1/2 + b(M))`, so that
///   `M = 1.75` gives 1.5 and less, with products of 1.75 and sums of 2.8. The first pass does not reduce `x1`: from
///   `M = 1` the products are of 1.75 and the outputs 1.5. The last pass does not reduce `x0`, and ends below 3.4.
#[inline(always)]
unsafe fn forward4<S: Simd, const CLASS: u8, const PLACE: u8, const K: usize>(
    f: &Field<S>,
    x: [[S::F; K]; 4],
    w1: [Factor<S>; K],
    w2: [Factor<S>; K],
    w3: [Factor<S>; K],
) -> [[S::F; K]; 4] {
    // SAFETY: the caller's.
    unsafe {
        let [mut x0, mut x1, x2, x3] = x;
        let [t2, t3] = f.mul_factors([x2, x3], [w1, w1]);
        if CLASS == MEDIUM && PLACE == MIDDLE {
            x0 = f.reduce_all(x0);
        }
        if CLASS == LARGE && PLACE != FIRST {
            x1 = f.reduce_all(x1);
        }
        let (mut y0, mut y2) = butterflies::<S, K>(x0, t2);
        let (y1, y3) = butterflies::<S, K>(x1, t3);
        if CLASS == LARGE && PLACE != LAST {
            (y0, y2) = (f.reduce_all(y0), f.reduce_all(y2));
        }
        let [t1, t3] = f.mul_factors([y1, y3], [w2, w3]);
        let (z0, z1) = butterflies::<S, K>(y0, t1);
        let (z2, z3) = butterflies::<S, K>(y2, t3);
        [z0, z1, z2, z3]
    }
}

/// Sums and differences.
#[inline(always)]
unsafe fn butterflies<S: Simd, const K: usize>(x: [S::F; K], y: [S::F; K]) -> ([S::F; K], [S::F; K]) {
    let (mut sums, mut differences) = (x, y);
    for k in 0..K {
        // SAFETY: the caller's.
        unsafe { (sums[k], differences[k]) = (S::add(x[k], y[k]), S::sub(x[k], y[k])) };
    }
    (sums, differences)
}

/// Transposes `K` squares.
#[inline(always)]
unsafe fn transpose<S: Simd, const K: usize>(x: &mut [[S::F; K]; 8]) {
    for j in 0..K {
        let mut rows = [x[0][j], x[1][j], x[2][j], x[3][j], x[4][j], x[5][j], x[6][j], x[7][j]];
        // SAFETY: the caller's.
        unsafe { S::transpose(&mut rows) };
        for k in 0..8 {
            x[k][j] = rows[k];
        }
    }
}

/// `log2 LANES` stages on `LANES` vectors, with roots in heap order.
///
/// Eight vectors start with one stage of four products. `LARGE` reduces the other four: `1/2 + b(M)` is 1.5 at most.
/// So does `MEDIUM` where products are rounded twice. Otherwise `b(A)` is `1/2 + 3/32 A`, and with `M = 2.3` this
/// stage gives 3.1, then [`forward4`] has products of 3.9 and gives 2.3 or less, or 4.8 in the last pass.
#[inline(always)]
unsafe fn forward_heap<S: Simd, const CLASS: u8, const PLACE: u8, const K: usize>(
    f: &Field<S>,
    x: &mut [[S::F; K]; 8],
    w: &[[Factor<S>; K]; 8],
) {
    // SAFETY: the caller's.
    unsafe {
        if S::LANES == 8 {
            let [t4, t5, t6, t7] = f.mul_factors([x[4], x[5], x[6], x[7]], [w[1]; 4]);
            if CLASS == LARGE || CLASS == MEDIUM && !S::ONE_ROUNDING {
                for k in 0..4 {
                    x[k] = f.reduce_all(x[k]);
                }
            }
            (x[0], x[4]) = butterflies::<S, K>(x[0], t4);
            (x[1], x[5]) = butterflies::<S, K>(x[1], t5);
            (x[2], x[6]) = butterflies::<S, K>(x[2], t6);
            (x[3], x[7]) = butterflies::<S, K>(x[3], t7);
            let low = forward4::<S, CLASS, PLACE, K>(f, [x[0], x[1], x[2], x[3]], w[2], w[4], w[5]);
            let high = forward4::<S, CLASS, PLACE, K>(f, [x[4], x[5], x[6], x[7]], w[3], w[6], w[7]);
            [x[0], x[1], x[2], x[3]] = low;
            [x[4], x[5], x[6], x[7]] = high;
        } else {
            let y = forward4::<S, CLASS, PLACE, K>(f, [x[0], x[1], x[2], x[3]], w[1], w[2], w[3]);
            [x[0], x[1], x[2], x[3]] = y;
        }
    }
}

/// Two stages of the inverse: `w2` on the pairs (0, 1), `w3` on (2, 3), then `w1` on (0, 2) and (1, 3).
///
/// A pair `x, y` becomes `x + y` and `(x - y) / w`. The inverse of the root of block `b` of `m` is minus the root of
/// block `m - 1 - b`, which is what is passed here: so `(y - x) w`.
///
/// Sizes, with `M` for the inputs; residues count as `M = 1/2`, as differences of two of them, or of two sums, are:
/// - All reduce the sum of all four.
/// - `SMALL`: `2 b(2 M)` is the largest output, so that `M = 1.2` gives less again.
/// - `MEDIUM` reduces the other sum too. The largest output is `b(4 M)`, so that `M = 1` gives 1 again, with products
///   of 4.
/// - `LARGE` reduces the difference of sums before its product as well. The largest output is `b(2 b(2 M))`, so that
///   `M = 1` gives 1 again, with products of 2 and sums of 4.
///
/// As `q` is less than the power of two, so are the sizes less than these.
#[inline(always)]
unsafe fn inverse4<S: Simd, const CLASS: u8, const K: usize>(
    f: &Field<S>,
    x: [[S::F; K]; 4],
    w1: [Factor<S>; K],
    w2: [Factor<S>; K],
    w3: [Factor<S>; K],
) -> [[S::F; K]; 4] {
    // SAFETY: the caller's.
    unsafe {
        let (s0, d0) = butterflies::<S, K>(x[1], x[0]);
        let (s1, d1) = butterflies::<S, K>(x[3], x[2]);
        let [d0, d1] = f.mul_factors([d0, d1], [w2, w3]);
        let (mut y0, mut y2) = butterflies::<S, K>(s1, s0);
        let (mut y1, y3) = butterflies::<S, K>(d1, d0);
        y0 = f.reduce_all(y0);
        if CLASS != SMALL {
            y1 = f.reduce_all(y1);
        }
        if CLASS == LARGE {
            y2 = f.reduce_all(y2);
        }
        let [y2, y3] = f.mul_factors([y2, y3], [w1, w1]);
        [y0, y1, y2, y3]
    }
}

/// `log2 LANES` stages of the inverse on `LANES` vectors, with the mirrored roots in heap order.
///
/// Eight vectors end with one stage, which reduces its sums: products of `2 M`, outputs below `M` again.
#[inline(always)]
unsafe fn inverse_heap<S: Simd, const CLASS: u8, const K: usize>(
    f: &Field<S>,
    x: &mut [[S::F; K]; 8],
    w: &[[Factor<S>; K]; 8],
) {
    // SAFETY: the caller's.
    unsafe {
        if S::LANES == 8 {
            let low = inverse4::<S, CLASS, K>(f, [x[0], x[1], x[2], x[3]], w[3], w[7], w[6]);
            let high = inverse4::<S, CLASS, K>(f, [x[4], x[5], x[6], x[7]], w[2], w[5], w[4]);
            let mut differences = low;
            for k in 0..4 {
                let sum;
                (sum, differences[k]) = butterflies::<S, K>(high[k], low[k]);
                x[k] = f.reduce_all(sum);
            }
            [x[4], x[5], x[6], x[7]] = f.mul_factors(differences, [w[1]; 4]);
        } else {
            let y = inverse4::<S, CLASS, K>(f, [x[0], x[1], x[2], x[3]], w[1], w[3], w[2]);
            [x[0], x[1], x[2], x[3]] = y;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::NttTable;
    use super::*;
    use crate::prime;
    use crate::simd::emulated::Emulated;

    /// Eight lanes on any machine: the arithmetic of the AVX-512 kernels without their instructions.
    #[test]
    fn eight_lanes_agree_with_scalar() {
        for log_n in MIN_LOG_N..=13 {
            for bits in [20, 36, 47, 48, 50, 51] {
                let q = prime::ntt_primes_below(bits, log_n, 1)[0];
                let table = NttTable::new(q, log_n).unwrap();
                let n = table.degree();
                let mixed = (0..n as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % q).collect();
                for a in [vec![q - 1; n], vec![q / 2; n], vec![q / 2 + 1; n], mixed] {
                    let (mut ours, mut expected) = (a.clone(), a);
                    // SAFETY: the emulated set needs no features; the lengths are those of the table.
                    unsafe { forward_any(Emulated, &table, &mut ours) };
                    table.forward_scalar(&mut expected);
                    assert_eq!(ours, expected, "forward, log n {log_n}, q {q}");
                    ours.reverse();
                    expected.reverse();
                    // SAFETY: as above.
                    unsafe { inverse_any(Emulated, &table, &mut ours, 12345) };
                    table.inverse_scalar(&mut expected, 12345);
                    assert_eq!(ours, expected, "inverse, log n {log_n}, q {q}");
                }
            }
        }
    }
}
