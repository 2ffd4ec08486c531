//! Validation of requests: a client's request becomes a job spec or an error.

use super::required_keys::{OLD_KEYS_HINT, OLD_MODEL_HINT, RequiredKeys, RequiredKeysCache};
use super::spec::{ClassificationSpec, JobSpec, RowBlob, TrainingSpec, row_blob_len};
use crate::compute::param_registry::ParamRegistry;
use crate::store::state::{BlobKind, EventLimit, State, Upload};
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_ckks::Params;
use hetal_ckks::bytes;
use hetal_learn::agreement::{DECAY, check_every};
use hetal_learn::nesterov::Momentum;
use hetal_learn::{Agreement, AgreementLimits, KeyPlan, RowForm, Wishes};
use hetal_wire::{BlobName, JobId, v1};
use std::collections::HashSet;
use std::sync::Arc;

/// Validates requests for jobs.
pub struct RequestValidator<'a> {
    /// The accepted parameter sets.
    pub param_sets: &'a ParamRegistry,
    /// Bounds of the hyper-parameters.
    pub limits: &'a AgreementLimits,
    /// Whether hyper-parameters are hidden from clients.
    pub hide: bool,
    /// The state, which knows the uploads.
    pub state: &'a dyn State,
    /// The tenant who makes the request.
    pub tenant: &'a Tenant,
    /// Key requirements of earlier requests.
    pub required_keys: &'a RequiredKeysCache,
}

/// A validated training.
pub struct ValidTraining {
    /// What to do.
    pub spec: TrainingSpec,
    /// The parameter set.
    pub params: Arc<Params>,
    /// The keys that it needs.
    pub requirements: Arc<RequiredKeys>,
}

impl RequestValidator<'_> {
    /// Validates a training as far as possible without reading keys and ciphertexts.
    pub fn training(&self, message: &v1::Training) -> Result<ValidTraining> {
        let params = self.param_sets.by_id(&message.set)?;
        let mut training = TrainingSpec {
            set: params.name().to_owned(),
            features: message.features as usize,
            classes: message.classes as usize,
            keys: blob_name(&message.keys)?,
            batches: row_blobs(&message.batches)?,
            validation: row_blobs(&message.validation)?,
            agreement: Agreement { weighted: message.weighted, ..self.agreement(message.wishes.as_ref())? }
                .for_classes(message.classes as usize),
            form: row_form(message.form)?,
            key_plan: key_plan(message.key_plan)?,
        };
        if training.batches.is_empty() || training.validation.is_empty() {
            return Err(Error::invalid("a training needs at least one batch and one blob of validation rows"));
        }
        check_distinct(training.batches.iter().chain(&training.validation))?;
        let circuit = training.circuit(&params)?;
        let [blocks, whole] = [false, true].map(|labels| row_blob_len(&params, &circuit, training.form, labels));
        let geometry = circuit.geometry();
        let batch = training.agreement.batch;
        let kind = if message.weighted { BlobKind::WeightedBatch } else { BlobKind::Batch };
        self.row_blobs(&training.batches, kind, whole, batch.min(geometry.rows()))?;
        let uploaded = training.batches.len();
        for number in 0..circuit.batches(uploaded) {
            let rows: usize =
                training.batches[circuit.pieces_of(number, uploaded)].iter().map(|row_blob| row_blob.rows).sum();
            if rows > batch {
                return Err(Error::invalid(format!(
                    "batch {number} has {rows} rows, but the agreed maximum is {batch}"
                )));
            }
        }
        self.row_blobs(&training.validation, BlobKind::Features, blocks, geometry.rows())?;
        let wish = message.wishes.and_then(|wishes| wishes.check_every).map(|n| n as usize);
        let Agreement { check_every: default, max_epochs, .. } = training.agreement;
        training.agreement.check_every =
            check_every(wish, default, circuit.batches(uploaded), max_epochs).map_err(Error::invalid)?;
        let requirements = self.required_keys.find(&params, self.tenant, &training, &circuit)?;
        let size = |keys| bytes::key_set_len(&params, keys).map_err(Error::invalid);
        let [sent, whole] = requirements.accepted();
        let keys = self.state.upload(self.tenant, training.keys)?;
        let whole = size(whole)?;
        let size = if keys.as_ref().is_some_and(|found| found.size == whole) { whole } else { size(sent)? };
        check_upload(training.keys, keys.as_ref(), BlobKind::Keys, size)?;
        Ok(ValidTraining { spec: training, params, requirements })
    }

    /// Validates a classification: its training must have finished with the given weights.
    pub fn classification(&self, message: &v1::Classification) -> Result<ClassificationSpec> {
        let id = job_id(&message.job)?;
        let JobSpec::Training(training) = self.state.job(self.tenant, id)?.spec else {
            return Err(Error::invalid(format!("job {id} is not a training")));
        };
        let weights = blob_name(&message.weights)?;
        // The outputs are in the last event.
        let last = self.state.summary(self.tenant, id)?.sequence.saturating_sub(1);
        let events = self.state.events(self.tenant, id, last, EventLimit::PAGE)?;
        let is_output = |event: &v1::Event| match &event.what {
            Some(v1::event::What::Finished(finished)) => finished.outputs.iter().any(|o| o.blob[..] == weights.0),
            _ => false,
        };
        if !events.iter().any(is_output) {
            return Err(Error::NoOutput { name: weights });
        }
        if !training.has_current_circuit() {
            return Err(Error::invalid(OLD_MODEL_HINT));
        }
        let params = self.param_sets.by_name(&training.set)?;
        let circuit = training.circuit(&params)?;
        let queries = row_blobs(&message.queries)?;
        if queries.is_empty() {
            return Err(Error::invalid("there are no queries"));
        }
        check_distinct(queries.iter())?;
        let form = row_form(message.form)?;
        let size = row_blob_len(&params, &circuit, form, false);
        self.row_blobs(&queries, BlobKind::Features, size, circuit.geometry().rows())?;
        Ok(ClassificationSpec { job: id, training, weights, queries, form })
    }

    fn agreement(&self, message: Option<&v1::Wishes>) -> Result<Agreement> {
        let message = message.copied().unwrap_or_default();
        let unknown =
            |_| Error::invalid(format!("unknown momentum {}: this server knows none and Nesterov", message.momentum));
        let momentum = match v1::Momentum::try_from(message.momentum).map_err(unknown)? {
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
            alpha: message.alpha,
            check_every: message.check_every.map(|n| n as usize),
        };
        self.limits.agree(&wishes).map_err(|error| match error {
            // The bounds would reveal hidden hyper-parameters.
            hetal_learn::Error::NotAllowed { what: "a learning rate", asked, .. } if self.hide => {
                Error::invalid(format!("a learning rate of {asked} is not allowed by this server"))
            }
            hetal_learn::Error::NotAllowed { what: "an alpha" | DECAY, .. } if self.hide => {
                Error::invalid("this alpha is not allowed by this server with its learning rate: ask for a smaller one")
            }
            hetal_learn::Error::RateHidden => Error::invalid("the server chooses the learning rate: ask for none"),
            error => Error::invalid(error),
        })
    }

    fn row_blobs(&self, blobs: &[RowBlob], kind: BlobKind, size: u64, rows: usize) -> Result<()> {
        let names: Vec<_> = blobs.iter().map(|row_blob| row_blob.blob).collect();
        let found = self.state.find_uploads(self.tenant, &names)?;
        for row_blob in blobs {
            if row_blob.rows == 0 || row_blob.rows > rows {
                return Err(Error::invalid(format!(
                    "blob {} has {} rows, but must have 1 to {rows}",
                    row_blob.blob, row_blob.rows
                )));
            }
            check_upload(row_blob.blob, found.get(&row_blob.blob), kind, size)?;
        }
        Ok(())
    }
}

