//! The operations that a job needs from its device.
//!
//! `CkksExecutor` is the implementation for real jobs. The simulation uses a toy implementation, so
//! that faults can be injected into everything around the computation.

use crate::jobs::spec::{RowBlob, TrainingSpec};
use crate::store::blobs::{self, BlobKey, Blobs, Namespace};
use crate::store::state::Job;
use crate::{Error, Result};
use hetal_learn::nesterov::StepSize;
use hetal_learn::trainer::ModelState;
use hetal_wire::BlobName;
use std::ops::Range;
use std::sync::Arc;

/// Executes the operations of one job.
pub trait Executor {
    /// A ciphertext.
    type Ct: Clone;
    /// The circuit for one range.
    type Circuit;
    /// A batch, or a piece of one, prepared for gradient steps.
    type Batch;
    /// Rows without labels, prepared for classification.
    type Rows;
    /// Weights, prepared for classification.
    type Expanded;

    /// The blob store.
    fn blobs(&self) -> &dyn Blobs;
    /// The job.
    fn job(&self) -> &Job;

    /// Builds the circuit for a range.
    fn circuit(&self, range: f64) -> Result<Self::Circuit>;
    /// The number of ciphertexts of a classifier.
    fn parts(&self) -> usize;
    /// The initial weights, which are public.
    fn first_weights(&self, training: &TrainingSpec) -> Result<Vec<Self::Ct>>;
    /// The number of batches in `uploaded` row blobs.
    fn batches(&self, uploaded: usize) -> usize;
    /// The row blobs, out of `uploaded`, that form a batch.
    fn pieces_of(&self, batch: usize, uploaded: usize) -> Range<usize>;
    /// Prepares a row blob with labels. `again` says whether it will be prepared again.
    fn batch(&self, circuit: &Self::Circuit, row_blob: &RowBlob, again: bool) -> Result<Self::Batch>;
    /// Prepares a row blob without labels. `again` says whether it will be prepared again.
    fn rows(&self, circuit: &Self::Circuit, row_blob: &RowBlob, again: bool) -> Result<Self::Rows>;
    /// The number of prepared batches that may be kept in `bytes` bytes of memory.
    fn batch_capacity(&self, bytes: u64) -> usize;

    /// One gradient step on a batch. The batch comes with its number of rows and its pieces, which
    /// are loaded one at a time.
    fn step(
        &self,
        circuit: &Self::Circuit,
        model: &ModelState<Self::Ct>,
        rows: usize,
        pieces: &mut dyn Iterator<Item = Result<Arc<Self::Batch>>>,
        size: StepSize,
    ) -> Result<ModelState<Self::Ct>>;
    /// Refreshes the momentum.
    fn refresh(&self, circuit: &Self::Circuit, model: &ModelState<Self::Ct>) -> Result<ModelState<Self::Ct>>;
    /// Prepares weights for classification.
    fn expand(&self, circuit: &Self::Circuit, weights: &[Self::Ct]) -> Result<Self::Expanded>;
    /// Computes the logits of rows.
    fn logits(&self, circuit: &Self::Circuit, rows: &Self::Rows, weights: &Self::Expanded) -> Result<Self::Ct>;

    /// Serialises logits for the owner, who only decrypts them: with one prime.
    fn encode_logits(&self, logits: &Self::Ct) -> Result<Vec<u8>>;
    /// Serialises a ciphertext.
    fn encode(&self, ciphertext: &Self::Ct) -> Result<Vec<u8>>;
    /// Reads one ciphertext from the front of `bytes` and advances `bytes` past it.
    fn decode(&self, bytes: &mut &[u8]) -> Result<Self::Ct>;
    /// The largest size of a ciphertext in bytes.
    fn max_ciphertext_bytes(&self) -> u64;

    /// Reads an uploaded blob.
    fn upload(&self, name: BlobName, size: u64) -> Result<Vec<u8>> {
        let read = blobs::read(self.blobs(), &BlobKey::new(&self.job().tenant, Namespace::Uploads, name), size);
        read.map_err(|error| match error {
            Error::Damaged { .. } | Error::NoBlob { .. } => Error::DamagedUpload { name },
            other => other,
        })
    }

    /// Stores ciphertexts as one blob of the job. Returns the blob's name and size.
    fn put(&self, ciphertexts: &[Self::Ct]) -> Result<(BlobName, u64)> {
        self.put_unless_stored(ciphertexts, |_| false)
    }

    /// Stores logits for the owner. Returns the blob's name and size.
    fn put_logits(&self, logits: &Self::Ct) -> Result<(BlobName, u64)> {
        let bytes = self.encode_logits(logits)?;
        let name = blobs::name_of(&bytes);
        self.blobs().put(&BlobKey::new(&self.job().tenant, Namespace::Job(self.job().id), name), &bytes)?;
        Ok((name, bytes.len() as u64))
    }

    /// Like [`Executor::put`], but does not write a blob that is already stored.
    fn put_unless_stored(
        &self,
        ciphertexts: &[Self::Ct],
        is_stored: impl FnOnce(BlobName) -> bool,
    ) -> Result<(BlobName, u64)> {
        let mut bytes = Vec::new();
        for ciphertext in ciphertexts {
            bytes.extend(self.encode(ciphertext)?);
        }
        let name = blobs::name_of(&bytes);
        if !is_stored(name) {
            self.blobs().put(&BlobKey::new(&self.job().tenant, Namespace::Job(self.job().id), name), &bytes)?;
        }
        Ok((name, bytes.len() as u64))
    }

    /// Reads exactly `count` ciphertexts from a blob.
    fn load(&self, namespace: Namespace, name: BlobName, count: usize) -> Result<Vec<Self::Ct>> {
        let max_bytes = count as u64 * self.max_ciphertext_bytes();
        let bytes = blobs::read(self.blobs(), &BlobKey::new(&self.job().tenant, namespace, name), max_bytes)?;
        let bad = |reason: String| Error::failed(format!("blob {name}: {reason}"));
        let mut rest = &bytes[..];
        let read = |_| self.decode(&mut rest).map_err(|e| bad(e.to_string()));
        let ciphertexts = (0..count).map(read).collect::<Result<_>>()?;
        if rest.is_empty() { Ok(ciphertexts) } else { Err(bad(format!("{} bytes are left over", rest.len()))) }
    }

    /// Deletes a blob of the job. If this fails, garbage collection deletes the blob.
    fn delete_output(&self, name: BlobName) {
        let key = BlobKey::new(&self.job().tenant, Namespace::Job(self.job().id), name);
        if let Err(error) = self.blobs().delete(&key) {
            tracing::warn!(%key, %error, "could not delete an unused blob");
        }
    }
}
