//! Whole-polynomial operations against integer arithmetic.

use super::*;

const LOG_N: u32 = 7;
const Q: [u64; 5] = [1125899903827969, 68718428161, 68724326401, 4398044938241, 4398043496449];
const P: [u64; 3] = [2251799813554177, 2251799810670593, 2251799809884161];

fn ring(isa: Isa) -> RnsRing {
    ring_of(LOG_N, isa)
}

fn ring_of(log_n: u32, isa: Isa) -> RnsRing {
    RnsRing::new(log_n, &Q, &P, isa).unwrap()
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
    values_of(LOG_N, scale)
}

fn values_of(log_n: u32, scale: i128) -> Vec<i128> {
    let mut state = 7u64;
    (0..1 << log_n)
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
        let decomposed = [ring.decompose(a.clone(), &[0, 2, 4], 3), ring.decompose_for_one_use(a, &[0, 2, 4], 3)];
        for digits in decomposed {
            assert_eq!(digits.count(), 3);
            for (digit, range) in polynomials(&ring, &digits).into_iter().zip([0..2, 2..4, 4..5]) {
                let product: i128 = Q[range].iter().map(|&q| i128::from(q)).product();
                assert_holds(&ring, digit, |k, q| {
                    let r = values[k].rem_euclid(product);
                    q.reduce_i128(if r > product / 2 { r - product } else { r })
                });
            }
        }
    }
}

/// Every digit as a polynomial of its own.
fn polynomials(ring: &RnsRing, digits: &Digits) -> Vec<Poly> {
    let mut out: Vec<Poly> = (0..digits.count()).map(|_| ring.uninit(digits.basis())).collect();
    let mut by_limb: Vec<Vec<&mut Limb>> = (0..digits.basis().limbs()).map(|_| Vec::new()).collect();
    for poly in &mut out {
        poly.limbs.iter_mut().zip(&mut by_limb).for_each(|(limb, limbs)| limbs.push(limb));
    }
    ring.for_each_limb_of(digits, by_limb, |_, x, limbs| {
        limbs.into_iter().zip(x.get()).for_each(|(limb, x)| limb.copy_from_slice(x));
    });
    out
}

#[test]
fn rotation_sums_equal_their_definition() {
    rotation_sums_equal_their_definition_in(LOG_N);
    // More than one block.
    rotation_sums_equal_their_definition_in(13);
}

