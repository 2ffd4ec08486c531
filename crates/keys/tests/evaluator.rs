//! Every homomorphic operation against plain arithmetic, under real keys at toy sets.

#![allow(clippy::unwrap_used, clippy::panic)]

use hetal_ckks::{Complex64, Error, EvaluationKeys, KeyId, RotationSteps};
use hetal_keys::Encryptor;
use hetal_ring::Basis;
use hetal_ring::sampler::TestSeeds;
use hetal_testkit::{TestOwner, complex_vector, max_error};
use std::collections::BTreeMap;
use std::sync::Arc;

const TOLERANCE: f64 = 1e-7;

fn rotated(a: &[Complex64], k: i64) -> Vec<Complex64> {
    let n = a.len() as i64;
    (0..n).map(|i| a[(i + k).rem_euclid(n) as usize]).collect()
}

#[test]
fn encryption_round_trips_at_every_level() {
    let client = TestOwner::new("insecure-toy11", 1);
    let v = complex_vector(1024, 1);
    for level in 0..=client.params.top_level() {
        let error = max_error(&client.decrypt(&client.encrypt(&v, level)), &v);
        assert!(error < TOLERANCE, "level {level}: {error:e}");
    }
}

#[test]
fn linear_operations() {
    let client = TestOwner::new("insecure-toy11", 2);
    let e = &client.evaluator;
    let (u, v) = (complex_vector(1024, 1), complex_vector(1024, 2));
    let (a, b) = (client.encrypt(&u, 5), client.encrypt(&v, 5));
    let check = |ct: &_, f: &dyn Fn(usize) -> Complex64, what: &str| {
        let expected: Vec<_> = (0..1024).map(f).collect();
        let error = max_error(&client.decrypt(ct), &expected);
        assert!(error < TOLERANCE, "{what}: {error:e}");
    };
    let mut c = a.clone();
    e.add_assign(&mut c, &b).unwrap();
    check(&c, &|i| u[i] + v[i], "add");
    let mut c = a.clone();
    e.sub_assign(&mut c, &b).unwrap();
    check(&c, &|i| u[i] - v[i], "sub");
    let mut c = a.clone();
    e.neg_assign(&mut c).unwrap();
    check(&c, &|i| -u[i], "neg");
    let constant = Complex64::new(0.25, -1.5);
    let mut c = a.clone();
    e.add_constant_assign(&mut c, constant).unwrap();
    check(&c, &|i| u[i] + constant, "add constant");
    let mut c = a.clone();
    e.add_plain_assign(&mut c, &v).unwrap();
    check(&c, &|i| u[i] + v[i], "add plain");
    let mut c = a.clone();
    e.mul_integer_assign(&mut c, -7).unwrap();
    check(&c, &|i| u[i] * -7.0, "mul integer");
    for power in 0..4 {
        let mut c = a.clone();
        e.mul_i_assign(&mut c, power).unwrap();
        check(&c, &|i| u[i] * Complex64::I.powu(power), "mul i");
    }
    let c =
        e.linear_combination(&[(&a, constant), (&b, Complex64::I)], constant, a.limbs, client.params.scale(4)).unwrap();
    check(&c, &|i| u[i] * constant + v[i] * Complex64::I + constant, "linear combination");
    let basis = hetal_ring::Basis { q: a.limbs, p: 0 };
    let plain = e.encode(&v, e.last_prime(a.limbs), basis).unwrap();
    let c = e.rescale(e.sum_of_plain_products(&[(&a, &plain), (&b, &plain)], a.limbs).unwrap()).unwrap();
    check(&c, &|i| (u[i] + v[i]) * v[i], "plain products");
}

