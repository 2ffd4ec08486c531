//! Reference conversion.

use crate::Modulus;
use crate::simd::inverse_52;

pub(super) fn center_into(q: &Modulus, scaled: &[u64], y: &mut [f64]) {
    for (y, &x) in y.iter_mut().zip(scaled) {
        *y = q.center(x) as f64;
    }
}

pub(super) fn overflow_into(inverses: &[f64], y: &[&[f64]], v: &mut [f64]) {
    for (i, v) in v.iter_mut().enumerate() {
        let sum = y.iter().zip(inverses).fold(0.0, |sum: f64, (y, &inverse)| y[i].mul_add(inverse, sum));
        *v = sum.round_ties_even();
    }
}

pub(super) fn convert_into(t: &Modulus, hats: &[f64], minus_product: f64, y: &[&[f64]], v: &[f64], out: &mut [u64]) {
    for (i, out) in out.iter_mut().enumerate() {
        // 8 products under 2^101: no overflow.
        let mut sum = v[i] as i128 * minus_product as i128;
        for (y, &hat) in y.iter().zip(hats) {
            sum += y[i] as i128 * hat as i128;
        }
        *out = t.reduce_i128(sum);
    }
}

pub(super) fn integer_overflow_into(moduli: &[Modulus], y: &[&[u64]], v: &mut [u64]) {
    for (i, v) in v.iter_mut().enumerate() {
        let (mut sum, mut negative) = (0.0_f64, 0);
        for (y, q) in y.iter().zip(moduli) {
            let centred = q.center(y[i]);
            sum = (centred as f64).mul_add(q.q_inv_f64, sum);
            negative += i64::from(centred < 0);
        }
        *v = (sum.round_ties_even() as i64 + negative) as u64;
    }
}

pub(super) fn convert_integers_into(
    t: &Modulus,
    hats: &[u64],
    minus_product: u64,
    y: &[&[u64]],
    v: &[u64],
    out: &mut [u64],
) {
    let (inverse, low) = (i128::from(inverse_52(t.value())), (1 << 52) - 1);
    for (i, out) in out.iter_mut().enumerate() {
        // 8 products under 2^102: no overflow.
        let mut sum = i128::from(v[i]) * i128::from(minus_product);
        for (y, &hat) in y.iter().zip(hats) {
            sum += i128::from(y[i]) * i128::from(hat);
        }
        // The sum less a multiple of t that makes it one of 2^52.
        let multiple = (((sum & low) * inverse) & low) * i128::from(t.value());
        *out = t.reduce_i128((sum - multiple) >> 52);
    }
}
