//! What each security costs: the noise that a release adds, and the accuracy that remains.

use crate::Result;
use hetal_keys::deviation;
use hetal_learn::judge::accuracy;
use hetal_learn::split_mix::SplitMix64;
use hetal_learn::{Matrix, reference};
use serde::Serialize;

/// The securities of the table.
const SECURITIES: std::ops::RangeInclusive<u32> = 10..=20;
/// Simulated releases of each security.
const DRAWS: u64 = 32;

/// What a model loses by a release, for each security. Accuracies are those on validation rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReleaseTable {
    /// The bound on the 2-norm of the noise of the decrypted weights.
    pub noise_bound: f64,
    /// Numbers of the model.
    pub numbers: u64,
    /// Models of this size that may be published under the key.
    pub models: u64,
    /// The accuracy of the private model.
    pub private_accuracy: f64,
    /// A line for each security.
    pub lines: Vec<ReleaseLine>,
}

/// What one security costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReleaseLine {
    /// Bits of security.
    pub security: u32,
    /// The standard deviation of the noise added to each weight for normalised features.
    pub sigma: f64,
    /// The mean accuracy of simulated releases.
    pub accuracy: f64,
}

impl ReleaseTable {
    /// Simulates releases of weights for normalised features (classes x features + 1).
    pub fn new(weights: &Matrix, rows: &Matrix, labels: &[usize], noise_bound: f64, models: u64) -> Result<Self> {
        let numbers = weights.values().len() as u64;
        let mut table = Self {
            noise_bound,
            numbers,
            models,
            private_accuracy: measured(weights, rows, labels)?,
            lines: Vec::new(),
        };
        for security in SECURITIES {
            table.lines.push(table.line(security, weights, rows, labels)?);
        }
        Ok(table)
    }

    /// The line of a security.
    pub fn line(&self, security: u32, weights: &Matrix, rows: &Matrix, labels: &[usize]) -> Result<ReleaseLine> {
        // The noise of all numbers of one model has the bound as its 2-norm.
        let each = self.noise_bound / libm::sqrt(self.numbers as f64);
        let sigma = deviation(each, self.numbers.saturating_mul(self.models), security);
        let mut sum = 0.0;
        for seed in 0..DRAWS {
            let mut random = SplitMix64(seed);
            let noisy = Matrix::from_fn(weights.rows(), weights.columns(), |k, h| {
                weights[(k, h)] + sigma * gaussian(&mut random)
            });
            sum += measured(&noisy, rows, labels)?;
        }
        Ok(ReleaseLine { security, sigma, accuracy: sum / DRAWS as f64 })
    }

    /// The points of accuracy that a line loses.
    pub fn loss(&self, line: &ReleaseLine) -> f64 {
        100.0 * (self.private_accuracy - line.accuracy)
    }

    /// The highest security of the table whose loss, and that of all lower ones, is tolerated.
    pub fn highest(&self, tolerated: f64) -> Option<u32> {
        self.lines.iter().take_while(|line| self.loss(line) <= tolerated).map(|line| line.security).last()
    }
}

/// The accuracy of weights on rows.
pub fn measured(weights: &Matrix, rows: &Matrix, labels: &[usize]) -> Result<f64> {
    Ok(accuracy(&reference::logits(rows, weights)?, labels)?)
}

/// A standard normal number (Box and Muller), for simulations only.
fn gaussian(random: &mut SplitMix64) -> f64 {
    let radius = libm::sqrt(-2.0 * libm::log((1.0 - random.next_signed().abs()).max(f64::MIN_POSITIVE)));
    radius * libm::cos(core::f64::consts::PI * random.next_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows on both sides of a border, and a classifier that is right on all of them.
    fn classifier() -> (Matrix, Matrix, Vec<usize>) {
        let rows = Matrix::from_fn(200, 2, |i, h| if h == 0 { (i as f64 - 99.5) / 50.0 } else { 1.0 });
        let labels = (0..200).map(|i| usize::from(i >= 100)).collect();
        (Matrix::new(2, 3, vec![-1.0, 0.0, 0.0, 1.0, 0.0, 0.0]).unwrap(), rows, labels)
    }

    #[test]
    fn more_security_costs_more_accuracy() {
        let (weights, rows, labels) = classifier();
        let table = ReleaseTable::new(&weights, &rows, &labels, 1e-5, 1).unwrap();
        assert_eq!((table.private_accuracy, table.numbers, table.lines.len()), (1.0, 6, 11));
        for pair in table.lines.windows(2) {
            assert!((pair[1].sigma / pair[0].sigma - 2.0).abs() < 1e-12);
            assert!(pair[1].accuracy <= pair[0].accuracy + 0.002, "{pair:?}");
        }
        // 2^10 * 1e-5 * (65/64) / sqrt(2 pi).
        assert!((table.lines[0].sigma - 0.004_149).abs() < 1e-5, "{:?}", table.lines[0]);
        assert!(table.loss(&table.lines[0]) < 0.5 && table.loss(&table.lines[10]) > 5.0, "{table:?}");
        let highest = table.highest(0.5).unwrap();
        assert!((10..16).contains(&highest), "{highest}");
        // Four models cost a bit.
        let four = ReleaseTable::new(&weights, &rows, &labels, 1e-5, 4).unwrap();
        assert!((four.lines[0].sigma / table.lines[1].sigma - 1.0).abs() < 1e-12);
        assert_eq!(ReleaseTable::new(&weights, &rows, &labels, 1.0, 1).unwrap().highest(0.5), None);
    }
}
