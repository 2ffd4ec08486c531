//! Progress events and results of a training.

use crate::Model;
use crate::rpc::{JobId, JobProgress, Phase};
use hetal_keys::noise_bound;
use hetal_learn::{Matrix, Verdict};
use hetal_report::Unit;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A progress event of a training, for progress bars.
#[derive(Clone, Debug)]
pub enum ProgressEvent {
    /// The existing key set is compared with its hash, which takes as long as reading it.
    Comparing,
    /// Keys are generated.
    Keys {
        /// Generated keys.
        done: usize,
        /// All keys.
        total: usize,
    },
    /// These interrupted trainings used a key set that was replaced. They can only start again.
    Stranded(Vec<String>),
    /// Rows are encrypted.
    Encrypting {
        /// Encrypted pieces.
        done: usize,
        /// All pieces.
        total: usize,
    },
    /// The key set is uploaded.
    SendingKeys {
        /// Bytes that the server has.
        sent: u64,
        /// All bytes.
        total: u64,
    },
    /// Row blobs are uploaded.
    SendingRows {
        /// Bytes that the server has.
        sent: u64,
        /// All bytes.
        total: u64,
    },
    /// The server queued the job.
    Queued,
    /// The server started the job on this engine.
    Started(String),
    /// The server reported progress.
    Working(JobProgress),
    /// A round was judged.
    Judged {
        /// The number of the round, counted from 1 over all runs of the training.
        number: usize,
        /// The round.
        round: Round,
    },
    /// The job that was requested before has failed since. A new one is requested.
    Restarted {
        /// The reason that the server gave.
        reason: String,
    },
    /// `job.json` of this training is lost, and its job has not ended.
    Abandoned {
        /// The job.
        job: JobId,
        /// Whether it was this project's, and was cancelled.
        cancelled: bool,
    },
    /// The plaintext reference is computed on this machine.
    Checking,
    /// Rows of a prediction are too long for the circuit and are classified on this machine.
    Outliers {
        /// The first of them, counted from 1.
        rows: Vec<usize>,
        /// All of them.
        count: usize,
        /// How many times the length of the longest training row a row may have.
        guard: f64,
    },
}

/// The phase that an event belongs to, and what is done of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseProgress {
    /// The name of the phase. Records, live pages and JSON events have the same names.
    pub name: &'static str,
    /// What is done.
    pub done: u64,
    /// All of it; 0 if unknown.
    pub total: u64,
    /// What both count.
    pub unit: Unit,
}

impl ProgressEvent {
    /// The phase that this event belongs to; none for events that are no work.
    pub fn phase(&self) -> Option<PhaseProgress> {
        let counted = |name, done: usize, total: usize| (name, done as u64, total as u64, Unit::Pieces);
        let (name, done, total, unit) = match self {
            Self::Comparing => counted("making keys", 0, 0),
            Self::Keys { done, total } => counted("making keys", *done, *total),
            Self::Encrypting { done, total } => counted("encrypting rows", *done, *total),
            Self::SendingKeys { sent, total } => ("sending keys", *sent, *total, Unit::Bytes),
            Self::SendingRows { sent, total } => ("sending rows", *sent, *total, Unit::Bytes),
            Self::Queued => counted("waiting in the queue", 0, 0),
            Self::Started(_) => counted("server: preparing", 0, 0),
            Self::Working(progress) if progress.resting => counted("waiting for a GPU that works", 0, 0),
            Self::Working(progress) => {
                let (name, unit) = match progress.phase {
                    Phase::Preparing => ("server: preparing", Unit::Pieces),
                    Phase::Training => ("server: training", Unit::Iterations),
                    Phase::Validating | Phase::Classifying => ("server: validating", Unit::Pieces),
                };
                (name, progress.done, progress.total, unit)
            }
            Self::Checking => counted("checking the result here", 0, 0),
            Self::Judged { .. }
            | Self::Stranded(_)
            | Self::Restarted { .. }
            | Self::Abandoned { .. }
            | Self::Outliers { .. } => return None,
        };
        Some(PhaseProgress { name, done, total, unit })
    }
}

/// A judged round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// The verdict.
    pub verdict: Verdict,
    /// Whether its weights count: the logits were in range, and the server was honest.
    #[serde(default)]
    pub accepted: bool,
    /// Mean cross-entropy on the validation rows.
    pub loss: f64,
    /// Share of correct validation rows.
    pub accuracy: f64,
    /// The largest absolute logit.
    pub largest: f64,
}

