//! The transform on vectors of doubles: radix 4, depth first, signed residues that grow between reductions.
//!
//! Stages are numbered by their blocks: the stage of `m` blocks has the root `roots[m + b]` for block `b`. Pairs of
//! stages are done at once on quarters of a block, with the root of the block and the two of its halves. The first
//! pass reads residues and the last writes them; in between the memory holds doubles. The last `log2 LANES^2` stages
//! are done on squares of `LANES` vectors: half of them on whole vectors, and after a transposition the other half
//! with a root per lane.
//!
//! # Sizes
//!
//! In units of `q`: an integer of size `A` times a root of size 1/2 at most has size `b(A)`, given with
//! [`Field::mul`], if `A` is below 2 (`q < 2^51`) or 4 (`q < 2^50`): the range of its quotient. Sums must stay below
//! `2^53`: 4 or 8 units. Three classes of moduli differ in where they reduce a value to 1/2:
//!
//! - `SMALL`, `q < 2^47`: `b(A) <= 1/2 + A/64` and products may have any `A < 32`. Forward nothing is reduced: from
//!   `A = 1`, `A + b(A)` is 11 at most after 17 stages. Backward one of four outputs is, see `inverse4`.
//! - `MEDIUM`, `q < 2^50`.
//! - `LARGE`, `q < 2^51`.
//!
//! The bounds of the last two are with the butterflies.

use super::bit_reversed_powers;
use crate::Modulus;
use crate::simd::{Field, Simd, to_double, vector_kernel};

/// Smallest degree (its logarithm) done here: a pass, and then squares of 8 by 8 at most.
pub(super) const MIN_LOG_N: u32 = 7;

/// Elements that a depth-first walk takes through all remaining stages at once: with their roots, well inside 32 KiB.
const CACHED: usize = 2048;

const SMALL: u8 = 0;
const MEDIUM: u8 = 1;
const LARGE: u8 = 2;

/// Where a pass is in the transform.
const FIRST: u8 = 0;
const MIDDLE: u8 = 1;
const LAST: u8 = 2;

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
        match q.bits() {
            ..=47 => Transform::<S, SMALL>::new(q, roots, a).inverse(scale, scaled_root),
            48..=50 => Transform::<S, MEDIUM>::new(q, roots, a).inverse(scale, scaled_root),
            _ => Transform::<S, LARGE>::new(q, roots, a).inverse(scale, scaled_root),
        }
    }
}

/// One transform under way. All its methods need the features of `S`.
struct Transform<S: Simd, const CLASS: u8> {
    field: Field<S>,
    n: usize,
    a: *mut f64,
    upper: *const f64,
    squares: *const f64,
}

impl<S: Simd, const CLASS: u8> Transform<S, CLASS> {
    #[inline(always)]
    unsafe fn new(modulus: &Modulus, roots: &Roots, a: &mut [u64]) -> Self {
        assert!(a.len() >= 1 << MIN_LOG_N && roots.lanes == S::LANES && roots.squares.len() * 8 == a.len());
        Self {
            // SAFETY: the caller's.
            field: unsafe { Field::new(modulus) },
            n: a.len(),
            a: a.as_mut_ptr().cast(),
            upper: roots.upper.as_ptr().cast(),
            squares: roots.squares.as_ptr().cast(),
        }
    }

    /// Whether the number of stages before the squares is odd: then the outermost pass is of radix 2.
    #[inline(always)]
    fn odd(&self) -> bool {
        (self.n / (S::LANES * S::LANES)).ilog2() % 2 == 1
    }

    /// Size of the blocks to take through the cache: `inner` divided by 4 until it fits.
    #[inline(always)]
    fn cached(inner: usize) -> usize {
        let mut size = inner;
        while size > CACHED {
            size /= 4;
        }
        size
    }

