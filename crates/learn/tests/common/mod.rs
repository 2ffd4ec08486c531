//! Random batches and the walk from plain matrices through `Clear` and back.
#![allow(clippy::unwrap_used, dead_code)]

use hetal_circuits::Clear;
use hetal_circuits::clear::Ciphertext;
use hetal_learn::trainer::{Batch, ModelState, Trainer};
use hetal_learn::{Geometry, LevelPlan, Matrix, nesterov::Momentum, packing};

/// A small deterministic generator (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [-1, 1).
    pub fn signed(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    pub fn matrix(&mut self, rows: usize, columns: usize, size: f64) -> Matrix {
        Matrix::from_fn(rows, columns, |_, _| size * self.signed())
    }

    pub fn labels(&mut self, rows: usize, classes: usize) -> Vec<usize> {
        (0..rows).map(|_| (self.next() % classes as u64) as usize).collect()
    }

    /// Rows around one centre per class, with their labels.
    pub fn clusters(&mut self, rows: usize, features: usize, classes: usize) -> (Matrix, Vec<usize>) {
        let centres = self.matrix(classes, features, 0.2);
        let labels = self.labels(rows, classes);
        let x = Matrix::from_fn(rows, features, |i, h| centres[(labels[i], h)] + 0.5 * self.signed());
        (x, labels)
    }
}

pub fn encrypt_batch(engine: &Clear, trainer: &Trainer<Clear>, x: &Matrix, labels: &[usize]) -> Batch<Ciphertext> {
    encrypt_weighted(engine, trainer, x, labels, None)
}

pub fn encrypt_weighted(
    engine: &Clear,
    trainer: &Trainer<Clear>,
    x: &Matrix,
    labels: &[usize],
    row_weights: Option<&[f64]>,
) -> Batch<Ciphertext> {
    let (g, level_plan) = (trainer.products().geometry(), trainer.products().level_plan());
    let features: Vec<_> = packing::features(g, x)
        .unwrap()
        .iter()
        .map(|block| engine.fresh(block, level_plan.fresh_features()).unwrap())
        .collect();
    let labels = packing::weighted_labels(g, labels, row_weights).unwrap();
    let labels = engine.fresh(&labels, level_plan.labels()).unwrap();
    let row_weights = row_weights
        .map(|weights| engine.fresh(&packing::row_weights(g, weights).unwrap(), level_plan.row_weights()).unwrap());
    Batch { row_weights, ..trainer.batch(engine, &features, labels, x.rows()).unwrap() }
}

pub fn encrypt_model(engine: &Clear, g: &Geometry, level_plan: LevelPlan, weights: &Matrix) -> ModelState<Ciphertext> {
    ModelState::new(encrypt_weights(engine, g, level_plan, weights), Momentum::Nesterov)
}

pub fn encrypt_weights(engine: &Clear, g: &Geometry, level_plan: LevelPlan, weights: &Matrix) -> Vec<Ciphertext> {
    packing::weights(g, weights).unwrap().iter().map(|part| engine.fresh(part, level_plan.weights()).unwrap()).collect()
}

pub fn decrypt_weights(engine: &Clear, g: &Geometry, weights: &[Ciphertext]) -> Matrix {
    let parts: Vec<_> = weights.iter().map(|part| engine.values(part)).collect();
    packing::unpack_weights(g, &parts).unwrap()
}
