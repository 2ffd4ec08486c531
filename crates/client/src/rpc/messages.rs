//! The messages of the protocol as typed values. Everything that a server sends is validated here.

use super::choices::{key_plan, key_plan_message, row_form, row_form_message};
use super::{BlobName, Error, JobId, Result};
use crate::sanitize::sanitize_foreign_text;
use hetal_learn::judge::RANGES;
use hetal_learn::nesterov::Momentum;
use hetal_learn::{Agreement, AgreementLimits, KeyPlan, RowForm, Wishes};
use hetal_wire::{JobState, v1};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// The content of an uploaded blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobKind {
    /// A key set.
    Keys,
    /// A row blob with labels: the blocks of a piece as seeded ciphertexts, then its labels.
    Batch,
    /// A row blob without labels, for validation rows and queries.
    Features,
    /// A row blob with labels, times the weights of their rows, and then the weights.
    WeightedBatch,
}

impl BlobKind {
    pub(super) fn to_message(self) -> v1::BlobKind {
        match self {
            Self::Keys => v1::BlobKind::Keys,
            Self::Batch => v1::BlobKind::Batch,
            Self::Features => v1::BlobKind::Features,
            Self::WeightedBatch => v1::BlobKind::WeightedBatch,
        }
    }
}

/// The parameter sets, defaults and limits of a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Offer {
    /// The server's program and version.
    pub program: String,
    /// The parameter sets it accepts.
    pub sets: Vec<ParameterSetInfo>,
    /// The hyper-parameters of a training that asks for none.
    pub defaults: HyperParameters,
    /// The limits of the server.
    pub bounds: ServerLimits,
    /// The forms of rows it accepts.
    pub row_forms: Vec<RowForm>,
    /// Seconds of one lift there, about.
    pub lift_seconds: f64,
    /// The key plans it accepts.
    pub key_plans: Vec<KeyPlan>,
}

/// A parameter set that a server accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSetInfo {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: [u8; 32],
}

/// The limits of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerLimits {
    /// The fewest and the most rows of a batch.
    pub batch: (usize, usize),
    /// The largest patience.
    pub patience: usize,
    /// The most epochs.
    pub epochs: usize,
    /// The most bytes of one blob.
    pub blob_bytes: u64,
    /// The most bytes of all blobs of a tenant.
    pub tenant_bytes: u64,
    /// The most row blobs of a job, training and validation together.
    pub batches: usize,
    /// The lowest and the highest learning rate, unless the operator hides them.
    pub rate: Option<(f64, f64)>,
    /// The lowest and the highest factor of L2, unless the operator hides them.
    pub alpha: Option<(f64, f64)>,
}

/// The hyper-parameters of a training. A server may hide those that are optional here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HyperParameters {
    /// Rows of a batch.
    pub batch: usize,
    /// Checks without improvement before the client stops.
    pub patience: usize,
    /// The most epochs.
    pub max_epochs: usize,
    /// The initial range: logits must lie in `[-range, range]`.
    pub range: f64,
    /// The initial learning rate.
    pub rate: Option<f64>,
    /// The factor by which the verdict "lower the rate" multiplies it.
    pub lowering: Option<f64>,
    /// The momentum method.
    pub momentum: Option<Momentum>,
    /// The seed of the initial weights.
    pub seed: Option<u64>,
    /// The factor of `|W|^2 / 2` in the loss.
    #[serde(default)]
    pub alpha: Option<f64>,
    /// Iterations between two checks; 0 in trainings of earlier versions, for an epoch, and in
    /// offers, for what fits the shape.
    #[serde(default)]
    pub check_every: usize,
}

impl Offer {
    pub(crate) fn parse(message: v1::Offer) -> Result<Self> {
        if message.version != hetal_wire::VERSION {
            return Err(Error::protocol(format!("it chose protocol version {}", message.version)));
        }
        let set = |set: v1::ParameterSet| {
            let id =
                (&*set.id).try_into().map_err(|_| Error::protocol("the id of a parameter set is not 32 bytes long"))?;
            Ok(ParameterSetInfo { name: sanitize_foreign_text(&set.name), id })
        };
        // Forms and plans that this program does not know are none it could choose.
        let row_forms = message.row_forms().filter_map(row_form).collect();
        let key_plans = message.key_plans().filter_map(key_plan).collect();
        if message.lift_seconds.is_nan() || message.lift_seconds < 0.0 {
            return Err(Error::protocol(format!("it sent {} seconds of a lift", message.lift_seconds)));
        }
        let bounds = message.bounds.ok_or_else(|| Error::protocol("it sent an offer without bounds"))?;
        Ok(Self {
            program: sanitize_foreign_text(&message.program),
            sets: message.sets.into_iter().map(set).collect::<Result<_>>()?,
            defaults: HyperParameters::parse(message.defaults)?,
            bounds: ServerLimits {
                batch: (bounds.batch_least as usize, bounds.batch_most as usize),
                patience: bounds.patience_most as usize,
                epochs: bounds.epochs_most as usize,
                blob_bytes: bounds.blob_bytes_most,
                tenant_bytes: bounds.tenant_bytes_most,
                batches: bounds.batches_most as usize,
                rate: bounds.rate_least.zip(bounds.rate_most),
                alpha: bounds.alpha_least.zip(bounds.alpha_most),
            },
            row_forms,
            lift_seconds: message.lift_seconds,
            key_plans,
        })
    }

