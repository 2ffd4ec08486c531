//! What is told about a training: steps as they happen, rounds, and the result.

use crate::Model;
use crate::rpc::JobProgress;
use hetal_learn::{Matrix, Verdict};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Something that is being done, for progress bars.
#[derive(Clone, Debug)]
pub enum ProgressEvent {
    /// The key set that is there is compared with its name, which takes as long as reading it.
    Comparing,
    /// Keys are made: how many of how many.
    Keys {
        /// Keys made.
        done: usize,
        /// All keys.
        total: usize,
    },
    /// Trainings of these names were interrupted with a key set that was replaced, and can only begin again.
    Stranded(Vec<String>),
    /// Batches are encrypted: how many of how many.
    Encrypting {
        /// Pieces encrypted.
        done: usize,
        /// All pieces.
        total: usize,
    },
    /// Keys are sent: bytes the server has, of all.
    SendingKeys {
        /// Bytes the server has.
        sent: u64,
        /// All bytes.
        total: u64,
    },
    /// Encrypted rows are sent: bytes the server has, of all.
    SendingRows {
        /// Bytes the server has.
        sent: u64,
        /// All bytes.
        total: u64,
    },
    /// The server has put the job in its queue.
    Queued,
    /// The server computes, on this engine.
    Started(String),
    /// The server's work is so far.
    Working(JobProgress),
    /// The epoch of this number, counted from 1 over all runs of the training, was judged.
    Judged {
        /// The number of the round, counted from 1.
        number: usize,
        /// The round.
        round: Round,
    },
    /// Exact training on this machine, to compare with.
    Checking,
}

/// An epoch that was judged.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// What the server was told.
    pub verdict: Verdict,
    /// Whether its weights count: logits in range, from a server that was believed.
    #[serde(default)]
    pub accepted: bool,
    /// Mean cross-entropy on the validation rows.
    pub loss: f64,
    /// Share of the validation rows that were right.
    pub accuracy: f64,
    /// The largest magnitude of a logit.
    pub largest: f64,
}

/// Where the time went, in seconds, summed over all runs of a training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Encrypting rows.
    pub encrypting: f64,
    /// Sending keys and rows.
    pub sending: f64,
    /// Waiting for the server, verdicts included.
    pub training: f64,
    /// Of it, iterations whose beginning and end were seen, and how many these were.
    pub iterations: IterationTime,
    /// Everything.
    pub all: f64,
}

/// The time of iterations whose beginning and end were seen. Project folders hold it as an array of two numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "(f64, u64)", into = "(f64, u64)")]
pub struct IterationTime {
    /// Their seconds.
    pub seconds: f64,
    /// How many these were.
    pub count: u64,
}

impl From<(f64, u64)> for IterationTime {
    fn from((seconds, count): (f64, u64)) -> Self {
        Self { seconds, count }
    }
}

impl From<IterationTime> for (f64, u64) {
    fn from(IterationTime { seconds, count }: IterationTime) -> Self {
        (seconds, count)
    }
}

/// Payload bytes that were sent. Project folders hold it as an array of two numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct SentBytes {
    /// Of keys.
    pub keys: u64,
    /// Of rows.
    pub rows: u64,
}

impl From<(u64, u64)> for SentBytes {
    fn from((keys, rows): (u64, u64)) -> Self {
        Self { keys, rows }
    }
}

impl From<SentBytes> for (u64, u64) {
    fn from(SentBytes { keys, rows }: SentBytes) -> Self {
        (keys, rows)
    }
}

/// A training that has ended well.
pub struct Trained {
    /// The classifier.
    pub model: Model,
    /// Where it was saved.
    pub path: PathBuf,
    /// Every epoch that was judged.
    pub rounds: Vec<Round>,
    /// Exact training: its weights for normalised features, where the server told enough.
    pub reference: Option<Matrix>,
    /// The largest difference to the twin's weights over their largest magnitude.
    pub difference: Option<f64>,
    /// Bytes of the key set.
    pub key_bytes: u64,
    /// Bytes of all encrypted rows.
    pub row_bytes: u64,
    /// Payload bytes that really left, of keys and of rows: fewer where the server had them.
    pub sent: SentBytes,
    /// Where the time went.
    pub seconds: Seconds,
    /// Seconds the keys took when they were made.
    pub key_seconds: f64,
}
