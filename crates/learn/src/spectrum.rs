//! What the defaults of a training need to know about its rows: how long they are, and how far they
//! extend in one direction.

use crate::Matrix;
use crate::split_mix::SplitMix64;

/// Iterations of the power method; each takes two products with the rows.
const ITERATIONS: usize = 15;
/// Rows beyond these are not looked at. They are shuffled, so the first ones stand for all.
const MOST_ROWS: usize = 8192;

/// The size of rows `[x 1]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spectrum {
    /// The largest eigenvalue of the mean of `[x 1]^T [x 1]`. The curvature of the loss is at most
    /// half of it.
    pub largest_eigenvalue: f64,
    /// The mean squared length of `x`.
    pub mean_square: f64,
}

impl Spectrum {
    /// Finds both with 30 products, without labels.
    pub fn new(features: &Matrix) -> Self {
        let rows = features.rows().min(MOST_ROWS);
        let squares: f64 = (0..rows).flat_map(|i| features.row(i)).map(|x| x * x).sum();
        let mut random = SplitMix64(1);
        let mut direction: Vec<f64> = (0..=features.columns()).map(|_| random.next_signed()).collect();
        let mut largest_eigenvalue = 0.0;
        for _ in 0..ITERATIONS {
            normalise(&mut direction);
            direction = product(features, rows, &direction);
            largest_eigenvalue = norm(&direction);
        }
        Self { largest_eigenvalue, mean_square: squares / rows.max(1) as f64 }
    }
}

/// `mean over rows of [x 1]^T ([x 1] v)`.
fn product(features: &Matrix, rows: usize, v: &[f64]) -> Vec<f64> {
    let columns = features.columns();
    let mut sum = vec![0.0; columns + 1];
    for i in 0..rows {
        let row = features.row(i);
        let along = row.iter().zip(v).map(|(x, v)| x * v).sum::<f64>() + v[columns];
        sum.iter_mut().zip(row).for_each(|(s, x)| *s += along * x);
        sum[columns] += along;
    }
    sum.iter_mut().for_each(|s| *s /= rows.max(1) as f64);
    sum
}

fn normalise(v: &mut [f64]) {
    let norm = norm(v);
    if norm > 0.0 {
        v.iter_mut().for_each(|x| *x /= norm);
    }
}

fn norm(v: &[f64]) -> f64 {
    libm::sqrt(v.iter().map(|x| x * x).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_axis_is_found() {
        // Centred columns of mean squares 100/3, 4/3 and 0, in thousands of rows.
        let x = Matrix::from_fn(3000, 3, |i, j| match j {
            0 => 10.0 * (2.0 * (i as f64 + 0.5) / 3000.0 - 1.0),
            1 => 2.0 * (2.0 * (((i * 7) % 3000) as f64 + 0.5) / 3000.0 - 1.0),
            _ => 0.0,
        });
        let found = Spectrum::new(&x);
        assert!((found.largest_eigenvalue / (100.0 / 3.0) - 1.0).abs() < 0.02, "{found:?}");
        assert!((found.mean_square - 104.0 / 3.0).abs() < 1e-3, "{found:?}");
        // Of constant rows only the bias is left.
        let none = Spectrum::new(&Matrix::zeros(5, 2));
        assert!((none.largest_eigenvalue - 1.0).abs() < 1e-12 && none.mean_square == 0.0, "{none:?}");
    }
}
