//! Exact sums of products in doubles.

use crate::simd::{Field, Simd};

/// An exact sum of products: a multiple of a power of two, and the rest.
///
/// The high part starts at a number `base` in `[2^E, 2^(E+1))` and stays in that range, so that its
/// unit in the last place is `2^(E-52)` throughout. Adding a product rounds it to that unit; the
/// rounding error, at most half a unit, is what the second fused multiply-add gives, exactly, and
/// goes to the low part. If `k` products of size `P` are added, and `P` is a multiple of the unit,
/// the high part is within `k P` of its base (rounding is monotone), and the low part is at most
/// `k/2` units, which must not exceed `2^53`.
#[derive(Clone, Copy)]
pub(crate) struct Sum<S: Simd> {
    high: S::F,
    pub(crate) low: S::F,
}

impl<S: Simd> Sum<S> {
    /// # Safety
    ///
    /// As for [`Simd`]; so for all methods below.
    #[inline(always)]
    pub(crate) unsafe fn new(base: S::F) -> Self {
        // SAFETY: the caller's.
        unsafe { Self { high: base, low: S::splat(0.0) } }
    }

    /// Adds `x y`.
    #[inline(always)]
    pub(crate) unsafe fn add(&mut self, x: S::F, y: S::F) {
        // SAFETY: the caller's.
        unsafe {
            let high = S::mul_add(x, y, self.high);
            let step_back = S::sub(self.high, high);
            self.low = S::add(self.low, S::mul_add(x, y, step_back));
            self.high = high;
        }
    }

    /// The sum modulo `q`: the high part modulo `q` and the low part reduced.
    #[inline(always)]
    pub(super) unsafe fn reduced(&self, f: &Field<S>, base: S::F) -> S::F {
        // SAFETY: the caller's.
        unsafe { S::add(self.high_mod(f, base), f.reduce(self.low)) }
    }

    /// The high part modulo `q`. Its quotient has two roundings: for a sum below `2^k q` the size
    /// is `q (1/2 + 2^(k-52))` or less, which must not exceed `2^53`.
    #[inline(always)]
    pub(crate) unsafe fn high_mod(&self, f: &Field<S>, base: S::F) -> S::F {
        // SAFETY: the caller's.
        unsafe {
            let high = S::sub(self.high, base);
            let c = S::round(S::mul(high, f.q_inverse));
            S::neg_mul_add(c, f.q, high)
        }
    }
}

/// `2^k` as a double.
pub(crate) const fn power_of_two(k: u64) -> f64 {
    f64::from_bits((1023 + k) << 52)
}
