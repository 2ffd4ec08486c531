#![allow(clippy::unwrap_used, clippy::panic)]
use super::*;

const SLOTS: usize = 8;
const TOP: usize = 5;

fn engine() -> Clear {
    Clear::new(SLOTS, TOP)
}

fn c(re: f64, im: f64) -> Complex64 {
    Complex64::new(re, im)
}

fn ramp(engine: &Clear, level: usize) -> Ciphertext {
    let values: Vec<_> = (0..SLOTS).map(|i| c(i as f64, -(i as f64) / 2.0)).collect();
    engine.fresh(&values, level).unwrap()
}

/// A ramp times ones, prepared for partners of level `partner`.
fn prepared(engine: &Clear, level: usize, partner: usize) -> Ciphertext {
    let ones = engine.encode(&[c(1.0, 0.0); SLOTS], Multiplication::for_partner(level + 1, partner)).unwrap();
    engine.mul_plain(&ramp(engine, level + 1), &ones).unwrap()
}

#[test]
fn fresh_checks_length_and_level() {
    let e = engine();
    assert_eq!(e.fresh(&[c(0.0, 0.0); 3], 1), Err(Error::SlotCount { got: 3, slots: 8 }));
    assert_eq!(e.fresh(&[c(0.0, 0.0); 8], 6), Err(Error::NoSuchLevel { level: 6, top: 5 }));
}

#[test]
fn sums_lower_the_higher_operand() {
    let e = engine();
    let (a, b) = (ramp(&e, 4), ramp(&e, 2));
    let sum = e.add(&a, &b).unwrap();
    assert_eq!((e.level(&sum), e.values(&sum)[3]), (2, c(6.0, -3.0)));
    let zero = e.sub(&b, &a).unwrap();
    assert!(e.values(&zero).iter().all(|v| *v == Complex64::ZERO));
    let counts = e.op_counts();
    assert_eq!((counts.count(OpKind::Drop), counts.count_at(OpKind::Drop, 4)), (2, 2));
    assert_eq!(counts.count_at(OpKind::Addition, 2), 2);
}

#[test]
fn exact_operations_cost_no_level() {
    let e = engine();
    let a = ramp(&e, 3);
    assert_eq!(e.values(&e.neg(&a).unwrap())[2], c(-2.0, 1.0));
    assert_eq!(e.values(&e.add_constant(&a, c(1.0, 1.0)).unwrap())[2], c(3.0, 0.0));
    assert_eq!(e.values(&e.add_plain(&a, &a.values).unwrap())[2], c(4.0, -2.0));
    assert_eq!(e.values(&e.mul_integer(&a, -3).unwrap())[2], c(-6.0, 3.0));
    for power in 0..8 {
        assert_eq!(e.values(&e.mul_i(&a, power).unwrap())[3], c(3.0, -1.5) * Complex64::I.powu(power));
    }
    assert_eq!(e.add_plain(&a, &a.values[1..]), Err(Error::SlotCount { got: 7, slots: 8 }));
    assert_eq!(e.op_counts().count(OpKind::Addition), 2);
    assert_eq!(e.op_counts().key_switches(), 0);
}

#[test]
fn drop_to_only_goes_down() {
    let e = engine();
    let a = ramp(&e, 3);
    assert_eq!(e.level(&e.drop_to(&a, 1).unwrap()), 1);
    assert!(matches!(e.drop_to(&a, 4), Err(Error::OutOfLevels { needs: 4, has: 3, .. })));
    e.drop_to(&a, 3).unwrap();
    assert_eq!(e.op_counts().count(OpKind::Drop), 1);
}

#[test]
fn linear_combination_happens_at_the_lowest_level() {
    let e = engine();
    let (a, b) = (ramp(&e, 4), ramp(&e, 1));
    let r = e.linear_combination(&[(&a, c(2.0, 0.0)), (&b, c(0.0, 1.0))], c(1.0, 0.0)).unwrap();
    assert_eq!((e.level(&r), e.values(&r)[2]), (0, c(4.0, -2.0) + c(1.0, 2.0) + 1.0));
    assert!(matches!(e.mul_constant(&r, c(1.0, 0.0)), Err(Error::OutOfLevels { needs: 1, has: 0, .. })));
    assert_eq!(e.linear_combination(&[], c(1.0, 0.0)), Err(Error::Empty("a linear combination")));
    let counts = e.op_counts();
    assert_eq!(counts.count_at(OpKind::ConstantProduct, 1), 2);
    assert_eq!((counts.count(OpKind::Rescale), counts.count(OpKind::Drop), counts.count(OpKind::Addition)), (1, 0, 2));
}

