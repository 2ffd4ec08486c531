//! The protocol's messages as typed values: what a server says is parsed here and trusted to have this form afterwards.

use super::sanitize::sanitize_server_text;
use super::{BlobName, Error, JobId, Result};
use hetal_learn::Wishes;
use hetal_learn::judge::RANGES;
use hetal_learn::nesterov::Momentum;
use hetal_wire::{JobState, v1};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// What an uploaded blob holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobKind {
    /// A key set.
    Keys,
    /// Seeded ciphertexts: the feature blocks of a batch, then its labels.
    Batch,
    /// Seeded ciphertexts: feature blocks alone (validation rows, queries).
    Features,
}

impl BlobKind {
    pub(super) fn to_message(self) -> v1::BlobKind {
        match self {
            Self::Keys => v1::BlobKind::Keys,
            Self::Batch => v1::BlobKind::Batch,
            Self::Features => v1::BlobKind::Features,
        }
    }
}

/// What a server offers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Offer {
    /// The server's program and version.
    pub program: String,
    /// The parameter sets it accepts.
    pub sets: Vec<ParameterSetInfo>,
    /// What a client without wishes gets.
    pub defaults: HyperParameters,
    /// The most and least it allows.
    pub bounds: Bounds,
}

/// A parameter set that a server accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSetInfo {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: [u8; 32],
}

/// The most and least a server allows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounds {
    /// Fewest and most rows of a batch.
    pub batch: (usize, usize),
    /// The most patience.
    pub patience: usize,
    /// The most epochs.
    pub epochs: usize,
    /// Bytes of one blob.
    pub blob_bytes: u64,
    /// Bytes of all blobs.
    pub tenant_bytes: u64,
    /// Batches of a job, training and validation together.
    pub batches: usize,
    /// Lowest and highest learning rate, unless the operator hides them.
    pub rate: Option<(f64, f64)>,
}

/// The hyper-parameters of a training, as far as the server tells them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HyperParameters {
    /// Rows of a batch.
    pub batch: usize,
    /// Epochs without improvement before the client should stop.
    pub patience: usize,
    /// The most rounds of validation, repeated epochs included.
    pub max_epochs: usize,
    /// Logits lie in `[-range, range]` at first.
    pub range: f64,
    /// The first learning rate.
    pub rate: Option<f64>,
    /// What "lower the rate" multiplies it by.
    pub lowering: Option<f64>,
    /// How gradients become steps.
    pub momentum: Option<Momentum>,
    /// Seed of the first weights.
    pub seed: Option<u64>,
}

impl Offer {
    pub(crate) fn parse(message: v1::Offer) -> Result<Self> {
        if message.version != hetal_wire::VERSION {
            return Err(Error::protocol(format!("it chose version {} of the protocol", message.version)));
        }
        let set = |set: v1::ParameterSet| {
            let id = (&*set.id).try_into().map_err(|_| Error::protocol("a parameter set's id is not 32 bytes"))?;
            Ok(ParameterSetInfo { name: sanitize_server_text(&set.name), id })
        };
        let bounds = message.bounds.ok_or_else(|| Error::protocol("an offer without bounds"))?;
        Ok(Self {
            program: sanitize_server_text(&message.program),
            sets: message.sets.into_iter().map(set).collect::<Result<_>>()?,
            defaults: HyperParameters::parse(message.defaults)?,
            bounds: Bounds {
                batch: (bounds.batch_least as usize, bounds.batch_most as usize),
                patience: bounds.patience_most as usize,
                epochs: bounds.epochs_most as usize,
                blob_bytes: bounds.blob_bytes_most,
                tenant_bytes: bounds.tenant_bytes_most,
                batches: bounds.batches_most as usize,
                rate: bounds.rate_least.zip(bounds.rate_most),
            },
        })
    }

    /// Whether it accepts a parameter set.
    pub fn accepts(&self, id: &[u8; 32]) -> bool {
        self.sets.iter().any(|set| set.id == *id)
    }
}

