//! Approximations of the softmax without maximum or comparison, and the baselines they are compared
//! with.

pub mod baselines;
pub mod constants;
mod division;
pub mod measure;
pub mod number;
mod remez;
pub mod schedule;
pub mod search;
pub mod sharpen;

pub use baselines::Method;
pub use constants::{Constants, SoftmaxStep};
pub use division::DIVISION_DEPTH;
pub use schedule::Schedule;
pub use sharpen::Sharpen;

/// `exp(x_k) / sum_l exp(x_l)` in place, exact to rounding.
pub fn exact(row: &mut [f64]) {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter_mut().for_each(|x| *x = libm::exp(*x - max));
    let sum: f64 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
}
