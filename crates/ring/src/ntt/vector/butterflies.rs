//! Butterflies on registers: pairs of stages forward and backward, and the stages inside a square.

use super::{FIRST, LARGE, LAST, MEDIUM, MIDDLE, SMALL};
use crate::simd::{Factor, Field, Simd, to_double};

/// A vector of doubles, converted from residues if the place is `FIRST`.
#[inline(always)]
pub(super) unsafe fn load<S: Simd, const PLACE: u8>(p: *const f64) -> S::F {
    // SAFETY: the caller's.
    unsafe { if PLACE == FIRST { to_double::<S>(S::load_u(p.cast())) } else { S::load(p) } }
}

/// Two stages: root `w1` on the pairs (0, 2) and (1, 3), then `w2` on (0, 1) and `w3` on (2, 3).
///
/// Sizes, with `M` for the inputs:
/// - `MEDIUM` reduces `x0`: outputs are `1/2 + b(M) + b(M + b(M))`, so that `M = 2.4` gives 2.3,
///   with products of 3.3. First come residues: from `M = 1`, unreduced, `1 + b(1) + b(1 + b(1))`
///   is 2.4. The last pass does not reduce, and ends below 4.4.
/// - `LARGE` reduces `x1` and, after the first stage, what `x0` became: outputs are
///   `1/2 + b(1/2 + b(M))`, so that `M = 1.75` gives 1.5 and less, with products of 1.75 and sums
///   of 2.8. The first pass does not reduce `x1`: from `M = 1` the products are of 1.75 and the
///   outputs 1.5. The last pass does not reduce `x0`, and ends below 3.4.
#[inline(always)]
pub(super) unsafe fn forward4<S: Simd, const CLASS: u8, const PLACE: u8, const K: usize>(
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
pub(super) unsafe fn transpose<S: Simd, const K: usize>(x: &mut [[S::F; K]; 8]) {
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
/// Eight vectors start with one stage of four products. `LARGE` reduces the other four:
/// `1/2 + b(M)` is 1.5 at most. So does `MEDIUM` where products are rounded twice. Otherwise `b(A)`
/// is `1/2 + 3/32 A`, and with `M = 2.3` this stage gives 3.1, then [`forward4`] has products of
/// 3.9 and gives 2.3 or less, or 4.8 in the last pass.
#[inline(always)]
pub(super) unsafe fn forward_heap<S: Simd, const CLASS: u8, const PLACE: u8, const K: usize>(
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

/// Two stages of the inverse: `w2` on the pairs (0, 1), `w3` on (2, 3), then `w1` on (0, 2) and (1,
/// 3).
///
/// A pair `x, y` becomes `x + y` and `(x - y) / w`. The inverse of the root of block `b` of `m` is
/// minus the root of block `m - 1 - b`, which is what is passed here: so `(y - x) w`.
///
/// Sizes, with `M` for the inputs; residues count as `M = 1/2`, as differences of two of them, or
/// of two sums, are:
/// - All reduce the sum of all four.
/// - `SMALL`: `2 b(2 M)` is the largest output, so that `M = 1.2` gives less again.
/// - `MEDIUM` reduces the other sum too. The largest output is `b(4 M)`, so that `M = 1` gives 1
///   again, with products of 4.
/// - `LARGE` reduces the difference of sums before its product as well. The largest output is
///   `b(2 b(2 M))`, so that `M = 1` gives 1 again, with products of 2 and sums of 4.
///
/// As `q` is less than the power of two, so are the sizes less than these.
#[inline(always)]
pub(super) unsafe fn inverse4<S: Simd, const CLASS: u8, const K: usize>(
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
/// Eight vectors end with one stage, which reduces its sums: products of `2 M`, outputs below `M`
/// again.
#[inline(always)]
pub(super) unsafe fn inverse_heap<S: Simd, const CLASS: u8, const K: usize>(
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
