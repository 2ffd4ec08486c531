//! What the approximations are computed in: one number, or many rows' numbers side by side for the
//! vector units.

use std::ops::{Add, Div, Mul, Sub};

/// A number for which polynomials can be evaluated.
pub trait Number:
    Copy
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Add<f64, Output = Self>
    + Mul<f64, Output = Self>
    + Div<f64, Output = Self>
    + From<f64>
{
}

impl Number for f64 {}

/// Rows that are computed side by side.
pub const LANES: usize = 16;

/// One number of each of [`LANES`] rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lanes(pub [f64; LANES]);

impl Number for Lanes {}

impl From<f64> for Lanes {
    fn from(value: f64) -> Self {
        Self([value; LANES])
    }
}

impl Lanes {
    /// `f` of each pair of numbers.
    #[inline]
    pub fn zip(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self(std::array::from_fn(|n| f(self.0[n], other.0[n])))
    }

    /// `f` of each number.
    #[inline]
    pub fn map(self, f: impl FnMut(f64) -> f64) -> Self {
        Self(self.0.map(f))
    }
}

impl Add for Lanes {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
}

impl Sub for Lanes {
    type Output = Self;
    #[inline]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
}

impl Mul for Lanes {
    type Output = Self;
    #[inline]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
}

impl Add<f64> for Lanes {
    type Output = Self;
    #[inline]
    fn add(self, other: f64) -> Self {
        self + Self::from(other)
    }
}

impl Mul<f64> for Lanes {
    type Output = Self;
    #[inline]
    fn mul(self, other: f64) -> Self {
        self * Self::from(other)
    }
}

impl Div<f64> for Lanes {
    type Output = Self;
    #[inline]
    fn div(self, other: f64) -> Self {
        self.map(|a| a / other)
    }
}

/// The sum of a row.
pub(crate) fn sum<T: Number>(row: &[T]) -> T {
    row.iter().fold(T::from(0.0), |sum, &x| sum + x)
}

/// `sum_k c_k x^k` (Horner).
pub(crate) fn horner<T: Number>(coefficients: &[f64], x: T) -> T {
    coefficients.iter().rev().fold(T::from(0.0), |sum, &c| sum * x + c)
}
