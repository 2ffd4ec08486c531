//! The same iterations under real encryption.
#![allow(clippy::unwrap_used)]

mod common;

use common::Random;
use hetal_circuits::{Bootstrapper, Encrypted, Engine, Sealed, encrypted};
use hetal_ckks::{Complex64, EvaluationKeys};
use hetal_learn::nesterov::Momentum;
use hetal_learn::softmax::{self, Constants};
use hetal_learn::trainer::{self, Model, Trainer};
use hetal_learn::twin::Twin;
use hetal_learn::{Geometry, Ledger, Matrix, packing};
use hetal_ring::{Poly, RnsRing};
use hetal_testkit::Client;

/// A client and the server's engine with the keys for one geometry.
struct Parties {
    client: Client,
    engine: Encrypted<RnsRing>,
}

const LOG_MOMENTUM_BOUND: u32 = 0;

impl Parties {
    fn new(set: &str, g: Geometry, ledger: Ledger, constants: &Constants) -> Self {
        let client = Client::new(set, 7);
        let needs = trainer::keys(g, ledger, constants.clone(), client.params.top_level()).unwrap();
        let mut keys = EvaluationKeys::default();
        client.add_keys(&mut keys, encrypted::keys(&client.params, &needs));
        let evaluator = Client::new(set, 7).evaluator;
        let bootstrapper = Bootstrapper::new(&client.evaluator, &needs.bounds).unwrap();
        Self { client, engine: Encrypted::new(evaluator, keys, bootstrapper) }
    }

    fn encrypt(&self, values: &[Complex64], level: usize) -> Sealed<Poly> {
        self.engine.admit(self.client.encrypt(values, level)).unwrap()
    }
}

#[test]
fn encrypted_iterations_follow_exact_training() {
    let (slots, rows, used, features, classes, steps) = (1024, 64, 61, 30, 3, 3);
    let g = Geometry::new(slots, rows, features, classes).unwrap();
    let (ledger, constants) = (Ledger::lowest(), Constants::built_in(classes, 128.0).unwrap());
    let parties = Parties::new("insecure-toy11", g, ledger, &constants);
    let engine = &parties.engine;
    let trainer = Trainer::new(engine, g, ledger, constants, LOG_MOMENTUM_BOUND).unwrap();
    let mut random = Random(5);
    let (x, labels) = random.clusters(used, features, classes);
    let initial = random.matrix(classes, features + 1, 0.01);

    let blocks: Vec<_> = packing::features(&g, &x)
        .unwrap()
        .iter()
        .map(|block| parties.encrypt(block, ledger.fresh_features()))
        .collect();
    let sealed_labels = parties.encrypt(&packing::labels(&g, &labels).unwrap(), ledger.probabilities());
    let batch = trainer.batch(engine, &blocks, sealed_labels, used).unwrap();
    let start = parties.encrypt(&packing::weights(&g, &initial).unwrap(), ledger.weights());
    let mut model = Model::new(start, Momentum::Nesterov);
    let mut exact = Twin::new(initial, Momentum::Nesterov);
    for step in 1..=steps {
        model = trainer.step(engine, &model, &batch, 1.0).unwrap();
        if step == 2 {
            model = trainer.refresh(engine, &model).unwrap();
        }
        exact.step(&x, &labels, 1.0, softmax::exact).unwrap();
        let weights = opened(&parties, &g, &model.weights);
        let error = weights.max_difference(exact.weights()) / exact.weights().max_magnitude();
        println!("step {step}: relative difference of weights {error:.2e}");
        assert!(error < 1e-4, "step {step}: {error:e}");
        assert_eq!(engine.level(&model.weights), ledger.weights());
    }
}

fn opened(parties: &Parties, g: &Geometry, ct: &Sealed<Poly>) -> Matrix {
    packing::unpack_weights(g, &parties.client.decrypt(ct.inner())).unwrap()
}