    #[inline(always)]
    unsafe fn forward(&self) {
        // SAFETY: block sizes are n/2 or n/4 divided by powers of 4 down to the square, so all indices are below n.
        unsafe {
            let inner = if self.odd() {
                self.forward_first2();
                self.n / 2
            } else {
                self.forward_block::<FIRST>(self.n, 0);
                self.n / 4
            };
            let cached = Self::cached(inner);
            let square = S::LANES * S::LANES;
            for start in (0..self.n).step_by(cached) {
                let mut size = inner;
                while size > cached {
                    if start % size == 0 {
                        self.forward_block::<MIDDLE>(size, start / size);
                    }
                    size /= 4;
                }
                while size > square {
                    for block in start / size..(start + cached) / size {
                        self.forward_block::<MIDDLE>(size, block);
                    }
                    size /= 4;
                }
                for block in start / square..(start + cached) / square {
                    self.forward_square(block);
                }
            }
        }
    }

    /// Two stages on one block of `size` elements.
    #[inline(always)]
    unsafe fn forward_block<const PLACE: u8>(&self, size: usize, block: usize) {
        // SAFETY: the block is inside the array; the roots of the two stages are before those of the squares.
        unsafe {
            let blocks = self.n / size;
            let w1 = S::splat(*self.upper.add(blocks + block));
            let w2 = S::splat(*self.upper.add(2 * (blocks + block)));
            let w3 = S::splat(*self.upper.add(2 * (blocks + block) + 1));
            let quarter = size / 4;
            let base = self.a.add(block * size);
            for i in (0..quarter).step_by(S::LANES) {
                let p = [base.add(i), base.add(i + quarter), base.add(i + 2 * quarter), base.add(i + 3 * quarter)];
                let x = [
                    load::<S, PLACE, FIRST>(p[0]),
                    load::<S, PLACE, FIRST>(p[1]),
                    load::<S, PLACE, FIRST>(p[2]),
                    load::<S, PLACE, FIRST>(p[3]),
                ];
                let y = forward4::<S, CLASS, PLACE>(&self.field, x, w1, w2, w3);
                S::store(p[0], y[0]);
                S::store(p[1], y[1]);
                S::store(p[2], y[2]);
                S::store(p[3], y[3]);
            }
        }
    }

    /// The first stage alone. From residues (`A = 1`) to `1 + b(1)`: at most 1.75.
    #[inline(always)]
    unsafe fn forward_first2(&self) {
        // SAFETY: both halves are inside the array.
        unsafe {
            let w = S::splat(*self.upper.add(1));
            for i in (0..self.n / 2).step_by(S::LANES) {
                let (p0, p1) = (self.a.add(i), self.a.add(i + self.n / 2));
                let x = load::<S, FIRST, FIRST>(p0);
                let t = self.field.mul(load::<S, FIRST, FIRST>(p1), w);
                S::store(p0, S::add(x, t));
                S::store(p1, S::sub(x, t));
            }
        }
    }

    /// The last stages, on a square; writes residues.
    #[inline(always)]
    unsafe fn forward_square(&self, block: usize) {
        // SAFETY: the square and its roots are inside their arrays.
        unsafe {
            let square = S::LANES * S::LANES;
            let base = self.a.add(block * square);
            let roots = self.squares.add(block * square);
            let mut x = [S::splat(0.0); 8];
            for k in 0..S::LANES {
                x[k] = S::load(base.add(k * S::LANES));
            }
            let mut w = [S::splat(0.0); 8];
            for k in 1..S::LANES {
                w[k] = S::splat(*roots.add(k));
            }
            forward_vectors::<S, CLASS, MIDDLE>(&self.field, &mut x, &w);
            S::transpose(&mut x);
            for k in 1..S::LANES {
                w[k] = S::load(roots.add(k * S::LANES));
            }
            forward_vectors::<S, CLASS, LAST>(&self.field, &mut x, &w);
            S::transpose(&mut x);
            for k in 0..S::LANES {
                S::store_u(base.add(k * S::LANES).cast(), self.field.to_residue(self.field.reduce(x[k])));
            }
        }
    }

