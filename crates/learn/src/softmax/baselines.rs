//! The softmax approximations of the paper and of those it compares itself with, on plain numbers.

use super::{Constants, exact};

/// A way to compute softmax.
#[derive(Clone, Debug, PartialEq)]
pub enum Method {
    /// `exp(x_k) / sum exp(x_l)`.
    Exact,
    /// Lee et al. 2022: Gumbel softmax `softmax(x / 4)`, exponential on `[-64, 64]`, Goldschmidt inverse on `(0, 10000]`.
    Lee,
    /// Hong et al. 2022: `((16 + x) / 32)^16`, Goldschmidt inverse on `(0, 80]`.
    Hong,
    /// Jin et al. 2020: one-vs-each, `prod_(l != k) sigmoid(x_k - x_l)` with a cubic sigmoid.
    Jin,
    /// The paper's, for `[-4, 4]`: subtract an approximate maximum, exponential on `[-8, 8]`, Goldschmidt inverse on `(0, 100]`.
    PaperNorm,
    /// As [`Method::PaperNorm`], for `[-128, 128]` by domain extension.
    PaperExtended,
    /// As [`Method::PaperExtended`], with the extension's error corrected.
    PaperPrecise,
    /// Normalise and sharpen.
    Sharpen(Constants),
}

impl Method {
    /// The name in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Method::Exact => "exact",
            Method::Lee => "lee",
            Method::Hong => "hong",
            Method::Jin => "jin",
            Method::PaperNorm => "paper-norm",
            Method::PaperExtended => "paper-extn",
            Method::PaperPrecise => "paper-prec",
            Method::Sharpen(_) => "sharpen",
        }
    }

    /// The method on a row of logits, in place.
    pub fn evaluate(&self, row: &mut [f64]) {
        match self {
            Method::Exact => exact(row),
            Method::Lee => normalised(row, |x| exponential(&EXPONENTIAL_12, x / 4.0, 6), 10_000.0, 8),
            Method::Hong => normalised(row, |x| libm::pow((16.0 + x) / 32.0, 16.0), 80.0, 30),
            Method::Jin => one_vs_each(row),
            Method::PaperNorm => paper(row, 0, false),
            Method::PaperExtended => paper(row, Extension::PAPER.index, false),
            Method::PaperPrecise => paper(row, Extension::PAPER.index, true),
            Method::Sharpen(constants) => constants.evaluate(row),
        }
    }
}

/// Coefficients of the degree 12 least-squares approximation of `exp` on `[-1, 1]` (Lee et al.).
pub const EXPONENTIAL_12: [f64; 13] = [
    1.0,
    1.0,
    0.5,
    1.66666667e-01,
    4.16666667e-02,
    8.33333323e-03,
    1.38888888e-03,
    1.98413061e-04,
    2.48016226e-05,
    2.75510749e-06,
    2.75519884e-07,
    2.55652816e-08,
    2.12732465e-09,
];

/// The exponential on `[-1, 1]` behind the paper's table. Its published code approximates by degree 8, but its Horner loop uses the
/// last coefficient twice, which adds a term of degree 9: only so does the column "norm" come out as printed.
pub const EXPONENTIAL_9: [f64; 10] = [
    1.000000001945585,
    0.9999999388932228,
    0.499999859398392,
    0.16666798775227673,
    0.04166711228500117,
    0.008328336039797088,
    0.0013881473292497602,
    0.00020492629147503022,
    2.551385701569812e-05,
    2.551385701569812e-05,
];

/// Coefficients of the odd polynomials `f` and `g` of degree 7 with which `f(g(g(x)))` is near the sign of `x` (Cheon et al. 2020):
/// of `x, x^3, x^5, x^7`.
pub const SIGN_F: [f64; 4] = [35.0 / 16.0, -35.0 / 16.0, 21.0 / 16.0, -5.0 / 16.0];
/// See [`SIGN_F`].
pub const SIGN_G: [f64; 4] = [4589.0 / 1024.0, -16577.0 / 1024.0, 25614.0 / 1024.0, -12860.0 / 1024.0];

/// The range `[0, 100]` and the 16 rounds of the paper's inverse.
pub const INVERSE: (f64, usize) = (100.0, 16);

/// Domain extension (Cheon et al. 2022): `[-radius ratio^index, ...]` is brought into `[-radius, radius]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extension {
    /// Where the exponential is good (`R_orig`).
    pub radius: f64,
    /// By how much each step extends (`L`).
    pub ratio: f64,
    /// Number of steps (`n`).
    pub index: usize,
}

impl Extension {
    /// The paper's: from 8 to 256 in 5 doublings.
    pub const PAPER: Self = Self { radius: 8.0, ratio: 2.0, index: 5 };

    /// The coefficient `4 / (27 R^2 L^(2i))` of the cubic of step `i`: `x <- x - coefficient x^3`.
    pub fn cubic(&self, i: usize) -> f64 {
        let reach = self.radius * libm::pow(self.ratio, i as f64);
        4.0 / 27.0 / (reach * reach)
    }

    /// The coefficients `(k / R^2, k / R^4)` of the correction `x <- x + k (x^3/R^2 - x^5/R^4)`.
    pub fn correction(&self) -> (f64, f64) {
        let square = self.ratio * self.ratio;
        let far = libm::pow(square, self.index as f64);
        let k = 4.0 / 27.0 * square * (far - 1.0) / (far * (square - 1.0));
        let radius = self.radius * self.radius;
        (k / radius, k / (radius * radius))
    }

