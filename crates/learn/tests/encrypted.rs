//! The same iterations under real encryption.
#![allow(clippy::unwrap_used)]

mod common;

use common::Random;
use hetal_circuits::{Bootstrapper, Encrypted, Engine, KeyPlan, LeveledCiphertext, encrypted};
use hetal_ckks::{Complex64, EvaluationKeys};
use hetal_learn::agreement::{centre_over_classes, initial_weights};
use hetal_learn::driver::{Ended, EngineHost, drive};
use hetal_learn::nesterov::{LOG_WEIGHT_BOUND, Momentum, StepSize};
use hetal_learn::reference::{self, ReferenceModel};
use hetal_learn::session::CheckRequest;
use hetal_learn::softmax::{self, Constants};
use hetal_learn::trainer::{self, ModelState, Trainer};
use hetal_learn::{
    Agreement, AgreementLimits, CachedBatch, EncryptedPiece, Geometry, Judge, LevelPlan, Matrix, Result, Session,
    packing,
};
use hetal_ring::{Poly, RnsRing};
use hetal_testkit::TestOwner;
use std::ops::ControlFlow;

/// A client and the server's engine with the keys for one geometry.
struct Parties {
    client: TestOwner,
    engine: Encrypted<RnsRing>,
}

impl Parties {
    fn new(set: &str, g: Geometry, level_plan: LevelPlan, constants: &Constants) -> Self {
        let client = TestOwner::new(set, 7);
        let mut needs = trainer::keys(g, level_plan, constants.clone(), client.params.top_level()).unwrap();
        // With L2 the weights are refreshed too.
        needs.bounds.full.insert(LOG_WEIGHT_BOUND);
        let mut keys = EvaluationKeys::default();
        client.add_keys(&mut keys, encrypted::keys_with_plan(&client.params, &needs, level_plan.key_plan()));
        let evaluator = TestOwner::new(set, 7).evaluator;
        let bootstrapper = Bootstrapper::with_plan(&client.evaluator, &needs.bounds, level_plan.key_plan()).unwrap();
        Self { client, engine: Encrypted::new(evaluator, keys, bootstrapper) }
    }

    fn encrypt(&self, values: &[Complex64], level: usize) -> LeveledCiphertext<Poly> {
        self.engine.import(self.client.encrypt(values, level)).unwrap()
    }

    fn encrypt_weights(&self, g: &Geometry, level_plan: LevelPlan, weights: &Matrix) -> Vec<LeveledCiphertext<Poly>> {
        packing::weights(g, weights).unwrap().iter().map(|part| self.encrypt(part, level_plan.weights())).collect()
    }
}

#[test]
fn encrypted_iterations_follow_exact_training() {
    iterate(64, 61, 30, 3, 1, KeyPlan::Fast);
}

#[test]
fn fewer_keys_follow_exact_training_too() {
    [KeyPlan::Balanced, KeyPlan::Small].into_iter().for_each(|plan| iterate(64, 61, 30, 3, 1, plan));
}

/// A classifier in several ciphertexts.
#[test]
fn a_classifier_of_several_ciphertexts_follows_exact_training() {
    [KeyPlan::Fast, KeyPlan::Balanced].into_iter().for_each(|plan| iterate(32, 29, 400, 12, 4, plan));
}

