//! The options of a training.

use crate::{KeyPlanWish, RowFormWish, rpc};
use hetal_learn::Wishes;
use std::time::Duration;

/// Options of a training.
#[derive(Clone, Debug)]
pub struct TrainingOptions {
    /// The name of the training and of its model.
    pub name: String,
    /// The hyper-parameters to ask the server for.
    pub wishes: Wishes,
    /// The form of the encrypted rows.
    pub row_form: RowFormWish,
    /// How many keys are sent.
    pub key_plan: KeyPlanWish,
    /// Whether to repeat the training without encryption and compare the result.
    pub verify: bool,
    /// Whether an existing model or training of this name may be replaced.
    pub replace: bool,
    /// Whether to use new keys instead of keys that were used before.
    pub fresh_keys: bool,
    /// Whether the passphrase of the project is meant for fresh keys, and does not open the current
    /// ones.
    pub relock: bool,
    /// The time between the arrival of logits and the verdict.
    pub verdict_delay: Duration,
    /// Whether to return an error when the server's GPU fails, instead of waiting until it works
    /// again.
    pub leave_resting: bool,
    /// The share of the logarithm of each class's prior that is subtracted from its bias, from 0 to
    /// 1. Rare classes are then predicted more often.
    pub prior: f64,
    /// The command that starts the training, for its report.
    pub command: Option<String>,
    /// The manifest of the feature extraction, which is stored in the model file.
    pub extraction: Option<serde_json::Value>,
}

impl TrainingOptions {
    /// The default options for a training of this name.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            wishes: Wishes::default(),
            row_form: RowFormWish::default(),
            key_plan: KeyPlanWish::default(),
            verify: false,
            replace: false,
            fresh_keys: false,
            relock: false,
            verdict_delay: rpc::VERDICT_DELAY,
            leave_resting: false,
            prior: 0.0,
            command: None,
            extraction: None,
        }
    }
}
