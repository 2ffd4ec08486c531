//! The matrix products, slot by slot, against plain ones.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Random, decrypt_weights, encrypt_weights};
use hetal_circuits::clear::{Ciphertext, OpKind};
use hetal_circuits::{Clear, Engine, KeyPlan};
use hetal_learn::nesterov::{LOG_WEIGHT_SCALE, WeightsAndBias};
use hetal_learn::products::Products;
use hetal_learn::{Error, Geometry, LevelPlan, Matrix, packing, reference};

/// The scale of packed weights.
const SCALE: f64 = (1u64 << LOG_WEIGHT_SCALE) as f64;

fn both(factor: f64) -> WeightsAndBias {
    WeightsAndBias { weights: factor, bias: factor }
}

struct Bench {
    engine: Clear,
    products: Products<Clear>,
    x: Matrix,
    versions: Vec<Vec<Ciphertext>>,
}

fn bench(slots: usize, rows: usize, used: usize, features: usize, classes: usize, scale: f64) -> Bench {
    bench_of(KeyPlan::Fast, (slots, rows, features, classes), used, scale)
}

fn bench_of(
    plan: KeyPlan,
    (slots, rows, features, classes): (usize, usize, usize, usize),
    used: usize,
    scale: f64,
) -> Bench {
    let engine = Clear::new(slots, 13);
    let g = Geometry::new(slots, rows, features, classes).unwrap();
    let products = Products::new(&engine, g, LevelPlan::lowest().with_keys(plan), scale).unwrap();
    let x = Random(features as u64).matrix(used, features, 1.0);
    let level = products.level_plan().fresh_features();
    let blocks: Vec<_> = packing::features(&g, &x).unwrap().iter().map(|b| engine.fresh(b, level).unwrap()).collect();
    let versions = products.versions(&engine, &blocks).unwrap();
    Bench { engine, products, x, versions }
}

const SHAPES: [(usize, usize, usize, usize); 13] = [
    (1024, 64, 30, 3),
    (1024, 64, 31, 4),
    (2048, 64, 30, 5),
    (2048, 128, 17, 5),
    (1024, 16, 4, 2),
    (1024, 32, 5, 2),
    (2048, 64, 9, 10),
    (4096, 64, 200, 7),
    // Classifiers of several ciphertexts.
    (1024, 32, 60, 32),
    (1024, 16, 1001, 8),
    (256, 8, 500, 8),
    (1024, 64, 100, 10),
    (1024, 64, 600, 5),
];

/// Every shape with every plan.
fn cases() -> impl Iterator<Item = (KeyPlan, (usize, usize, usize, usize))> {
    KeyPlan::OFFERED.into_iter().flat_map(|plan| SHAPES.map(|shape| (plan, shape)))
}

#[test]
fn shapes_of_many_ciphertexts_are_among_them() {
    let parts = SHAPES.map(|(slots, rows, features, classes)| {
        let g = Geometry::new(slots, rows, features, classes).unwrap();
        (g.parts(), g.groups())
    });
    assert!(parts[..8].iter().all(|&(parts, _)| parts == 1), "{parts:?}");
    // Ciphertexts, and blocks in each.
    assert_eq!(parts[8..], [(2, 1), (5, 2), (9, 1), (2, 4), (3, 8)]);
}

#[test]
fn logits_are_x_times_w_transposed() {
    for (plan, shape) in cases() {
        let (_, rows, features, classes) = shape;
        let b = bench_of(plan, shape, rows - 3, 8.0);
        let g = *b.products.geometry();
        let w = Random(7).matrix(classes, features + 1, 1.0);
        let packed = encrypt_weights(&b.engine, &g, b.products.level_plan(), &w);
        let expanded = b.products.expand(&b.engine, &packed, 1.0).unwrap();
        let logits = b.products.logits(&b.engine, &b.versions, &expanded).unwrap();
        assert_eq!(b.engine.level(&logits), 0);
        let expected = reference::logits(&b.x, &w).unwrap();
        for (slot, value) in b.engine.values(&logits).iter().enumerate() {
            let (j, i) = g.place(slot);
            let k = g.class(j, i);
            let exact = match (i < b.x.rows(), k < classes) {
                (true, true) => expected[(i, k)] / 8.0,
                // A padded row has features 0: its logits are the bias. A padded class has weights
                // 0.
                (false, true) => w[(k, features)] / 8.0,
                _ => 0.0,
            };
            assert!((value - exact).norm() < 1e-12, "slot {slot}: {value} for {exact}");
        }
        let unpacked = packing::unpack_logits(&g, b.engine.values(&logits), b.x.rows()).unwrap();
        assert!(Matrix::from_fn(b.x.rows(), classes, |i, k| unpacked[(i, k)] * 8.0).max_difference(&expected) < 1e-11);
    }
}

