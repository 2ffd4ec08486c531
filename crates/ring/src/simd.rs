//! Vectors of doubles for the kernels: one small trait, its instruction sets, and arithmetic modulo
//! `q` on top.
//!
//! Residues are integers held exactly in doubles. They are reduced by the nearest multiple of `q`,
//! so they are signed and about half of `q` in size. In the bounds below `A` is the size of an
//! operand in units of `q`, and `u = 2^-53` is the unit roundoff.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(test)]
pub(crate) mod emulated;

use crate::Modulus;

/// `2^52`: a non-negative integer below it, placed in the mantissa bits of this double, is the
/// double `2^52 + x`.
pub(crate) const TWO_52: f64 = (1u64 << 52) as f64;
/// `1.5 2^52`: a sum with it is rounded to an integer, ties to even, when the other side is below
/// `2^51` in size.
#[cfg(any(target_arch = "x86_64", test))]
const ROUNDER: f64 = 1.5 * TWO_52;

/// An instruction set with vectors of `LANES` doubles. Operations are per lane unless they say
/// otherwise.
///
/// # Safety
///
/// Every method needs a CPU with the instruction set, and pointers to `LANES` readable or writable
/// elements. Methods are inlined into entry points compiled for the set, see `vector_kernel`.
pub(crate) trait Simd: Copy {
    /// Doubles of one vector: 4 or 8.
    const LANES: usize;
    /// How [`Simd::round_product`] rounds.
    const ONE_ROUNDING: bool;
    /// A vector of doubles.
    type F: Copy;
    /// A vector of 64-bit integers.
    type U: Copy;

