//! How to train.

use crate::rpc;
use hetal_learn::Wishes;
use std::time::Duration;

/// How to train.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of the training and of its model.
    pub name: String,
    /// What to ask the server for.
    pub wishes: Wishes,
    /// Whether to compare with exact training on this machine.
    pub check: bool,
    /// Whether a model of this name may be replaced.
    pub replace: bool,
    /// Whether to retire the keys that were used before.
    pub fresh_keys: bool,
    /// How long after the logits a verdict leaves.
    pub verdict_delay: Duration,
    /// Whether to leave, with an error, a server whose GPU fails, instead of waiting until it works again.
    pub leave_resting: bool,
    /// How the features were made, as their extractor wrote it down: goes into the model file.
    pub extraction: Option<serde_json::Value>,
}

impl Options {
    /// The usual, for a name.
    pub fn new(name: &str) -> Self {
        let (wishes, verdict_delay) = (Wishes::default(), rpc::VERDICT_DELAY);
        let (check, replace, fresh_keys, leave_resting, extraction) = (true, false, false, false, None);
        Self { name: name.to_owned(), wishes, check, replace, fresh_keys, verdict_delay, leave_resting, extraction }
    }
}