/// A round with the digits that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ShownRound {
    /// The verdict.
    pub verdict: hetal_report::Verdict,
    /// Whether its weights count.
    pub accepted: bool,
    /// Loss on the validation rows; none if the server's answer was refused.
    pub loss: Option<f64>,
    /// Share of correct validation rows.
    pub accuracy: Option<f64>,
    /// The largest absolute logit.
    pub largest_logit: Option<f64>,
}

impl Round {
    /// This round with the digits that are shown.
    pub fn shown(&self) -> ShownRound {
        // The loss of a round that was refused.
        let is_known = self.loss.is_finite() && self.loss < f64::MAX;
        ShownRound {
            verdict: match self.verdict {
                Verdict::Continue => hetal_report::Verdict::Continue,
                Verdict::Stop => hetal_report::Verdict::Stop,
                Verdict::LowerRate => hetal_report::Verdict::LowerRate,
                Verdict::WidenRange => hetal_report::Verdict::WidenRange,
            },
            accepted: self.accepted,
            loss: is_known.then(|| shown_loss(self.loss)),
            accuracy: is_known.then_some(self.accuracy),
            largest_logit: (is_known && self.largest.is_finite()).then(|| (self.largest * 100.0).round() / 100.0),
        }
    }
}

/// The time of a training in seconds, summed over all its runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Encrypting rows.
    pub encrypting: f64,
    /// Sending keys and rows.
    pub sending: f64,
    /// Following the job, verdicts included.
    pub training: f64,
    /// The part of it for iterations whose start and end were observed.
    pub iterations: IterationTime,
    /// Everything together.
    pub all: f64,
}

/// The time of observed iterations. Project folders store it as an array of two numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "(f64, u64)", into = "(f64, u64)")]
pub struct IterationTime {
    /// Seconds of all of them.
    pub seconds: f64,
    /// The number of iterations.
    pub count: u64,
}

impl IterationTime {
    /// Mean seconds of an iteration, if any was observed.
    pub fn mean(self) -> Option<f64> {
        (self.count > 0).then(|| self.seconds / self.count as f64)
    }
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

/// Payload bytes that were sent. Project folders store it as an array of two numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct SentBytes {
    /// Bytes of key sets.
    pub keys: u64,
    /// Bytes of row blobs.
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

/// Weights that differ by more from the plaintext reference were not trained honestly.
const MOST_DIFFERENCE: f64 = 0.01;

/// The result of a training.
pub struct Trained {
    /// The classifier.
    pub model: Model,
    /// The path of its model file.
    pub path: PathBuf,
    /// The path of the page that reports on it; none if a passphrase locks the project.
    pub report: Option<PathBuf>,
    /// All judged rounds.
    pub rounds: Vec<Round>,
    /// The weights of the plaintext reference for normalised features, unless the server hides
    /// hyper-parameters.
    pub reference: Option<Matrix>,
    /// The largest difference to the weights of the reference, relative to its largest weight. It
    /// is private: show [`Trained::difference_bound`] instead.
    pub difference: Option<f64>,
    /// Bytes of the key set.
    pub key_bytes: u64,
    /// Bytes of all row blobs.
    pub row_bytes: u64,
    /// Payload bytes that were sent: fewer if the server had some of them.
    pub sent: SentBytes,
    /// The time of the training.
    pub seconds: Seconds,
    /// The seconds that the generation of the key set took.
    pub key_seconds: f64,
}

impl Trained {
    /// Whether the training ended because the loss no longer fell, and not at its last iteration.
    pub fn converged(&self) -> bool {
        self.rounds.last().is_some_and(|round| round.verdict == Verdict::Stop)
    }

    /// What to try if the training ended before its loss had converged.
    pub fn unconverged(&self) -> Option<String> {
        let training = &self.model.training;
        (!self.converged()).then(|| advice(&self.rounds, training.rate, training.max_epochs))
    }

    /// Whether the weights are those of an honest training: `None` without a plaintext reference.
    pub fn matches_reference(&self) -> Option<bool> {
        self.difference.map(|difference| difference < MOST_DIFFERENCE)
    }