/// Checks that an upload is there, and is what a job needs.
fn check_upload(name: BlobName, found: Option<&Upload>, kind: BlobKind, size: u64) -> Result<()> {
    let found = found.filter(|upload| upload.complete).ok_or(Error::NoBlob { name })?;
    if (found.kind, found.size) == (kind, size) {
        return Ok(());
    }
    let hint = if (found.kind, kind) == (BlobKind::Keys, BlobKind::Keys) {
        format!(": {OLD_KEYS_HINT}")
    } else {
        String::new()
    };
    Err(Error::invalid(format!(
        "blob {name} is {:?} of {} bytes, but this shape needs {kind:?} of {size} bytes{hint}",
        found.kind, found.size
    )))
}

/// Refuses a request with too many row blobs.
pub fn check_row_blob_count(batches: usize, max_batches: usize) -> Result<()> {
    if batches <= max_batches {
        return Ok(());
    }
    Err(Error::Limit { message: format!("the job has {batches} row blobs, but at most {max_batches} are allowed") })
}

/// Refuses row blobs that a request names more than once. Encryption is randomised, so different
/// rows never have the same blob, and a list of repetitions only costs the server memory.
fn check_distinct<'a>(row_blobs: impl Iterator<Item = &'a RowBlob>) -> Result<()> {
    let mut seen = HashSet::new();
    for RowBlob { blob, .. } in row_blobs {
        if !seen.insert(*blob) {
            return Err(Error::invalid(format!("the request names blob {blob} twice: name each row blob once")));
        }
    }
    Ok(())
}

/// Parses the name of a blob.
pub fn blob_name(bytes: &[u8]) -> Result<BlobName> {
    BlobName::try_from(bytes).map_err(Error::invalid)
}

/// The form of rows in a request.
fn row_form(message: i32) -> Result<RowForm> {
    match v1::RowForm::try_from(message) {
        Ok(v1::RowForm::Slots) => Ok(RowForm::Slots),
        Ok(v1::RowForm::Coefficients) => Ok(RowForm::Coefficients),
        _ => Err(Error::invalid(format!("unknown form of rows {message}: this server knows slots and coefficients"))),
    }
}

/// The key plan of a request.
fn key_plan(message: i32) -> Result<KeyPlan> {
    match v1::KeyPlan::try_from(message) {
        Ok(v1::KeyPlan::Fast) => Ok(KeyPlan::Fast),
        Ok(v1::KeyPlan::Balanced) => Ok(KeyPlan::Balanced),
        Ok(v1::KeyPlan::Small) => Ok(KeyPlan::Small),
        _ => Err(Error::invalid(format!("unknown key plan {message}: this server knows fast, balanced and small"))),
    }
}

/// Parses the id of a job.
pub fn job_id(bytes: &[u8]) -> Result<JobId> {
    JobId::try_from(bytes).map_err(Error::invalid)
}

pub(crate) fn row_blobs(messages: &[v1::Rows]) -> Result<Vec<RowBlob>> {
    let row_blob = |message: &v1::Rows| Ok(RowBlob { blob: blob_name(&message.blob)?, rows: message.rows as usize });
    messages.iter().map(row_blob).collect()
}