#[test]
fn products_at_every_digit_count() {
    for set in ["insecure-toy11", "insecure-toy12"] {
        let client = TestOwner::new(set, 3);
        let slots = client.params.slots();
        let (u, v) = (complex_vector(slots, 1), complex_vector(slots, 2));
        let mut keys = EvaluationKeys::default();
        let top = client.params.limbs(13);
        client.add_keys(&mut keys, [(KeyId::Relinearisation, top), (KeyId::Relinearisation, 4)]);
        for level in [1, 3, 4, 5, 12, 13] {
            let (a, b) = (client.encrypt(&u, level), client.encrypt(&v, level));
            let c = client.evaluator.sum_of_products(&[(&a, &b), (&b, &b)], &keys).unwrap();
            let ratio = c.scale / client.params.scale(level - 1);
            assert!((ratio - 1.0).abs() < 1e-12, "the scale of level {level} squares to the next: {ratio}");
            let expected: Vec<_> = (0..slots).map(|i| u[i] * v[i] + v[i] * v[i]).collect();
            let error = max_error(&client.decrypt(&c), &expected);
            assert!(error < TOLERANCE, "{set} level {level}: {error:e}");
        }
    }
}

#[test]
fn rotations_conjugation_and_missing_keys() {
    let client = TestOwner::new("insecure-toy11", 4);
    let e = &client.evaluator;
    let u = complex_vector(1024, 1);
    let mut keys = EvaluationKeys::default();
    let rotations = [1i64, -1, 17, 512];
    let galois: Vec<u64> =
        rotations.iter().map(|&k| e.galois_of_rotation(k)).chain([e.galois_of_conjugation(), 1]).collect();
    client.add_keys(&mut keys, galois.iter().filter(|&&g| g != 1).map(|&g| (KeyId::Galois(g), client.params.limbs(9))));
    for level in [9, 4, 1] {
        let a = client.encrypt(&u, level);
        let out = e.automorphisms(&a, &galois, &keys).unwrap();
        for (k, ct) in rotations.iter().zip(&out) {
            assert!(max_error(&client.decrypt(ct), &rotated(&u, *k)) < TOLERANCE, "rotation {k} at level {level}");
        }
        let conjugates: Vec<_> = u.iter().map(|z| z.conj()).collect();
        assert!(max_error(&client.decrypt(&out[4]), &conjugates) < TOLERANCE);
        assert!(max_error(&client.decrypt(&out[5]), &u) < TOLERANCE);
    }
    let missing = e.automorphism(&client.encrypt(&u, 10), galois[0], &keys).err().unwrap();
    assert!(missing.to_string().starts_with("no Galois key"), "{missing}");
}

#[test]
fn matrices_compose_their_rotations_in_every_way() {
    let client = TestOwner::new("insecure-toy11", 5);
    let e = &client.evaluator;
    let slots = 1024;
    let u = complex_vector(slots, 1);
    let level = 6;
    let limbs = client.params.limbs(level);
    let diagonals: BTreeMap<i64, Vec<Complex64>> =
        (-5..6).map(|k: i64| (4 * k, complex_vector(slots, 100 + k.unsigned_abs()))).collect();
    let expected: Vec<Complex64> = (0..slots)
        .map(|i| diagonals.iter().map(|(&r, d)| d[i] * u[(i as i64 + r).rem_euclid(slots as i64) as usize]).sum())
        .collect();
    let basis = client.params.key_basis(limbs);
    let a = client.encrypt(&u, level);
    let scale = e.last_prime(limbs);
    let batched = RotationSteps { start: 0, middle: 16, outer: 16, nested: false };
    let with_middle = RotationSteps { middle: 8, ..batched };
    // In a window that begins at 0, sums may be rotated one after the other.
    let nested = RotationSteps { start: -32, nested: true, ..with_middle };
    for (steps, needed) in [
        (RotationSteps::inner(slots), 10),
        (batched, 3 + 4 - 1),
        (with_middle, 1 + 1 + 3),
        (nested, 2 + 1 + 1),
        (RotationSteps { middle: 16, ..nested }, 4 + 1),
        (RotationSteps { outer: 4, middle: 4, ..nested }, 1 + 1),
    ] {
        let matrix = e.encode_matrix(&diagonals, steps, scale, basis).unwrap();
        assert_eq!(matrix.rotations().len(), needed, "{steps:?}");
        let mut keys = EvaluationKeys::default();
        let wanted = matrix.rotations().into_iter().map(|r| (KeyId::Galois(e.galois_of_rotation(r)), limbs));
        client.add_keys(&mut keys, wanted);
        let c = e.sum_of_transforms(&[(&a, &matrix)], &keys).unwrap();
        assert!(max_error(&client.decrypt(&c), &expected) < 1e-6, "{steps:?}");
        let twice = e.transform_many(&a, &[&matrix, &matrix], &keys).unwrap();
        assert!(max_error(&client.decrypt(&twice[1]), &expected) < 1e-6, "{steps:?}");
        let sum = e.sum_of_transforms(&[(&a, &matrix), (&a, &matrix)], &keys).unwrap();
        let doubled: Vec<_> = expected.iter().map(|z| z * 2.0).collect();
        assert!(max_error(&client.decrypt(&sum), &doubled) < 2e-6, "{steps:?}");
    }
}

