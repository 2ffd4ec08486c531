//! How far an approximation is from softmax.

use super::number::{self, LANES, Lanes};
use super::{Constants, Method, Schedule, exact};
use rayon::prelude::*;

/// Rows of centred logits in `[-range, range]`, from a seed: uniform ones, near ties of any number
/// of classes, corners.
#[derive(Clone, Debug)]
pub struct Sampler {
    classes: usize,
    range: f64,
    state: u64,
}

/// Subtracts the mean of a row of logits, which the softmax ignores, and scales the row into
/// `[-range, range]` if it is outside.
pub fn centre(row: &mut [f64], range: f64) {
    let mean = row.iter().sum::<f64>() / row.len() as f64;
    row.iter_mut().for_each(|x| *x -= mean);
    let largest = row.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
    if largest > range {
        row.iter_mut().for_each(|x| *x *= range / largest);
    }
}

impl Sampler {
    /// Rows of `classes` logits in `[-range, range]`.
    pub fn new(classes: usize, range: f64, seed: u64) -> Self {
        Self { classes, range, state: seed }
    }

    /// A row of independent uniform logits.
    pub fn uniform(&mut self) -> Vec<f64> {
        let row = (0..self.classes).map(|_| self.signed() * self.range).collect();
        self.centred(row)
    }

    fn centred(&self, mut row: Vec<f64>) -> Vec<f64> {
        centre(&mut row, self.range);
        row
    }

    /// A row with some classes close to the largest, the others anywhere below.
    pub fn near_tie(&mut self) -> Vec<f64> {
        let top = self.signed() * self.range;
        let tied = 1 + self.below(self.classes);
        let gap = [0.0, 0.1, 1.0, 4.0, 12.0][self.below(5)];
        let start = self.below(self.classes);
        let mut row = vec![0.0; self.classes];
        for k in 0..self.classes {
            let value = if k < tied { top - gap * self.unit() } else { -self.range + (top + self.range) * self.unit() };
            row[(start + k) % self.classes] = value.max(-self.range);
        }
        self.centred(row)
    }

    /// A row of logits at the ends of the range.
    pub fn corner(&mut self) -> Vec<f64> {
        let high = self.below(self.classes + 1);
        self.centred((0..self.classes).map(|k| if k < high { self.range } else { -self.range }).collect())
    }

    /// The largest error of a probability over `rows` rows of each kind.
    pub fn max_error(&mut self, rows: usize, approximation: impl Fn(&mut [f64])) -> f64 {
        let mut worst: f64 = 0.0;
        for n in 0..rows {
            for row in [self.uniform(), self.near_tie()] {
                worst = worst.max(error(&row, &approximation));
            }
            if n <= 4 * self.classes {
                worst = worst.max(error(&self.corner(), &approximation));
            }
        }
        worst
    }

    /// The largest error of a probability over `rows` rows of each kind, when every bootstrap of a
    /// schedule makes Gaussian errors of deviation `sigma` (times the power of two that bounds its
    /// values), that of the logits included.
    pub fn max_error_with_noise(&mut self, rows: usize, constants: &Constants, schedule: &Schedule, sigma: f64) -> f64 {
        let noise = std::cell::RefCell::new(Self { state: self.state ^ 0x5eed, ..*self });
        let disturb = |p: &mut [f64], bound: f64| {
            p.iter_mut().for_each(|p| *p += sigma * bound * noise.borrow_mut().gaussians().0);
        };
        let mut worst: f64 = 0.0;
        for _ in 0..rows {
            for row in [self.uniform(), self.near_tie()] {
                worst = worst.max(error(&row, |row| constants.evaluate_bootstrapped(schedule, row, disturb)));
            }
        }
        worst
    }

    /// Rows of independent uniform logits, side by side.
    fn uniform_lanes(&mut self) -> Vec<Lanes> {
        (0..self.classes).map(|_| Lanes::from(0.0).map(|_| self.signed() * self.range)).collect()
    }

    /// Adds Gaussian errors of deviation `sigma`.
    fn disturb_lanes(&mut self, row: &mut [Lanes], sigma: f64) {
        for x in row.iter_mut().flat_map(|lanes| lanes.0.as_chunks_mut::<2>().0) {
            let (a, b) = self.gaussians();
            x[0] += sigma * a;
            x[1] += sigma * b;
        }
    }