fn rotation_sums_equal_their_definition_in(log_n: u32) {
    let ring = ring_of(log_n, Isa::detect());
    let low = Basis { q: 4, p: 0 };
    let full = Basis { q: 4, p: 2 };
    let salted = |salt: i128| values_of(log_n, salt).iter().map(|v| v ^ salt).collect::<Vec<_>>();
    let (c0, c1) = (poly(&ring, low, &salted(3)), poly(&ring, low, &salted(5)));
    let packed = |salt: i128| ring.pack(&poly(&ring, full, &salted(salt)));
    let key: Vec<(PackedPoly, PackedPoly)> = (0..2).map(|j| (packed(7 + j), packed(17 + j))).collect();
    let weights: Vec<PackedPoly> = (0..10).map(|k| packed(31 + k)).collect();
    let digits = ring.decompose(c1.clone(), &[0, 2], 2);
    // Ten steps: more than one chunk of terms.
    let steps: Vec<BabyStep<'_>> = (0..10)
        .map(|k| BabyStep {
            galois: [1, 5, (1 << 10) + 1, (2 << log_n) - 1][k % 4] & ((2 << log_n) - 1),
            key: (k % 4 != 0).then_some(&key[..]),
        })
        .collect();
    let mut rows = vec![weights.iter().map(Some).collect::<Vec<_>>(); 2];
    rows[1][3] = None;
    let once = ring.decompose_for_one_use(c1.clone(), &[0, 2], 2);
    let sums = ring.rotation_sums(&c0, &once, &steps, &rows);
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
            if let Some(w) = weight.map(|w| ring.unpack(w)) {
                ring.mul_add_assign(&mut expected.0, &ring.automorphism(&a, step.galois), &w);
                ring.mul_add_assign(&mut expected.1, &ring.automorphism(&b, step.galois), &w);
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
fn switched_and_rotated_pairs_are_added() {
    for log_n in [LOG_N, 13] {
        let ring = ring_of(log_n, Isa::detect());
        let (low, full) = (Basis { q: 4, p: 0 }, Basis { q: 4, p: 2 });
        let of = |basis, scale| poly(&ring, basis, &values_of(log_n, scale));
        let key = [(7, 8), (9, 10)].map(|(b, a)| (ring.pack(&of(full, b)), ring.pack(&of(full, a))));
        let galois = 5;
        // All of it over the chain and the special primes, or over the chain alone.
        for v0 in [of(full, 11), of(low, 11)] {
            let (mut u0, mut u1) = ring.inner_product(&ring.decompose(of(low, 5), &[0, 2], 2), &key);
            if v0.basis() == full {
                ring.add_assign(&mut u0, &v0);
            } else {
                ring.add_lifted_assign(&mut u0, &v0);
            }
            (u0, u1) = (ring.automorphism(&u0, galois), ring.automorphism(&u1, galois));
            let switched =
                |acc| ring.add_switched(acc, &v0, &ring.decompose_for_one_use(of(low, 5), &[0, 2], 2), &key, galois);
            let once = switched(None);
            let twice = switched(Some((once.0.clone(), once.1.clone())));
            let double = |u: &Poly| {
                let mut sum = u.clone();
                ring.add_assign(&mut sum, u);
                sum
            };
            for (got, expected) in [(&once.0, &u0), (&once.1, &u1), (&twice.0, &double(&u0)), (&twice.1, &double(&u1))]
            {
                assert!(got.limbs().iter().zip(expected.limbs()).all(|(x, y)| x[..] == y[..]), "degree 2^{log_n}");
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

#[test]
fn packed_polynomials_are_the_same() {
    let ring = ring(Isa::detect());
    let a = poly(&ring, Basis { q: 3, p: 2 }, &values(5));
    assert!(same(&ring.unpack(&ring.pack(&a)), &a));
}

fn same(x: &Poly, y: &Poly) -> bool {
    x.basis() == y.basis() && x.limbs().iter().zip(y.limbs()).all(|(x, y)| x[..] == y[..])
}

#[test]
fn a_small_polynomial_is_its_only_digit() {
    let ring = ring(Isa::detect());
    let (basis, key_basis) = (Basis { q: 2, p: 1 }, Basis { q: 3, p: 1 });
    let bottom = poly(&ring, Basis { q: 1, p: 0 }, &values(4));
    let raised = ring.raise(&bottom, basis);
    let key = (poly(&ring, key_basis, &values(5)), poly(&ring, key_basis, &values(6)));
    let added = poly(&ring, Basis { q: 2, p: 0 }, &values(7));
    let digits = ring.small_digit(raised.clone());
    assert_eq!((digits.count(), digits.basis()), (1, basis));
    let (u0, u1) = ring.inner_product_plus(&digits, &[(ring.pack(&key.0), ring.pack(&key.1))], [Some(&added), None]);
    let mut expected = ring.mul(&raised, &key.0, basis);
    ring.add_lifted_assign(&mut expected, &added);
    assert!(same(&u0, &expected) && same(&u1, &ring.mul(&raised, &key.1, basis)));
}

#[test]
fn groups_of_targets_are_even_small_and_complete() {
    for threads in [1, 2, 5] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        for count in 0..60usize {
            let groups = pool.install(|| mod_up::groups((0..count).collect()));
            let sizes: Vec<usize> = groups.iter().map(|(_, group)| group.len()).collect();
            assert!(groups.iter().all(|(first, group)| group[0] == *first));
            let all: Vec<usize> = groups.into_iter().flat_map(|(_, group)| group).collect();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
            let (least, most) = (*sizes.iter().min().unwrap_or(&0), *sizes.iter().max().unwrap_or(&0));
            assert!(most - least <= 1 && most <= 7, "{sizes:?}");
            assert!(sizes.len().is_multiple_of(threads) || sizes.len() == count, "{threads} threads: {sizes:?}");
        }
    }
}
