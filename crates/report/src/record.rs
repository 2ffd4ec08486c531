//! The record of a training: all that a report shows, with the digits that it shows.
//!
//! Every number of the page is a number of this record. Values that follow from decryptions are
//! rounded before they get here.

use serde::{Deserialize, Serialize};

/// The format of a record.
pub const FORMAT: &str = "hetal-report";
/// The version of the format.
pub const VERSION: u32 = 1;

/// The record of a training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Who may read it.
    pub notice: String,
    /// The name of the training and of its model.
    pub name: String,
    /// The program that wrote the record.
    pub program: String,
    /// Where the training is.
    pub state: TrainingState,
    /// What a training in progress does just now.
    pub progress: Option<CurrentPhase>,
    /// When it began, in UTC.
    pub began: Option<String>,
    /// When it ended, in UTC.
    pub ended: Option<String>,
    /// The command that made it.
    pub command: Option<String>,
    /// What is trained.
    pub shape: TrainedShape,
    /// The names of the classes; none while a training runs.
    pub classes: Vec<String>,
    /// The checks, in order. Records of earlier versions have none.
    pub checks: Vec<Check>,
    /// How often each verdict was given.
    pub verdicts: Vec<VerdictCount>,
    /// The result.
    pub outcome: Option<Outcome>,
    /// The quality of the result on the validation rows.
    pub measures: Option<MeasureRecord>,
    /// Seconds of each phase, in order, over all runs of the training.
    pub phases: Vec<PhaseSeconds>,
    /// Seconds of everything.
    pub seconds: Option<f64>,
    /// Mean seconds of an iteration.
    pub iteration_seconds: Option<f64>,
    /// What crossed the network.
    pub transfers: Vec<Transfer>,
    /// The server and the job.
    pub server: ServerRecord,
    /// The parameter set.
    pub parameters: ParameterRecord,
    /// The hyper-parameters.
    pub hyper_parameters: HyperParameterRecord,
    /// What was done to the rows and to the result.
    pub preparation: PreparationRecord,
    /// The path of the model file.
    pub model_path: Option<String>,
}

/// Where a training is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainingState {
    /// It ended with a model.
    #[default]
    Finished,
    /// It has not ended, and some program works on it.
    Running,
    /// It has not ended, and no program works on it.
    Interrupted,
}

/// What a training in progress does just now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CurrentPhase {
    /// The phase, as in [`PhaseSeconds::name`].
    pub phase: String,
    /// What is done of it: keys, pieces, bytes or iterations.
    pub done: u64,
    /// All of it; 0 if unknown.
    pub total: u64,
    /// What `done` and `total` count.
    pub unit: Unit,
    /// The current epoch, counted from 1; 0 before the first.
    pub epoch: u64,
    /// The engine of the server, in its words.
    pub engine: Option<String>,
    /// Seconds to the end of this phase, as far as it can be told.
    pub seconds_left: Option<f64>,
    /// When this was written, in UTC.
    pub at: String,
}

/// What a progress counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Pieces of work.
    #[default]
    Pieces,
    /// Bytes.
    Bytes,
    /// Iterations.
    Iterations,
}

/// What is trained.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainedShape {
    /// Features of a row.
    pub features: usize,
    /// Classes.
    pub classes: usize,
    /// Training rows.
    pub rows: usize,
    /// Validation rows.
    pub validation_rows: usize,
    /// Whether the validation rows are the training rows.
    pub validated_on_training_rows: bool,
}

/// A check: the owner decrypted validation logits and answered with a verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Its number, counted from 1.
    pub number: usize,
    /// The verdict.
    pub verdict: Verdict,
    /// Whether its weights count.
    pub accepted: bool,
    /// Loss on the validation rows; none if the server's answer was refused.
    pub loss: Option<f64>,
    /// Share of right validation rows.
    pub accuracy: Option<f64>,
    /// The largest logit.
    pub largest_logit: Option<f64>,
    /// The range of the softmax.
    pub range: f64,
    /// The largest logit that is accepted.
    pub limit: f64,
    /// The learning rate, unless the server hides it.
    pub rate: Option<f64>,
    /// Seconds since the training began, over all its runs.
    pub seconds: Option<f64>,
}

/// A verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Go on.
    Continue,
    /// Stop.
    Stop,
    /// Again from the last accepted check, with a lower rate.
    LowerRate,
    /// Again from the last accepted check, with a wider range.
    WidenRange,
}

impl Verdict {
    /// The verdict in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Continue => "continue",
            Self::Stop => "stop",
            Self::LowerRate => "lower the rate",
            Self::WidenRange => "widen the range",
        }
    }
}

/// How often a verdict was given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerdictCount {
    /// The verdict.
    pub verdict: Verdict,
    /// How often.
    pub count: usize,
}

/// The result of a training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Epochs until the last accepted check, the last one perhaps in part.
    pub epochs: usize,
    /// The epoch in which the best check was.
    pub best_epoch: usize,
    /// Accepted checks; 0 in records of earlier versions, which had one an epoch.
    #[serde(default)]
    pub checks: usize,
    /// The check whose weights are the model, among all checks, if these are known.
    pub best_check: Option<usize>,
    /// Iterations, repeated ones included.
    pub iterations: u64,
    /// Loss on the validation rows.
    pub loss: f64,
    /// Share of right validation rows.
    pub accuracy: f64,
    /// Whether the loss had stopped falling, if that is known.
    pub converged: Option<bool>,
    /// A bound on the relative difference to the plaintext reference, if one was computed.
    pub difference_bound: Option<f64>,
    /// Whether the result agrees with the plaintext reference.
    pub agrees: Option<bool>,
    /// Whether the noise of the weights is known, so that the model can be exported.
    pub exportable: bool,
}