/// Three steps and a refresh under encryption, beside the reference.
fn iterate(rows: usize, used: usize, features: usize, classes: usize, parts: usize, plan: KeyPlan) {
    let (slots, steps) = (1024, 3);
    let g = Geometry::new(slots, rows, features, classes).unwrap();
    assert_eq!(g.parts(), parts);
    let (level_plan, constants) = (LevelPlan::lowest().with_keys(plan), Constants::built_in(classes, 32.0).unwrap());
    let parties = Parties::new("insecure-toy11", g, level_plan, &constants);
    let engine = &parties.engine;
    let trainer = Trainer::new(engine, g, level_plan, constants).unwrap();
    let mut random = Random(5);
    let (x, labels) = random.clusters(used, features, classes);
    let mut initial = random.matrix(classes, features + 1, 0.01);
    centre_over_classes(&mut initial);

    let blocks: Vec<_> = packing::features(&g, &x)
        .unwrap()
        .iter()
        .map(|block| parties.encrypt(block, level_plan.fresh_features()))
        .collect();
    let sealed_labels = parties.encrypt(&packing::labels(&g, &labels).unwrap(), level_plan.labels());
    let batch = trainer.batch(engine, &blocks, sealed_labels, used).unwrap();
    let start = parties.encrypt_weights(&g, level_plan, &initial);
    let mut model = ModelState::new(start, Momentum::Nesterov);
    let mut exact = ReferenceModel::new(initial, Momentum::Nesterov);
    for step in 1..=steps {
        model = trainer.step(engine, &model, &batch, StepSize::of(1.0)).unwrap();
        exact.step(&x, &labels, StepSize::of(1.0), softmax::exact).unwrap();
        if step == 2 {
            model = trainer.refresh(engine, &model).unwrap();
            exact.refresh();
        }
        let weights = opened(&parties, &g, &model.weights);
        let error = weights.max_difference(exact.weights()) / exact.weights().max_magnitude();
        println!("{plan:?}, step {step}: relative difference of weights {error:.2e}");
        assert!(error < 1e-4, "step {step}: {error:e}");
        assert!(model.weights.iter().all(|part| engine.level(part) == level_plan.weights()));
    }
}

/// Row weights, L2 and a refresh of weights and momentum under encryption.
#[test]
fn weighted_rows_and_l2_follow_exact_training() {
    let (classes, features, rows) = (3, 30, 61);
    let g = Geometry::new(1024, 64, features, classes).unwrap();
    let level_plan = LevelPlan::weighted();
    let constants = Constants::for_plan(classes, 32.0, level_plan).unwrap();
    let parties = Parties::new("insecure-toy11", g, level_plan, &constants);
    let engine = &parties.engine;
    let trainer = Trainer::new(engine, g, level_plan, constants).unwrap();
    let mut random = Random(5);
    let (x, labels) = random.clusters(rows, features, classes);
    let row_weights: Vec<f64> = (0..rows).map(|i| 0.5 * (i % 4) as f64).collect();
    let seal = |values: Vec<Complex64>, level| parties.encrypt(&values, level);
    let blocks = packing::features(&g, &x).unwrap();
    let blocks: Vec<_> = blocks.into_iter().map(|block| seal(block, level_plan.fresh_features())).collect();
    let sealed_labels = packing::weighted_labels(&g, &labels, Some(&row_weights)).unwrap();
    let mut batch = trainer.batch(engine, &blocks, seal(sealed_labels, level_plan.labels()), rows).unwrap();
    let sealed_weights = packing::row_weights(&g, &row_weights).unwrap();
    batch.row_weights = Some(seal(sealed_weights, level_plan.row_weights()));
    let initial = initial_weights(classes, features, 1);
    let mut model = ModelState::new(parties.encrypt_weights(&g, level_plan, &initial), Momentum::Nesterov);
    let mut exact = ReferenceModel::new(initial, Momentum::Nesterov);
    let size = StepSize { rate: 1.0, alpha: 0.05 };
    for step in 1..=3 {
        model = trainer.step(engine, &model, &batch, size).unwrap();
        exact.weighted_step(&x, &labels, Some(&row_weights), size, softmax::exact).unwrap();
        assert!(!model.recursion.has_plain_weights());
        model = trainer.refresh(engine, &model).unwrap();
        exact.refresh();
        let weights = opened(&parties, &g, &model.weights);
        let error = weights.max_difference(exact.weights()) / exact.weights().max_magnitude();
        println!("step {step}: relative difference of weights {error:.2e}");
        assert!(error < 1e-3, "step {step}: {error:e}");
    }
}

