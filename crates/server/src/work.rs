//! What a job is to do, checked: the request of a client becomes this or an error.

use crate::sets::Sets;
use crate::state::{BlobKind, State};
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_circuits::encrypted;
use hetal_ckks::bytes::{self, FormatError, seeded_ciphertext_len};
use hetal_ckks::{KeyId, Params};
use hetal_learn::nesterov::Momentum;
use hetal_learn::{Agreement, Circuit, Limits, Wishes};
use hetal_wire::{BlobName, JobId, v1};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What a job is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// To train.
    Training(Training),
    /// To classify.
    Classification(Classification),
}

/// A training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Training {
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
    pub batches: Vec<Part>,
    /// Feature blocks.
    pub validation: Vec<Part>,
    /// The hyper-parameters.
    pub agreement: Agreement,
}

/// A classification with the weights, keys and shape of a training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Classification {
    /// The training's job.
    #[serde(with = "text")]
    pub job: JobId,
    /// What it was to do.
    pub training: Training,
    /// One of its outputs.
    #[serde(with = "text")]
    pub weights: BlobName,
    /// Feature blocks.
    pub queries: Vec<Part>,
}

/// Rows in an uploaded blob.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
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

impl Work {
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
        let parts = batches.iter().chain(validation).chain(queries).map(|part| part.blob);
        std::iter::once(training.keys).chain(parts)
    }

    /// The training it is or belongs to.
    pub fn training(&self) -> &Training {
        match self {
            Self::Training(training) => training,
            Self::Classification(work) => &work.training,
        }
    }
}

impl Training {
    /// The circuit of its shape.
    pub fn circuit(&self, params: &Params) -> Result<Circuit> {
        let Agreement { batch, range, .. } = self.agreement;
        Circuit::new(params.slots(), batch, self.features, self.classes, range).map_err(Error::invalid)
    }
}

/// What helps where a key set was made by an earlier version of the client.
pub const OLD_KEYS: &str = "keys of an earlier version are made anew by `hetal keygen`";

/// What is wrong with the file of a key set; where its keys have other shapes than those of this version, with what `helps` against that.
/// Against damage and faults of the machine it would not.
pub fn bad_keys(error: &FormatError, helps: &str) -> String {
    use FormatError::{Digits, KeyOrder, Length, Primes, Purpose, Version};
    let other_shape = matches!(
        error,
        Length { .. } | Purpose { .. } | Digits { .. } | Primes { .. } | KeyOrder { .. } | Version { .. }
    );
    if other_shape { format!("{error}; {helps}") } else { error.to_string() }
}

/// What requests are checked against.
pub struct Checker<'a> {
    /// The parameter sets that are allowed.
    pub sets: &'a Sets,
    /// The hyper-parameters that are allowed.
    pub limits: &'a Limits,
    /// Whether clients are told hyper-parameters.
    pub hide: bool,
    /// Where uploads are known.
    pub state: &'a dyn State,
    /// Whose request it is.
    pub tenant: &'a Tenant,
    /// Keys of shapes that were asked for before.
    pub key_lists: &'a KeyLists,
}

/// What the circuit of a shape needs.
pub struct Needs {
    /// Switching keys, each with its number of limbs.
    pub keys: Vec<(KeyId, usize)>,
    /// Bounds of what it bootstraps, as powers of two.
    pub bounds: Vec<u32>,
}

/// What circuits need. Finding out takes a while, so the last few are kept, of each tenant his own: the time that an answer takes tells
/// nobody what others asked for. Nothing is locked meanwhile: requests come one at a time (`turns`), and what a worker finds out at the
/// same moment is found out twice.
#[derive(Default)]
pub struct KeyLists(Mutex<HashMap<Tenant, Vec<(Shape, Arc<Needs>)>>>);

/// Set, rows that are computed at once, features, classes, range: a larger batch of the same shape comes in more pieces.
type Shape = (String, usize, usize, usize, u64);

impl KeyLists {
    /// Of a tenant.
    const KEPT: usize = 8;

    /// What the circuit of a tenant's training needs.
    pub fn find(
        &self,
        params: &Params,
        (tenant, training): (&Tenant, &Training),
        circuit: &Circuit,
    ) -> Result<Arc<Needs>> {
        let (rows, range) = (circuit.geometry().rows(), training.agreement.range.to_bits());
        let shape = (training.set.clone(), rows, training.features, training.classes, range);
        let known = |kept: &HashMap<Tenant, Vec<(Shape, Arc<Needs>)>>| {
            kept.get(tenant)?.iter().find(|(known, _)| *known == shape).map(|(_, needs)| Arc::clone(needs))
        };
        if let Some(needs) = known(&self.0.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(needs);
        }
        let keys = circuit.keys(params.top_level()).map_err(Error::invalid)?;
        let needs = Arc::new(Needs { keys: encrypted::keys(params, &keys), bounds: keys.bounds });
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(needs) = known(&kept) {
            return Ok(needs);
        }
        let own = kept.entry(tenant.clone()).or_default();
        if own.len() == Self::KEPT {
            own.remove(0);
        }
        own.push((shape, Arc::clone(&needs)));
        Ok(needs)
    }
}

