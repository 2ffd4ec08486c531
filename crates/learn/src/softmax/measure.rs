//! How far an approximation is from softmax.

use super::{Constants, Schedule, exact};

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