/// The quality of predictions on the validation rows. Names are those of scikit-learn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasureRecord {
    /// Share of right rows.
    pub accuracy_score: f64,
    /// Mean recall of the classes.
    pub balanced_accuracy_score: f64,
    /// Harmonic mean of precision and recall, mean over the classes.
    pub f1_macro: f64,
    /// The same, weighted by rows.
    pub f1_weighted: f64,
    /// Mean negative logarithm of the probability of the true class.
    pub log_loss: f64,
    /// Mean squared error of the probabilities.
    pub brier_score_loss: f64,
    /// Area under the receiver operating characteristic, one class against the rest.
    pub roc_auc_score: Option<f64>,
    /// Average precision, one class against the rest.
    pub average_precision_score: Option<f64>,
    /// The share of the largest class: what always naming it would get right.
    pub largest_class_share: f64,
    /// Each class.
    pub per_class: Vec<ClassMeasures>,
    /// `confusion_matrix[i][j]` counts rows of class `i` predicted as class `j`.
    pub confusion_matrix: Vec<Vec<usize>>,
    /// ROC curves of some classes.
    pub roc_curves: Vec<RocCurve>,
    /// Probabilities of the predicted class and how often they were right.
    pub calibration_curve: Vec<CalibrationBin>,
}

/// The quality for one class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassMeasures {
    /// Its validation rows.
    pub rows: usize,
    /// Share of the rows predicted as it that are right; none if there are no such rows.
    pub precision: Option<f64>,
    /// Share of its rows that were predicted as it; none if it has no rows.
    pub recall: Option<f64>,
    /// The harmonic mean of both.
    pub f1: Option<f64>,
    /// Area under its receiver operating characteristic.
    pub roc_auc: Option<f64>,
}

/// The receiver operating characteristic of a class against the rest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RocCurve {
    /// The class.
    pub class: usize,
    /// False positive rates and true positive rates, from (0, 0) to (1, 1).
    pub points: Vec<(f64, f64)>,
}

/// Rows whose predicted class has about the same probability.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CalibrationBin {
    /// The mean probability.
    pub predicted: f64,
    /// The share of right predictions.
    pub right: f64,
    /// The rows.
    pub rows: usize,
}

/// Seconds of a phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseSeconds {
    /// Its name.
    pub name: String,
    /// Its seconds.
    pub seconds: f64,
}

/// What crossed the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// What it was.
    pub what: String,
    /// Whether the owner sent it; otherwise he received it.
    pub sent: bool,
    /// Bytes of all of it.
    pub bytes: u64,
    /// Bytes that were sent: fewer if the server had some.
    pub transferred: Option<u64>,
}

/// The server and the job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerRecord {
    /// Its address.
    pub address: Option<String>,
    /// The engine, in its words.
    pub engine: Option<String>,
    /// The job.
    pub job: Option<String>,
}

/// The parameter set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ParameterRecord {
    /// Its name.
    pub set: String,
    /// Bits of security; 0 for none.
    pub security_bits: Option<f64>,
    /// The degree of the ring.
    pub degree: Option<usize>,
    /// Bits of the largest modulus of a key.
    pub modulus_bits: Option<f64>,
    /// Numbers that a ciphertext holds.
    pub slots: Option<usize>,
    /// The id of the secret key.
    pub key_id: Option<String>,
}

/// The hyper-parameters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HyperParameterRecord {
    /// Rows of a batch.
    pub batch: usize,
    /// The first learning rate, unless the server hides it.
    pub rate: Option<f64>,
    /// Checks without improvement before the training stops.
    pub patience: usize,
    /// Iterations between two checks; 0 in records of earlier versions, for an epoch.
    pub check_every: usize,
    /// The most epochs.
    pub max_epochs: usize,
    /// The first range of logits.
    pub range: f64,
    /// The factor of `|W|^2 / 2` in the loss, unless the server hides it.
    pub alpha: Option<f64>,
    /// The factor of a lower rate, unless the server hides it.
    pub lowering: Option<f64>,
    /// The seed of the first weights, unless the server hides it.
    pub seed: Option<u64>,
}

/// What was done to the rows and to the result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PreparationRecord {
    /// How features were scaled.
    pub scaling: String,
    /// Whether missing values were filled in.
    pub imputes: bool,
    /// Whether training rows had different weights.
    pub weighted: bool,
    /// The share of the logarithms of class shares that was subtracted from the biases.
    pub prior: f64,
}

impl Outcome {
    /// Accepted checks. Earlier versions had one an epoch.
    pub fn accepted_checks(&self) -> usize {
        if self.checks == 0 { self.epochs } else { self.checks }
    }
}

impl Record {
    /// Records the checks and counts their verdicts.
    pub fn set_checks(&mut self, checks: Vec<Check>) {
        let all = [Verdict::Continue, Verdict::WidenRange, Verdict::LowerRate, Verdict::Stop];
        let count = |verdict: Verdict| checks.iter().filter(|check| check.verdict == verdict).count();
        let counts = all.map(|verdict| VerdictCount { verdict, count: count(verdict) });
        self.verdicts = counts.into_iter().filter(|verdict| verdict.count > 0).collect();
        self.checks = checks;
    }
}