#[test]
fn plaintexts_work_only_where_they_were_encoded_for() {
    let e = engine();
    let a = ramp(&e, 4);
    let place = Multiplication { operand: 4, at: 2, partner: None };
    let p = e.encode(&a.values, place).unwrap();
    let r = e.mul_plain(&a, &p).unwrap();
    assert_eq!((e.level(&r), e.values(&r)[2]), (1, c(2.0, -1.0) * c(2.0, -1.0)));
    let used = Multiplication { operand: 3, ..place };
    assert_eq!(e.mul_plain(&ramp(&e, 3), &p), Err(Error::WrongPlaintext { encoded: place, used }));
    let other = e.encode(&a.values, Multiplication::at(4)).unwrap();
    let mixed = e.sum_of_plain_products(&[(&a, &p), (&a, &other)]);
    assert_eq!(mixed, Err(Error::WrongPlaintext { encoded: Multiplication::at(4), used: place }));
    assert_eq!(e.sum_of_plain_products(&[]), Err(Error::Empty("a sum of plain products")));
    assert_eq!((e.op_counts().count_at(OpKind::PlainProduct, 2), e.op_counts().count_at(OpKind::Rescale, 2)), (1, 1));
}

#[test]
fn impossible_places_are_refused() {
    let e = engine();
    let v = [Complex64::ZERO; SLOTS];
    assert!(matches!(e.encode(&v, Multiplication::at(0)), Err(Error::OutOfLevels { needs: 1, has: 0, .. })));
    assert_eq!(e.encode(&v, Multiplication::at(6)), Err(Error::NoSuchLevel { level: 6, top: 5 }));
    let above = Multiplication { operand: 2, at: 3, partner: None };
    assert!(matches!(e.encode(&v, above), Err(Error::OutOfLevels { needs: 3, has: 2, .. })));
    assert!(e.encode(&v, Multiplication::for_partner(3, 6)).is_err());
    assert!(matches!(
        e.encode(&v, Multiplication::for_partner(3, 1)),
        Err(Error::OutOfLevels { needs: 2, has: 1, .. })
    ));
}

#[test]
fn products_share_one_relinearisation() {
    let e = engine();
    let (a, b) = (ramp(&e, 4), ramp(&e, 3));
    let r = e.sum_of_products(&[(&a, &a), (&a, &b)]).unwrap();
    assert_eq!((e.level(&r), e.values(&r)[2]), (2, 2.0 * c(2.0, -1.0) * c(2.0, -1.0)));
    let counts = e.op_counts();
    assert_eq!((counts.count_at(OpKind::Product, 3), counts.count_at(OpKind::Relinearisation, 3)), (2, 1));
    assert_eq!((counts.count(OpKind::Rescale), counts.count(OpKind::Drop), counts.key_switches()), (1, 3, 1));
    let zero = ramp(&e, 0);
    assert!(matches!(e.mul(&zero, &a), Err(Error::OutOfLevels { needs: 1, has: 0, .. })));
    assert_eq!(e.sum_of_products(&[]), Err(Error::Empty("a sum of products")));
}

#[test]
fn prepared_operands_meet_their_partners_only() {
    let e = engine();
    let (p, x, low) = (prepared(&e, 2, 4), ramp(&e, 4), ramp(&e, 3));
    assert_eq!(p.partner(), Some(4));
    let r = e.sum_of_products(&[(&p, &x), (&p, &x)]).unwrap();
    assert_eq!((e.level(&r), r.partner(), e.values(&r)[2]), (1, None, 2.0 * c(2.0, -1.0) * c(2.0, -1.0)));
    assert_eq!(e.op_counts().count(OpKind::Drop), 0);
    let partner = |r: Result<Ciphertext>| assert!(matches!(r, Err(Error::Partner { .. })), "{r:?}");
    partner(e.mul(&p, &low));
    partner(e.mul(&x, &p));
    partner(e.mul(&p, &p));
    partner(e.sum_of_products(&[(&p, &x), (&x, &x)]));
    partner(e.add(&p, &x));
    partner(e.add(&p, &prepared(&e, 2, 3)));
    partner(e.add_constant(&p, c(1.0, 0.0)));
    partner(e.add_plain(&p, &x.values));
    partner(e.drop_to(&p, 1));
    partner(e.mul_constant(&p, c(1.0, 0.0)));
    partner(e.bootstrap(&p, 8));
    let plain = e.encode(&x.values, Multiplication::at(2)).unwrap();
    partner(e.mul_plain(&p, &plain));
    // Their like, and what keeps a scale, is welcome.
    let doubled = e.add(&p, &e.rotate(&p, 1).unwrap()).unwrap();
    assert_eq!(doubled.partner(), Some(4));
    assert!(matches!(e.add(&p, &prepared(&e, 1, 4)), Err(Error::OutOfLevels { .. })));
    assert!(e.sum_of_products(&[(&p, &x), (&prepared(&e, 1, 4), &x)]).is_err());
}

