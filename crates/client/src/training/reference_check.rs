//! The plaintext reference: the same training without encryption, which the decrypted classifier is
//! compared with.

use crate::training::Round;
use crate::{Result, TrainingData};
use hetal_learn::agreement::initial_weights;
use hetal_learn::nesterov::{Momentum, StepSize};
use hetal_learn::reference::ReferenceModel;
use hetal_learn::{Agreement, AgreementLimits, Matrix, Verdict, softmax};

/// The hyper-parameters of the plaintext reference. A server may hide them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReferenceConfig {
    /// Rows of a batch.
    pub batch: usize,
    /// The initial learning rate.
    pub rate: f64,
    /// The factor by which the verdict "lower the rate" multiplies it.
    pub lowering: f64,
    /// The momentum method.
    pub momentum: Momentum,
    /// The seed of the initial weights.
    pub seed: u64,
    /// The factor of `|W|^2 / 2` in the loss.
    pub alpha: f64,
    /// The most epochs.
    pub max_epochs: usize,
    /// Iterations between two checks.
    pub check_every: usize,
}

impl ReferenceConfig {
    /// The iterations up to an accepted check.
    fn iterations_until(&self, check: usize, batches: usize) -> usize {
        let Self { max_epochs, check_every, .. } = *self;
        let agreement = Agreement { max_epochs, check_every, ..AgreementLimits::default().defaults };
        agreement.iterations_until(check, batches)
    }
}

/// Trains without encryption under the verdicts that were given. Returns the weights at accepted
/// check number `check`, counted from 1.
pub fn train(data: &TrainingData, config: &ReferenceConfig, rounds: &[Round], check: usize) -> Result<Option<Matrix>> {
    let set = &data.training;
    let mut model = ReferenceModel::new(initial_weights(set.classes(), data.features(), config.seed), config.momentum);
    let batches = set.batches(config.batch)?;
    let (mut rate, mut accepted, mut iteration) = (config.rate, 0, 0);
    let mut start = (model.clone(), iteration);
    for round in rounds {
        while iteration < config.iterations_until(accepted + 1, batches.len()) {
            let rows = batches[iteration % batches.len()].clone();
            let labels = &set.labels()[rows.clone()];
            let weights = data.row_weights.as_ref().map(|weights| &weights[rows.clone()]);
            let size = StepSize { rate, alpha: config.alpha };
            model.weighted_step(&set.features().slice(rows), labels, weights, size, softmax::exact)?;
            iteration += 1;
        }
        model.prepare_for_judgement();
        match round.verdict {
            Verdict::Continue | Verdict::Stop => {
                accepted += usize::from(round.accepted);
                start = (model.clone(), iteration);
            }
            Verdict::LowerRate => {
                (model, iteration) = start.clone();
                rate *= config.lowering;
            }
            Verdict::WidenRange => (model, iteration) = start.clone(),
        }
        if accepted == check {
            return Ok(Some(model.weights().clone()));
        }
    }
    Ok(None)
}
