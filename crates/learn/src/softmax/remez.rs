//! Minimax polynomials: Remez's exchange for `w(t) p(t)` near 1 on `[-1, 1]`, with a positive
//! weight `w`.

use super::constants::chebyshev;

/// A minimax polynomial and how well it does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fit {
    /// Chebyshev coefficients of `p`.
    pub coefficients: Vec<f64>,
    /// `max |w p - 1|`, a little rounded up.
    pub error: f64,
}

/// Points between which the largest errors are looked for, for each one that the exchange needs.
const GRID: usize = 64;

/// The polynomial of a degree that minimises `max |w(t) p(t) - 1|`.
pub(crate) fn minimax(degree: usize, weight: impl Fn(f64) -> f64) -> Fit {
    let points = degree + 2;
    let grid: Vec<f64> = cosines(GRID * points);
    let weights: Vec<f64> = grid.iter().map(|&t| weight(t)).collect();
    let mut reference: Vec<usize> = (0..points).map(|i| i * (grid.len() - 1) / (points - 1)).collect();
    let mut best = Fit { coefficients: vec![0.0; degree + 1], error: 1.0 };
    for _ in 0..40 {
        let Some(coefficients) = levelled(degree, &reference, &grid, &weights) else { break };
        let residuals: Vec<f64> =
            grid.iter().zip(&weights).map(|(&t, w)| w * chebyshev(&coefficients, t) - 1.0).collect();
        let error = residuals.iter().fold(0.0f64, |m, r| m.max(r.abs()));
        let improved = error < best.error * (1.0 - 1e-9);
        if error < best.error {
            best = Fit { coefficients, error };
        }
        let next = alternating_extremes(&residuals, points);
        if next.len() < points || (next == reference && !improved) {
            break;
        }
        reference = next;
    }
    // Between grid points the error can be larger by about (pi / GRID)^2 / 8.
    best.error *= 1.0005;
    best
}

/// The coefficients for which `w p - 1` alternates between `e` and `-e` on the reference.
fn levelled(degree: usize, reference: &[usize], grid: &[f64], weights: &[f64]) -> Option<Vec<f64>> {
    let row = |(i, &point): (usize, &usize)| {
        let (t, w) = (grid[point], weights[point]);
        let mut row: Vec<f64> = (0..=degree).map(|k| w * cosine_polynomial(k, t)).collect();
        row.push(if i % 2 == 0 { 1.0 } else { -1.0 });
        row.push(1.0);
        row
    };
    let mut solution = solve(reference.iter().enumerate().map(row).collect())?;
    solution.truncate(degree + 1);
    Some(solution)
}

/// The largest error of every run of one sign, `points` neighbouring runs of them.
fn alternating_extremes(residuals: &[f64], points: usize) -> Vec<usize> {
    let mut extremes: Vec<usize> = Vec::new();
    for (i, r) in residuals.iter().enumerate() {
        match extremes.last_mut() {
            Some(last) if (residuals[*last] > 0.0) == (*r > 0.0) => {
                if r.abs() > residuals[*last].abs() {
                    *last = i;
                }
            }
            _ => extremes.push(i),
        }
    }
    while extremes.len() > points {
        let (first, last) = (residuals[extremes[0]].abs(), residuals[extremes[extremes.len() - 1]].abs());
        if first < last {
            extremes.remove(0);
        } else {
            extremes.pop();
        }
    }
    extremes
}

/// Gauss with row pivots; rows carry their right-hand side last.
fn solve(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let n = rows.len();
    for k in 0..n {
        let pivot = (k..n).max_by(|&a, &b| rows[a][k].abs().total_cmp(&rows[b][k].abs()))?;
        rows.swap(k, pivot);
        if rows[k][k] == 0.0 || !rows[k][k].is_finite() {
            return None;
        }
        let top = rows[k].clone();
        for row in rows.iter_mut().skip(k + 1) {
            let factor = row[k] / top[k];
            row.iter_mut().zip(&top).skip(k).for_each(|(r, t)| *r -= factor * t);
        }
    }
    let mut solution = vec![0.0; n];
    for k in (0..n).rev() {
        let known: f64 = (k + 1..n).map(|j| rows[k][j] * solution[j]).sum();
        solution[k] = (rows[k][n] - known) / rows[k][k];
    }
    Some(solution)
}

/// `n` points from -1 to 1, denser at the ends.
fn cosines(n: usize) -> Vec<f64> {
    (0..n).map(|i| -libm::cos(core::f64::consts::PI * i as f64 / (n - 1) as f64)).collect()
}

/// `T_k(t)`.
fn cosine_polynomial(k: usize, t: f64) -> f64 {
    libm::cos(k as f64 * libm::acos(t.clamp(-1.0, 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `min |s q(s) - 1|` on `[1/R, 1]` has a closed form: `1 / T_(d+1)((1 + a) / (1 - a))`.
    #[test]
    fn inverse_has_its_known_error() {
        for (degree, ratio) in [(1, 3.0), (3, 10.0), (7, 50.0), (15, 200.0)] {
            let a = 1.0 / ratio;
            let fit = minimax(degree, |t| ((1.0 - a) * t + 1.0 + a) / 2.0);
            let exact = 1.0 / libm::cosh((degree + 1) as f64 * libm::acosh((1.0 + a) / (1.0 - a)));
            assert!((fit.error / exact - 1.0).abs() < 2e-3, "{degree} {ratio}: {} for {exact}", fit.error);
        }
    }

    #[test]
    fn exponential_alternates() {
        let fit = minimax(10, |t| libm::exp(-2.2 * t));
        assert!(fit.error < 2e-7, "{}", fit.error);
        let relative = |t: f64| chebyshev(&fit.coefficients, t) * libm::exp(-2.2 * t) - 1.0;
        let worst = (0..=10_000).map(|i| relative(i as f64 / 5000.0 - 1.0).abs()).fold(0.0, f64::max);
        assert!(worst <= fit.error && worst > 0.99 * fit.error);
    }
}
