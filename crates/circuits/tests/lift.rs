//! Lifts of vectors in coefficient form, under real keys at toy sets.

#![allow(clippy::unwrap_used)]

use hetal_circuits::bootstrap::{self, lift};
use hetal_circuits::clear::{Noise, OpKind};
use hetal_circuits::{Bootstrapper, Clear, Encrypted, Engine, Error};
use hetal_ckks::params::BUILT_IN;
use hetal_ckks::{Complex64, EvaluationKeys, Evaluator, LiftForm, Params, ROUNDED_BITS, security};
use hetal_ring::{PackedPoly, RnsRing};
use hetal_testkit::{TestOwner, complex_vector, max_error, mean_error};
use std::sync::Arc;

fn keys(owner: &TestOwner) -> EvaluationKeys<PackedPoly> {
    let mut keys = EvaluationKeys::default();
    owner.add_keys(&mut keys, bootstrap::keys(&owner.params));
    keys
}

/// An engine whose bootstraps were made for one bound only: lifts take every bound.
fn engine(owner: &TestOwner) -> Encrypted<RnsRing> {
    let evaluator = Evaluator::new(Arc::clone(&owner.params), Arc::clone(&owner.ring));
    let bootstrapper = Bootstrapper::new(&evaluator, &[3]).unwrap();
    Encrypted::new(evaluator, keys(owner), bootstrapper)
}

fn real(values: &[Complex64]) -> Vec<Complex64> {
    values.iter().map(|z| z.re.into()).collect()
}

/// What is lifted decrypts to itself, up to 32 bounds, in both forms, for small and large bounds.
#[test]
fn lifted_values_are_those_encrypted() {
    for set in ["insecure-toy11", "insecure-toy12"] {
        let owner = TestOwner::new(set, 21);
        let (engine, random) = (engine(&owner), complex_vector(owner.params.slots(), 3));
        for (log_bound, factor) in [(0, 1.0), (0, 20.0), (2, 5.0), (5, 32.0)] {
            let bound = f64::from(1 << log_bound);
            let values: Vec<Complex64> = random.iter().map(|z| z * bound * factor).collect();
            for form in [LiftForm::Complex, LiftForm::Real] {
                let expected = if form == LiftForm::Real { real(&values) } else { values.clone() };
                let coefficients = lift::coefficients(&owner.params, &values, log_bound, form).unwrap();
                let rounded = owner.encrypt_rounded(&coefficients, log_bound, form);
                assert_eq!(rounded.bits, ROUNDED_BITS);
                let lifted = engine.lift(&engine.import_unlifted(&rounded).unwrap()).unwrap();
                assert_eq!(engine.level(&lifted), engine.top_level());
                let got = owner.decrypt(lifted.inner());
                let (max, mean) = (max_error(&got, &expected) / bound, mean_error(&got, &expected) / bound);
                println!(
                    "{set}, {form:?}, bound {bound}, up to {factor}: max 2^{:.2}, mean 2^{:.2}",
                    max.log2(),
                    mean.log2()
                );
                // Rounding alone is 2^-23 in each part at most, and 2^-23.8 * 1.25 in the mean.
                assert!(max < 2f64.powi(-21) && mean < 2f64.powi(-23), "{set}, {form:?}, bound {bound}");
            }
        }
    }
}

/// Without the inverse of EvalMod's function, numbers of several bounds would be off by more.
#[test]
fn the_systematic_error_is_gone() {
    let owner = TestOwner::new("insecure-toy11", 22);
    let engine = engine(&owner);
    let slots = owner.params.slots();
    let coefficients = |value: f64| -> Vec<i64> {
        let naive = (value * owner.params.coefficient_scale()).round() as i64;
        (0..2 * slots).map(|k| if k < slots { naive } else { 0 }).collect()
    };
    let lifted = |coefficients: &[i64]| {
        let rounded = owner.encrypt_rounded(coefficients, 0, LiftForm::Real);
        let lifted = engine.lift(&engine.import_unlifted(&rounded).unwrap()).unwrap();
        mean_error(&owner.decrypt(lifted.inner()), &vec![Complex64::new(8.0, 0.0); slots])
    };
    let values = vec![Complex64::new(8.0, 0.0); slots];
    let with = lifted(&lift::coefficients(&owner.params, &values, 0, LiftForm::Real).unwrap());
    // theta^5 / 30 of the angle 2 pi 8 / 256, in messages.
    let without = lifted(&coefficients(8.0));
    println!("2^{:.2} with, 2^{:.2} without", with.log2(), without.log2());
    assert!(with < 2f64.powi(-23) && without > 2f64.powi(-12));
}

#[test]
fn lifts_that_cannot_be_are_refused() {
    let owner = TestOwner::new("insecure-toy11", 23);
    let (evaluator, keys) = (&owner.evaluator, keys(&owner));
    let zeros = vec![0; owner.params.degree()];
    let unlifted = owner.encrypt_rounded(&zeros, 0, LiftForm::Complex).expand(&owner.params, &*owner.ring);
    let nothing = Bootstrapper::new(evaluator, &[]).unwrap();
    assert_eq!(nothing.lift(evaluator, &unlifted, 0, &keys).err(), Some(Error::Empty("lift")));
    let sparse = Bootstrapper::sparse(evaluator, 64, &[0]).unwrap();
    assert_eq!(sparse.lift(evaluator, &unlifted, 0, &keys).err(), Some(Error::SparseEngine));
    let full = Bootstrapper::new(evaluator, &[0]).unwrap();
    assert!(matches!(full.lift(evaluator, &unlifted, 25, &keys), Err(Error::BoundTooLarge { .. })));
    // A ciphertext in slot form has another scale.
    let slots = owner.encrypt(&[Complex64::ONE; 4], 0);
    assert!(matches!(full.lift_real(evaluator, &slots, 0, &keys), Err(Error::Scheme(_))));
}

#[test]
fn the_plain_engine_lifts_alike() {
    let noise = Noise { rounding: 1e-3, bootstrap: 1e-4, seed: 4, ..Noise::default() };
    let values = complex_vector(64, 5);
    let exact = Clear::new(64, 13);
    for form in [LiftForm::Complex, LiftForm::Real] {
        let expected = if form == LiftForm::Real { real(&values) } else { values.clone() };
        let lifted = exact.lift(&exact.fresh_unlifted(&values, 2, form).unwrap()).unwrap();
        assert_eq!((exact.values(&lifted), exact.level(&lifted)), (&expected[..], 13));
        let noisy = Clear::with_noise(64, 13, noise);
        let lifted = noisy.lift(&noisy.fresh_unlifted(&values, 2, form).unwrap()).unwrap();
        let error = mean_error(noisy.values(&lifted), &expected);
        assert!((1e-3..2e-2).contains(&error), "{error}");
    }
    assert_eq!((exact.op_counts().count(OpKind::Lift), exact.op_counts().count(OpKind::Bootstrap)), (2, 0));
    let large = vec![Complex64::new(129.0, 0.0); 64];
    assert!(matches!(exact.fresh_unlifted(&large, 2, LiftForm::Real), Err(Error::OutOfRange { .. })));
}

/// Rounded ciphertexts have one prime: far fewer bits than a set may have.
#[test]
fn rounded_ciphertexts_are_secure() {
    for literal in BUILT_IN.iter().filter(|literal| !literal.name.starts_with("insecure")) {
        let params = Params::named(&literal.name).unwrap();
        let log_q = (literal.q0 as f64).log2();
        security::require("a rounded ciphertext", params.log_n(), literal.secret_weight, log_q).unwrap();
    }
}
