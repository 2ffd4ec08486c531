//! How far an approximation is from softmax.

use super::{Constants, Method, Schedule, exact};
use rayon::prelude::*;

/// Rows of logits in `[-range, range]`, from a seed: uniform ones, near ties of any number of classes, corners.
#[derive(Clone, Debug)]
pub struct Sampler {
    classes: usize,
    range: f64,
    state: u64,
}

impl Sampler {
    /// Rows of `classes` logits in `[-range, range]`.
    pub fn new(classes: usize, range: f64, seed: u64) -> Self {
        Self { classes, range, state: seed }
    }

    /// A row of independent uniform logits.
    pub fn uniform(&mut self) -> Vec<f64> {
        (0..self.classes).map(|_| self.signed() * self.range).collect()
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
        row
    }

    /// A row of logits at the ends of the range.
    pub fn corner(&mut self) -> Vec<f64> {
        let high = self.below(self.classes + 1);
        (0..self.classes).map(|k| if k < high { self.range } else { -self.range }).collect()
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

    /// The largest error of a probability over `rows` rows of each kind, when every bootstrap of a schedule makes Gaussian
    /// errors of deviation `sigma` (times the power of two that bounds its values), that of the logits included.
    pub fn max_error_with_noise(&mut self, rows: usize, constants: &Constants, schedule: &Schedule, sigma: f64) -> f64 {
        let mut noise = Self { state: self.state ^ 0x5eed, ..*self };
        let mut worst: f64 = 0.0;
        for _ in 0..rows {
            for row in [self.uniform(), self.near_tie()] {
                let noise = std::cell::RefCell::new(&mut noise);
                let approximation = |row: &mut [f64]| {
                    let disturb = |p: &mut [f64], size: f64| {
                        p.iter_mut().for_each(|p| *p += size * noise.borrow_mut().gaussian());
                    };
                    disturb(row, sigma * constants.scale);
                    constants.evaluate_disturbed(row, |j, p| {
                        if schedule.cuts().contains(&j) {
                            disturb(p, libm::ldexp(sigma, constants.log_bound(j) as i32));
                        }
                    });
                };
                worst = worst.max(error(&row, approximation));
            }
        }
        worst
    }

    fn gaussian(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.unit()));
        radius * libm::cos(core::f64::consts::TAU * self.unit())
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

/// `max_k |approximation_k - softmax_k|` of one row; infinite where the approximation is not a number.
pub fn error(row: &[f64], approximation: impl Fn(&mut [f64])) -> f64 {
    let (mut a, mut b) = (row.to_vec(), row.to_vec());
    approximation(&mut a);
    exact(&mut b);
    let larger = |m: f64, d: f64| if d.is_nan() { f64::INFINITY } else { m.max(d) };
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, larger)
}

/// The largest and the average error over some rows, where the error of a row is that of its worst class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// The largest.
    pub max: f64,
    /// The average.
    pub average: f64,
}

/// The boxes `[-r, r]^c` the paper samples.
pub const BOXES: [f64; 4] = [4.0, 8.0, 32.0, 128.0];

/// Rows drawn by one generator: small enough to share among threads.
const CHUNK: usize = 1 << 14;

/// The errors of a method by the paper's cumulative sampling: `rows` uniform rows on each of its boxes up to `range`, from a seed.
pub fn cumulative(method: &Method, classes: usize, range: f64, rows: usize, seed: u64) -> Errors {
    let boxes = BOXES.iter().filter(|&&size| size <= range);
    let chunks: Vec<(f64, usize, u64)> = boxes
        .enumerate()
        .flat_map(|(b, &size)| {
            let chunk =
                move |n: usize| (size, CHUNK.min(rows - n * CHUNK), seed ^ ((b as u64) << 56 | (n as u64) << 24));
            (0..rows.div_ceil(CHUNK)).map(chunk)
        })
        .collect();
    let measured: Vec<(f64, f64)> = chunks
        .par_iter()
        .map(|&(size, rows, seed)| {
            let mut sampler = Sampler::new(classes, size, seed);
            let errors = (0..rows).map(|_| error(&sampler.uniform(), |row| method.evaluate(row)));
            errors.fold((0.0, 0.0), |(max, sum): (f64, f64), e| (max.max(e), sum + e))
        })
        .collect();
    let total: usize = chunks.iter().map(|&(_, rows, _)| rows).sum();
    let max = measured.iter().fold(0.0, |m: f64, &(max, _)| m.max(max));
    Errors { max, average: measured.iter().map(|&(_, sum)| sum).sum::<f64>() / total.max(1) as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_softmax_has_no_error() {
        let errors = cumulative(&Method::Exact, 5, 32.0, 20_000, 1);
        assert_eq!(errors, Errors { max: 0.0, average: 0.0 });
    }

    #[test]
    fn the_same_seed_gives_the_same_errors() {
        let run = |seed| cumulative(&Method::Hong, 3, 8.0, 40_000, seed);
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
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