#[test]
fn rotations_move_left_and_are_booked_with_their_keys() {
    let e = engine();
    let (a, b) = (ramp(&e, 4), ramp(&e, 2));
    assert_eq!(e.values(&e.rotate(&a, 3).unwrap())[6], c(1.0, -0.5));
    e.rotate(&b, -5).unwrap();
    e.rotate(&a, 8).unwrap();
    let many = e.rotate_many(&b, &[0, 1, -1]).unwrap();
    assert_eq!(e.values(&many[2])[0], c(7.0, -3.5));
    assert_eq!(e.values(&e.conjugate(&b).unwrap())[2], c(2.0, 1.0));
    e.square(&b).unwrap();
    let counts = e.op_counts();
    assert_eq!((counts.count_at(OpKind::Rotation, 4), counts.count_at(OpKind::Rotation, 2)), (1, 1));
    assert_eq!((counts.count(OpKind::HoistedRotation), counts.count(OpKind::Conjugation)), (2, 1));
    assert_eq!(counts.key_switches(), 6);
    let rotations = vec![(1, 2), (3, 4), (7, 2)];
    let keys =
        KeyRequirements { rotations, relinearisation: Some(2), conjugation: Some(2), bounds: Default::default() };
    assert_eq!(counts.keys(), keys);
    assert_eq!(e.take_op_counts(), counts);
    assert_eq!(e.op_counts(), OpCounts::default());
}

#[test]
fn transforms_multiply_by_diagonals() {
    let e = engine();
    let a = ramp(&e, 3);
    let diagonal = |rotation, v| Diagonal { rotation, values: vec![c(v, 0.0); SLOTS] };
    let m = e.prepare(&[diagonal(0, 1.0), diagonal(1, 10.0), diagonal(-1, 100.0)], Multiplication::at(3)).unwrap();
    let n = e.prepare(&[diagonal(9, 1.0)], Multiplication::at(3)).unwrap();
    let out = e.transform_many(&a, &[&m, &n]).unwrap();
    assert_eq!((e.values(&out[0])[2].re, e.values(&out[1])[2].re, e.level(&out[0])), (132.0, 3.0, 2));
    let counts = e.take_op_counts();
    assert_eq!((counts.count_at(OpKind::HoistedRotation, 3), counts.count(OpKind::PlainProduct)), (2, 4));
    assert_eq!((counts.count(OpKind::Rescale), counts.count(OpKind::Addition)), (2, 2));
    let sum = e.sum_of_transforms(&[(&a, &m), (&a, &n)]).unwrap();
    assert_eq!((e.values(&sum)[2].re, e.level(&sum)), (135.0, 2));
    let counts = e.take_op_counts();
    assert_eq!(
        (counts.count(OpKind::HoistedRotation), counts.count(OpKind::Rescale), counts.count(OpKind::Addition)),
        (3, 1, 3)
    );
}

#[test]
fn transforms_work_only_where_they_were_encoded_for() {
    let e = engine();
    let a = ramp(&e, 3);
    let ones = [Diagonal { rotation: 0, values: vec![c(1.0, 0.0); SLOTS] }];
    let m = e.prepare(&ones, Multiplication::at(3)).unwrap();
    let n = e.prepare(&ones, Multiplication::for_partner(3, 4)).unwrap();
    assert!(matches!(e.transform_many(&ramp(&e, 4), &[&m]), Err(Error::WrongPlaintext { .. })));
    assert!(matches!(e.transform_many(&a, &[&m, &n]), Err(Error::WrongPlaintext { .. })));
    assert!(matches!(e.sum_of_transforms(&[(&a, &m), (&a, &n)]), Err(Error::WrongPlaintext { .. })));
    let out = e.sum_of_transforms(&[(&a, &n)]).unwrap();
    assert_eq!(out.partner(), Some(4));
    assert!(matches!(e.transform_many(&out, &[&m]), Err(Error::Partner { .. })));
    assert!(matches!(e.transform_many(&a, &[]), Err(Error::Empty(_))));
    assert!(matches!(e.sum_of_transforms(&[]), Err(Error::Empty(_))));
    assert!(matches!(e.prepare(&[], Multiplication::at(3)), Err(Error::Empty(_))));
    let short = [Diagonal { rotation: 0, values: vec![] }];
    assert!(matches!(e.prepare(&short, Multiplication::at(3)), Err(Error::SlotCount { .. })));
}

#[test]
fn bootstrap_refuses_what_would_come_back_wrong() {
    let e = engine();
    let a = ramp(&e, 0);
    let r = e.bootstrap(&a, 3).unwrap();
    assert_eq!((e.level(&r), &r.values), (TOP, &a.values));
    let out = Error::OutOfRange { operation: "a bootstrap", slot: 5, value: 5.0, bound: 4.0 };
    assert_eq!(e.bootstrap(&a, 2), Err(out));
    let mut values = [Complex64::ZERO; SLOTS];
    values[3].im = f64::NAN;
    let nan = e.fresh(&values, 0).unwrap();
    assert!(matches!(e.bootstrap(&nan, 2), Err(Error::OutOfRange { slot: 3, .. })));
    assert_eq!(e.op_counts().count_at(OpKind::Bootstrap, 0), 1);
    assert_eq!(e.op_counts().keys().bounds, (&[3]).into());
}

