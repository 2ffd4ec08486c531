//! Eight doubles without any instruction set: tests run the eight-lane kernels on machines without
//! AVX-512.

use super::{Integers52, ROUNDER, Simd};
use std::array::from_fn;

/// The emulated instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Emulated;

// SAFETY (all blocks): the caller of a `Simd` method promises valid pointers.
impl Simd for Emulated {
    const LANES: usize = 8;
    const ONE_ROUNDING: bool = true;
    type F = [f64; 8];
    type U = [u64; 8];

    unsafe fn splat(x: f64) -> [f64; 8] {
        [x; 8]
    }
    unsafe fn load(p: *const f64) -> [f64; 8] {
        unsafe { p.cast::<[f64; 8]>().read() }
    }
    unsafe fn store(p: *mut f64, x: [f64; 8]) {
        unsafe { p.cast::<[f64; 8]>().write(x) }
    }
    unsafe fn add(a: [f64; 8], b: [f64; 8]) -> [f64; 8] {
        from_fn(|i| a[i] + b[i])
    }
    unsafe fn sub(a: [f64; 8], b: [f64; 8]) -> [f64; 8] {
        from_fn(|i| a[i] - b[i])
    }
    unsafe fn mul(a: [f64; 8], b: [f64; 8]) -> [f64; 8] {
        from_fn(|i| a[i] * b[i])
    }
    unsafe fn mul_add(a: [f64; 8], b: [f64; 8], c: [f64; 8]) -> [f64; 8] {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    unsafe fn mul_sub(a: [f64; 8], b: [f64; 8], c: [f64; 8]) -> [f64; 8] {
        from_fn(|i| a[i].mul_add(b[i], -c[i]))
    }
    unsafe fn neg_mul_add(a: [f64; 8], b: [f64; 8], c: [f64; 8]) -> [f64; 8] {
        from_fn(|i| (-a[i]).mul_add(b[i], c[i]))
    }
    unsafe fn round(a: [f64; 8]) -> [f64; 8] {
        a.map(f64::round_ties_even)
    }
    unsafe fn round_product(a: [f64; 8], b: [f64; 8]) -> [f64; 8] {
        from_fn(|i| a[i].mul_add(b[i], ROUNDER) - ROUNDER)
    }
    unsafe fn sub_above(a: [f64; 8], bound: [f64; 8], b: [f64; 8]) -> [f64; 8] {
        from_fn(|i| if a[i] > bound[i] { a[i] - b[i] } else { a[i] })
    }
    unsafe fn if_negative(a: [f64; 8], yes: [f64; 8], no: [f64; 8]) -> [f64; 8] {
        from_fn(|i| if a[i].is_sign_negative() { yes[i] } else { no[i] })
    }
    unsafe fn transpose(rows: &mut [[f64; 8]; 8]) {
        *rows = from_fn(|i| from_fn(|j| rows[j][i]));
    }

    unsafe fn splat_u(x: u64) -> [u64; 8] {
        [x; 8]
    }
    unsafe fn load_u(p: *const u64) -> [u64; 8] {
        unsafe { p.cast::<[u64; 8]>().read() }
    }
    unsafe fn store_u(p: *mut u64, x: [u64; 8]) {
        unsafe { p.cast::<[u64; 8]>().write(x) }
    }
    unsafe fn add_u(a: [u64; 8], b: [u64; 8]) -> [u64; 8] {
        from_fn(|i| a[i].wrapping_add(b[i]))
    }
    unsafe fn sub_u(a: [u64; 8], b: [u64; 8]) -> [u64; 8] {
        from_fn(|i| a[i].wrapping_sub(b[i]))
    }
    unsafe fn xor_u(a: [u64; 8], b: [u64; 8]) -> [u64; 8] {
        from_fn(|i| a[i] ^ b[i])
    }
    unsafe fn or_u(a: [u64; 8], b: [u64; 8]) -> [u64; 8] {
        from_fn(|i| a[i] | b[i])
    }
    unsafe fn and_u(a: [u64; 8], b: [u64; 8]) -> [u64; 8] {
        from_fn(|i| a[i] & b[i])
    }
    unsafe fn shift_right(a: [u64; 8], count: [u64; 8]) -> [u64; 8] {
        from_fn(|i| a[i].checked_shr(count[i] as u32).unwrap_or(0))
    }
    unsafe fn shift_left(a: [u64; 8], count: [u64; 8]) -> [u64; 8] {
        from_fn(|i| a[i].checked_shl(count[i] as u32).unwrap_or(0))
    }
    unsafe fn min_wrapped(a: [u64; 8], b: [u64; 8]) -> [u64; 8] {
        from_fn(|i| a[i].min(b[i]))
    }
    unsafe fn permute(a: [u64; 8], indices: &[u8; 8]) -> [u64; 8] {
        from_fn(|i| a[usize::from(indices[i])])
    }
    unsafe fn bits(a: [f64; 8]) -> [u64; 8] {
        a.map(f64::to_bits)
    }
    unsafe fn from_bits(a: [u64; 8]) -> [f64; 8] {
        a.map(f64::from_bits)
    }
}

/// The two halves of a product of 52-bit integers.
fn product_52(a: u64, b: u64) -> (u64, u64) {
    let mask = (1 << 52) - 1;
    let product = u128::from(a & mask) * u128::from(b & mask);
    (product as u64 & mask, (product >> 52) as u64)
}

impl Integers52 for Emulated {
    unsafe fn add_low(sum: [u64; 8], a: [u64; 8], b: [u64; 8]) -> [u64; 8] {
        from_fn(|i| sum[i].wrapping_add(product_52(a[i], b[i]).0))
    }
    unsafe fn add_high(sum: [u64; 8], a: [u64; 8], b: [u64; 8]) -> [u64; 8] {
        from_fn(|i| sum[i].wrapping_add(product_52(a[i], b[i]).1))
    }
    unsafe fn above_52(a: [u64; 8]) -> [u64; 8] {
        a.map(|a| a >> 52)
    }
    unsafe fn below_52(a: [u64; 8]) -> [u64; 8] {
        a.map(|a| a & ((1 << 52) - 1))
    }
}