    /// A bound on the difference to the plaintext reference that may be shown.
    ///
    /// The difference is the noise of a decryption, which depends on the secret key. A release
    /// accounts for the noise bound `B` being known: four times the difference, rounded up to a
    /// power of two. This is `B / 4`, relative to the largest weight of the reference, and tells
    /// nothing beyond `B`.
    pub fn difference_bound(&self) -> Option<f64> {
        let (difference, reference) = self.difference.zip(self.reference.as_ref())?;
        Some(shown_difference(difference, reference))
    }
}

/// A loss beyond the lowest one by this factor, when a training ends, has not just stopped falling.
const RISEN: f64 = 1.25;

/// What to try after a training of these rounds, which its last epoch ended.
fn advice(rounds: &[Round], rate: Option<f64>, max_epochs: usize) -> String {
    let losses = || rounds.iter().filter(|round| round.accepted).map(|round| round.loss);
    let lowest = losses().fold(f64::INFINITY, f64::min);
    let option = |factor: f64| rate.map(|rate| format!("--rate {}", factor * rate));
    if losses().next_back().is_some_and(|last| last > RISEN * lowest) {
        let rate = option(0.5).unwrap_or_else(|| "a lower learning rate, which the operator sets".to_owned());
        return format!("the loss rose and fell until the training ended: try {rate}");
    }
    let rate = option(2.0).map_or_else(String::new, |rate| format!(" or {rate}"));
    format!("the loss was still falling when the training ended: try --epochs {}{rate}", 2 * max_epochs)
}

/// [`Trained::difference_bound`] of a relative difference.
pub(super) fn shown_difference(difference: f64, reference: &Matrix) -> f64 {
    let largest = reference.max_magnitude();
    noise_bound(difference * largest) / 4.0 / largest
}

/// A loss with the digits that are shown.
///
/// A loss is computed from decrypted logits. Digits far above their noise are nearly always those
/// of exact arithmetic; the others would be digits of the noise. At `full` the noise changes a
/// weight by about 1e-6 of the largest one, so it seldom shows in thousandths. This is not a
/// release: losses are private, and shown to their owner only.
pub fn shown_loss(loss: f64) -> f64 {
    (loss * LOSS_DIGITS).round() / LOSS_DIGITS
}

/// Losses are shown in thousandths.
const LOSS_DIGITS: f64 = 1000.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// What follows from decrypted values has few digits, and a refused round has none.
    #[test]
    fn rounds_are_shown_with_few_digits() {
        let (loss, largest) = (0.123_456_789, 7.123_456);
        let round = Round { verdict: Verdict::WidenRange, accepted: false, loss, accuracy: 0.875, largest };
        let shown = serde_json::to_value(round.shown()).unwrap();
        let expected = serde_json::json!({
            "verdict": "widen_range", "accepted": false, "loss": 0.123, "accuracy": 0.875, "largest_logit": 7.12,
        });
        assert_eq!(shown, expected);
        let refused = Round { loss: f64::MAX, largest: f64::INFINITY, ..round }.shown();
        assert_eq!((refused.loss, refused.accuracy, refused.largest_logit), (None, None, None));
    }

    /// A training that oscillates needs smaller steps, not more of them.
    #[test]
    fn advice_follows_from_the_losses() {
        let round = |loss| Round { verdict: Verdict::Continue, accepted: true, loss, accuracy: 0.5, largest: 1.0 };
        let of = |losses: &[f64], rate| advice(&losses.iter().map(|&loss| round(loss)).collect::<Vec<_>>(), rate, 40);
        assert_eq!(
            of(&[0.6, 0.4, 0.3], Some(0.5)),
            "the loss was still falling when the training ended: try --epochs 80 or --rate 1"
        );
        assert_eq!(of(&[0.6, 0.3, 0.5], Some(0.5)), "the loss rose and fell until the training ended: try --rate 0.25");
        assert!(of(&[0.6, 0.3, 0.5], None).ends_with("which the operator sets"));
        assert!(of(&[0.6, 0.3, 0.29], None).ends_with("try --epochs 80"));
    }

    #[test]
    fn shown_losses_have_three_digits() {
        assert_eq!(shown_loss(0.123_456_789), 0.123);
        assert_eq!(shown_loss(0.000_4), 0.0);
    }
}