/// A whole training to early stopping under encryption: the client's judge and the server's session
/// end where the exact reference does.
#[test]
fn encrypted_training_stops_early() {
    let (slots, rows, features, classes) = (1024, 64, 12, 3);
    let g = Geometry::new(slots, rows, features, classes).unwrap();
    let (level_plan, constants) = (LevelPlan::lowest(), Constants::built_in(classes, 32.0).unwrap());
    let parties = Parties::new("insecure-toy11", g, level_plan, &constants);
    let (engine, scale) = (&parties.engine, constants.scale);
    let trainer = Trainer::new(engine, g, level_plan, constants).unwrap();
    let (x, labels) = Random(21).clusters(180, features, classes);
    let upload = |r: std::ops::Range<usize>| {
        let blocks = packing::features(&g, &x.slice(r.clone())).unwrap();
        let blocks: Vec<_> = blocks.iter().map(|b| parties.encrypt(b, level_plan.fresh_features())).collect();
        let packed = packing::labels(&g, &labels[r.clone()]).unwrap();
        EncryptedPiece {
            features: blocks,
            labels: parties.encrypt(&packed, level_plan.labels()),
            row_weights: None,
            rows: r.len(),
        }
    };
    let ready = |u: EncryptedPiece<_>| trainer.batch(engine, &u.features, u.labels, u.rows).unwrap();
    // The last batch of training rows is shorter, and its versions are made again in every epoch.
    let batches = [CachedBatch::Prepared(ready(upload(0..64))), CachedBatch::Raw(upload(64..120))];
    let validation = ready(upload(120..180));
    let (patience, rate) = (1, 4.0);
    let agreement = Agreement { batch: 64, rate, patience, max_epochs: 12, ..AgreementLimits::default().defaults };
    let initial = initial_weights(classes, features, agreement.seed);
    let first = parties.encrypt_weights(&g, level_plan, &initial);
    let mut session = Session::new(agreement.clone(), batches.len(), first).unwrap();
    let mut judges = [Judge::new(patience, 32.0, 0), Judge::new(patience, 32.0, 0)];
    let mut exact = ReferenceModel::new(initial, agreement.momentum);
    let mut history = Vec::new();
    let ask = |session: &Session<_>, check: CheckRequest| -> Result<_> {
        let sealed = trainer.logits(engine, &validation.versions, session.weights()).unwrap();
        let opened = packing::unpack_logits(&g, &parties.client.decrypt(sealed.inner()), 60).unwrap();
        let logits = Matrix::from_fn(60, classes, |i, k| scale * opened[(i, k)]);
        let judgement = judges[0].judge(&logits, &labels[120..]).unwrap();
        for r in [0..64, 64..120] {
            exact.step(&x.slice(r.clone()), &labels[r], StepSize::of(rate), softmax::exact).unwrap();
        }
        history.push(exact.weights().clone());
        let plain = reference::logits(&x.slice(120..180), exact.weights()).unwrap();
        let expected = judges[1].judge(&plain, &labels[120..]).unwrap();
        assert_eq!((judgement.verdict, judgement.accuracy), (expected.verdict, expected.accuracy), "{check:?}");
        Ok(ControlFlow::Continue(judgement.verdict))
    };
    let mut host = EngineHost::new(engine, &batches[..], |_| Ok(&trainer), ask);
    assert_eq!(drive(&mut session, &mut host).unwrap(), Ended::Complete);
    drop(host);
    assert!(history.len() > 2 && history.len() < 12, "{} epochs", history.len());
    let best = judges[0].best_check().unwrap();
    let (_, weights) = session.kept().find(|(epoch, _)| *epoch == best).unwrap();
    let difference = opened(&parties, &g, weights).max_difference(&history[best - 1]);
    assert!(difference < 1e-4 * history[best - 1].max_magnitude(), "{difference:e}");
}

fn opened(parties: &Parties, g: &Geometry, weights: &[LeveledCiphertext<Poly>]) -> Matrix {
    let parts: Vec<_> = weights.iter().map(|part| parties.client.decrypt(part.inner())).collect();
    packing::unpack_weights(g, &parts).unwrap()
}