/// Matrices for raised ciphertexts and for others differ in their special primes alone.
#[test]
fn matrices_for_other_primes_are_refused() {
    let client = TestOwner::new("insecure-toy11", 5);
    let e = &client.evaluator;
    let limbs = client.params.limbs(6);
    let (needed, found) = (KeyId::FromSparse(1).basis(&client.params, limbs), client.params.key_basis(limbs));
    let identity = BTreeMap::from([(0, vec![Complex64::ONE; 1024])]);
    let [for_raised, matrix] = [needed, found]
        .map(|basis| e.encode_matrix(&identity, RotationSteps::inner(1024), e.last_prime(limbs), basis).unwrap());
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, [(KeyId::ToSparse, 1)]);
    let a = client.encrypt(&complex_vector(1024, 1), 6);
    let refused = e.transform_raised(e.raise_modulus(&a, limbs, &keys).unwrap(), &matrix, &keys).err().unwrap();
    assert_eq!(refused, Error::MixedMatrices { found, needed });
    assert!(refused.to_string().contains("10 primes and 7 special ones, where 10 and 2 are needed"), "{refused}");
    let refused = e.sum_of_transforms(&[(&a, &for_raised), (&a, &matrix)], &keys).err();
    assert_eq!(refused, Some(Error::MixedMatrices { found, needed }));
}

#[test]
fn ciphertexts_of_another_set_are_refused() {
    let (one, other) = (TestOwner::new("insecure-toy11", 1), TestOwner::new("insecure-toy12", 1));
    let (mut a, b) = (one.encrypt(&complex_vector(1024, 1), 3), other.encrypt(&complex_vector(2048, 1), 3));
    let (e, keys) = (&one.evaluator, EvaluationKeys::default());
    let mixed = |result: hetal_ckks::Result<()>| matches!(result, Err(Error::MixedParams { .. }));
    assert!(mixed(e.add_assign(&mut a, &b)));
    assert!(mixed(e.sum_of_products(&[(&b, &b)], &keys).map(drop)));
    assert!(mixed(e.automorphism(&b, 5, &keys).map(drop)));
    assert!(mixed(e.truncated(&b, 2).map(drop)));
    assert!(mixed(e.linear_combination(&[(&b, Complex64::ONE)], Complex64::ZERO, 4, b.scale).map(drop)));
}

#[test]
fn a_public_key_must_have_the_message_s_primes() {
    let client = TestOwner::new("insecure-toy11", 1);
    let message =
        client.evaluator.encode(&complex_vector(1024, 1), client.params.scale(3), Basis { q: 7, p: 0 }).unwrap();
    let encryptor = Encryptor::new(Arc::clone(&client.params), Arc::clone(&client.ring));
    let result = encryptor.encrypt_public(&client.public_key(6), &message, &mut TestSeeds::insecure(1));
    assert!(matches!(result.err(), Some(hetal_keys::Error::PublicKey { needs: 7, has: 6 })));
    let even = client.generator.galois(&client.secret, 4, 2, &mut TestSeeds::insecure(1));
    assert!(matches!(even.err(), Some(Error::NotGalois { element: 4 })));
}
