//! Requests that create jobs.

use super::Service;
use crate::jobs::required_keys::{OLD_KEYS_HINT, describe_key_error};
use crate::jobs::spec::JobSpec;
use crate::jobs::validate::{RequestValidator, ValidTraining, check_row_blob_count};
use crate::limits::admission::Admission;
use crate::store::blobs::{BlobKey, Namespace, has_content};
use crate::store::state::NewJob;
use crate::tenants::Tenant;
use crate::{Error, Result, clock};
use hetal_ckks::bytes::{Codec, KeySetFile};
use hetal_ckks::{KeyId, KeySource, Params};
use hetal_wire::{BlobName, JobId, LABEL_BYTES, v1};
use prost::Message;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Service {
    /// Refuses a request with too many row blobs.
    pub(super) fn check_row_blobs(&self, message: &v1::CreateJobRequest) -> Result<()> {
        use v1::create_job_request::Work::{Classification, Training};
        let batches = match &message.work {
            Some(Training(training)) => training.batches.len() + training.validation.len(),
            Some(Classification(classification)) => classification.queries.len(),
            None => 0,
        };
        check_row_blob_count(batches, self.core.config.bounds.batches)
    }

    /// Creates a job. The admission covers the computation of the key requirements. Checking the
    /// keys may download them from a bucket, so it delays only requests of the same tenant.
    pub(super) fn create_job(
        &self,
        tenant: &Tenant,
        message: &v1::CreateJobRequest,
        mut admission: Admission,
    ) -> Result<v1::Job> {
        let request = (&*message.request_id).try_into();
        let request: [u8; 16] = request.map_err(|_| Error::invalid("a request id must have 16 random bytes"))?;
        if message.label.len() > LABEL_BYTES || message.label.chars().any(char::is_control) {
            return Err(Error::invalid(format!(
                "a label must be text of at most {LABEL_BYTES} bytes without control characters"
            )));
        }
        let validator = RequestValidator {
            param_sets: &self.core.param_sets,
            limits: &self.core.config.hyperparameters,
            hide: self.core.config.hide_hyperparameters,
            state: &*self.core.state,
            tenant,
            required_keys: &self.core.required_keys,
        };
        let spec = match &message.work {
            Some(v1::create_job_request::Work::Training(message)) => {
                let ValidTraining { spec, params, requirements } = validator.training(message)?;
                admission.release_shared();
                self.check_keys(tenant, spec.keys, &params, requirements.accepted())?;
                JobSpec::Training(spec)
            }
            Some(v1::create_job_request::Work::Classification(message)) => {
                JobSpec::Classification(validator.classification(message)?)
            }
            None => return Err(Error::invalid("the request names neither a training nor a classification")),
        };
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|e| Error::System { what: "randomness".to_owned(), reason: e.to_string() })?;
        let body = *blake3::hash(&message.encode_to_vec()).as_bytes();
        let new = NewJob { id: JobId(id), request, body, label: message.label.clone(), spec };
        let job = self.core.state.create_job(tenant, &new, &self.quota(), clock::millis())?;
        // A repeated request finds the job that it created.
        if job.id == new.id {
            self.core.notifier.notify_of(job.id);
        }
        Ok(self.describe(&job))
    }

    /// Checks that the key set contains exactly the keys of one of the accepted lists.
    fn check_keys(
        &self,
        tenant: &Tenant,
        name: BlobName,
        params: &Arc<Params>,
        accepted: [&[(KeyId, usize)]; 2],
    ) -> Result<()> {
        let path = match self.core.blobs.local(&BlobKey::new(tenant, Namespace::Uploads, name)) {
            Ok(Some(path)) => path,
            Ok(None) | Err(Error::Damaged { .. }) => return Err(self.uploads.distrust(tenant, name)),
            Err(error) => return Err(error),
        };
        let codec = Codec::new(Arc::clone(params), self.core.param_sets.ring(params)?);
        let file = match KeySetFile::open(&codec, &path) {
            Ok(file) => file,
            Err(_) if !has_content(&path, name)? => return Err(self.uploads.distrust(tenant, name)),
            Err(error) => return Err(Error::invalid(describe_key_error(&error, OLD_KEYS_HINT))),
        };
        let found: BTreeSet<_> = file.available().iter().map(|&(id, basis)| (id, basis.q)).collect();
        let [expected, whole] = accepted.map(|keys| keys.iter().copied().collect::<BTreeSet<_>>());
        if found == whole {
            return Ok(());
        }
        if let Some((id, limbs)) = expected.difference(&found).next() {
            return Err(Error::invalid(format!(
                "the key set lacks the {id} for {limbs} limbs: create keys for this shape; {OLD_KEYS_HINT}"
            )));
        }
        match found.difference(&expected).next() {
            Some((id, limbs)) => {
                Err(Error::invalid(format!("the key set has an unneeded {id} for {limbs} limbs; {OLD_KEYS_HINT}")))
            }
            None => Ok(()),
        }
    }
}