    /// Returns whether the server accepts a parameter set.
    pub fn accepts(&self, id: &[u8; 32]) -> bool {
        self.sets.iter().any(|set| set.id == *id)
    }
}

impl HyperParameters {
    /// The number of checks of `batches` steps an epoch, if none is repeated.
    pub fn checks(&self, batches: usize) -> usize {
        let Self { max_epochs, check_every, .. } = *self;
        Agreement { max_epochs, check_every, ..AgreementLimits::default().defaults }.checks(batches)
    }

    /// The iterations up to an accepted check.
    pub fn iterations_until(&self, check: usize, batches: usize) -> usize {
        let Self { max_epochs, check_every, .. } = *self;
        Agreement { max_epochs, check_every, ..AgreementLimits::default().defaults }.iterations_until(check, batches)
    }

    fn parse(message: Option<v1::Terms>) -> Result<Self> {
        let terms = message.ok_or_else(|| Error::protocol("it sent no hyper-parameters"))?;
        let is_alpha = |alpha: f64| alpha >= 0.0 && alpha.is_finite();
        if terms.batch == 0
            || terms.max_epochs == 0
            || !RANGES.contains(&terms.range)
            || !terms.alpha.is_none_or(is_alpha)
        {
            return Err(Error::protocol(format!(
                "it sent invalid hyper-parameters: batches of {} rows, {} epochs, range {}, alpha {:?}",
                terms.batch, terms.max_epochs, terms.range, terms.alpha
            )));
        }
        let momentum = match terms.momentum() {
            v1::Momentum::Unspecified => None,
            v1::Momentum::None => Some(Momentum::None),
            v1::Momentum::Nesterov => Some(Momentum::Nesterov),
        };
        Ok(Self {
            batch: terms.batch as usize,
            patience: terms.patience as usize,
            max_epochs: terms.max_epochs as usize,
            range: terms.range,
            rate: terms.rate,
            lowering: terms.lowering,
            momentum,
            seed: terms.seed,
            alpha: terms.alpha,
            check_every: terms.check_every as usize,
        })
    }
}

/// An uploaded row blob, as requests name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowBlob {
    /// The name of the blob.
    pub blob: BlobName,
    /// Its rows, without padding.
    pub rows: usize,
}

impl RowBlob {
    fn to_message(self) -> v1::Rows {
        v1::Rows { blob: self.blob.to_vec().into(), rows: self.rows as u32 }
    }
}

/// A request to queue a training.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingRequest {
    /// The id of the parameter set.
    pub set: [u8; 32],
    /// Features of a row.
    pub features: usize,
    /// The number of classes.
    pub classes: usize,
    /// The key set.
    pub keys: BlobName,
    /// The training rows ([`BlobKind::Batch`]).
    pub batches: Vec<RowBlob>,
    /// The validation rows ([`BlobKind::Features`]).
    pub validation: Vec<RowBlob>,
    /// The requested hyper-parameters.
    pub wishes: Wishes,
    /// Whether rows have weights. Then the training rows are [`BlobKind::WeightedBatch`].
    pub weighted: bool,
    /// The form of all rows.
    pub form: RowForm,
    /// The plan that the key set follows.
    pub key_plan: KeyPlan,
}

impl TrainingRequest {
    pub(super) fn to_message(&self) -> v1::Training {
        let momentum = match self.wishes.momentum {
            None => v1::Momentum::Unspecified,
            Some(Momentum::None) => v1::Momentum::None,
            Some(Momentum::Nesterov) => v1::Momentum::Nesterov,
        };
        let number = |n: Option<usize>| n.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        v1::Training {
            set: self.set.to_vec().into(),
            features: self.features as u32,
            classes: self.classes as u32,
            keys: self.keys.to_vec().into(),
            batches: self.batches.iter().map(|b| b.to_message()).collect(),
            validation: self.validation.iter().map(|b| b.to_message()).collect(),
            wishes: Some(v1::Wishes {
                batch: number(self.wishes.batch),
                rate: self.wishes.rate,
                momentum: momentum.into(),
                patience: number(self.wishes.patience),
                max_epochs: number(self.wishes.max_epochs),
                alpha: self.wishes.alpha,
                check_every: number(self.wishes.check_every),
            }),
            weighted: self.weighted,
            form: row_form_message(self.form),
            key_plan: key_plan_message(self.key_plan),
        }
    }
}

