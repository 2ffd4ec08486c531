//! Whole iterations on `Clear` against exact training.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Random, decrypt_weights, encrypt_batch, encrypt_model, encrypt_weighted};
use hetal_circuits::clear::{Noise, OpKind};
use hetal_circuits::{Clear, Complex64, Engine};
use hetal_learn::agreement::{centre_over_classes, initial_weights};
use hetal_learn::nesterov::{Momentum, StepSize};
use hetal_learn::reference::ReferenceModel;
use hetal_learn::softmax::{self, Constants, Sharpen};
use hetal_learn::trainer::{self, Trainer};
use hetal_learn::{Geometry, LevelPlan};

const TOP: usize = 13;
const RANGE: f64 = 32.0;

/// Largest differences of weights after training, relative to the largest weight.
#[derive(Debug)]
struct Differences {
    /// To exact training.
    exact: f64,
    /// To plain training with the same approximate softmax.
    alike: f64,
}

/// `steps` steps on `Clear` and in the references, on one batch of `used` rows.
fn train(engine: &Clear, rows: usize, used: usize, features: usize, classes: usize, steps: usize) -> Differences {
    let g = Geometry::new(engine.slots(), rows, features, classes).unwrap();
    let (level_plan, constants) = (LevelPlan::lowest(), Constants::built_in(classes, RANGE).unwrap());
    let trainer = Trainer::new(engine, g, level_plan, constants.clone()).unwrap();
    let mut random = Random(5);
    let (x, labels) = random.clusters(used, features, classes);
    let batch = encrypt_batch(engine, &trainer, &x, &labels);
    let mut initial = random.matrix(classes, features + 1, 0.01);
    centre_over_classes(&mut initial);
    let mut model = encrypt_model(engine, &g, level_plan, &initial);
    let mut exact = ReferenceModel::new(initial.clone(), Momentum::Nesterov);
    let mut alike = ReferenceModel::new(initial, Momentum::Nesterov);
    engine.take_op_counts();
    for _ in 0..steps {
        model = trainer.step(engine, &model, &batch, StepSize::of(1.0)).unwrap();
        if model.needs_refresh() {
            model = trainer.refresh(engine, &model).unwrap();
        }
        exact.step(&x, &labels, StepSize::of(1.0), softmax::exact).unwrap();
        alike.step(&x, &labels, StepSize::of(1.0), |row| constants.evaluate(row)).unwrap();
    }
    let weights = decrypt_weights(engine, &g, &model.weights);
    let difference =
        |reference: &ReferenceModel| weights.max_difference(reference.weights()) / reference.weights().max_magnitude();
    Differences { exact: difference(&exact), alike: difference(&alike) }
}

#[test]
fn small_shapes_follow_exact_training() {
    for (slots, rows, used, features, classes, exact) in [
        (1024, 64, 64, 30, 3, 1e-6),
        (2048, 64, 64, 30, 5, 1e-6),
        (1024, 64, 50, 31, 3, 1e-6),
        (4096, 128, 100, 64, 7, 1e-6),
        (2048, 64, 61, 9, 10, 1e-6),
        // Classifiers of 2, 4 and 3 ciphertexts. Few rows of many features: steps are longer, and
        // so are the softmax's errors.
        (1024, 16, 13, 300, 5, 2e-5),
        (1024, 32, 30, 400, 12, 2e-5),
        (1024, 64, 64, 600, 5, 2e-5),
    ] {
        let d = train(&Clear::new(slots, TOP), rows, used, features, classes, 4);
        assert!(d.exact < exact && d.alike < 1e-9, "{rows} x {features} x {classes}: {d:?}");
    }
}

/// The widest classifiers that there are constants for, each beyond one ciphertext of 32768 slots.
#[test]
fn wide_classifiers_follow_exact_training() {
    for (rows, features, classes, parts) in [(256, 768, 128, 2), (512, 2048, 64, 3)] {
        assert_eq!(Geometry::new(32768, rows, features, classes).unwrap().parts(), parts);
        let d = train(&Clear::new(32768, TOP), rows, rows - 5, features, classes, 2);
        println!("{rows} x {features} x {classes}: {d:?}");
        assert!(d.exact < 2e-5 && d.alike < 1e-9, "{rows} x {features} x {classes}: {d:?}");
    }
}

/// Momentum divided by its scale, over many steps and a refresh, is still Nesterov's.
#[test]
fn refreshes_do_not_disturb_the_momentum() {
    let engine = Clear::new(1024, TOP);
    let d = train(&engine, 64, 64, 12, 3, 80);
    assert!(d.exact < 1e-6 && d.alike < 1e-9, "{d:?}");
    // A precise bootstrap is two.
    assert_eq!(engine.op_counts().count(OpKind::Bootstrap), 2 * 80 + 2);
}

