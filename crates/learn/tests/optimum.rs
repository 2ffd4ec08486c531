//! Trainings with row weights and L2 on one full batch end at the optimum of scikit-learn's
//! `LogisticRegression`.
#![allow(clippy::unwrap_used)]

mod common;

use common::{decrypt_weights, encrypt_model, encrypt_weighted};
use hetal_circuits::{Clear, Engine};
use hetal_learn::agreement::initial_weights;
use hetal_learn::nesterov::StepSize;
use hetal_learn::softmax::Constants;
use hetal_learn::trainer::Trainer;
use hetal_learn::{Geometry, LevelPlan, Matrix};

/// A problem and its optimum, made by `crates/experiments/scripts/logistic_regression.py`.
#[derive(serde::Deserialize)]
struct Case {
    x: Vec<Vec<f64>>,
    labels: Vec<usize>,
    weights: Option<Vec<f64>>,
    alpha: f64,
    /// Classes x features + 1.
    optimum: Vec<Vec<f64>>,
}

fn matrix(rows: &[Vec<f64>]) -> Matrix {
    Matrix::new(rows.len(), rows[0].len(), rows.concat()).unwrap()
}

fn trained(case: &Case, steps: usize) -> Matrix {
    let (x, classes) = (matrix(&case.x), case.optimum.len());
    let engine = Clear::new(1024, 13);
    let g = Geometry::new(engine.slots(), x.rows(), x.columns(), classes).unwrap();
    let level_plan = if case.weights.is_some() { LevelPlan::weighted() } else { LevelPlan::lowest() };
    let constants = Constants::for_plan(classes, 32.0, level_plan).unwrap();
    let trainer = Trainer::new(&engine, g, level_plan, constants).unwrap();
    let batch = encrypt_weighted(&engine, &trainer, &x, &case.labels, case.weights.as_deref());
    let mut model = encrypt_model(&engine, &g, level_plan, &initial_weights(classes, x.columns(), 1));
    for _ in 0..steps {
        model = trainer.step(&engine, &model, &batch, StepSize { rate: 1.0, alpha: case.alpha }).unwrap();
        if model.needs_refresh() {
            model = trainer.refresh(&engine, &model).unwrap();
        }
    }
    if !model.recursion.has_plain_weights() {
        model = trainer.refresh(&engine, &model).unwrap();
    }
    decrypt_weights(&engine, &g, &model.weights)
}

#[test]
fn weighted_trainings_with_l2_reach_the_optimum() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("optimum/cases.json")).unwrap();
    for (number, case) in cases.iter().enumerate() {
        let (weights, optimum) = (trained(case, 400), matrix(&case.optimum));
        let difference = weights.max_difference(&optimum) / optimum.max_magnitude();
        println!("case {number}: {difference:.1e} of the largest coefficient");
        assert!(difference < 1e-3, "case {number}: {difference:e}");
    }
}
