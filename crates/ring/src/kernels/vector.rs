//! Loops on vectors of doubles (products) or integers (sums).
//!
//! Lengths that are not whole vectors end with the scalar loop.

mod sum;
#[cfg(test)]
mod tests;

use super::{MAX_DOT_TERMS, Scaled, is_combination, is_dot_pair, scalar};
use crate::Modulus;
use crate::automorphism::Part;
use crate::packed::{Packed, Residues};
use crate::simd::{Factor, Field, Integers52, Montgomery52, Simd, Sum52, biased, to_double, vector_kernel};
pub(crate) use sum::{Sum, power_of_two};

vector_kernel! {
    pub(super) fn add_assign(q: &Modulus, a: &mut [u64], b: &[u64])
        requires (a.len() == b.len()) = add_body, else scalar::add_assign
}
vector_kernel! {
    pub(super) fn sub_assign(q: &Modulus, a: &mut [u64], b: &[u64])
        requires (a.len() == b.len()) = sub_body, else scalar::sub_assign
}
vector_kernel! {
    pub(super) fn neg_assign(q: &Modulus, a: &mut [u64]) requires (true) = neg_body, else scalar::neg_assign
}
vector_kernel! {
    pub(super) fn mul_into(q: &Modulus, out: &mut [u64], a: &[u64], b: &[u64])
        requires (out.len() == a.len() && a.len() == b.len()) = mul_into_body, else scalar::mul_into
}
vector_kernel! {
    pub(super) fn mul_assign(q: &Modulus, a: &mut [u64], b: &[u64])
        requires (a.len() == b.len()) = mul_body, else scalar::mul_assign
}
vector_kernel! {
    pub(super) fn mul_add_assign(q: &Modulus, acc: &mut [u64], a: &[u64], b: &[u64])
        requires (acc.len() == a.len() && a.len() == b.len()) = mul_add_body, else scalar::mul_add_assign
}
vector_kernel! {
    pub(super) fn mul_scalar_assign(q: &Modulus, a: &mut [u64], s: u64)
        requires (true) = mul_scalar_body, else scalar::mul_scalar_assign
}
vector_kernel! {
    pub(super) fn mul_scalar_add_assign(q: &Modulus, acc: &mut [u64], a: &[u64], s: u64)
        requires (acc.len() == a.len()) = mul_scalar_add_body, else scalar::mul_scalar_add_assign
}
vector_kernel! {
    pub(super) fn sub_mul_scalar_assign(q: &Modulus, a: &mut [u64], b: &[u64], s: u64)
        requires (a.len() == b.len()) = sub_mul_scalar_body, else scalar::sub_mul_scalar_assign
}
vector_kernel! {
    pub(super) fn dot_pair_into(
        q: &Modulus, out0: &mut [u64], out1: &mut [u64], x: &[&[u64]], y0: &[&[u64]], y1: &[&[u64]],
        plus: [Option<Scaled<'_>>; 2],
    ) requires (is_dot_pair(out0, out1, x, y0, y1, plus))
        = dot_pair_body, ifma dot_pair_ifma, else scalar::dot_pair_into
}
vector_kernel! {
    pub(super) fn dot_packed_pair_into(
        q: &Modulus, out0: &mut [u64], out1: &mut [u64], x: &[&[u64]], y0: &[Packed<'_>], y1: &[Packed<'_>],
        plus: [Option<Scaled<'_>>; 2],
    ) requires (is_dot_pair(out0, out1, x, y0, y1, plus))
        = dot_pair_body, ifma dot_pair_ifma, else scalar::dot_pair_into
}
vector_kernel! {
    pub(super) fn packed_dot_pair_into(
        q: &Modulus, out0: &mut [u64], out1: &mut [u64], x: &[Packed<'_>], y0: &[&[u64]], y1: &[&[u64]],
        plus: [Option<Scaled<'_>>; 2],
    ) requires (is_dot_pair(out0, out1, x, y0, y1, plus))
        = dot_pair_body, ifma dot_pair_ifma, else scalar::dot_pair_into
}
vector_kernel! {
    pub(super) fn add_combination_assign(q: &Modulus, acc: &mut [u64], a: &[&[u64]], s: &[u64])
        requires (is_combination(acc, a, s))
        = add_combination_body, ifma add_combination_ifma, else scalar::add_combination_assign
}
vector_kernel! {
    pub(super) fn permute_into(out: &mut [u64], a: &[u64], part: &Part<'_>)
        requires (out.len() == a.len() && out.len() == part.range().len()) = permute_body, else scalar::permute_into
}
vector_kernel! {
    pub(super) fn add_permuted_assign(q: &Modulus, acc: &mut [u64], a: &[u64], part: &Part<'_>)
        requires (acc.len() == a.len() && acc.len() == part.range().len())
        = add_permuted_body, else scalar::add_permuted_assign
}

/// The part of `0..len` in whole vectors.
#[inline(always)]
fn whole<S: Simd>(len: usize) -> usize {
    len & !(S::LANES - 1)
}

/// `a + b mod q` for residues.
#[inline(always)]
unsafe fn add_mod<S: Simd>(q: S::U, a: S::U, b: S::U) -> S::U {
    // SAFETY: the caller's.
    unsafe {
        let sum = S::add_u(a, b);
        S::min_wrapped(S::sub_u(sum, q), sum)
    }
}

/// `a - b mod q` for residues.
#[inline(always)]
unsafe fn sub_mod<S: Simd>(q: S::U, a: S::U, b: S::U) -> S::U {
    // SAFETY: the caller's.
    unsafe {
        let difference = S::sub_u(a, b);
        S::min_wrapped(difference, S::add_u(difference, q))
    }
}

#[inline(always)]
unsafe fn add_body<S: Simd>(_set: S, modulus: &Modulus, a: &mut [u64], b: &[u64]) {
    let end = whole::<S>(a.len());
    // SAFETY: the caller's features; both slices have `end` elements.
    unsafe {
        let q = S::splat_u(modulus.value());
        let (pa, pb) = (a.as_mut_ptr(), b.as_ptr());
        for i in (0..end).step_by(S::LANES) {
            S::store_u(pa.add(i), add_mod::<S>(q, S::load_u(pa.add(i)), S::load_u(pb.add(i))));
        }
    }
    scalar::add_assign(modulus, &mut a[end..], &b[end..]);
}

#[inline(always)]
unsafe fn sub_body<S: Simd>(_set: S, modulus: &Modulus, a: &mut [u64], b: &[u64]) {
    let end = whole::<S>(a.len());
    // SAFETY: as in `add_body`.
    unsafe {
        let q = S::splat_u(modulus.value());
        let (pa, pb) = (a.as_mut_ptr(), b.as_ptr());
        for i in (0..end).step_by(S::LANES) {
            S::store_u(pa.add(i), sub_mod::<S>(q, S::load_u(pa.add(i)), S::load_u(pb.add(i))));
        }
    }
    scalar::sub_assign(modulus, &mut a[end..], &b[end..]);
}

#[inline(always)]
unsafe fn neg_body<S: Simd>(_set: S, modulus: &Modulus, a: &mut [u64]) {
    let end = whole::<S>(a.len());
    // SAFETY: the caller's features; the slice has `end` elements.
    unsafe {
        let (zero, q) = (S::splat_u(0), S::splat_u(modulus.value()));
        let pa = a.as_mut_ptr();
        for i in (0..end).step_by(S::LANES) {
            S::store_u(pa.add(i), sub_mod::<S>(q, zero, S::load_u(pa.add(i))));
        }
    }
    scalar::neg_assign(modulus, &mut a[end..]);
}

#[inline(always)]
unsafe fn mul_into_body<S: Simd>(_set: S, modulus: &Modulus, out: &mut [u64], a: &[u64], b: &[u64]) {
    let end = whole::<S>(out.len());
    // SAFETY: the caller's features; all slices have `end` elements.
    unsafe {
        let f = Field::<S>::new(modulus);
        let (po, pa, pb) = (out.as_mut_ptr(), a.as_ptr(), b.as_ptr());
        for i in (0..end).step_by(S::LANES) {
            let (x, y) = (to_double::<S>(S::load_u(pa.add(i))), to_double::<S>(S::load_u(pb.add(i))));
            S::store_u(po.add(i), f.residue(f.mul(x, y)));
        }
    }
    scalar::mul_into(modulus, &mut out[end..], &a[end..], &b[end..]);
}

#[inline(always)]
unsafe fn mul_body<S: Simd>(_set: S, modulus: &Modulus, a: &mut [u64], b: &[u64]) {
    let end = whole::<S>(a.len());
    // SAFETY: as in `add_body`.
    unsafe {
        let f = Field::<S>::new(modulus);
        let (pa, pb) = (a.as_mut_ptr(), b.as_ptr());
        for i in (0..end).step_by(S::LANES) {
            let (x, y) = (to_double::<S>(S::load_u(pa.add(i))), to_double::<S>(S::load_u(pb.add(i))));
            S::store_u(pa.add(i), f.residue(f.mul(x, y)));
        }
    }
    scalar::mul_assign(modulus, &mut a[end..], &b[end..]);
}

#[inline(always)]
unsafe fn mul_add_body<S: Simd>(_set: S, modulus: &Modulus, acc: &mut [u64], a: &[u64], b: &[u64]) {
    let end = whole::<S>(acc.len());
    // SAFETY: as in `mul_into_body`.
    unsafe {
        let f = Field::<S>::new(modulus);
        let q = S::splat_u(modulus.value());
        let (po, pa, pb) = (acc.as_mut_ptr(), a.as_ptr(), b.as_ptr());
        for i in (0..end).step_by(S::LANES) {
            let (x, y) = (to_double::<S>(S::load_u(pa.add(i))), to_double::<S>(S::load_u(pb.add(i))));
            let product = f.residue(f.mul(x, y));
            S::store_u(po.add(i), add_mod::<S>(q, S::load_u(po.add(i)), product));
        }
    }
    scalar::mul_add_assign(modulus, &mut acc[end..], &a[end..], &b[end..]);
}

/// A constant, centred, and its quotient by `q`.
#[inline(always)]
unsafe fn constant<S: Simd>(modulus: &Modulus, s: u64) -> Factor<S> {
    let s = modulus.center(s % modulus.value()) as f64;
    // SAFETY: the caller's.
    unsafe { Factor { value: S::splat(s), ratio: S::splat(s / modulus.q_f64) } }
}

#[inline(always)]
unsafe fn mul_scalar_body<S: Simd>(_set: S, modulus: &Modulus, a: &mut [u64], s: u64) {
    let end = whole::<S>(a.len());
    // SAFETY: as in `neg_body`.
    unsafe {
        let f = Field::<S>::new(modulus);
        let constant = constant::<S>(modulus, s);
        let pa = a.as_mut_ptr();
        for i in (0..end).step_by(S::LANES) {
            let x = to_double::<S>(S::load_u(pa.add(i)));
            S::store_u(pa.add(i), f.residue(f.mul_factor(x, constant)));
        }
    }
    scalar::mul_scalar_assign(modulus, &mut a[end..], s);
}

#[inline(always)]
unsafe fn mul_scalar_add_body<S: Simd>(_set: S, modulus: &Modulus, acc: &mut [u64], a: &[u64], s: u64) {
    let end = whole::<S>(acc.len());
    // SAFETY: as in `add_body`.
    unsafe {
        let f = Field::<S>::new(modulus);
        let q = S::splat_u(modulus.value());
        let constant = constant::<S>(modulus, s);
        let (po, pa) = (acc.as_mut_ptr(), a.as_ptr());
        for i in (0..end).step_by(S::LANES) {
            let x = to_double::<S>(S::load_u(pa.add(i)));
            let product = f.residue(f.mul_factor(x, constant));
            S::store_u(po.add(i), add_mod::<S>(q, S::load_u(po.add(i)), product));
        }
    }
    scalar::mul_scalar_add_assign(modulus, &mut acc[end..], &a[end..], s);
}

#[inline(always)]
unsafe fn sub_mul_scalar_body<S: Simd>(_set: S, modulus: &Modulus, a: &mut [u64], b: &[u64], s: u64) {
    let end = whole::<S>(a.len());
    // SAFETY: as in `add_body`.
    unsafe {
        let f = Field::<S>::new(modulus);
        let constant = constant::<S>(modulus, s);
        let (pa, pb) = (a.as_mut_ptr(), b.as_ptr());
        for i in (0..end).step_by(S::LANES) {
            // The biases cancel.
            let difference = S::sub(biased::<S>(S::load_u(pa.add(i))), biased::<S>(S::load_u(pb.add(i))));
            S::store_u(pa.add(i), f.residue(f.mul_factor(difference, constant)));
        }
    }
    scalar::sub_mul_scalar_assign(modulus, &mut a[end..], &b[end..], s);
}

/// Vectors of sums done together: independent instructions, and whole cache lines of many arrays.
pub(crate) const TOGETHER: usize = 2;

/// Terms of one [`Sum`] for moduli of 51 bits; of less bits, all of them.
const LARGE_GROUP: usize = 4;

/// The positions of vectors that are done together.
#[inline(always)]
unsafe fn positions<S: Simd, R: Residues>(i: usize) -> [R::Position<S>; TOGETHER] {
    // SAFETY: the caller's.
    unsafe {
        let mut positions = [R::position::<S>(i); TOGETHER];
        for (j, position) in positions.iter_mut().enumerate().skip(1) {
            *position = R::position::<S>(i + j * S::LANES);
        }
        positions
    }
}

/// Both sums, see [`dot_pair_terms`].
#[inline(always)]
unsafe fn dot_pair_body<S: Simd, X: Residues, Y: Residues>(
    _set: S,
    modulus: &Modulus,
    out0: &mut [u64],
    out1: &mut [u64],
    x: &[X],
    y0: &[Y],
    y1: &[Y],
    plus: [Option<Scaled<'_>>; 2],
) {
    let end = out0.len() & !(TOGETHER * S::LANES - 1);
    // SAFETY: the caller's features; all slices have `end` elements, and there are as many y0 and
    // y1 as x.
    unsafe {
        if modulus.bits() <= 50 {
            dot_pair_terms::<S, X, Y, false>(modulus, out0, out1, x, y0, y1, plus, end);
        } else {
            dot_pair_terms::<S, X, Y, true>(modulus, out0, out1, x, y0, y1, plus, end);
        }
    }
    scalar::dot_pair_from(end, modulus, out0, out1, x, y0, y1, plus);
}

/// [`dot_pair_body`] with integers: half the instructions. Products of residues are below `2^102`,
/// see [`Sum52`].
#[inline(always)]
unsafe fn dot_pair_ifma<S: Integers52, X: Residues, Y: Residues>(
    _set: S,
    modulus: &Modulus,
    out0: &mut [u64],
    out1: &mut [u64],
    x: &[X],
    y0: &[Y],
    y1: &[Y],
    plus: [Option<Scaled<'_>>; 2],
) {
    let end = out0.len() & !(TOGETHER * S::LANES - 1);
    // SAFETY: as in `dot_pair_body`.
    unsafe {
        let montgomery = Montgomery52::<S>::new(modulus);
        for i in (0..end).step_by(TOGETHER * S::LANES) {
            let mut sums = [[Sum52::<S>::zero(); 2]; TOGETHER];
            for (side, plus) in plus.iter().enumerate() {
                if let Some((a, s)) = plus {
                    for (j, sum) in sums.iter_mut().enumerate() {
                        sum[side].add(S::load_u(a.as_ptr().add(i + j * S::LANES)), S::splat_u(*s));
                    }
                }
            }
            let (at_x, at_y) = (positions::<S, X>(i), positions::<S, Y>(i));
            for k in 0..x.len() {
                let (x, y0, y1) = (x.get_unchecked(k), y0.get_unchecked(k), y1.get_unchecked(k));
                for (j, sum) in sums.iter_mut().enumerate() {
                    let (at_x, at_y) = (&at_x[j], &at_y[j]);
                    let factor = x.load_low::<S>(at_x);
                    sum[0].add(factor, y0.load_low::<S>(at_y));
                    sum[1].add(factor, y1.load_low::<S>(at_y));
                }
            }
            for (j, sum) in sums.iter().enumerate() {
                S::store_u(out0.as_mut_ptr().add(i + j * S::LANES), montgomery.residue(&sum[0]));
                S::store_u(out1.as_mut_ptr().add(i + j * S::LANES), montgomery.residue(&sum[1]));
            }
        }
    }
    scalar::dot_pair_from(end, modulus, out0, out1, x, y0, y1, plus);
}

/// Both sums, exactly; what is added to them is a term like any other:
/// - `q < 2^50`: products of residues are in `[0, 2^100)`, so 8 of them from the base `2^103` stay
///   below `2^104`, and the low part is 8 times `2^50` at most. The sum is below `8 q^2 < 2^53 q`,
///   so the high part is below `5/2 q`.
/// - `q < 2^51`: `x` is centred, products are below `2^101` in size, 4 of them stay within `2^103`
///   of the base `1.5 2^104`, and the low part is 4 times `2^51` at most. The sum is below
///   `2 q^2 < 2^52 q`, so the high part is below `3/2 q`.
///
/// The low part reduced is `q/2 + 1` at most (the low part is at most the sum of the products'
/// sizes, so `8 q^2`, and its quotient by `q` is far below `2^51`), a group is then 2 or 3 times
/// `q` in size, and a second group comes to the first reduced: always below `2^53`.
#[inline(always)]
unsafe fn dot_pair_terms<S: Simd, X: Residues, Y: Residues, const LARGE: bool>(
    modulus: &Modulus,
    out0: &mut [u64],
    out1: &mut [u64],
    x: &[X],
    y0: &[Y],
    y1: &[Y],
    plus: [Option<Scaled<'_>>; 2],
    end: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        let f = Field::<S>::new(modulus);
        let half = S::splat((modulus.value() / 2) as f64);
        let base = sum_base::<S, LARGE>();
        let plus = plus.map(|plus| plus.map(|(a, s)| (a.as_ptr(), sum_factor::<S, LARGE>(modulus, s))));
        let taken = usize::from(plus.iter().any(Option::is_some));
        for i in (0..end).step_by(TOGETHER * S::LANES) {
            let (at_x, at_y) = (positions::<S, X>(i), positions::<S, Y>(i));
            let mut totals = [[S::splat(0.0); 2]; TOGETHER];
            let mut sums = [[Sum::<S>::new(base); 2]; TOGETHER];
            for (side, plus) in plus.iter().enumerate() {
                if let Some((a, s)) = plus {
                    for (j, sum) in sums.iter_mut().enumerate() {
                        sum[side].add(to_double::<S>(S::load_u(a.add(i + j * S::LANES))), *s);
                    }
                }
            }
            let mut first = 0;
            let mut last = if LARGE { x.len().min(LARGE_GROUP - taken) } else { x.len() };
            loop {
                for k in first..last {
                    let (x, y0, y1) = (x.get_unchecked(k), y0.get_unchecked(k), y1.get_unchecked(k));
                    for (j, sum) in sums.iter_mut().enumerate() {
                        let (at_x, at_y) = (&at_x[j], &at_y[j]);
                        let mut factor = to_double::<S>(x.load::<S>(at_x));
                        if LARGE {
                            factor = S::sub_above(factor, half, f.q);
                        }
                        sum[0].add(factor, to_double::<S>(y0.load::<S>(at_y)));
                        sum[1].add(factor, to_double::<S>(y1.load::<S>(at_y)));
                    }
                }
                for j in 0..TOGETHER {
                    for side in 0..2 {
                        let part = sums[j][side].reduced(&f, base);
                        totals[j][side] = f.reduce(S::add(totals[j][side], part));
                    }
                }
                if last == x.len() {
                    break;
                }
                sums = [[Sum::<S>::new(base); 2]; TOGETHER];
                (first, last) = (last, x.len().min(last + LARGE_GROUP));
            }
            for j in 0..TOGETHER {
                S::store_u(out0.as_mut_ptr().add(i + j * S::LANES), f.residue(totals[j][0]));
                S::store_u(out1.as_mut_ptr().add(i + j * S::LANES), f.residue(totals[j][1]));
            }
        }
    }
}

/// Where the high part of a [`Sum`] of [`dot_pair_terms`] begins.
#[inline(always)]
unsafe fn sum_base<S: Simd, const LARGE: bool>() -> S::F {
    // SAFETY: the caller's.
    unsafe { S::splat(if LARGE { 1.5 * power_of_two(104) } else { power_of_two(103) }) }
}

/// A residue as a factor of [`dot_pair_terms`]: centred if the modulus is large.
#[inline(always)]
unsafe fn sum_factor<S: Simd, const LARGE: bool>(modulus: &Modulus, s: u64) -> S::F {
    // SAFETY: the caller's.
    unsafe { S::splat(if LARGE { modulus.center(s) as f64 } else { s as f64 }) }
}

#[inline(always)]
unsafe fn add_combination_body<S: Simd>(_set: S, modulus: &Modulus, acc: &mut [u64], a: &[&[u64]], s: &[u64]) {
    let end = acc.len() & !(TOGETHER * S::LANES - 1);
    // SAFETY: the caller's features; all slices have `end` elements, and there are as many of a as
    // s.
    unsafe {
        if modulus.bits() <= 50 {
            combination_terms::<S, false>(modulus, &mut acc[..end], a, s);
        } else {
            combination_terms::<S, true>(modulus, &mut acc[..end], a, s);
        }
    }
    combination_tail(modulus, acc, a, s, end);
}

/// The sum as in [`dot_pair_terms`], in groups of 4 where the modulus is large; `acc` is below `q`.
#[inline(always)]
unsafe fn combination_terms<S: Simd, const LARGE: bool>(modulus: &Modulus, acc: &mut [u64], a: &[&[u64]], s: &[u64]) {
    // SAFETY: the caller's.
    unsafe {
        let f = Field::<S>::new(modulus);
        let base = sum_base::<S, LARGE>();
        let mut factors = [S::splat(0.0); MAX_DOT_TERMS];
        for (factor, &s) in factors.iter_mut().zip(s) {
            *factor = sum_factor::<S, LARGE>(modulus, s);
        }
        let out = acc.as_mut_ptr();
        for i in (0..acc.len()).step_by(TOGETHER * S::LANES) {
            let mut sums = [Sum::<S>::new(base); TOGETHER];
            let mut totals = [S::splat(0.0); TOGETHER];
            for (j, total) in totals.iter_mut().enumerate() {
                *total = to_double::<S>(S::load_u(out.add(i + j * S::LANES)));
            }
            for k in 0..a.len() {
                if LARGE && k == LARGE_GROUP {
                    for (sum, total) in sums.iter_mut().zip(&mut totals) {
                        *total = f.reduce(S::add(*total, sum.reduced(&f, base)));
                        *sum = Sum::new(base);
                    }
                }
                let a = a.get_unchecked(k).as_ptr().add(i);
                for (j, sum) in sums.iter_mut().enumerate() {
                    sum.add(to_double::<S>(S::load_u(a.add(j * S::LANES))), factors[k]);
                }
            }
            for (j, (sum, total)) in sums.iter().zip(totals).enumerate() {
                let total = f.reduce(S::add(total, sum.reduced(&f, base)));
                S::store_u(out.add(i + j * S::LANES), f.residue(total));
            }
        }
    }
}

/// [`add_combination_body`] with integers: the sum is at most `8 (q - 1)^2 + q`.
#[inline(always)]
unsafe fn add_combination_ifma<S: Integers52>(_set: S, modulus: &Modulus, acc: &mut [u64], a: &[&[u64]], s: &[u64]) {
    let end = acc.len() & !(TOGETHER * S::LANES - 1);
    // SAFETY: as in `add_combination_body`.
    unsafe {
        let montgomery = Montgomery52::<S>::new(modulus);
        let out = acc.as_mut_ptr();
        for i in (0..end).step_by(TOGETHER * S::LANES) {
            let mut sums = [Sum52::<S>::zero(); TOGETHER];
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = Sum52::from(S::load_u(out.add(i + j * S::LANES)));
            }
            for k in 0..a.len() {
                let (a, s) = (a.get_unchecked(k).as_ptr().add(i), S::splat_u(*s.get_unchecked(k)));
                for (j, sum) in sums.iter_mut().enumerate() {
                    sum.add(S::load_u(a.add(j * S::LANES)), s);
                }
            }
            for (j, sum) in sums.iter().enumerate() {
                S::store_u(out.add(i + j * S::LANES), montgomery.residue(sum));
            }
        }
    }
    combination_tail(modulus, acc, a, s, end);
}

fn combination_tail(modulus: &Modulus, acc: &mut [u64], a: &[&[u64]], s: &[u64], end: usize) {
    let mut tails = [[].as_slice(); MAX_DOT_TERMS];
    tails.iter_mut().zip(a).for_each(|(tail, a)| *tail = &a[end..]);
    scalar::add_combination_assign(modulus, &mut acc[end..], &tails[..a.len()], s);
}

#[inline(always)]
unsafe fn permute_body<S: Simd>(_set: S, out: &mut [u64], a: &[u64], part: &Part<'_>) {
    // SAFETY: the caller's features; both slices have the part's length, which is made of whole
    // vectors, and the blocks are within it.
    unsafe {
        for (number, (source, block)) in part.blocks(S::LANES).enumerate() {
            let x = S::load_u(a.as_ptr().add(source));
            S::store_u(out.as_mut_ptr().add(number * S::LANES), S::permute(x, &block.indices));
        }
    }
}

#[inline(always)]
unsafe fn add_permuted_body<S: Simd>(_set: S, modulus: &Modulus, acc: &mut [u64], a: &[u64], part: &Part<'_>) {
    // SAFETY: as in `permute_body`.
    unsafe {
        let q = S::splat_u(modulus.value());
        for (number, (source, block)) in part.blocks(S::LANES).enumerate() {
            let x = S::permute(S::load_u(a.as_ptr().add(source)), &block.indices);
            let out = acc.as_mut_ptr().add(number * S::LANES);
            S::store_u(out, add_mod::<S>(q, S::load_u(out), x));
        }
    }
}