    /// Two independent standard normals (Box and Muller).
    fn gaussians(&mut self) -> (f64, f64) {
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.unit()));
        let (sin, cos) = libm::sincos(core::f64::consts::TAU * self.unit());
        (radius * cos, radius * sin)
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * libm::ldexp(1.0, -53)
    }

    fn signed(&mut self) -> f64 {
        2.0 * self.unit() - 1.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }
}

/// `max_k |approximation_k - softmax_k|` of one row; infinite where the approximation is not a
/// number.
pub fn error(row: &[f64], approximation: impl Fn(&mut [f64])) -> f64 {
    let (mut a, mut b) = (row.to_vec(), row.to_vec());
    approximation(&mut a);
    exact(&mut b);
    let larger = |m: f64, d: f64| if d.is_nan() { f64::INFINITY } else { m.max(d) };
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, larger)
}

/// Errors of some rows, where the error of a row is that of its worst class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// The largest; infinite where an approximation was not a number.
    pub max: f64,
    /// Their sum.
    pub sum: f64,
    /// Number of rows.
    pub rows: u64,
}

impl Errors {
    /// The average.
    pub fn average(&self) -> f64 {
        self.sum / self.rows.max(1) as f64
    }

    /// The errors of both.
    pub fn and(&self, other: &Self) -> Self {
        Self { max: self.max.max(other.max), sum: self.sum + other.sum, rows: self.rows + other.rows }
    }

    fn count(&mut self, error: f64) {
        let error = if error.is_nan() { f64::INFINITY } else { error };
        *self = self.and(&Self { max: error, sum: error, rows: 1 });
    }
}

/// An approximation to be measured.
#[derive(Clone, Debug)]
pub enum Candidate {
    /// As it is.
    Clean(Method),
    /// Normalise-and-sharpen with bootstraps of Gaussian errors of a deviation (times the power of
    /// two that bounds their values), that of the logits included.
    Noisy(Constants, Schedule, f64),
}

impl Candidate {
    fn evaluate(&self, row: &mut [Lanes], noise: &mut Sampler) {
        match self {
            Candidate::Clean(method) => method.evaluate(row),
            Candidate::Noisy(constants, schedule, sigma) => {
                let mean = number::sum(row) * (1.0 / row.len() as f64);
                row.iter_mut().for_each(|x| *x = *x - mean);
                constants.evaluate_bootstrapped(schedule, row, |p, bound| noise.disturb_lanes(p, sigma * bound));
            }
        }
    }
}

/// The boxes `[-r, r]^c` the paper samples.
pub const BOXES: [f64; 4] = [4.0, 8.0, 32.0, 128.0];

/// Rows drawn by one generator: small enough to share among threads.
const CHUNK: usize = 1 << 14;

/// The errors of candidates on the same `rows` (rounded up to a whole number of lanes) uniform rows
/// of a box, from a seed, on all threads. `done` is told of rows that are done.
pub fn uniform(
    candidates: &[Candidate],
    classes: usize,
    size: f64,
    rows: usize,
    seed: u64,
    done: impl Fn(usize) + Sync,
) -> Vec<Errors> {
    let chunk = |n: usize| {
        let rows = CHUNK.min(rows - n * CHUNK);
        // Each chunk and box starts somewhere else in the generator's sequence.
        let mut start = Sampler::new(classes, size, seed ^ size.to_bits().rotate_left(17) ^ (n as u64) << 20);
        let mut sampler = Sampler::new(classes, size, start.next());
        let mut noise = Sampler::new(classes, size, start.next());
        let mut errors = vec![Errors::default(); candidates.len()];
        for _ in 0..rows.div_ceil(LANES) {
            let row = sampler.uniform_lanes();
            let exact = exact_lanes(&row);
            for (candidate, errors) in candidates.iter().zip(&mut errors) {
                let mut p = row.clone();
                candidate.evaluate(&mut p, &mut noise);
                worst_class(&p, &exact).0.into_iter().for_each(|error| errors.count(error));
            }
        }
        done(rows);
        errors
    };
    // In the order of the chunks, so that sums do not depend on threads.
    let chunks: Vec<Vec<Errors>> = (0..rows.div_ceil(CHUNK)).into_par_iter().map(chunk).collect();
    let total = |c: usize| chunks.iter().fold(Errors::default(), |sum, chunk| sum.and(&chunk[c]));
    (0..candidates.len()).map(total).collect()
}