/// A request to queue a classification.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassificationRequest {
    /// The training whose weights, keys and layout are used.
    pub job: JobId,
    /// The weights: one of the outputs of that training.
    pub weights: BlobName,
    /// The queries ([`BlobKind::Features`]).
    pub queries: Vec<RowBlob>,
    /// Their form.
    pub form: RowForm,
}

impl ClassificationRequest {
    pub(super) fn to_message(&self) -> v1::Classification {
        v1::Classification {
            job: self.job.to_vec().into(),
            weights: self.weights.to_vec().into(),
            queries: self.queries.iter().map(|b| b.to_message()).collect(),
            form: row_form_message(self.form),
        }
    }
}

/// An uploaded blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadInfo {
    /// Its name.
    pub name: BlobName,
    /// What it contains.
    pub kind: BlobKind,
    /// Its size in bytes.
    pub size: u64,
    /// Whether the server has all of it.
    pub complete: bool,
    /// The number of jobs that use it.
    pub jobs: u32,
}

/// The uploads of a tenant and what is used of his quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadList {
    /// The uploads.
    pub uploads: Vec<UploadInfo>,
    /// Bytes of uploads, outputs of jobs and checkpoints.
    pub bytes: u64,
    /// The most such bytes.
    pub bytes_most: u64,
    /// The most uploads.
    pub uploads_most: u64,
}

impl UploadList {
    pub(crate) fn parse(message: v1::UploadList) -> Result<Self> {
        let one = |upload: v1::UploadInfo| {
            let kind = match upload.kind() {
                v1::BlobKind::Keys => BlobKind::Keys,
                v1::BlobKind::Batch => BlobKind::Batch,
                v1::BlobKind::Features => BlobKind::Features,
                v1::BlobKind::WeightedBatch => BlobKind::WeightedBatch,
                v1::BlobKind::Unspecified => return Err(Error::protocol("it listed an upload without a kind")),
            };
            let name = BlobName::try_from(&upload.name[..]);
            let name = name.map_err(|_| Error::protocol("it listed an upload with an invalid name"))?;
            Ok(UploadInfo { name, kind, size: upload.size, complete: upload.complete, jobs: upload.jobs })
        };
        let v1::UploadList { uploads, bytes, bytes_most, uploads_most } = message;
        Ok(Self { uploads: uploads.into_iter().map(one).collect::<Result<_>>()?, bytes, bytes_most, uploads_most })
    }
}

/// A job as the server describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct JobInfo {
    /// Its id.
    pub id: JobId,
    /// The label that its owner gave it.
    pub label: String,
    /// Its state.
    pub state: JobState,
    /// The hyper-parameters of a training.
    pub terms: Option<HyperParameters>,
    /// Its progress.
    pub progress: Option<JobProgress>,
    /// Time of its creation, in seconds since 1970.
    pub created: u64,
    /// Time of its last change, in seconds since 1970.
    pub updated: u64,
    /// The reason why it failed.
    pub reason: String,
}

impl JobInfo {
    pub(crate) fn parse(message: v1::Job) -> Result<Self> {
        let state = JobState::parse(message.state()).ok_or_else(|| Error::protocol("it sent a job without a state"))?;
        Ok(Self {
            id: job_id(&message.id)?,
            state,
            terms: message.terms.map(|terms| HyperParameters::parse(Some(terms))).transpose()?,
            progress: message.progress.map(JobProgress::parse).transpose()?,
            label: sanitize_foreign_text(&message.label),
            created: message.created,
            updated: message.updated,
            reason: sanitize_foreign_text(&message.reason),
        })
    }
}

/// A phase of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The server reads keys and encodes the circuit.
    Preparing,
    /// The server computes the iterations of an epoch.
    Training,
    /// The server computes the validation logits of a check.
    Validating,
    /// The server computes the logits of queries.
    Classifying,
}

/// The progress of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobProgress {
    /// The phase.
    pub phase: Phase,
    /// Completed steps of the phase.
    pub done: u64,
    /// All steps of the phase.
    pub total: u64,
    /// The epoch, counted from 1.
    pub epoch: usize,
    /// Iterations since the training began.
    pub iterations: u64,
    /// Whether the job is paused because the server's GPU failed or lacks memory. It continues from
    /// its last checkpoint when the GPU works again.
    pub resting: bool,
}