    /// Logits in `[-R_max, R_max]` are covered: subtracting the maximum doubles the range.
    pub fn max(&self) -> f64 {
        self.radius * libm::pow(self.ratio, self.index as f64) / 2.0
    }
}

/// `p(x / 2^squarings)^(2^squarings)` with a polynomial for `[-1, 1]`.
fn exponential(coefficients: &[f64], x: f64, squarings: i32) -> f64 {
    let x = libm::ldexp(x, -squarings);
    let value = coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c);
    (0..squarings).fold(value, |v, _| v * v)
}

/// Goldschmidt's `1/x` on `(0, range]`.
fn inverse(x: f64, range: f64, rounds: usize) -> f64 {
    let mut t = 1.0 - x / range;
    let mut y = 1.0 + t;
    for _ in 0..rounds {
        t *= t;
        y *= 1.0 + t;
    }
    y / range
}

fn normalised(row: &mut [f64], exponential: impl Fn(f64) -> f64, range: f64, rounds: usize) {
    row.iter_mut().for_each(|x| *x = exponential(*x));
    let factor = inverse(row.iter().sum(), range, rounds);
    row.iter_mut().for_each(|x| *x *= factor);
}

/// Kim et al.'s cubic on `[-8, 8]`.
fn sigmoid(x: f64) -> f64 {
    0.5 + 0.15012 * x - 0.00159 * x * x * x
}

fn one_vs_each(row: &mut [f64]) {
    let x = row.to_vec();
    for (k, p) in row.iter_mut().enumerate() {
        *p = (0..x.len()).filter(|&l| l != k).map(|l| sigmoid(x[k] - x[l])).product();
    }
}

/// The paper's softmax: approximate maximum, domain extension, exponential, inverse.
fn paper(row: &mut [f64], index: usize, precise: bool) {
    let extension = Extension { index, ..Extension::PAPER };
    let max = approximate_max(row, 2.0 * extension.max());
    let (k3, k5) = extension.correction();
    for x in row.iter_mut() {
        *x -= max;
        for i in (0..index).rev() {
            *x -= extension.cubic(i) * *x * *x * *x;
        }
        if precise {
            let cube = *x * *x * *x;
            *x += k3 * cube - k5 * cube * *x * *x;
        }
    }
    normalised(row, |x| exponential(&EXPONENTIAL_9, x, 3), INVERSE.0, INVERSE.1);
}

/// The tournament of approximate comparisons, on values divided by `width`; missing classes are -1/2.
fn approximate_max(row: &[f64], width: f64) -> f64 {
    let padded = row.len().next_power_of_two();
    let mut max: Vec<f64> = (0..padded).map(|k| row.get(k).map_or(-0.5, |x| x / width)).collect();
    let mut step = 1;
    while step < padded {
        let rotated: Vec<f64> = (0..padded).map(|k| max[(k + step) % padded]).collect();
        for (m, r) in max.iter_mut().zip(rotated) {
            let larger = (sign(*m - r) + 1.0) / 2.0;
            *m = *m * larger + r * (1.0 - larger);
        }
        step *= 2;
    }
    max.first().copied().unwrap_or(0.0) * width
}

fn sign(x: f64) -> f64 {
    let odd = |c: &[f64; 4], x: f64| x * c.iter().rev().fold(0.0, |sum, c| sum * x * x + c);
    odd(&SIGN_F, odd(&SIGN_G, odd(&SIGN_G, x)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::softmax::measure::cumulative;

    /// Cells of the paper's error table (classes, range, largest, average): averages within its digits or 4 %. Its largest errors are
    /// those of 100 million samples and more, ours of fewer must lie below.
    #[test]
    fn the_error_table_is_reproduced() {
        use Method::*;
        let table = [
            (Lee, 3, 4.0, 0.9243, 0.6957),
            (Lee, 3, 8.0, 0.9651, 0.7131),
            (Lee, 10, 4.0, 0.8942, 0.3992),
            (Hong, 3, 4.0, 0.0755, 0.0162),
            (Hong, 3, 8.0, 0.6041, 0.0199),
            (Hong, 7, 4.0, 0.1030, 0.0297),
            (Jin, 3, 4.0, 0.1841, 0.0910),
            (Jin, 5, 4.0, 0.3093, 0.1148),
            (Jin, 10, 4.0, 0.8018, 0.1501),
            (PaperNorm, 3, 4.0, 3.7e-7, 4.3e-8),
            (PaperNorm, 10, 4.0, 1.4e-6, 1.0e-7),
            (PaperExtended, 3, 128.0, 0.0037, 0.0014),
            (PaperExtended, 5, 4.0, 0.0071, 0.0029),
            (PaperPrecise, 3, 128.0, 0.0022, 0.0006),
            (PaperPrecise, 5, 128.0, 0.0044, 0.0010),
            (PaperPrecise, 7, 128.0, 0.0066, 0.0013),
            (PaperPrecise, 10, 128.0, 0.0097, 0.0016),
        ];
        for (method, classes, range, worst, average) in table {
            let errors = cumulative(&method, classes, range, 10_000, 11);
            let (w, a) = (errors.max, errors.average);
            let printed_digit = if average > 1e-5 { 5e-5 } else { 5e-10 };
            let near = (a - average).abs() <= (0.04 * average).max(printed_digit);
            let cell =
                format!("{} {classes} {range}: {w:.2e} for {worst:.2e}, {a:.2e} for {average:.2e}", method.name());
            assert!(near && w > 0.5 * worst && w < 1.03 * worst, "{cell}");
        }
    }
}
