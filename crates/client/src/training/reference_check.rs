//! The plaintext reference: the same training without encryption, which the decrypted classifier is
//! compared with.

use crate::training::Round;
use crate::{Result, TrainingData};
use hetal_learn::agreement::initial_weights;
use hetal_learn::nesterov::{Momentum, StepSize};
use hetal_learn::reference::ReferenceModel;
use hetal_learn::{Matrix, Verdict, softmax};

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
}

/// Trains without encryption under the verdicts that were given. Returns the weights at the end of
/// accepted epoch number `epoch`, counted from 1.
pub fn train(data: &TrainingData, config: &ReferenceConfig, rounds: &[Round], epoch: usize) -> Result<Option<Matrix>> {
    let set = &data.training;
    let mut model = ReferenceModel::new(initial_weights(set.classes(), data.features(), config.seed), config.momentum);
    let (mut rate, mut accepted) = (config.rate, 0);
    for round in rounds {
        let start = model.clone();
        for rows in set.batches(config.batch)? {
            let labels = &set.labels()[rows.clone()];
            let weights = data.row_weights.as_ref().map(|weights| &weights[rows.clone()]);
            let size = StepSize { rate, alpha: config.alpha };
            model.weighted_step(&set.features().slice(rows), labels, weights, size, softmax::exact)?;
        }
        model.prepare_for_judgement();
        match round.verdict {
            Verdict::Continue | Verdict::Stop => accepted += usize::from(round.accepted),
            Verdict::LowerRate => (model, rate) = (start, rate * config.lowering),
            Verdict::WidenRange => model = start,
        }
        if accepted == epoch {
            return Ok(Some(model.weights().clone()));
        }
    }
    Ok(None)
}