#[test]
fn training_tolerates_the_noise_of_bootstraps() {
    let (encryption, operation) = (libm::ldexp(1.0, -28), libm::ldexp(1.0, -28));
    let noise = Noise { encryption, operation, bootstrap: libm::ldexp(1.0, -22), seed: 1, ..Noise::default() };
    let d = train(&Clear::with_noise(2048, TOP, noise), 64, 64, 30, 5, 20);
    assert!(d.exact < 1e-3, "{d:?}");
}

/// Noise stays small over hundreds of steps: no slot keeps a copy of another that could drift away
/// from it.
#[test]
fn noise_does_not_grow_over_a_long_training() {
    let (encryption, operation) = (libm::ldexp(1.0, -30), libm::ldexp(1.0, -30));
    let noise = Noise { encryption, operation, bootstrap: libm::ldexp(1.0, -25), seed: 2, ..Noise::default() };
    let d = train(&Clear::with_noise(1024, TOP, noise), 64, 60, 12, 3, 400);
    assert!(d.alike < 1e-4, "{d:?}");
}

/// A thousand iterations with noise stay near the same recursion on plain numbers, also when the
/// range is widened in the middle. Labels are random, so the optimum is finite.
#[test]
fn a_thousand_iterations_stay_bounded() {
    let (encryption, operation) = (libm::ldexp(1.0, -30), libm::ldexp(1.0, -30));
    let noise = Noise { encryption, operation, bootstrap: libm::ldexp(1.0, -25), seed: 3, ..Noise::default() };
    let engine = Clear::with_noise(1024, TOP, noise);
    let (rows, features, classes) = (64, 8, 3);
    let g = Geometry::new(1024, rows, features, classes).unwrap();
    let trainers = [RANGE, 128.0].map(|range| {
        Trainer::new(&engine, g, LevelPlan::lowest(), Constants::built_in(classes, range).unwrap()).unwrap()
    });
    let mut random = Random(8);
    let (x, labels) = (random.matrix(rows, features, 1.0), random.labels(rows, classes));
    let batch = encrypt_batch(&engine, &trainers[0], &x, &labels);
    let initial = initial_weights(classes, features, 1);
    let mut model = encrypt_model(&engine, &g, LevelPlan::lowest(), &initial);
    let mut exact = ReferenceModel::new(initial, Momentum::Nesterov);
    for step in 0..1000 {
        let trainer = &trainers[step / 500];
        model = trainer.step(&engine, &model, &batch, StepSize::of(1.0)).unwrap();
        if model.needs_refresh() {
            model = trainer.refresh(&engine, &model).unwrap();
        }
        exact.step(&x, &labels, StepSize::of(1.0), softmax::exact).unwrap();
        if step % 100 == 99 {
            // The mean of the classes drifts with the noise; it changes no prediction.
            let mut weights = decrypt_weights(&engine, &g, &model.weights);
            let drift = weights.max_difference(exact.weights());
            centre_over_classes(&mut weights);
            let difference = weights.max_difference(exact.weights()) / exact.weights().max_magnitude();
            assert!(difference < 2e-5 && drift < 1e-2, "step {step}: {difference:e} {drift:e}");
        }
    }
}

/// Row weights and L2 on `Clear`, beside the same recursion on plain numbers.
fn train_weighted(engine: &Clear, classes: usize, alpha: f64, weighted: bool, steps: usize) -> Differences {
    let (rows, features, size) = (64, 30, StepSize { rate: 1.0, alpha });
    let g = Geometry::new(engine.slots(), rows, features, classes).unwrap();
    let level_plan = if weighted { LevelPlan::weighted() } else { LevelPlan::lowest() };
    let constants = Constants::for_plan(classes, RANGE, level_plan).unwrap();
    let trainer = Trainer::new(engine, g, level_plan, constants.clone()).unwrap();
    let mut random = Random(6);
    let (x, labels) = random.clusters(rows, features, classes);
    let row_weights: Option<Vec<f64>> = weighted.then(|| (0..rows).map(|i| 0.25 * (i % 7) as f64).collect());
    let batch = encrypt_weighted(engine, &trainer, &x, &labels, row_weights.as_deref());
    let mut initial = random.matrix(classes, features + 1, 0.01);
    centre_over_classes(&mut initial);
    let mut model = encrypt_model(engine, &g, level_plan, &initial);
    let mut exact = ReferenceModel::new(initial.clone(), Momentum::Nesterov);
    let mut alike = ReferenceModel::new(initial, Momentum::Nesterov);
    for _ in 0..steps {
        model = trainer.step(engine, &model, &batch, size).unwrap();
        if model.needs_refresh() {
            model = trainer.refresh(engine, &model).unwrap();
        }
        exact.weighted_step(&x, &labels, row_weights.as_deref(), size, softmax::exact).unwrap();
        alike.weighted_step(&x, &labels, row_weights.as_deref(), size, |row| constants.evaluate(row)).unwrap();
    }
    if !model.recursion.has_plain_weights() {
        model = trainer.refresh(engine, &model).unwrap();
    }
    let weights = decrypt_weights(engine, &g, &model.weights);
    let difference =
        |reference: &ReferenceModel| weights.max_difference(reference.weights()) / reference.weights().max_magnitude();
    Differences { exact: difference(&exact), alike: difference(&alike) }
}

