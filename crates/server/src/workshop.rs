//! What a training needs of whatever computes it. The real one is `bench`; simulations put a toy in its place, so that everything
//! around the computation can be driven through thousands of faults.

use crate::blobs::{self, Blobs, Key, Shelf};
use crate::state::Job;
use crate::work::{Part, Training};
use crate::{Error, Result};
use hetal_learn::trainer::Model;
use hetal_wire::BlobName;

/// Computes one job.
pub trait Workshop {
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
    /// The public first weights.
    fn first_weights(&self, training: &Training) -> Result<Self::Ct>;
    /// Prepares an uploaded batch.
    fn batch(&self, circuit: &Self::Circuit, part: &Part) -> Result<Self::Batch>;
    /// Prepares uploaded rows.
    fn rows(&self, circuit: &Self::Circuit, part: &Part) -> Result<Self::Rows>;
    /// Bytes of a prepared batch, in memory.
    fn prepared_bytes(&self) -> u64;

    /// A step of gradient descent.
    fn step(
        &self,
        circuit: &Self::Circuit,
        model: &Model<Self::Ct>,
        batch: &Self::Batch,
        rate: f64,
    ) -> Result<Model<Self::Ct>>;
    /// A refresh of the momentum.
    fn refresh(&self, circuit: &Self::Circuit, model: &Model<Self::Ct>) -> Result<Model<Self::Ct>>;
    /// Prepares weights.
    fn expand(&self, circuit: &Self::Circuit, weights: &Self::Ct) -> Result<Self::Expanded>;
    /// Logits of rows under weights.
    fn logits(&self, circuit: &Self::Circuit, rows: &Self::Rows, weights: &Self::Expanded) -> Result<Self::Ct>;

    /// The bytes of a ciphertext.
    fn encode(&self, ciphertext: &Self::Ct) -> Result<Vec<u8>>;
    /// The ciphertext of some bytes.
    fn decode(&self, bytes: &[u8]) -> Result<Self::Ct>;
    /// The most bytes of a ciphertext.
    fn largest(&self) -> u64;

    /// The bytes of an upload.
    fn upload(&self, name: BlobName, size: u64) -> Result<Vec<u8>> {
        blobs::read(self.blobs(), &Key::new(&self.job().tenant, Shelf::Uploads, name), size)
    }

    /// Stores a ciphertext among what the job made; gives its name and size.
    fn put(&self, ciphertext: &Self::Ct) -> Result<(BlobName, u64)> {
        let bytes = self.encode(ciphertext)?;
        let name = blobs::name_of(&bytes);
        self.blobs().put(&Key::new(&self.job().tenant, Shelf::Job(self.job().id), name), &bytes)?;
        Ok((name, bytes.len() as u64))
    }

    /// A ciphertext on a shelf.
    fn get(&self, shelf: Shelf, name: BlobName) -> Result<Self::Ct> {
        let bytes = blobs::read(self.blobs(), &Key::new(&self.job().tenant, shelf, name), self.largest())?;
        self.decode(&bytes).map_err(|e| Error::work(format!("blob {name}: {e}")))
    }

    /// Removes a ciphertext from what the job made. One that stays costs room until the server starts again, and nothing else.
    fn forget(&self, name: BlobName) {
        let key = Key::new(&self.job().tenant, Shelf::Job(self.job().id), name);
        if let Err(error) = self.blobs().delete(&key) {
            tracing::warn!(%key, %error, "a blob that nobody needs could not be removed");
        }
    }
}