/// A vector that repeats but for noise becomes the mean of its periods; others are refused.
#[test]
fn periodic_bootstraps_refuse_what_does_not_repeat() {
    let e = engine();
    let mut values: Vec<Complex64> = (0..SLOTS).map(|i| Complex64::new((i % 2) as f64, 0.0)).collect();
    values[2].re += 4e-4;
    let r = e.bootstrap_periodic(&e.fresh(&values, 0).unwrap(), 2, 0).unwrap();
    let mean = 4e-4 * 2.0 / SLOTS as f64;
    assert_eq!(e.level(&r), TOP);
    assert!(r.values.iter().enumerate().all(|(i, v)| (v.re - if i % 2 == 0 { mean } else { 1.0 }).abs() < 1e-15));
    assert_eq!(e.op_counts().count_at(OpKind::Bootstrap, 0), 1);
    assert_eq!(e.op_counts().keys().bounds.periodic, [(2, 0)].into());
    let ramp: Vec<Complex64> = (0..SLOTS).map(|i| c(i as f64, 0.0)).collect();
    let ramp = e.fresh(&ramp, 0).unwrap();
    assert!(matches!(e.bootstrap_periodic(&ramp, 2, 3), Err(Error::OutOfRange { .. })));
    for period in [0, 3, 2 * SLOTS] {
        assert!(matches!(e.bootstrap_periodic(&ramp, period, 3), Err(Error::NoSparseBootstrap { .. })));
    }
    assert_eq!(e.bootstrap_periodic(&ramp, SLOTS, 3).unwrap().values, ramp.values);
}

/// Encryptions, drops, and the drops inside sums and products have errors; what costs nothing has
/// none.
#[test]
fn everything_that_rounds_has_noise() {
    let slots = 1 << 14;
    let noise = Noise { encryption: 3.0, operation: 0.5, ..Noise::default() };
    let e = Clear::with_noise(slots, 4, noise);
    let deviation = |a: &Ciphertext, b: &Ciphertext| {
        let sum: f64 = a.values.iter().zip(&b.values).map(|(a, b)| (a - b).norm_sqr()).sum();
        (sum / (2 * slots) as f64).sqrt()
    };
    let exact = Clear::new(slots, 4).fresh(&vec![Complex64::ONE; slots], 4).unwrap();
    let high = e.fresh(&exact.values, 4).unwrap();
    assert!((deviation(&high, &exact) - 3.0).abs() < 0.05);
    let low = e.drop_to(&exact, 2).unwrap();
    assert!((deviation(&low, &exact) - 0.5).abs() < 0.02);
    assert_eq!(e.drop_to(&high, 4).unwrap(), high);
    let two = Clear::new(slots, 4).add(&exact, &low).unwrap();
    assert!((deviation(&e.add(&exact, &low).unwrap(), &two) - 0.5).abs() < 0.02);
    assert_eq!(e.add(&exact, &exact).unwrap(), Clear::new(slots, 4).add(&exact, &exact).unwrap());
    let product = Clear::new(slots, 4).mul(&exact, &low).unwrap();
    assert!((deviation(&e.mul(&exact, &low).unwrap(), &product) - 0.75f64.sqrt()).abs() < 0.02);
}

#[test]
fn noise_has_the_deviation_asked_for_and_repeats() {
    let slots = 1 << 14;
    let noise = Noise { operation: 0.5, bootstrap: 2.0, seed: 7, ..Noise::default() };
    let deviation = |v: &[Complex64]| (v.iter().map(|v| v.norm_sqr()).sum::<f64>() / (2 * slots) as f64).sqrt();
    let run = |noise| {
        let e = Clear::with_noise(slots, 2, noise);
        let zero = e.fresh(&vec![Complex64::ZERO; slots], 2).unwrap();
        (e.rotate(&zero, 1).unwrap(), e.bootstrap(&zero, 1).unwrap(), e.square(&zero).unwrap())
    };
    let (rotated, booted, squared) = run(noise);
    assert!((deviation(&rotated.values) - 0.5).abs() < 0.02);
    assert!((deviation(&booted.values) - 4.0).abs() < 0.1);
    assert!((deviation(&squared.values) - 0.5f64.sqrt()).abs() < 0.02);
    assert_eq!(run(noise).0, rotated);
    assert_ne!(run(Noise { seed: 8, ..noise }).0, rotated);
}