#[test]
fn row_weights_and_l2_follow_exact_training() {
    for (classes, alpha, weighted) in [
        (3, 0.0, true),
        (3, 1e-3, false),
        (7, 0.01, true),
        (8, 0.0, true),
        (10, 0.0, true),
        (10, 0.1, true),
        (2, 0.01, true),
        (12, 1e-4, true),
        (16, 0.0, true),
        (16, 1e-4, true),
        (16, 0.0, false),
    ] {
        let d = train_weighted(&Clear::new(2048, TOP), classes, alpha, weighted, 20);
        println!("{classes} classes, alpha {alpha}, {weighted}: {d:?}");
        assert!(d.exact < 1e-5 && d.alike < 1e-9, "{classes} classes, alpha {alpha}, {weighted}: {d:?}");
    }
}

/// Weighted rows take one bootstrap more for two classes only, and L2 none.
#[test]
fn row_weights_and_l2_cost_no_bootstrap() {
    for (classes, weighted, expected) in
        [(2, false, 1), (2, true, 2), (3, true, 2), (10, true, 2), (16, false, 2), (12, true, 2), (16, true, 2)]
    {
        for alpha in [0.0, 0.01] {
            let engine = Clear::new(2048, TOP);
            let range = hetal_learn::judge::first_range(RANGE, classes, weighted);
            let g = Geometry::new(2048, 64, 30, classes).unwrap();
            let level_plan = if weighted { LevelPlan::weighted() } else { LevelPlan::lowest() };
            let constants = Constants::for_plan(classes, range, level_plan).unwrap();
            let trainer = Trainer::new(&engine, g, level_plan, constants).unwrap();
            let (x, labels) = Random(6).clusters(64, 30, classes);
            let row_weights = vec![1.0; 64];
            let batch = encrypt_weighted(&engine, &trainer, &x, &labels, weighted.then_some(&row_weights[..]));
            let model = encrypt_model(&engine, &g, level_plan, &Random(1).matrix(classes, 31, 0.0));
            engine.take_op_counts();
            trainer.step(&engine, &model, &batch, StepSize { rate: 1.0, alpha }).unwrap();
            let found = engine.take_op_counts().count(OpKind::Bootstrap);
            assert_eq!(found, expected, "{classes} classes, weighted {weighted}, alpha {alpha}");
        }
    }
}

/// A softmax without a division has no place for weights of rows; one with a division does without
/// them.
#[test]
fn weights_of_rows_need_their_own_plan() {
    let (g, (x, labels)) = (Geometry::new(2048, 64, 30, 3).unwrap(), Random(6).clusters(64, 30, 3));
    let engine = Clear::new(2048, TOP);
    let step = |level_plan: LevelPlan, row_weights: Option<&[f64]>| {
        let constants = Constants::for_plan(3, RANGE, level_plan).unwrap();
        let trainer = Trainer::new(&engine, g, level_plan, constants).unwrap();
        let batch = encrypt_weighted(&engine, &trainer, &x, &labels, row_weights);
        let model = encrypt_model(&engine, &g, level_plan, &Random(1).matrix(3, 31, 0.01));
        let next = trainer.step(&engine, &model, &batch, StepSize::of(1.0))?;
        Ok::<_, hetal_learn::Error>(decrypt_weights(&engine, &g, &next.weights))
    };
    let refused = step(LevelPlan::lowest(), Some(&[1.0; 64]));
    assert!(matches!(refused, Err(hetal_learn::Error::Constants(_))));
    let ordinary = step(LevelPlan::lowest(), None).unwrap();
    for row_weights in [None, Some(&[1.0; 64][..])] {
        let difference = step(LevelPlan::weighted(), row_weights).unwrap().max_difference(&ordinary);
        assert!(difference < 1e-6, "{difference:e}");
    }
}