impl HyperParameters {
    fn parse(message: Option<v1::Terms>) -> Result<Self> {
        let terms = message.ok_or_else(|| Error::protocol("terms are missing"))?;
        if terms.batch == 0 || terms.max_epochs == 0 || !RANGES.contains(&terms.range) {
            return Err(Error::protocol(format!(
                "terms of {} rows, {} epochs, range {}",
                terms.batch, terms.max_epochs, terms.range
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
        })
    }
}

/// Rows in an uploaded blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowBlob {
    /// The blob.
    pub blob: BlobName,
    /// Its rows that are not padding.
    pub rows: usize,
}

impl RowBlob {
    fn to_message(self) -> v1::Rows {
        v1::Rows { blob: self.blob.to_vec().into(), rows: self.rows as u32 }
    }
}

/// A training to queue.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingRequest {
    /// Id of the parameter set.
    pub set: [u8; 32],
    /// Features of a row.
    pub features: usize,
    /// Classes.
    pub classes: usize,
    /// The key set.
    pub keys: BlobName,
    /// The batches ([`BlobKind::Batch`]).
    pub batches: Vec<RowBlob>,
    /// Validation rows ([`BlobKind::Features`]).
    pub validation: Vec<RowBlob>,
    /// Hyper-parameters asked for.
    pub wishes: Wishes,
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
            }),
        }
    }
}

/// A classification to queue.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassificationRequest {
    /// The training whose weights, keys and shape are used.
    pub job: JobId,
    /// One of its outputs.
    pub weights: BlobName,
    /// The queries ([`BlobKind::Features`]).
    pub queries: Vec<RowBlob>,
}

impl ClassificationRequest {
    pub(super) fn to_message(&self) -> v1::Classification {
        v1::Classification {
            job: self.job.to_vec().into(),
            weights: self.weights.to_vec().into(),
            queries: self.queries.iter().map(|b| b.to_message()).collect(),
        }
    }
}

/// A job as the server describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct JobInfo {
    /// Its name.
    pub id: JobId,
    /// What its owner called it.
    pub label: String,
    /// What it is doing.
    pub state: JobState,
    /// Its hyper-parameters, of a training.
    pub terms: Option<HyperParameters>,
    /// How far it is.
    pub progress: Option<JobProgress>,
    /// Seconds since 1970.
    pub created: u64,
    /// Seconds since 1970.
    pub updated: u64,
    /// Why it failed.
    pub reason: String,
}

impl JobInfo {
    pub(crate) fn parse(message: v1::Job) -> Result<Self> {
        let state = JobState::parse(message.state()).ok_or_else(|| Error::protocol("a job without a state"))?;
        Ok(Self {
            id: job_id(&message.id)?,
            state,
            terms: message.terms.map(|terms| HyperParameters::parse(Some(terms))).transpose()?,
            progress: message.progress.map(JobProgress::parse).transpose()?,
            label: sanitize_server_text(&message.label),
            created: message.created,
            updated: message.updated,
            reason: sanitize_server_text(&message.reason),
        })
    }
}

/// A part of a job's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading keys, encoding the circuit.
    Preparing,
    /// Iterations of an epoch.
    Training,
    /// Validation logits of an epoch.
    Validating,
    /// Logits of queries.
    Classifying,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobProgress {
    /// The part of the work.
    pub phase: Phase,
    /// Its steps that are done.
    pub done: u64,
    /// All its steps.
    pub total: u64,
    /// The epoch, counted from 1.
    pub epoch: usize,
    /// Iterations since the training began.
    pub iterations: u64,
    /// The server's GPU failed, or lacks memory: the job goes on from its last checkpoint when it works again.
    pub resting: bool,
}

impl JobProgress {
    fn parse(message: v1::Progress) -> Result<Self> {
        let phase = match message.phase() {
            v1::Phase::Preparing => Phase::Preparing,
            v1::Phase::Training => Phase::Training,
            v1::Phase::Validating => Phase::Validating,
            v1::Phase::Classifying => Phase::Classifying,
            v1::Phase::Unspecified => return Err(Error::protocol("progress without a phase")),
        };
        let (done, total, epoch) = (message.done, message.total, message.epoch as usize);
        Ok(Self { phase, done, total, epoch, iterations: message.iterations, resting: message.resting })
    }
}

