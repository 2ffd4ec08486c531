//! What a training needs of whatever computes it. The real one is `bench`; simulations put a toy in its place, so that everything
//! around the computation can be driven through thousands of faults.

use crate::jobs::spec::{RowBlob, TrainingSpec};
use crate::store::blobs::{self, Blobs, Key, Namespace};
use crate::store::state::Job;
use crate::{Error, Result};
use hetal_learn::trainer::Model;
use hetal_wire::BlobName;
use std::ops::Range;
use std::sync::Arc;

/// Computes one job.
pub trait Executor {
    /// A ciphertext.
    type Ct: Clone;
    /// The circuit of one range.
    type Circuit;
    /// A batch, ready for steps.
    type Batch;
    /// Rows without labels, ready to be classified.
    type Rows;
    /// Weights, ready to classify.
    type Expanded;

    /// Where bytes are.
    fn blobs(&self) -> &dyn Blobs;
    /// The job.
    fn job(&self) -> &Job;

    /// The circuit of a range.
    fn circuit(&self, range: f64) -> Result<Self::Circuit>;
    /// Ciphertexts of a classifier.
    fn parts(&self) -> usize;
    /// The public first weights.
    fn first_weights(&self, training: &TrainingSpec) -> Result<Vec<Self::Ct>>;
    /// How many batches `sent` uploads make up.
    fn batches(&self, uploaded: usize) -> usize;
    /// Which of `sent` uploads make up a batch.
    fn pieces_of(&self, batch: usize, uploaded: usize) -> Range<usize>;
    /// Prepares an uploaded batch, or piece of one.
    fn batch(&self, circuit: &Self::Circuit, row_blob: &RowBlob) -> Result<Self::Batch>;
    /// Prepares uploaded rows.
    fn rows(&self, circuit: &Self::Circuit, row_blob: &RowBlob) -> Result<Self::Rows>;
    /// How many prepared batches may be kept, where so many bytes of memory may hold them.
    fn batch_capacity(&self, bytes: u64) -> usize;

    /// A step of gradient descent on a batch of `rows` rows in pieces, of which one at a time is asked for.
    fn step(
        &self,
        circuit: &Self::Circuit,
        model: &Model<Self::Ct>,
        rows: usize,
        pieces: &mut dyn Iterator<Item = Result<Arc<Self::Batch>>>,
        rate: f64,
    ) -> Result<Model<Self::Ct>>;
    /// A refresh of the momentum.
    fn refresh(&self, circuit: &Self::Circuit, model: &Model<Self::Ct>) -> Result<Model<Self::Ct>>;
    /// Prepares weights.
    fn expand(&self, circuit: &Self::Circuit, weights: &[Self::Ct]) -> Result<Self::Expanded>;
    /// Logits of rows under weights.
    fn logits(&self, circuit: &Self::Circuit, rows: &Self::Rows, weights: &Self::Expanded) -> Result<Self::Ct>;

    /// The bytes of a ciphertext.
    fn encode(&self, ciphertext: &Self::Ct) -> Result<Vec<u8>>;
    /// The ciphertext at the beginning of some bytes, which are then those after it.
    fn decode(&self, bytes: &mut &[u8]) -> Result<Self::Ct>;
    /// The most bytes of a ciphertext.
    fn max_ciphertext_bytes(&self) -> u64;

    /// The bytes of an upload.
    fn upload(&self, name: BlobName, size: u64) -> Result<Vec<u8>> {
        blobs::read(self.blobs(), &Key::new(&self.job().tenant, Namespace::Uploads, name), size)
    }

    /// Stores ciphertexts, one after the other in one blob, among what the job made; gives its name and size.
    fn put(&self, ciphertexts: &[Self::Ct]) -> Result<(BlobName, u64)> {
        self.put_unless_stored(ciphertexts, |_| false)
    }

    /// The same, unless a blob of that name is known to be there.
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
            self.blobs().put(&Key::new(&self.job().tenant, Namespace::Job(self.job().id), name), &bytes)?;
        }
        Ok((name, bytes.len() as u64))
    }

    /// The ciphertexts in a blob on a shelf: exactly so many.
    fn load(&self, namespace: Namespace, name: BlobName, count: usize) -> Result<Vec<Self::Ct>> {
        let max_bytes = count as u64 * self.max_ciphertext_bytes();
        let bytes = blobs::read(self.blobs(), &Key::new(&self.job().tenant, namespace, name), max_bytes)?;
        let bad = |reason: String| Error::failed(format!("blob {name}: {reason}"));
        let mut rest = &bytes[..];
        let read = |_| self.decode(&mut rest).map_err(|e| bad(e.to_string()));
        let ciphertexts = (0..count).map(read).collect::<Result<_>>()?;
        if rest.is_empty() { Ok(ciphertexts) } else { Err(bad(format!("{} bytes too many", rest.len()))) }
    }

    /// Removes a ciphertext from what the job made. One that stays costs room until the server starts again, and nothing else.
    fn delete_output(&self, name: BlobName) {
        let key = Key::new(&self.job().tenant, Namespace::Job(self.job().id), name);
        if let Err(error) = self.blobs().delete(&key) {
            tracing::warn!(%key, %error, "a blob that nobody needs could not be removed");
        }
    }
}