/// Two classes with one polynomial.
#[test]
fn two_classes_follow_exact_training() {
    let engine = Clear::new(1024, TOP);
    let g = Geometry::new(1024, 64, 30, 2).unwrap();
    let constants = Constants::built_in(2, 16.0).unwrap();
    let trainer = Trainer::new(&engine, g, LevelPlan::lowest(), constants).unwrap();
    let mut random = Random(5);
    let (x, labels) = random.clusters(64, 30, 2);
    let batch = encrypt_batch(&engine, &trainer, &x, &labels);
    let mut initial = random.matrix(2, 31, 0.01);
    centre_over_classes(&mut initial);
    let mut model = encrypt_model(&engine, &g, LevelPlan::lowest(), &initial);
    let mut exact = ReferenceModel::new(initial, Momentum::Nesterov);
    for _ in 0..20 {
        model = trainer.step(&engine, &model, &batch, StepSize::of(1.0)).unwrap();
        if model.needs_refresh() {
            model = trainer.refresh(&engine, &model).unwrap();
        }
        exact.step(&x, &labels, StepSize::of(1.0), softmax::exact).unwrap();
    }
    let weights = decrypt_weights(&engine, &g, &model.weights);
    let difference = weights.max_difference(exact.weights()) / exact.weights().max_magnitude();
    assert!(difference < 1e-5, "{difference:e}");
}

/// Bootstraps, key-switches and products of one iteration for every shape of the paper.
#[test]
fn paper_shapes_cost_what_the_design_says() {
    let shapes = [
        // rows, classes, key-switches of matrix products and of the softmax, products of matrices
        ("mnist", 1024, 10, 197, 50, 384),
        ("cifar10", 2048, 10, 312, 50, 768),
        ("facemask", 512, 3, 110, 38, 48),
        ("dermamnist and snips", 1024, 7, 184, 45, 192),
    ];
    for (name, rows, classes, matrices, softmax, products) in shapes {
        let engine = Clear::new(32768, TOP);
        let d = train(&engine, rows, rows - 5, 768, classes, 1);
        assert!(d.exact < 1e-6 && d.alike < 1e-9, "{name}: {d:?}");
        let iteration = engine.take_op_counts();
        let g = Geometry::new(32768, rows, 768, classes).unwrap();
        let constants = Constants::built_in(classes, RANGE).unwrap();
        let alone = Sharpen::new(&engine, constants, &g, LevelPlan::DEPTH).unwrap();
        alone.evaluate(&engine, &engine.fresh(&vec![Complex64::ZERO; 32768], 0).unwrap()).unwrap();
        let alone = engine.take_op_counts();
        assert_eq!((alone.key_switches(), alone.count(OpKind::Bootstrap)), (softmax, 2), "{name}");
        assert_eq!(iteration.key_switches(), matrices + softmax, "{name}");
        assert_eq!(iteration.count(OpKind::Product) - alone.count(OpKind::Product), products, "{name}");
        assert_eq!(iteration.count(OpKind::Bootstrap), 2, "{name}");
    }
}

#[test]
fn keys_are_those_an_iteration_uses() {
    let g = Geometry::new(2048, 64, 30, 5).unwrap();
    let keys = trainer::keys(g, LevelPlan::lowest(), Constants::built_in(5, RANGE).unwrap(), TOP).unwrap();
    assert_eq!(keys.conjugation, Some(LevelPlan::lowest().weights()));
    assert!(keys.relinearisation.unwrap() <= TOP);
    assert!(keys.rotations.iter().all(|&(k, level)| 0 < k && k < 2048 && level <= TOP));
    assert!(keys.rotations.len() > 20);
    // Of the momentum; of logits and of probabilities, which repeat after 64 rows of 8 classes.
    assert_eq!(keys.bounds.full, [0].into());
    assert_eq!(keys.bounds.periodic, [(512, 0), (512, 2)].into());
}

/// The keys of a session serve every range it may be widened to, and no more levels than one of
/// them asks for.
#[test]
fn keys_of_a_session_serve_every_range() {
    let (g, level_plan) = (Geometry::new(2048, 64, 30, 5).unwrap(), LevelPlan::lowest());
    let all = trainer::keys_of_session(g, level_plan, 32.0, TOP).unwrap();
    let each: Vec<_> = [32.0, 128.0, 512.0]
        .map(|range| trainer::keys(g, level_plan, Constants::built_in(5, range).unwrap(), TOP).unwrap())
        .into();
    for &(rotation, level) in &all.rotations {
        let levels = each.iter().flat_map(|keys| &keys.rotations).filter(|(k, _)| *k == rotation);
        assert_eq!(levels.map(|&(_, level)| level).max(), Some(level), "{rotation}");
    }
    for keys in &each {
        assert!(keys.rotations.iter().all(|(k, _)| all.rotations.iter().any(|(other, _)| other == k)));
        assert!(keys.relinearisation <= all.relinearisation);
        assert_eq!(all.bounds.clone().union(keys.bounds.clone()), all.bounds);
    }
    // Widening alone asks for less than starting narrow.
    assert_eq!(trainer::keys_of_session(g, level_plan, 512.0, TOP).unwrap(), each[2]);
}
