//! Whole-polynomial operations against integer arithmetic.

use super::*;

const LOG_N: u32 = 5;
const Q: [u64; 5] = [1125899903827969, 68718428161, 68724326401, 4398044938241, 4398043496449];
const P: [u64; 3] = [2251799813554177, 2251799810670593, 2251799809884161];

fn ring(isa: Isa) -> RnsRing {
    RnsRing::new(LOG_N, &Q, &P, isa).unwrap()
}

/// Signed integers below 2^120 as a polynomial in the NTT domain.
fn poly(ring: &RnsRing, basis: Basis, values: &[i128]) -> Poly {
    let mut a = ring.uninit(basis);
    ring.for_each_limb(&mut a, |t, _, limb| {
        for (x, &v) in limb.iter_mut().zip(values) {
            *x = t.modulus().reduce_i128(v);
        }
        t.forward(ring.isa(), limb);
    });
    a
}

fn assert_holds(ring: &RnsRing, mut a: Poly, expected: impl Fn(usize, &Modulus) -> u64) {
    ring.inverse(&mut a);
    for i in 0..a.basis().limbs() {
        let q = ring.modulus(a.basis(), i);
        for (k, &x) in a.limbs()[i].iter().enumerate() {
            assert_eq!(x, expected(k, q), "limb {i}, coefficient {k}");
        }
    }
}

fn values(scale: i128) -> Vec<i128> {
    let mut state = 7u64;
    (0..1 << LOG_N)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            i128::from(state as i64) * scale + i128::from(state >> 5)
        })
        .collect()
}

fn rounded_quotient(x: i128, d: i128) -> i128 {
    (2 * x + d).div_euclid(2 * d)
}

#[test]
fn division_rounds_to_nearest() {
    for isa in Isa::available() {
        let ring = ring(isa);
        let values = values(1 << 50);
        let a = poly(&ring, Basis { q: 5, p: 0 }, &values);
        let d = i128::from(Q[4]);
        assert_holds(&ring, ring.divide(a, 1), |k, q| q.reduce_i128(rounded_quotient(values[k], d)));
        let a = poly(&ring, Basis { q: 5, p: 0 }, &values);
        let d = i128::from(Q[4]) * i128::from(Q[3]);
        assert_holds(&ring, ring.divide(a, 2), |k, q| q.reduce_i128(rounded_quotient(values[k], d)));
        let a = poly(&ring, Basis { q: 3, p: 1 }, &values);
        let d = i128::from(P[0]);
        assert_holds(&ring, ring.divide(a, 0), |k, q| q.reduce_i128(rounded_quotient(values[k], d)));
        let a = poly(&ring, Basis { q: 3, p: 1 }, &values);
        let d = i128::from(P[0]) * i128::from(Q[2]);
        assert_holds(&ring, ring.divide(a, 1), |k, q| q.reduce_i128(rounded_quotient(values[k], d)));
    }
}

#[test]
fn digits_are_centred_remainders() {
    for isa in Isa::available() {
        let ring = ring(isa);
        let values = values(1 << 20);
        let a = poly(&ring, Basis { q: 5, p: 0 }, &values);
        let digits = ring.decompose(a, &[0, 2, 4], 3);
        assert_eq!(digits.count(), 3);
        for (j, range) in [0..2, 2..4, 4..5].into_iter().enumerate() {
            let product: i128 = Q[range].iter().map(|&q| i128::from(q)).product();
            let basis = digits.basis();
            let limbs = (0..basis.limbs()).map(|i| digits.limb(j, i).clone()).collect();
            assert_holds(&ring, Poly { basis, limbs }, |k, q| {
                let r = values[k].rem_euclid(product);
                q.reduce_i128(if r > product / 2 { r - product } else { r })
            });
        }
    }
}

#[test]
fn rotation_sums_equal_their_definition() {
    let ring = ring(Isa::detect());
    let low = Basis { q: 4, p: 0 };
    let full = Basis { q: 4, p: 2 };
    let salted = |salt: i128| values(salt).iter().map(|v| v ^ salt).collect::<Vec<_>>();
    let (c0, c1) = (poly(&ring, low, &salted(3)), poly(&ring, low, &salted(5)));
    let key: Vec<(Poly, Poly)> =
        (0..2).map(|j| (poly(&ring, full, &salted(7 + j)), poly(&ring, full, &salted(17 + j)))).collect();
    let weights: Vec<Poly> = (0..10).map(|k| poly(&ring, full, &salted(31 + k))).collect();
    let digits = ring.decompose(c1.clone(), &[0, 2], 2);
    // Ten steps: more than one chunk of terms.
    let steps: Vec<BabyStep<'_>> =
        (0..10).map(|k| BabyStep { galois: [1, 5, 25, 63][k % 4], key: (k % 4 != 0).then_some(&key[..]) }).collect();
    let mut rows = vec![weights.iter().map(Some).collect::<Vec<_>>(); 2];
    rows[1][3] = None;
    let sums = ring.rotation_sums(&c0, &digits, &steps, &rows);
    for (row, (sum0, sum1)) in rows.iter().zip(sums) {
        let mut expected = (ring.zero(full), ring.zero(full));
        for (step, weight) in steps.iter().zip(row) {
            let (mut a, mut b) = match step.key {
                Some(key) => ring.inner_product(&digits, key),
                None => (ring.zero(full), ring.zero(full)),
            };
            ring.add_lifted_assign(&mut a, &c0);
            if step.key.is_none() {
                ring.add_lifted_assign(&mut b, &c1);
            }
            if let Some(w) = weight {
                ring.mul_add_assign(&mut expected.0, &ring.automorphism(&a, step.galois), w);
                ring.mul_add_assign(&mut expected.1, &ring.automorphism(&b, step.galois), w);
            }
        }
        for (got, expected) in [(sum0, expected.0), (sum1, expected.1)] {
            for (x, y) in got.limbs().iter().zip(expected.limbs()) {
                assert_eq!(x[..], y[..]);
            }
        }
    }
}

#[test]
fn raising_keeps_the_centred_value() {
    let ring = ring(Isa::detect());
    let half = i128::from(Q[0] / 2);
    let values: Vec<i128> = values(0).iter().map(|v| v.rem_euclid(2 * half) - half).collect();
    let a = poly(&ring, Basis { q: 1, p: 0 }, &values);
    assert_holds(&ring, ring.raise(&a, Basis { q: 5, p: 3 }), |k, q| q.reduce_i128(values[k]));
}

#[test]
fn tensor_sums_equal_products() {
    let ring = ring(Isa::detect());
    let basis = Basis { q: 3, p: 0 };
    let wide = Basis { q: 5, p: 0 };
    let polys: Vec<Poly> = (0..40).map(|k| poly(&ring, wide, &values(1 + k))).collect();
    let terms: Vec<_> = polys.chunks(4).map(|c| ((&c[0], &c[1]), (&c[2], &c[3]))).collect();
    let got = ring.tensor_sum(&terms, basis);
    let mut expected = [ring.zero(basis), ring.zero(basis), ring.zero(basis)];
    for ((a0, a1), (b0, b1)) in terms {
        for (k, x, y) in [(0, a0, b0), (1, a0, b1), (1, a1, b0), (2, a1, b1)] {
            ring.mul_add_assign(&mut expected[k], x, y);
        }
    }
    for (x, y) in got.iter().zip(&expected) {
        assert!(x.limbs().iter().zip(y.limbs()).all(|(a, b)| a[..] == b[..]));
    }
}
