//! What a job is to do, checked: the request of a client becomes this or an error.

use crate::{Error, Result};
use hetal_ckks::Params;
use hetal_ckks::bytes::seeded_ciphertext_len;
use hetal_learn::{Agreement, Circuit};
use hetal_wire::{BlobName, JobId};
use serde::{Deserialize, Serialize};

/// What a job is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JobSpec {
    /// To train.
    Training(TrainingSpec),
    /// To classify.
    Classification(ClassificationSpec),
}

/// A training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingSpec {
    /// Name of the parameter set.
    pub set: String,
    /// Features of a row.
    pub features: usize,
    /// Classes.
    pub classes: usize,
    /// The key set.
    #[serde(with = "text")]
    pub keys: BlobName,
    /// Feature blocks and labels.
    pub batches: Vec<RowBlob>,
    /// Feature blocks.
    pub validation: Vec<RowBlob>,
    /// The hyper-parameters.
    pub agreement: Agreement,
}

/// A classification with the weights, keys and shape of a training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassificationSpec {
    /// The training's job.
    #[serde(with = "text")]
    pub job: JobId,
    /// What it was to do.
    pub training: TrainingSpec,
    /// One of its outputs.
    #[serde(with = "text")]
    pub weights: BlobName,
    /// Feature blocks.
    pub queries: Vec<RowBlob>,
}

/// Rows in an uploaded blob.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowBlob {
    /// The blob.
    #[serde(with = "text")]
    pub blob: BlobName,
    /// Its rows that are not padding.
    pub rows: usize,
}

/// Names as text.
mod text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::fmt::Display;
    use std::str::FromStr;

    pub fn serialize<T: Display, S: Serializer>(name: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(name)
    }

    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl JobSpec {
    /// The uploads it needs for as long as it exists.
    pub fn uploads(&self) -> impl Iterator<Item = BlobName> {
        let (training, queries) = match self {
            Self::Training(training) => (training, &[][..]),
            Self::Classification(work) => (&work.training, &work.queries[..]),
        };
        let batches = match self {
            Self::Training(training) => &training.batches[..],
            Self::Classification(_) => &[],
        };
        let validation = if batches.is_empty() { &[][..] } else { &training.validation[..] };
        let parts = batches.iter().chain(validation).chain(queries).map(|row_blob| row_blob.blob);
        std::iter::once(training.keys).chain(parts)
    }

    /// The training it is or belongs to.
    pub fn training(&self) -> &TrainingSpec {
        match self {
            Self::Training(training) => training,
            Self::Classification(work) => &work.training,
        }
    }
}

impl TrainingSpec {
    /// The circuit of its shape.
    pub fn circuit(&self, params: &Params) -> Result<Circuit> {
        let Agreement { batch, range, .. } = self.agreement;
        Circuit::new(params.slots(), batch, self.features, self.classes, range).map_err(Error::invalid)
    }
}

/// Bytes of a blob of feature blocks.
pub fn blocks_len(params: &Params, circuit: &Circuit) -> u64 {
    let limbs = params.limbs(circuit.level_plan().fresh_features());
    circuit.geometry().blocks() as u64 * seeded_ciphertext_len(params, limbs)
}

/// Bytes of the labels behind the feature blocks of a batch.
pub fn labels_len(params: &Params, circuit: &Circuit) -> u64 {
    seeded_ciphertext_len(params, params.limbs(circuit.level_plan().probabilities()))
}