/// The errors on each of the paper's boxes accumulated: `result[candidate][b]` is that of `rows`
/// uniform rows on each of the first `b + 1` boxes.
pub fn cumulative(
    candidates: &[Candidate],
    classes: usize,
    rows: usize,
    seed: u64,
    done: impl Fn(usize) + Sync,
) -> Vec<[Errors; BOXES.len()]> {
    let boxes = BOXES.map(|size| uniform(candidates, classes, size, rows, seed, &done));
    let accumulated = |candidate: usize| {
        let mut sum = Errors::default();
        std::array::from_fn(|b| {
            sum = sum.and(&boxes[b][candidate]);
            sum
        })
    };
    (0..candidates.len()).map(accumulated).collect()
}

fn exact_lanes(row: &[Lanes]) -> Vec<Lanes> {
    let max = row.iter().fold(Lanes::from(f64::NEG_INFINITY), |m, &x| m.zip(x, f64::max));
    let powers: Vec<Lanes> = row.iter().map(|&x| (x - max).map(libm::exp)).collect();
    let inverse = number::sum(&powers).map(|s| 1.0 / s);
    powers.into_iter().map(|p| p * inverse).collect()
}

fn worst_class(p: &[Lanes], exact: &[Lanes]) -> Lanes {
    let larger = |m: f64, d: f64| if d > m || d.is_nan() { d } else { m };
    p.iter().zip(exact).fold(Lanes::from(0.0), |m, (&p, &exact)| m.zip((p - exact).map(f64::abs), larger))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rows_side_by_side_have_the_errors_of_single_rows() {
        let constants = Constants::built_in(5, 128.0).unwrap();
        let methods = [Method::Lee, Method::Hong, Method::Jin, Method::PaperNorm, Method::PaperPrecise];
        for method in methods.into_iter().chain([Method::Sharpen(constants)]) {
            let mut sampler = Sampler::new(5, 4.0, 9);
            let row = sampler.uniform_lanes();
            let mut p = row.clone();
            method.evaluate(&mut p);
            let together = worst_class(&p, &exact_lanes(&row));
            for n in 0..LANES {
                let single: Vec<f64> = row.iter().map(|x| x.0[n]).collect();
                assert!((error(&single, |row| method.evaluate(row)) - together.0[n]).abs() < 1e-15);
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_errors() {
        let constants = Constants::built_in(3, 128.0).unwrap();
        let schedule = Schedule::new(&constants, 13, 7).unwrap();
        let candidates = [Candidate::Clean(Method::Hong), Candidate::Noisy(constants, schedule, 1e-6)];
        let run = |seed| cumulative(&candidates, 3, 40_000, seed, |_| {});
        assert_eq!(run(1), run(1));
        let (one, two) = (run(1), run(2));
        assert!(one.iter().zip(&two).all(|(a, b)| a[0].sum != b[0].sum));
        assert_eq!(one[0].map(|e| e.rows), [40_000, 80_000, 120_000, 160_000]);
        // Noise is seen: without it, the error would be below 1e-6.
        assert!(one[1][3].max > 1e-6);
    }

    #[test]
    fn not_a_number_counts_as_an_infinite_error() {
        let errors = cumulative(&[Candidate::Clean(Method::Lee)], 3, 64, 1, |_| {});
        assert!(errors[0][0].max < 1.0 && errors[0][3].max.is_infinite() && errors[0][3].average().is_infinite());
    }

    #[test]
    fn near_ties_are_near() {
        let mut sampler = Sampler::new(6, 10.0, 1);
        for _ in 0..200 {
            let row = sampler.near_tie();
            assert!(row.iter().all(|x| x.abs() <= 10.0));
        }
    }
}
