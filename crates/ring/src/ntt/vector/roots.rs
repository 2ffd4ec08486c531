//! The roots of unity in the order in which the vector kernels read them.

use crate::Modulus;
use crate::ntt::bit_reversed_powers;

/// One cache line of roots.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Line(pub(super) [f64; 8]);

/// The roots for vectors of `lanes` doubles, centred.
pub(in crate::ntt) struct Roots {
    pub(super) lanes: usize,
    /// `roots[k]` for the stages before the squares: `n / lanes^2` of them.
    pub(super) upper: Vec<Line>,
    /// For each square, `lanes` rows. Row 0 has the roots of the whole-vector stages in heap order
    /// (1, then 2 and 3, then 4 to 7; entry 0 is unused), row `k > 0` the root `k` of the same heap
    /// for each of the square's vectors.
    pub(super) squares: Vec<Line>,
}

impl Roots {
    pub(in crate::ntt) fn new(modulus: &Modulus, psi: u64, log_n: u32, lanes: usize) -> Self {
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
