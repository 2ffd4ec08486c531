//! Loops over the residues of one limb. Each has a scalar reference and vector twins that give the same bytes.

mod scalar;

use crate::{Isa, Modulus};

/// Most terms of one [`dot_pair_into`]; with 51-bit moduli and centred operands the lazy sums of the vector twins stay exact.
pub const MAX_DOT_TERMS: usize = 8;

/// `a += b`.
pub fn add_assign(isa: Isa, q: &Modulus, a: &mut [u64], b: &[u64]) {
    assert_eq!(a.len(), b.len());
    match isa {
        _ => scalar::add_assign(q, a, b),
    }
}

/// `a -= b`.
pub fn sub_assign(isa: Isa, q: &Modulus, a: &mut [u64], b: &[u64]) {
    assert_eq!(a.len(), b.len());
    match isa {
        _ => scalar::sub_assign(q, a, b),
    }
}

/// `a = -a`.
pub fn neg_assign(_isa: Isa, q: &Modulus, a: &mut [u64]) {
    scalar::neg_assign(q, a);
}

/// `out = a b`.
pub fn mul_into(isa: Isa, q: &Modulus, out: &mut [u64], a: &[u64], b: &[u64]) {
    assert!(out.len() == a.len() && a.len() == b.len());
    match isa {
        _ => scalar::mul_into(q, out, a, b),
    }
}

/// `a *= b`.
pub fn mul_assign(isa: Isa, q: &Modulus, a: &mut [u64], b: &[u64]) {
    assert_eq!(a.len(), b.len());
    match isa {
        _ => scalar::mul_assign(q, a, b),
    }
}

/// `acc += a b`.
pub fn mul_add_assign(isa: Isa, q: &Modulus, acc: &mut [u64], a: &[u64], b: &[u64]) {
    assert!(acc.len() == a.len() && a.len() == b.len());
    match isa {
        _ => scalar::mul_add_assign(q, acc, a, b),
    }
}

/// `a *= s` for a constant `s`.
pub fn mul_scalar_assign(isa: Isa, q: &Modulus, a: &mut [u64], s: u64) {
    match isa {
        _ => scalar::mul_scalar_assign(q, a, s),
    }
}

/// `acc += a s` for a constant `s`.
pub fn mul_scalar_add_assign(isa: Isa, q: &Modulus, acc: &mut [u64], a: &[u64], s: u64) {
    assert_eq!(acc.len(), a.len());
    match isa {
        _ => scalar::mul_scalar_add_assign(q, acc, a, s),
    }
}

/// `a = (a - b) s` for a constant `s`: the last step of a division by a product of limbs.
pub fn sub_mul_scalar_assign(isa: Isa, q: &Modulus, a: &mut [u64], b: &[u64], s: u64) {
    assert_eq!(a.len(), b.len());
    match isa {
        _ => scalar::sub_mul_scalar_assign(q, a, b, s),
    }
}

/// `out0 = sum_k x[k] y0[k]`, `out1 = sum_k x[k] y1[k]`: the inner product of a key-switch, reading `x` once.
pub fn dot_pair_into(isa: Isa, q: &Modulus, out: (&mut [u64], &mut [u64]), x: &[&[u64]], y0: &[&[u64]], y1: &[&[u64]]) {
    let n = out.0.len();
    assert!(out.1.len() == n && (1..=MAX_DOT_TERMS).contains(&x.len()));
    assert!(x.len() == y0.len() && x.len() == y1.len());
    assert!(x.iter().chain(y0).chain(y1).all(|s| s.len() == n));
    match isa {
        _ => scalar::dot_pair_into(q, out.0, out.1, x, y0, y1),
    }
}

/// `out[i] = a[index[i]]`.
pub fn permute_into(out: &mut [u64], a: &[u64], index: &[u32]) {
    assert!(out.len() == a.len() && out.len() == index.len());
    for (o, &i) in out.iter_mut().zip(index) {
        *o = a[i as usize];
    }
}