impl JobProgress {
    fn parse(message: v1::Progress) -> Result<Self> {
        let phase = match message.phase() {
            v1::Phase::Preparing => Phase::Preparing,
            v1::Phase::Training => Phase::Training,
            v1::Phase::Validating => Phase::Validating,
            v1::Phase::Classifying => Phase::Classifying,
            v1::Phase::Unspecified => return Err(Error::protocol("it sent progress without a phase")),
        };
        Ok(Self {
            phase,
            done: message.done,
            total: message.total,
            epoch: message.epoch as usize,
            iterations: message.iterations,
            resting: message.resting,
        })
    }
}

/// An entry of a job's history.
#[derive(Clone, Debug)]
pub struct Event {
    /// The number of the event, counted from 1 without gaps. Progress has the number of the event
    /// before it.
    pub sequence: u64,
    /// The kind of the event.
    pub kind: EventKind,
}

/// The kind of an event.
#[derive(Clone, Debug)]
pub enum EventKind {
    /// The job is queued.
    Queued,
    /// A worker started the job.
    Started {
        /// Attempts since the last checkpoint, this one included.
        attempt: u32,
        /// The engine of the worker.
        engine: String,
    },
    /// The job made progress.
    Progress(JobProgress),
    /// The owner must judge validation logits.
    Validation(Validation),
    /// The server received the verdict on a round.
    Judged {
        /// The round.
        round: u32,
    },
    /// The job ended well. Its outputs are the weights of the last checks, oldest first, or the
    /// logits of queries.
    Finished(Vec<Output>),
    /// The job failed.
    Failed {
        /// The reason.
        reason: String,
    },
    /// The owner cancelled the job.
    Cancelled,
}

impl EventKind {
    /// Returns whether this is the last event of a job.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Finished(_) | Self::Failed { .. } | Self::Cancelled)
    }
}

/// Validation logits that the owner must judge.
#[derive(Clone, Debug)]
pub struct Validation {
    /// The number of the round, counted from 1.
    pub round: u32,
    /// How often the training went back to an accepted check before.
    pub repeats: usize,
    /// The check, counted from 1.
    pub check: usize,
    /// The range that determines the scale of the logits.
    pub range: f64,
    /// One ciphertext for each validation row blob, in the same order.
    pub logits: Vec<Output>,
    /// When the message arrived. Verdicts leave a fixed time later.
    pub(crate) received: Instant,
}

/// A ciphertext that a job computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// The name of its blob.
    pub blob: BlobName,
    /// Its length in bytes, as the server reports it.
    pub size: u64,
    /// For weights and validation logits: the number of the accepted check.
    pub check: usize,
    /// For logits: the rows, without padding.
    pub rows: usize,
}

impl Output {
    fn parse(message: v1::Output) -> Result<Self> {
        let blob = BlobName::try_from(&*message.blob).map_err(|e| Error::protocol(e.to_string()))?;
        Ok(Self { blob, size: message.size, check: message.check as usize, rows: message.rows as usize })
    }
}

impl Event {
    pub(crate) fn parse(message: v1::Event) -> Result<Self> {
        use v1::event::What;
        let what = message.what.ok_or_else(|| Error::protocol("it sent an event of unknown kind"))?;
        let kind = match what {
            What::Queued(_) => EventKind::Queued,
            What::Started(m) => EventKind::Started { attempt: m.attempt, engine: sanitize_foreign_text(&m.engine) },
            What::Progress(m) => EventKind::Progress(JobProgress::parse(m)?),
            What::Validation(m) => EventKind::Validation(Validation::parse(m)?),
            What::Judged(m) => EventKind::Judged { round: m.round },
            What::Finished(m) => EventKind::Finished(outputs(m.outputs)?),
            What::Failed(m) => EventKind::Failed { reason: sanitize_foreign_text(&m.reason) },
            What::Cancelled(_) => EventKind::Cancelled,
        };
        Ok(Self { sequence: message.sequence, kind })
    }
}

impl Validation {
    fn parse(message: v1::Validation) -> Result<Self> {
        if message.round == 0 || message.check == 0 || !RANGES.contains(&message.range) {
            let (round, check, range) = (message.round, message.check, message.range);
            return Err(Error::protocol(format!("it sent round {round} of check {check} with range {range}")));
        }
        Ok(Self {
            round: message.round,
            repeats: message.repeats as usize,
            check: message.check as usize,
            range: message.range,
            logits: outputs(message.logits)?,
            received: Instant::now(),
        })
    }

    /// The first round, without logits.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self { round: 1, repeats: 0, check: 1, range: 32.0, logits: Vec::new(), received: Instant::now() }
    }
}

fn outputs(messages: Vec<v1::Output>) -> Result<Vec<Output>> {
    messages.into_iter().map(Output::parse).collect()
}

fn job_id(bytes: &[u8]) -> Result<JobId> {
    JobId::try_from(bytes).map_err(|e| Error::protocol(e.to_string()))
}
