//! The text of checkpoints, as the state keeps it. `training` decides what is saved and when.

use crate::{Error, Result};
use hetal_learn::session::CheckpointRecord;
use hetal_wire::BlobName;
use serde::{Deserialize, Serialize};

/// Everything needed to resume a training.
#[derive(Serialize, Deserialize)]
pub struct Checkpoint {
    /// The session without its ciphertexts.
    pub session: CheckpointRecord,
    /// Names of the ciphertexts, in the session's order.
    pub ciphertexts: Vec<String>,
    pub iterations: u64,
    /// Rounds so far.
    pub round: u32,
    /// Whether the last round still needs its verdict.
    pub asked: bool,
}

impl Checkpoint {
    /// The checkpoint as the state keeps it.
    pub fn to_text(&self) -> Result<String> {
        serde_json::to_string(self).map_err(Error::failed)
    }

    /// Parses a checkpoint. Also returns the names of its ciphertexts.
    pub fn parse(text: &str) -> Result<(Self, Vec<BlobName>)> {
        let broken = |e: &dyn std::fmt::Display| Error::failed(format!("invalid checkpoint: {e}"));
        let checkpoint: Self = serde_json::from_str(text).map_err(|e| broken(&e))?;
        let names = checkpoint.ciphertexts.iter().map(|name| name.parse().map_err(|e| broken(&e)));
        let names = names.collect::<Result<_>>()?;
        Ok((checkpoint, names))
    }
}