/// Something that happened to a job.
#[derive(Clone, Debug)]
pub struct Event {
    /// Counts from 1 without gaps; progress has the number of the event before it.
    pub sequence: u64,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum EventKind {
    /// It is in the queue.
    Queued,
    /// It is computed.
    Started {
        /// Attempts since the last checkpoint, this one included.
        attempt: u32,
        /// What computes.
        engine: String,
    },
    /// It is so far.
    Progress(JobProgress),
    /// Logits are to be judged.
    Validation(Validation),
    /// The server has the verdict on a round.
    Judged {
        /// The round.
        round: u32,
    },
    /// Done: weights of the last epochs, oldest first, or the logits of queries.
    Finished(Vec<Output>),
    /// Ended with an error.
    Failed {
        /// Why.
        reason: String,
    },
    /// Ended by its owner.
    Cancelled,
}

impl EventKind {
    /// Whether nothing more will happen.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Finished(_) | Self::Failed { .. } | Self::Cancelled)
    }
}

/// Logits to judge.
#[derive(Clone, Debug)]
pub struct Validation {
    /// Counts validations from 1.
    pub round: u32,
    /// The epoch that ended, counted from 1.
    pub epoch: usize,
    /// The range whose softmax's scale the logits are divided by.
    pub range: f64,
    /// One ciphertext for each validation blob, in its order.
    pub logits: Vec<Output>,
    /// When it became known: verdicts leave a fixed time later.
    pub(super) received: Instant,
}

/// A ciphertext that a job made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its blob.
    pub blob: BlobName,
    /// Bytes, as the server says.
    pub size: u64,
    /// Of weights: the epoch they end.
    pub epoch: usize,
    /// Of logits: the rows that are not padding.
    pub rows: usize,
}

impl Output {
    fn parse(message: v1::Output) -> Result<Self> {
        let blob = BlobName::try_from(&*message.blob).map_err(|e| Error::protocol(e.to_string()))?;
        Ok(Self { blob, size: message.size, epoch: message.epoch as usize, rows: message.rows as usize })
    }
}

impl Event {
    pub(crate) fn parse(message: v1::Event) -> Result<Self> {
        use v1::event::What;
        let what = message.what.ok_or_else(|| Error::protocol("an event of an unknown kind"))?;
        let kind = match what {
            What::Queued(_) => EventKind::Queued,
            What::Started(m) => EventKind::Started { attempt: m.attempt, engine: sanitize_server_text(&m.engine) },
            What::Progress(m) => EventKind::Progress(JobProgress::parse(m)?),
            What::Validation(m) => EventKind::Validation(Validation::parse(m)?),
            What::Judged(m) => EventKind::Judged { round: m.round },
            What::Finished(m) => EventKind::Finished(outputs(m.outputs)?),
            What::Failed(m) => EventKind::Failed { reason: sanitize_server_text(&m.reason) },
            What::Cancelled(_) => EventKind::Cancelled,
        };
        Ok(Self { sequence: message.sequence, kind })
    }
}

impl Validation {
    fn parse(message: v1::Validation) -> Result<Self> {
        if message.round == 0 || message.epoch == 0 || !RANGES.contains(&message.range) {
            let (round, epoch, range) = (message.round, message.epoch, message.range);
            return Err(Error::protocol(format!("round {round} of epoch {epoch} with range {range}")));
        }
        Ok(Self {
            round: message.round,
            epoch: message.epoch as usize,
            range: message.range,
            logits: outputs(message.logits)?,
            received: Instant::now(),
        })
    }
}

fn outputs(messages: Vec<v1::Output>) -> Result<Vec<Output>> {
    messages.into_iter().map(Output::parse).collect()
}

fn job_id(bytes: &[u8]) -> Result<JobId> {
    JobId::try_from(bytes).map_err(|e| Error::protocol(e.to_string()))
}