    unsafe fn splat(x: f64) -> Self::F;
    unsafe fn load(p: *const f64) -> Self::F;
    unsafe fn store(p: *mut f64, x: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a b + c`, rounded once.
    unsafe fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a b - c`, rounded once.
    unsafe fn mul_sub(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `c - a b`, rounded once.
    unsafe fn neg_mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The nearest integer, ties to even.
    unsafe fn round(a: Self::F) -> Self::F;
    /// An integer near `a b`, for `|a b| < 2^51`: `a b` rounded to an integer, at once
    /// (`ONE_ROUNDING`) or after it was rounded to a double, whichever is faster.
    unsafe fn round_product(a: Self::F, b: Self::F) -> Self::F;
    /// `a - b` where `a > bound`, else `a`.
    unsafe fn sub_above(a: Self::F, bound: Self::F, b: Self::F) -> Self::F;
    /// `yes` where `a` is negative, else `no`; `a` is not the negative zero.
    unsafe fn if_negative(a: Self::F, yes: Self::F, no: Self::F) -> Self::F;
    /// Transposes the square of the first `LANES` rows.
    unsafe fn transpose(rows: &mut [Self::F; 8]);

    unsafe fn splat_u(x: u64) -> Self::U;
    unsafe fn load_u(p: *const u64) -> Self::U;
    unsafe fn store_u(p: *mut u64, x: Self::U);
    unsafe fn add_u(a: Self::U, b: Self::U) -> Self::U;
    unsafe fn sub_u(a: Self::U, b: Self::U) -> Self::U;
    unsafe fn xor_u(a: Self::U, b: Self::U) -> Self::U;
    unsafe fn or_u(a: Self::U, b: Self::U) -> Self::U;
    unsafe fn and_u(a: Self::U, b: Self::U) -> Self::U;
    /// `a` without its lowest bits, as many as `count` says: 0 to 64, where 64 leaves nothing.
    unsafe fn shift_right(a: Self::U, count: Self::U) -> Self::U;
    /// [`Simd::shift_right`] the other way.
    unsafe fn shift_left(a: Self::U, count: Self::U) -> Self::U;
    /// The smaller of `a` and `b` as unsigned numbers, of which `b < 2^63`, and `a <= b` or
    /// `a >= 2^63`.
    unsafe fn min_wrapped(a: Self::U, b: Self::U) -> Self::U;
    /// The entries of `a` at the indices of a block of an automorphism's permutation.
    unsafe fn permute(a: Self::U, indices: &[u8; 8]) -> Self::U;
    unsafe fn bits(a: Self::F) -> Self::U;
    unsafe fn from_bits(a: Self::U) -> Self::F;
}

/// An instruction set that also multiplies 52-bit integers.
///
/// # Safety
///
/// As for [`Simd`].
pub(crate) trait Integers52: Simd {
    /// `sum` plus the low 52 bits of `a b`, for the low 52 bits of `a` and `b`; so for the next.
    unsafe fn add_low(sum: Self::U, a: Self::U, b: Self::U) -> Self::U;
    /// `sum` plus `a b / 2^52`, rounded down.
    unsafe fn add_high(sum: Self::U, a: Self::U, b: Self::U) -> Self::U;
    /// `a / 2^52`, rounded down.
    unsafe fn above_52(a: Self::U) -> Self::U;
    /// `a mod 2^52`.
    unsafe fn below_52(a: Self::U) -> Self::U;
}

/// An exact sum of products of integers below `2^51`: the sum of their low 52 bits and that of what
/// is above.
#[derive(Clone, Copy)]
pub(crate) struct Sum52<S: Simd> {
    low: S::U,
    high: S::U,
}

impl<S: Integers52> Sum52<S> {
    /// # Safety
    ///
    /// As for [`Simd`]; so for all methods below.
    #[inline(always)]
    pub(crate) unsafe fn zero() -> Self {
        // SAFETY: the caller's.
        unsafe { Self { low: S::splat_u(0), high: S::splat_u(0) } }
    }

    /// A sum that begins with numbers below `2^52`.
    #[inline(always)]
    pub(crate) unsafe fn from(low: S::U) -> Self {
        // SAFETY: the caller's.
        unsafe { Self { low, high: S::splat_u(0) } }
    }

    /// Adds `x y`.
    #[inline(always)]
    pub(crate) unsafe fn add(&mut self, x: S::U, y: S::U) {
        // SAFETY: the caller's.
        unsafe {
            self.low = S::add_low(self.low, x, y);
            self.high = S::add_high(self.high, x, y);
        }
    }
}

/// A [`Sum52`] modulo an odd `t`, after Montgomery.
#[derive(Clone, Copy)]
pub(crate) struct Montgomery52<S: Simd> {
    t: S::U,
    twice: S::U,
    /// `1/t` modulo `2^52`.
    inverse: S::U,
    /// `2^104` modulo `t`.
    power: S::U,
    zero: S::U,
}

/// `1/t` modulo `2^52`, for odd `t`.
pub(crate) fn inverse_52(t: u64) -> u64 {
    // Newton: `t` is its own inverse modulo 8, and each step doubles the number of correct bits.
    let inverse = (0..5).fold(t, |x, _| x.wrapping_mul(2u64.wrapping_sub(t.wrapping_mul(x))));
    inverse & ((1 << 52) - 1)
}

impl<S: Integers52> Montgomery52<S> {
    /// # Safety
    ///
    /// As for [`Simd`]; so for the method below.
    #[inline(always)]
    pub(crate) unsafe fn new(modulus: &Modulus) -> Self {
        let t = modulus.value();
        debug_assert!(t % 2 == 1);
        let power = modulus.mul((1 << 52) % t, (1 << 52) % t);
        // SAFETY: the caller's.
        unsafe {
            Self {
                t: S::splat_u(t),
                twice: S::splat_u(2 * t),
                inverse: S::splat_u(inverse_52(t)),
                power: S::splat_u(power),
                zero: S::splat_u(0),
            }
        }
    }

    /// `sum / 2^52` modulo `t`, in `[0, 2 t)`, if the sum is below `2^54 t`: at most 8 products of
    /// integers below `2^51` with residues are.
    ///
    /// With `H` for the sum over `2^52`, rounded down, `L` for the rest, and `m = L / t` modulo
    /// `2^52`, `sum - m t` is a multiple of `2^52`: `m t` has the low part `L`. Divided by it, it
    /// is `H` less the high part of `m t`; `H` is below `4 t`, and the high part below `t`.
    #[inline(always)]
    unsafe fn quotient_below_twice(&self, sum: &Sum52<S>) -> S::U {
        // SAFETY: the caller's.
        unsafe {
            let m = S::add_low(self.zero, sum.low, self.inverse);
            let high = S::add_u(sum.high, S::above_52(sum.low));
            let x = S::sub_u(high, S::add_high(self.zero, m, self.t));
            let x = S::min_wrapped(x, S::add_u(x, self.t));
            S::min_wrapped(S::sub_u(x, self.twice), x)
        }
    }

    /// `sum / 2^52` modulo `t`, in `[0, t)`, for such a sum: what is wanted where its constants
    /// were multiplied by `2^52` before.
    #[inline(always)]
    pub(crate) unsafe fn quotient(&self, sum: &Sum52<S>) -> S::U {
        // SAFETY: the caller's.
        unsafe {
            let x = self.quotient_below_twice(sum);
            S::min_wrapped(S::sub_u(x, self.t), x)
        }
    }

    /// The sum modulo `t`, in `[0, t)`, for such a sum: the quotient times `2^104`, again over
    /// `2^52`. The quotient is below `2^52`, its product with the power below `2 t^2`, so that this
    /// product's high part is below `t`.
    #[inline(always)]
    pub(crate) unsafe fn residue(&self, sum: &Sum52<S>) -> S::U {
        // SAFETY: the caller's.
        unsafe {
            let x = self.quotient_below_twice(sum);
            let low = S::add_low(self.zero, x, self.power);
            let m = S::add_low(self.zero, low, self.inverse);
            let x = S::sub_u(S::add_high(self.zero, x, self.power), S::add_high(self.zero, m, self.t));
            S::min_wrapped(x, S::add_u(x, self.t))
        }
    }
}

/// The constants of a modulus, one copy per lane, and arithmetic with them.
#[derive(Clone, Copy)]
pub(crate) struct Field<S: Simd> {
    pub(crate) q: S::F,
    pub(crate) q_inverse: S::F,
}

/// A factor of many products: its value, at most `q/2` in size, and that over `q`.
#[derive(Clone, Copy)]
pub(crate) struct Factor<S: Simd> {
    pub(crate) value: S::F,
    pub(crate) ratio: S::F,
}

impl<S: Simd> Field<S> {
    /// # Safety
    ///
    /// As for [`Simd`]; so for all methods below.
    #[inline(always)]
    pub(crate) unsafe fn new(modulus: &Modulus) -> Self {
        // SAFETY: the caller's.
        unsafe { Self { q: S::splat(modulus.q_f64), q_inverse: S::splat(modulus.q_inv_f64) } }
    }

    /// `x` modulo `q`, at most `q/2 + 2` in size, for `|x| <= 2^53` and `|x| < 2^50 q`.
    ///
    /// The quotient's relative errors are that of `1/q`, `u`, and that of the product, `u` again or
    /// none. So the result is `q (1/2 + |x/q| 2u)` or less, and with `|x| <= 2^53` that is
    /// `q/2 + 2`.
    #[inline(always)]
    pub(crate) unsafe fn reduce(&self, x: S::F) -> S::F {
        // SAFETY: the caller's.
        unsafe { S::neg_mul_add(S::round_product(x, self.q_inverse), self.q, x) }
    }

    /// [`Field::reduce`] of each.
    #[inline(always)]
    pub(crate) unsafe fn reduce_all<const K: usize>(&self, x: [S::F; K]) -> [S::F; K] {
        let mut r = x;
        for k in 0..K {
            // SAFETY: the caller's.
            unsafe { r[k] = self.reduce(x[k]) };
        }
        r
    }

    /// [`Field::reduce`] for every `q >= 3` and `|x| <= 2^53`: at most `7/6 q` in size, as
    /// `|x/q| 2u <= 2/3`.
    #[inline(always)]
    pub(crate) unsafe fn reduce_any(&self, x: S::F) -> S::F {
        // SAFETY: the caller's.
        unsafe { S::neg_mul_add(S::round(S::mul(x, self.q_inverse)), self.q, x) }
    }

    /// `a b` modulo `q` for residues in `[0, q)`, less than `q` in size.
    ///
    /// With `h` for `a b` rounded and `l = a b - h` (exact), the quotient `c` is `h/q` with the
    /// relative error `u` of `1/q`, rounded to a double and to an integer; the result is
    /// `(h - c q) + l`. Both sums are exact, as integers below `2^53`. In units of `q` the result
    /// is at most 1/2 from the rounding to an integer, `q u` from `1/q`, 1/8 from the rounding to a
    /// double (`h/q` is below `2^51`), and from `l` half a unit in the last place of `h < q^2` over
    /// `q`: `2^48 / q` if `q^2 > 2^101`. The sum is largest for `q` nearest `2^51`, and below 1
    /// there, as `h/q` is then below `2^51 - 2`.
    #[inline(always)]
    pub(crate) unsafe fn mul(&self, a: S::F, b: S::F) -> S::F {
        // SAFETY: the caller's.
        unsafe {
            let h = S::mul(a, b);
            let c = S::round_product(h, self.q_inverse);
            let l = S::mul_sub(a, b, h);
            S::add(S::neg_mul_add(c, self.q, h), l)
        }
    }

    /// A constant factor, at most `q/2` in size.
    #[inline(always)]
    pub(crate) unsafe fn factor(&self, b: S::F) -> Factor<S> {
        // SAFETY: the caller's.
        unsafe { Factor { value: b, ratio: S::mul(b, self.q_inverse) } }
    }

    /// `a b` modulo `q`, for an integer `a` of size `A q` with `A <= 4` (`q < 2^50`) or `A <= 2`
    /// (`q < 2^51`).
    ///
    /// As [`Field::mul`], but the quotient is `a` times the ratio, which does not wait for `h`. The
    /// size of the result in units of `q` is 1/2 from the rounding to an integer, and from:
    /// - the ratio: `u/4` from its rounding (it is at most 1/2), `u/2` from that of `1/q`; times
    ///   `A q`.
    /// - the rounding of the product to a double, where there is one: it is at most `A q / 2`, so
    ///   that half a unit in its last place is 1/8 if `A` is at most 4 (or 2), 1/16 if at most half
    ///   of that; or in any case `A q u / 2`.
    ///
    /// Together, for `q < 2^50`, `b(A) = 1/2 + 3/32 A + 1/8`, and `b(A) <= 1/2 + 3/16 A`;
    /// for `q < 2^51`, `b(A) = 1/2 + 3/16 A + 1/8`, and `b(A) <= 1/2 + 3/8 A`.
    #[inline(always)]
    pub(crate) unsafe fn mul_factor(&self, a: S::F, b: Factor<S>) -> S::F {
        // SAFETY: the caller's.
        unsafe { self.mul_factors([[a]], [[b]])[0][0] }
    }

    /// [`Field::mul_factor`] of each, step by step: independent instructions are near each other,
    /// as the CPU looks ahead only so far.
    #[inline(always)]
    pub(crate) unsafe fn mul_factors<const J: usize, const K: usize>(
        &self,
        a: [[S::F; K]; J],
        b: [[Factor<S>; K]; J],
    ) -> [[S::F; K]; J] {
        let (mut c, mut h, mut l) = (a, a, a);
        for j in 0..J {
            for k in 0..K {
                // SAFETY: the caller's; so below.
                unsafe {
                    c[j][k] = S::round_product(a[j][k], b[j][k].ratio);
                    h[j][k] = S::mul(a[j][k], b[j][k].value);
                }
            }
        }
        for j in 0..J {
            for k in 0..K {
                // SAFETY: see above.
                unsafe {
                    l[j][k] = S::mul_sub(a[j][k], b[j][k].value, h[j][k]);
                    h[j][k] = S::neg_mul_add(c[j][k], self.q, h[j][k]);
                }
            }
        }
        for j in 0..J {
            for k in 0..K {
                // SAFETY: see above.
                unsafe { h[j][k] = S::add(h[j][k], l[j][k]) };
            }
        }
        h
    }

    /// The residue in `[0, q)` of an `x` with `|x| < q` that is not the negative zero.
    ///
    /// No sum of the kernels is a negative zero: exact cancellation gives the positive one, `l` in
    /// a product is never negative zero, and neither is a residue read from memory.
    #[inline(always)]
    pub(crate) unsafe fn residue(&self, x: S::F) -> S::U {
        // SAFETY: the caller's.
        unsafe {
            let base = S::splat(TWO_52);
            let lift = S::if_negative(x, S::add(base, self.q), base);
            S::xor_u(S::bits(S::add(x, lift)), S::splat_u(TWO_52.to_bits()))
        }
    }
}

/// Asks for the cache line of `p`, which may be any address.
#[inline(always)]
pub(crate) fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which never faults.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// `2^52 + x` for integers `0 <= x < 2^52`.
#[inline(always)]
pub(crate) unsafe fn biased<S: Simd>(x: S::U) -> S::F {
    // SAFETY: the caller's.
    unsafe { S::from_bits(S::or_u(x, S::splat_u(TWO_52.to_bits()))) }
}

/// `x` as a double, for integers `0 <= x < 2^52`.
#[inline(always)]
pub(crate) unsafe fn to_double<S: Simd>(x: S::U) -> S::F {
    // SAFETY: the caller's.
    unsafe { S::sub(biased::<S>(x), S::splat(TWO_52)) }
}

/// Defines a safe function that runs the generic kernel `$body` with the instructions of its first
/// argument, or the scalar kernel where the machine does not have them. A kernel of its own for
/// 52-bit integers may follow as `ifma`.
///
/// The kernels read and write by pointers. `requires` is what they need of their arguments to stay
/// inside them. The function checks it once for each call and panics where it does not hold; a
/// kernel without this clause does not compile.
macro_rules! vector_kernel {
    (
        $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?)
        requires ($check:expr) = $body:path, else $scalar:path
    ) => {
        crate::simd::vector_kernel! {
            $vis fn $name($($arg: $ty),*) requires ($check) = $body, ifma $body, else $scalar
        }
    };
    (
        $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?)
        requires ($check:expr) = $body:path, ifma $ifma:path, else $scalar:path
    ) => {
        $vis fn $name(isa: crate::Isa, $($arg: $ty),*) {
            assert!($check, concat!("the lengths of the arguments of ", stringify!($name)));
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                unsafe fn avx2($($arg: $ty),*) {
                    // SAFETY: the features of the set are enabled here; the lengths are checked
                    // above.
                    unsafe { $body(crate::simd::avx2::Avx2, $($arg),*) }
                }
                #[target_feature(enable = "avx512f,avx512dq")]
                unsafe fn avx512($($arg: $ty),*) {
                    // SAFETY: as above.
                    unsafe { $body(crate::simd::avx512::Avx512, $($arg),*) }
                }
                #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
                unsafe fn ifma($($arg: $ty),*) {
                    // SAFETY: as above.
                    unsafe { $ifma(crate::simd::avx512::Avx512, $($arg),*) }
                }
                match isa.or_scalar() {
                    // SAFETY: `or_scalar` gives a set only where the CPU has it; the lengths are
                    // checked above.
                    crate::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    // SAFETY: as above.
                    crate::Isa::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    crate::Isa::Avx512Ifma => return unsafe { ifma($($arg),*) },
                    crate::Isa::Scalar => {}
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = isa;
            $scalar($($arg),*)
        }
    };
}
pub(crate) use vector_kernel;

/// As `vector_kernel`, for a kernel that only sets with 52-bit integers have.
macro_rules! ifma_kernel {
    (
        $(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?)
        requires ($check:expr) = $body:path, else $scalar:path
    ) => {
        $(#[$doc])*
        $vis fn $name(isa: crate::Isa, $($arg: $ty),*) {
            assert!($check, concat!("the lengths of the arguments of ", stringify!($name)));
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
                unsafe fn ifma($($arg: $ty),*) {
                    // SAFETY: the features of the set are enabled here; the lengths are checked
                    // above.
                    unsafe { $body(crate::simd::avx512::Avx512, $($arg),*) }
                }
                if isa.or_scalar() == crate::Isa::Avx512Ifma {
                    // SAFETY: `or_scalar` gives a set only where the CPU has it; the lengths are
                    // checked above.
                    return unsafe { ifma($($arg),*) };
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = isa;
            $scalar($($arg),*)
        }
    };
}
pub(crate) use ifma_kernel;