impl Checker<'_> {
    /// A training that can run, as far as can be told without reading keys and ciphertexts, its set, and what it needs.
    pub fn training(&self, message: &v1::Training) -> Result<(Training, Arc<Params>, Arc<Needs>)> {
        let params = self.sets.by_id(&message.set)?;
        let training = Training {
            set: params.name().to_owned(),
            features: message.features as usize,
            classes: message.classes as usize,
            keys: blob_name(&message.keys)?,
            batches: parts(&message.batches)?,
            validation: parts(&message.validation)?,
            agreement: self.agree(message.wishes.as_ref())?,
        };
        if training.batches.is_empty() || training.validation.is_empty() {
            return Err(Error::invalid("a training needs at least one batch and one blob of validation rows"));
        }
        let circuit = training.circuit(&params)?;
        let (blocks, labels) = (blocks_len(&params, &circuit), labels_len(&params, &circuit));
        let geometry = circuit.geometry();
        let batch = training.agreement.batch;
        self.parts(&training.batches, BlobKind::Batch, blocks + labels, batch.min(geometry.rows()))?;
        let sent = training.batches.len();
        for number in 0..circuit.batches(sent) {
            let rows: usize = training.batches[circuit.pieces_of(number, sent)].iter().map(|part| part.rows).sum();
            if rows > batch {
                return Err(Error::invalid(format!("{rows} rows in batch {number}, at most {batch} were agreed")));
            }
        }
        self.parts(&training.validation, BlobKind::Features, blocks, geometry.rows())?;
        let needs = self.key_lists.find(&params, (self.tenant, &training), &circuit)?;
        let size = bytes::key_set_len(&params, &needs.keys).map_err(Error::invalid)?;
        self.uploaded(training.keys, BlobKind::Keys, size)?;
        Ok((training, params, needs))
    }

    /// A classification that can run: its training has finished and left those weights.
    pub fn classification(&self, message: &v1::Classification) -> Result<Classification> {
        let id = job_id(&message.job)?;
        let Work::Training(training) = self.state.job(self.tenant, id)?.work else {
            return Err(Error::invalid(format!("job {id} is no training")));
        };
        let weights = blob_name(&message.weights)?;
        let events = self.state.events(self.tenant, id, 0, usize::MAX >> 1)?;
        let is_output = |event: &v1::Event| match &event.what {
            Some(v1::event::What::Finished(finished)) => finished.outputs.iter().any(|o| o.blob[..] == weights.0),
            _ => false,
        };
        if !events.iter().any(is_output) {
            return Err(Error::NoOutput { name: weights });
        }
        let params = self.sets.by_name(&training.set)?;
        let circuit = training.circuit(&params)?;
        let queries = parts(&message.queries)?;
        if queries.is_empty() {
            return Err(Error::invalid("there are no queries"));
        }
        self.parts(&queries, BlobKind::Features, blocks_len(&params, &circuit), circuit.geometry().rows())?;
        Ok(Classification { job: id, training, weights, queries })
    }

    fn agree(&self, message: Option<&v1::Wishes>) -> Result<Agreement> {
        let message = message.copied().unwrap_or_default();
        let momentum = match message.momentum() {
            v1::Momentum::Unspecified => None,
            v1::Momentum::None => Some(Momentum::None),
            v1::Momentum::Nesterov => Some(Momentum::Nesterov),
        };
        let wishes = Wishes {
            batch: message.batch.map(|n| n as usize),
            rate: message.rate,
            momentum,
            patience: message.patience.map(|n| n as usize),
            max_epochs: message.max_epochs.map(|n| n as usize),
        };
        self.limits.agree(&wishes).map_err(|error| match error {
            // The bounds are hyper-parameters too.
            hetal_learn::Error::NotAllowed { what: "a learning rate", asked, .. } if self.hide => {
                Error::invalid(format!("a learning rate of {asked} is not allowed here"))
            }
            error => Error::invalid(error),
        })
    }

    fn parts(&self, parts: &[Part], kind: BlobKind, size: u64, rows: usize) -> Result<()> {
        for part in parts {
            if part.rows == 0 || part.rows > rows {
                return Err(Error::invalid(format!("{} rows in blob {}, 1 to {rows} fit", part.rows, part.blob)));
            }
            self.uploaded(part.blob, kind, size)?;
        }
        Ok(())
    }

    fn uploaded(&self, name: BlobName, kind: BlobKind, size: u64) -> Result<()> {
        let found = self.state.upload(self.tenant, name)?.filter(|upload| upload.complete);
        let found = found.ok_or(Error::NoBlob { name })?;
        if (found.kind, found.size) == (kind, size) {
            return Ok(());
        }
        let helps = if (found.kind, kind) == (BlobKind::Keys, BlobKind::Keys) {
            format!(": {OLD_KEYS}")
        } else {
            String::new()
        };
        Err(Error::invalid(format!(
            "blob {name} is {:?} of {} bytes, where {kind:?} of {size} bytes belong for this shape{helps}",
            found.kind, found.size
        )))
    }
}

/// Refuses more batches than there may be.
pub fn check_count(batches: usize, most: usize) -> Result<()> {
    if batches <= most {
        return Ok(());
    }
    Err(Error::Limit { sentence: format!("{batches} batches, at most {most} are allowed") })
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

/// A blob's name in a message.
pub fn blob_name(bytes: &[u8]) -> Result<BlobName> {
    BlobName::try_from(bytes).map_err(Error::invalid)
}

/// A job's name in a message.
pub fn job_id(bytes: &[u8]) -> Result<JobId> {
    JobId::try_from(bytes).map_err(Error::invalid)
}

pub(crate) fn parts(messages: &[v1::Rows]) -> Result<Vec<Part>> {
    let part = |message: &v1::Rows| Ok(Part { blob: blob_name(&message.blob)?, rows: message.rows as usize });
    messages.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_keys_are_asked_for_where_they_help() {
        let length = FormatError::Length { declared: 3, expected: 7 };
        assert_eq!(bad_keys(&length, OLD_KEYS), format!("{length}; {OLD_KEYS}"));
        let io = FormatError::from(std::io::Error::other("a broken disk"));
        for fault in [io, FormatError::Checksum { part: "the table" }, FormatError::Truncated { part: "a key set" }] {
            assert_eq!(bad_keys(&fault, OLD_KEYS), fault.to_string());
        }
    }
}