    /// The inverse, with the scale and the root of the last stage times the scale.
    #[inline(always)]
    unsafe fn inverse(&self, scale: f64, scaled_root: f64) {
        // SAFETY: as in `forward`.
        unsafe {
            let inner = if self.odd() { self.n / 2 } else { self.n / 4 };
            let cached = Self::cached(inner);
            let square = S::LANES * S::LANES;
            for start in (0..self.n).step_by(cached) {
                let end = start + cached;
                for block in start / square..end / square {
                    self.inverse_square(block);
                }
                let mut size = 4 * square;
                while size <= cached {
                    for block in start / size..end / size {
                        self.inverse_block(size, block);
                    }
                    size *= 4;
                }
                while size <= inner && end % size == 0 {
                    self.inverse_block(size, end / size - 1);
                    size *= 4;
                }
            }
            if self.odd() {
                self.inverse_last2(S::splat(scale), S::splat(scaled_root));
            } else {
                self.inverse_last4(S::splat(scale), S::splat(scaled_root));
            }
        }
    }

    /// Two stages on one block of `size` elements.
    #[inline(always)]
    unsafe fn inverse_block(&self, size: usize, block: usize) {
        // SAFETY: as in `forward_block`.
        unsafe {
            let mirror = self.n / size * 2 - 1 - block;
            let w1 = S::splat(*self.upper.add(mirror));
            let w2 = S::splat(*self.upper.add(2 * mirror + 1));
            let w3 = S::splat(*self.upper.add(2 * mirror));
            let quarter = size / 4;
            let base = self.a.add(block * size);
            for i in (0..quarter).step_by(S::LANES) {
                let p = [base.add(i), base.add(i + quarter), base.add(i + 2 * quarter), base.add(i + 3 * quarter)];
                let x = [S::load(p[0]), S::load(p[1]), S::load(p[2]), S::load(p[3])];
                let y = inverse4::<S, CLASS>(&self.field, x, w1, w2, w3);
                S::store(p[0], y[0]);
                S::store(p[1], y[1]);
                S::store(p[2], y[2]);
                S::store(p[3], y[3]);
            }
        }
    }

    /// The last two stages; writes residues. As [`inverse4`], with products in place of the last reductions: of the
    /// sums of size `4 M < 4`, which `LARGE` reduces first, and `2 b(2 M)`. Products are below 1.
    #[inline(always)]
    unsafe fn inverse_last4(&self, scale: S::F, scaled_root: S::F) {
        // SAFETY: all quarters are inside the array.
        unsafe {
            let f = &self.field;
            let (w2, w3) = (S::splat(*self.upper.add(3)), S::splat(*self.upper.add(2)));
            let quarter = self.n / 4;
            for i in (0..quarter).step_by(S::LANES) {
                let base = self.a.add(i);
                let p = [base, base.add(quarter), base.add(2 * quarter), base.add(3 * quarter)];
                let x = [S::load(p[0]), S::load(p[1]), S::load(p[2]), S::load(p[3])];
                let (s0, s1) = (S::add(x[0], x[1]), S::add(x[2], x[3]));
                let (d0, d1) = (f.mul(S::sub(x[1], x[0]), w2), f.mul(S::sub(x[3], x[2]), w3));
                let (mut sum, mut difference) = (S::add(s0, s1), S::sub(s1, s0));
                if CLASS == LARGE {
                    (sum, difference) = (f.reduce(sum), f.reduce(difference));
                }
                S::store_u(p[0].cast(), f.to_residue(f.mul(sum, scale)));
                S::store_u(p[1].cast(), f.to_residue(f.mul(S::add(d0, d1), scale)));
                S::store_u(p[2].cast(), f.to_residue(f.mul(difference, scaled_root)));
                S::store_u(p[3].cast(), f.to_residue(f.mul(S::sub(d1, d0), scaled_root)));
            }
        }
    }

    /// The last stage alone; writes residues. Sums and differences are `2 M < 2`.
    #[inline(always)]
    unsafe fn inverse_last2(&self, scale: S::F, scaled_root: S::F) {
        // SAFETY: both halves are inside the array.
        unsafe {
            let f = &self.field;
            for i in (0..self.n / 2).step_by(S::LANES) {
                let (p0, p1) = (self.a.add(i), self.a.add(i + self.n / 2));
                let (x0, x1) = (S::load(p0), S::load(p1));
                S::store_u(p0.cast(), f.to_residue(f.mul(S::add(x0, x1), scale)));
                S::store_u(p1.cast(), f.to_residue(f.mul(S::sub(x1, x0), scaled_root)));
            }
        }
    }

