//! Every operation of the `Engine` trait, once, on the plain engine and under encryption: same
//! values, same levels, same errors.

#![allow(clippy::unwrap_used, clippy::panic)]

use hetal_circuits::bootstrap::BootstrapBounds;
use hetal_circuits::clear::Clear;
use hetal_circuits::clear::KeyRequirements;
use hetal_circuits::polynomial::{self, Polynomial, PolynomialBasis};
use hetal_circuits::{Bootstrapper, Complex64, Diagonal, Encrypted, Engine, Error, Multiplication, encrypted};
use hetal_ckks::EvaluationKeys;
use hetal_testkit::{TestOwner, complex_vector, max_error};

const SLOTS: usize = 1024;
const TOP: usize = 13;

/// What each step of [`circuit`] gave: its name, the level and the slots of its result.
type Trace = Vec<(&'static str, usize, Vec<Complex64>)>;

/// Uses every operation at least once.
fn circuit<E: Engine>(
    engine: &E,
    seal: impl Fn(&[Complex64], usize) -> E::Ciphertext,
    open: impl Fn(&E::Ciphertext) -> Vec<Complex64>,
) -> Trace {
    let (u, v) = (complex_vector(SLOTS, 1), complex_vector(SLOTS, 2));
    let (a, b, low) = (seal(&u, 6), seal(&v, 5), seal(&v, 2));
    let c = Complex64::new(0.5, -0.75);
    let mut trace: Trace = Vec::new();
    let mut note = |name, ct: &E::Ciphertext| trace.push((name, engine.level(ct), open(ct)));

    note("add", &engine.add(&a, &b).unwrap());
    note("sub", &engine.sub(&b, &a).unwrap());
    note("neg", &engine.neg(&a).unwrap());
    note("add constant", &engine.add_constant(&a, c).unwrap());
    note("add plain", &engine.add_plain(&a, &v).unwrap());
    note("mul integer", &engine.mul_integer(&a, -3).unwrap());
    note("mul i", &engine.mul_i(&a, 3).unwrap());
    note("drop", &engine.drop_to(&a, 1).unwrap());
    note("linear combination", &engine.linear_combination(&[(&a, c), (&low, Complex64::ONE)], c).unwrap());
    note("mul constant", &engine.mul_constant(&a, c).unwrap());
    note("mul", &engine.mul(&a, &b).unwrap());
    note("square", &engine.square(&b).unwrap());
    note("sum of products", &engine.sum_of_products(&[(&a, &b), (&low, &a)]).unwrap());

    let place = Multiplication { operand: 6, at: 4, partner: None };
    let plain = engine.encode(&v, place).unwrap();
    note("plain product", &engine.sum_of_plain_products(&[(&a, &plain), (&a, &plain)]).unwrap());

    note("rotate", &engine.rotate(&a, 3).unwrap());
    note("rotate", &engine.rotate_many(&a, &[-1, 0, 3]).unwrap()[0]);
    note("conjugate", &engine.conjugate(&low).unwrap());

    let diagonals = |salt| [0, 3, -1].map(|k: i64| Diagonal { rotation: k, values: complex_vector(SLOTS, salt) });
    let (m, n) = (
        engine.prepare(&diagonals(7), Multiplication::at(6)).unwrap(),
        engine.prepare(&diagonals(8), Multiplication::at(6)).unwrap(),
    );
    engine.transform_many(&a, &[&m, &n]).unwrap().iter().for_each(|ct| note("transform", ct));
    note("sum of transforms", &engine.sum_of_transforms(&[(&a, &m), (&a, &n)]).unwrap());

    // An operand prepared for partners of level 6 meets one of them at level 4.
    let prepared = engine.encode(&v, Multiplication::for_partner(5, 6)).unwrap();
    let prepared = engine.mul_plain(&b, &prepared).unwrap();
    let prepared = engine.add(&prepared, &engine.rotate(&prepared, 3).unwrap()).unwrap();
    note("prepared partner", &engine.sum_of_products(&[(&prepared, &a)]).unwrap());
    assert!(matches!(engine.mul(&prepared, &b), Err(Error::Partner { .. })));
    assert!(matches!(engine.add(&prepared, &b), Err(Error::Partner { .. })));

    let series: Vec<f64> = (0..12).map(|k| 1.0 / f64::from(k + 1)).collect();
    let series = Polynomial::real(PolynomialBasis::Chebyshev, &series);
    let real = seal(&u.iter().map(|z| Complex64::new(z.re, 0.0)).collect::<Vec<_>>(), 6);
    note("polynomial", &polynomial::evaluate(engine, &real, &series).unwrap());

    note("bootstrap", &engine.bootstrap(&a, 0).unwrap());
    let wide = engine.mul_integer(&a, 4).unwrap();
    note("bootstrap of larger values", &engine.bootstrap(&wide, 2).unwrap());

    note("precise bootstrap", &engine.bootstrap_precise(&a, 0).unwrap());
    note("bootstrap of real numbers", &engine.bootstrap_real(&real, 1).unwrap());
    let repeating: Vec<Complex64> = (0..SLOTS).map(|i| Complex64::new(2.0 * u[i % 256].re, 0.0)).collect();
    note("bootstrap of a vector that repeats", &engine.bootstrap_periodic(&seal(&repeating, 6), 256, 1).unwrap());
    let whole = engine.bootstrap_periodic(&real, SLOTS, 1).unwrap();
    note("bootstrap of a vector that repeats after all slots", &whole);
    let (re, im) = engine.bootstrap_pair(&real, &engine.neg(&real).unwrap(), 0).unwrap();
    note("bootstrap of the first of a pair", &re);
    note("bootstrap of the second of a pair", &im);

    let bottom = engine.drop_to(&a, 0).unwrap();
    assert!(matches!(engine.mul(&bottom, &a), Err(Error::OutOfLevels { needs: 1, has: 0, .. })));
    assert!(matches!(engine.drop_to(&low, 3), Err(Error::OutOfLevels { .. })));
    assert!(matches!(engine.mul_plain(&b, &plain), Err(Error::WrongPlaintext { .. })));
    assert!(matches!(engine.add_plain(&a, &v[1..]), Err(Error::SlotCount { .. })));
    trace
}

#[test]
fn encrypted_and_plain_engines_agree_on_everything() {
    let clear = Clear::new(SLOTS, TOP);
    let expected = circuit(&clear, |v, level| clear.fresh(v, level).unwrap(), |ct| clear.values(ct).to_vec());
    let needs = clear.op_counts().keys();

    let client = TestOwner::new("insecure-toy11", 11);
    let mut keys = EvaluationKeys::default();
    // Vectors that repeat are bootstrapped with the keys of any bootstrap.
    assert_eq!(needs.bounds.periodic, [(256, 1)].into());
    let whole = KeyRequirements { bounds: BootstrapBounds::from(&[0]), ..needs.clone() };
    assert_eq!(encrypted::keys(&client.params, &needs), encrypted::keys(&client.params, &whole));
    client.add_keys(&mut keys, encrypted::keys(&client.params, &needs));
    let bootstrapper = Bootstrapper::new(&client.evaluator, &needs.bounds).unwrap();
    let engine = Encrypted::new(TestOwner::new("insecure-toy11", 11).evaluator, keys, bootstrapper);
    let seal = |v: &[Complex64], level| engine.import(client.encrypt(v, level)).unwrap();
    let found = circuit(&engine, seal, |ct| client.decrypt(ct.inner()));

    assert_eq!(found.len(), expected.len());
    for ((name, level, values), (_, expected_level, expected_values)) in found.iter().zip(&expected) {
        assert_eq!(level, expected_level, "level of {name}");
        let error = max_error(values, expected_values);
        assert!(error < 1e-6, "{name}: {error:e}");
    }
    let missing = engine.rotate(&seal(&complex_vector(SLOTS, 1), 6), 17).err().unwrap();
    assert_eq!(missing.to_string(), "no Galois key for rotation 17 at level 6");
}