#[test]
fn gradients_are_d_transposed_times_x() {
    for (plan, shape) in cases() {
        let (_, rows, _, classes) = shape;
        let used = rows - 3;
        let b = bench_of(plan, shape, used, 1.0);
        let g = *b.products.geometry();
        let d = Random(9).matrix(rows, g.padded_classes(), 1.0);
        // Differences with rubbish in padded rows and classes.
        let slots: Vec<_> =
            (0..g.slots()).map(|s| g.place(s)).map(|(j, i)| d[(i % rows, g.class(j, i))].into()).collect();
        let packed = b.engine.fresh(&slots, b.products.level_plan().labels()).unwrap();
        let gradient = b.products.gradient(&b.engine, &b.versions, &packed, used, both(0.25 * SCALE)).unwrap();
        assert!(gradient.iter().all(|part| b.engine.level(part) == b.products.level_plan().weights()));
        let real = Matrix::from_fn(used, classes, |i, k| 0.25 * d[(i, k)]);
        let expected = packing::weights(&g, &reference::gradient(&b.x, &real).unwrap()).unwrap();
        assert_eq!(gradient.len(), expected.len());
        let slots = gradient.iter().flat_map(|part| b.engine.values(part)).zip(expected.iter().flatten());
        for (slot, (value, exact)) in slots.enumerate() {
            assert!((value - exact).norm() < 1e-11 * SCALE, "slot {slot}: {value} for {exact}");
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(24))]

    /// Any shape: logits of a gradient of random differences, slot by slot through both products.
    #[test]
    fn any_shape_multiplies_exactly(rows in 1usize..70, features in 1usize..200, classes in 2usize..20, seed in 0u64..1000, plan in 0usize..3) {
        if let Ok(g) = Geometry::new(1024, rows, features, classes) {
            let rows = rows.min(g.rows());
            let b = bench_of(KeyPlan::OFFERED[plan], (1024, rows, features, classes), rows, 1.0);
            let g = *b.products.geometry();
            let d = Random(seed).matrix(rows, classes, 1.0);
            let packed: Vec<_> = (0..g.slots()).map(|s| g.place(s)).map(|(j, i)| {
                let k = g.class(j, i);
                if i < rows && k < classes { d[(i, k)].into() } else { 0.0.into() }
            }).collect();
            let packed = b.engine.fresh(&packed, b.products.level_plan().labels()).unwrap();
            let gradient = b.products.gradient(&b.engine, &b.versions, &packed, rows, both(SCALE)).unwrap();
            let weights = decrypt_weights(&b.engine, &g, &gradient);
            let exact = reference::gradient(&b.x, &d).unwrap();
            proptest::prop_assert!(weights.max_difference(&exact) < 1e-10);
            let expanded = b.products.expand(&b.engine, &gradient, 1.0).unwrap();
            let logits = b.products.logits(&b.engine, &b.versions, &expanded).unwrap();
            let logits = packing::unpack_logits(&g, b.engine.values(&logits), rows).unwrap();
            proptest::prop_assert!(logits.max_difference(&reference::logits(&b.x, &exact).unwrap()) < 1e-9);
        }
    }
}

/// Rotations of the products that have keys, for 12 blocks of 10 classes.
#[test]
fn chained_rotations_need_few_keys() {
    let rotations = |plan| {
        let b = bench_of(plan, (32768, 1024, 768, 10), 1024, 1.0);
        let level_plan = b.products.level_plan();
        let fresh = |level| b.engine.fresh(&vec![0.0.into(); 32768], level).unwrap();
        let gradient =
            b.products.gradient(&b.engine, &b.versions, &fresh(level_plan.labels()), 1024, both(1.0)).unwrap();
        let expanded = b.products.expand(&b.engine, &gradient, 1.0).unwrap();
        b.products.logits(&b.engine, &b.versions, &expanded).unwrap();
        let counts = b.engine.take_op_counts();
        (counts.keys().rotations.len(), counts.count(OpKind::Rotation), counts.count(OpKind::HoistedRotation))
    };
    let found = KeyPlan::OFFERED.map(rotations);
    let expected = [(124, 80, 447), (16, 522, 21), (13, 543, 0)];
    assert_eq!(found, expected, "keys, rotations, rotations that share digits");
}

#[test]
fn weights_come_back_as_they_were_packed() {
    for (slots, rows, features, classes) in SHAPES {
        let g = Geometry::new(slots, rows, features, classes).unwrap();
        let w = Random(3).matrix(classes, features + 1, 1.0);
        let packed = packing::weights(&g, &w).unwrap();
        assert_eq!(packing::unpack_weights(&g, &packed).unwrap(), w);
    }
}

#[test]
fn wrong_shapes_are_errors() {
    let b = bench(1024, 64, 64, 30, 3, 1.0);
    let g = b.products.geometry();
    assert!(matches!(packing::features(g, &Matrix::zeros(65, 30)), Err(Error::Shape { .. })));
    assert!(matches!(packing::features(g, &Matrix::zeros(64, 29)), Err(Error::Shape { .. })));
    assert!(matches!(packing::weights(g, &Matrix::zeros(3, 30)), Err(Error::Shape { .. })));
    assert!(matches!(packing::labels(g, &[0; 65]), Err(Error::Shape { .. })));
    assert_eq!(packing::labels(g, &[0, 3]), Err(Error::Label { row: 1, label: 3, classes: 3 }));
    assert!(packing::unpack_weights(g, &[[]]).is_err());
    assert!(matches!(packing::unpack_weights(g, &[[]; 0]), Err(Error::Shape { .. })));
    assert!(matches!(b.products.expand(&b.engine, &[], 1.0), Err(Error::Shape { .. })));
    let d = b.versions[0][0].clone();
    let missing = b.products.gradient(&b.engine, &b.versions[1..].to_vec(), &d, 64, both(1.0));
    assert!(matches!(missing, Err(Error::Shape { .. })));
    assert!(Products::new(&Clear::new(2048, 13), *g, LevelPlan::lowest(), 1.0).is_err());
}