    /// The first stages, on a square; reads residues.
    #[inline(always)]
    unsafe fn inverse_square(&self, block: usize) {
        // SAFETY: as in `forward_square`.
        unsafe {
            let square = S::LANES * S::LANES;
            let base = self.a.add(block * square);
            let roots = self.squares.add(self.n - square - block * square);
            // Vectors in reverse order: then the roots of the mirrored square are in the order of the lanes.
            let mut x = [S::splat(0.0); 8];
            for k in 0..S::LANES {
                x[S::LANES - 1 - k] = load::<S, FIRST, FIRST>(base.add(k * S::LANES));
            }
            let mut w = [S::splat(0.0); 8];
            for k in 1..S::LANES {
                w[k] = S::load(roots.add(k * S::LANES));
            }
            S::transpose(&mut x);
            inverse_vectors::<S, CLASS>(&self.field, &mut x, &w);
            S::transpose(&mut x);
            x[..S::LANES].reverse();
            for k in 1..S::LANES {
                w[k] = S::splat(*roots.add(k));
            }
            inverse_vectors::<S, CLASS>(&self.field, &mut x, &w);
            for k in 0..S::LANES {
                S::store(base.add(k * S::LANES), x[k]);
            }
        }
    }
}

/// A vector of doubles, converted from residues if the place is `FROM`.
#[inline(always)]
unsafe fn load<S: Simd, const PLACE: u8, const FROM: u8>(p: *const f64) -> S::F {
    // SAFETY: the caller's.
    unsafe { if PLACE == FROM { to_double::<S>(S::load_u(p.cast())) } else { S::load(p) } }
}

/// Two stages: root `w1` on the pairs (0, 2) and (1, 3), then `w2` on (0, 1) and `w3` on (2, 3).
///
/// Sizes, with `M` for the inputs:
/// - `MEDIUM` reduces `x0`: outputs are `1/2 + b(M) + b(M + b(M))`, so that `M = 2.18` gives 2.18 again, with
///   products of 2.95. First come residues: from `M = 1` unreduced 2.33, and from there 2.18, with products of 3.12.
///   The last pass does not reduce, and ends below 3.9.
/// - `LARGE` reduces `x1` and, after the first stage, what `x0` became: outputs are `1/2 + b(1/2 + b(M))`, so that
///   `M = 4/3` gives 4/3 again, with products of 4/3 and sums of 2.17. The first pass does not reduce `x1`: from
///   `M = 1` the products are of 1.75 and the outputs 1.44, from where the next gives 1.34. The last pass does
///   not reduce `x0`, and ends below 3.
#[inline(always)]
unsafe fn forward4<S: Simd, const CLASS: u8, const PLACE: u8>(
    f: &Field<S>,
    x: [S::F; 4],
    w1: S::F,
    w2: S::F,
    w3: S::F,
) -> [S::F; 4] {
    // SAFETY: the caller's.
    unsafe {
        let [mut x0, mut x1, x2, x3] = x;
        if CLASS == MEDIUM && PLACE == MIDDLE {
            x0 = f.reduce(x0);
        }
        if CLASS == LARGE && PLACE != FIRST {
            x1 = f.reduce(x1);
        }
        let (t2, t3) = (f.mul(x2, w1), f.mul(x3, w1));
        let (mut y0, mut y2) = (S::add(x0, t2), S::sub(x0, t2));
        let (y1, y3) = (S::add(x1, t3), S::sub(x1, t3));
        if CLASS == LARGE && PLACE != LAST {
            (y0, y2) = (f.reduce(y0), f.reduce(y2));
        }
        let (t1, t3) = (f.mul(y1, w2), f.mul(y3, w3));
        [S::add(y0, t1), S::sub(y0, t1), S::add(y2, t3), S::sub(y2, t3)]
    }
}

