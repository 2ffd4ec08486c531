//! Reference loops.

use super::Scaled;
use crate::Modulus;
use crate::automorphism::Part;
use crate::packed::Residues;

pub(super) fn add_assign(q: &Modulus, a: &mut [u64], b: &[u64]) {
    for (x, &y) in a.iter_mut().zip(b) {
        *x = q.add(*x, y);
    }
}

pub(super) fn sub_assign(q: &Modulus, a: &mut [u64], b: &[u64]) {
    for (x, &y) in a.iter_mut().zip(b) {
        *x = q.sub(*x, y);
    }
}

pub(super) fn neg_assign(q: &Modulus, a: &mut [u64]) {
    for x in a {
        *x = q.neg(*x);
    }
}

pub(super) fn mul_into(q: &Modulus, out: &mut [u64], a: &[u64], b: &[u64]) {
    for ((o, &x), &y) in out.iter_mut().zip(a).zip(b) {
        *o = q.mul(x, y);
    }
}

pub(super) fn mul_assign(q: &Modulus, a: &mut [u64], b: &[u64]) {
    for (x, &y) in a.iter_mut().zip(b) {
        *x = q.mul(*x, y);
    }
}

pub(super) fn mul_add_assign(q: &Modulus, acc: &mut [u64], a: &[u64], b: &[u64]) {
    for ((o, &x), &y) in acc.iter_mut().zip(a).zip(b) {
        *o = q.add(*o, q.mul(x, y));
    }
}

pub(super) fn mul_scalar_assign(q: &Modulus, a: &mut [u64], s: u64) {
    let s_shoup = q.shoup(s);
    for x in a {
        *x = q.mul_shoup(*x, s, s_shoup);
    }
}

pub(super) fn mul_scalar_add_assign(q: &Modulus, acc: &mut [u64], a: &[u64], s: u64) {
    let s_shoup = q.shoup(s);
    for (o, &x) in acc.iter_mut().zip(a) {
        *o = q.add(*o, q.mul_shoup(x, s, s_shoup));
    }
}

pub(super) fn sub_mul_scalar_assign(q: &Modulus, a: &mut [u64], b: &[u64], s: u64) {
    let s_shoup = q.shoup(s);
    for (x, &y) in a.iter_mut().zip(b) {
        *x = q.mul_shoup(q.sub(*x, y), s, s_shoup);
    }
}

pub(super) fn add_combination_assign(q: &Modulus, acc: &mut [u64], a: &[&[u64]], s: &[u64]) {
    for (i, acc) in acc.iter_mut().enumerate() {
        // At most 8 products of 102 bits: no overflow of 128.
        let sum = a.iter().zip(s).fold(u128::from(*acc), |sum, (a, &s)| sum + u128::from(a[i]) * u128::from(s));
        *acc = q.reduce_u128(sum);
    }
}

pub(super) fn dot_pair_into<X: Residues, Y: Residues>(
    q: &Modulus,
    out0: &mut [u64],
    out1: &mut [u64],
    x: &[X],
    y0: &[Y],
    y1: &[Y],
    plus: [Option<Scaled<'_>>; 2],
) {
    dot_pair_from(0, q, out0, out1, x, y0, y1, plus);
}

/// The entries from `start` on of [`dot_pair_into`].
pub(super) fn dot_pair_from<X: Residues, Y: Residues>(
    start: usize,
    q: &Modulus,
    out0: &mut [u64],
    out1: &mut [u64],
    x: &[X],
    y0: &[Y],
    y1: &[Y],
    plus: [Option<Scaled<'_>>; 2],
) {
    for i in start..out0.len() {
        // At most 8 products of 102 bits: no overflow of 128.
        let [mut sum0, mut sum1] = plus.map(|plus| plus.map_or(0, |(a, s)| u128::from(a[i]) * u128::from(s)));
        for ((x, y0), y1) in x.iter().zip(y0).zip(y1) {
            let x = u128::from(x.get(i));
            sum0 += x * u128::from(y0.get(i));
            sum1 += x * u128::from(y1.get(i));
        }
        out0[i] = q.reduce_u128(sum0);
        out1[i] = q.reduce_u128(sum1);
    }
}

pub(super) fn permute_into(out: &mut [u64], a: &[u64], part: &Part<'_>) {
    for (o, i) in out.iter_mut().zip(part.source_indices()) {
        *o = a[i];
    }
}

pub(super) fn add_permuted_assign(q: &Modulus, acc: &mut [u64], a: &[u64], part: &Part<'_>) {
    for (acc, i) in acc.iter_mut().zip(part.source_indices()) {
        *acc = q.add(*acc, a[i]);
    }
}