/// `log2 LANES` stages on `LANES` vectors, with roots in heap order.
///
/// Eight vectors start with one stage of four products. `MEDIUM` does not reduce there: `M = 2.18` becomes
/// `M + b(M) = 2.94`, and then [`forward4`] has products of 3.75 and gives 2.17 (with the stepwise `b50`), or 4.6 in
/// the last pass. `LARGE` reduces the other four: `1/2 + b(M)`, 4/3 again.
#[inline(always)]
unsafe fn forward_vectors<S: Simd, const CLASS: u8, const PLACE: u8>(f: &Field<S>, x: &mut [S::F; 8], w: &[S::F; 8]) {
    // SAFETY: the caller's.
    unsafe {
        if S::LANES == 8 {
            for k in 0..4 {
                let low = if CLASS == LARGE { f.reduce(x[k]) } else { x[k] };
                let t = f.mul(x[k + 4], w[1]);
                (x[k], x[k + 4]) = (S::add(low, t), S::sub(low, t));
            }
            let low = forward4::<S, CLASS, PLACE>(f, [x[0], x[1], x[2], x[3]], w[2], w[4], w[5]);
            let high = forward4::<S, CLASS, PLACE>(f, [x[4], x[5], x[6], x[7]], w[3], w[6], w[7]);
            [x[0], x[1], x[2], x[3]] = low;
            [x[4], x[5], x[6], x[7]] = high;
        } else {
            [x[0], x[1], x[2], x[3]] = forward4::<S, CLASS, PLACE>(f, [x[0], x[1], x[2], x[3]], w[1], w[2], w[3]);
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
/// - `SMALL`: `2 b(2 M)` is the largest output, so that `M = 1.07` gives 1.07 again.
/// - `MEDIUM` reduces the other sum too. The largest output is `b50(4 M)`: `M = 0.84` again, with products of 3.4.
/// - `LARGE` reduces the difference of sums before its product as well. The largest output is `b51(2 b51(2 M))`:
///   `M = 0.834` again, with products of 1.67 and sums of 3.34.
#[inline(always)]
unsafe fn inverse4<S: Simd, const CLASS: u8>(f: &Field<S>, x: [S::F; 4], w1: S::F, w2: S::F, w3: S::F) -> [S::F; 4] {
    // SAFETY: the caller's.
    unsafe {
        let (s0, s1) = (S::add(x[0], x[1]), S::add(x[2], x[3]));
        let (d0, d1) = (f.mul(S::sub(x[1], x[0]), w2), f.mul(S::sub(x[3], x[2]), w3));
        let y0 = f.reduce(S::add(s0, s1));
        let mut y1 = S::add(d0, d1);
        if CLASS != SMALL {
            y1 = f.reduce(y1);
        }
        let mut difference = S::sub(s1, s0);
        if CLASS == LARGE {
            difference = f.reduce(difference);
        }
        [y0, y1, f.mul(difference, w1), f.mul(S::sub(d1, d0), w1)]
    }
}

/// `log2 LANES` stages of the inverse on `LANES` vectors, with the mirrored roots in heap order.
///
/// Eight vectors end with one stage, which reduces its sums: products of `2 M`, outputs below `M` again.
#[inline(always)]
unsafe fn inverse_vectors<S: Simd, const CLASS: u8>(f: &Field<S>, x: &mut [S::F; 8], w: &[S::F; 8]) {
    // SAFETY: the caller's.
    unsafe {
        if S::LANES == 8 {
            let low = inverse4::<S, CLASS>(f, [x[0], x[1], x[2], x[3]], w[3], w[7], w[6]);
            let high = inverse4::<S, CLASS>(f, [x[4], x[5], x[6], x[7]], w[2], w[5], w[4]);
            for k in 0..4 {
                x[k] = f.reduce(S::add(low[k], high[k]));
                x[k + 4] = f.mul(S::sub(high[k], low[k]), w[1]);
            }
        } else {
            [x[0], x[1], x[2], x[3]] = inverse4::<S, CLASS>(f, [x[0], x[1], x[2], x[3]], w[1], w[3], w[2]);
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
