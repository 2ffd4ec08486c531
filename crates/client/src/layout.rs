//! The layout of a training: its circuit, the keys it needs, and the size of everything that is
//! sent.

use crate::Result;
use hetal_circuits::encrypted;
use hetal_ckks::bytes::{ciphertext_len, key_set_len, seeded_ciphertext_len};
use hetal_ckks::{KeyId, Params};
use hetal_learn::{Circuit, Geometry, LevelPlan};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// Bytes per coefficient that a training needs besides keys and prepared batches: bootstrapping
/// matrices, plaintexts of the circuit and temporary values. These are 5.75 GiB at the degree
/// of `full`.
const BESIDE_KEYS: u64 = 92 << 10;

/// The inputs of a layout. Project folders store it as an array of four numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "(usize, usize, usize, f64)", into = "(usize, usize, usize, f64)")]
pub struct LayoutShape {
    /// Rows of a batch.
    pub batch: usize,
    /// Features of a row.
    pub features: usize,
    /// Classes.
    pub classes: usize,
    /// The initial range of logits.
    pub range: f64,
}

impl From<(usize, usize, usize, f64)> for LayoutShape {
    fn from((batch, features, classes, range): (usize, usize, usize, f64)) -> Self {
        Self { batch, features, classes, range }
    }
}

impl From<LayoutShape> for (usize, usize, usize, f64) {
    fn from(LayoutShape { batch, features, classes, range }: LayoutShape) -> Self {
        (batch, features, classes, range)
    }
}

/// The circuit of a shape with a parameter set.
#[derive(Clone)]
pub struct Layout {
    /// The parameter set.
    pub params: Arc<Params>,
    circuit: Circuit,
    batch: usize,
}

impl Layout {
    /// Creates the layout for batches of up to `batch` rows, with the initial range `range`.
    pub fn new(params: Arc<Params>, batch: usize, features: usize, classes: usize, range: f64) -> Result<Self> {
        let circuit = Circuit::new(params.slots(), batch, features, classes, range)?;
        Ok(Self { params, circuit, batch })
    }

    /// The geometry of a batch.
    pub fn geometry(&self) -> &Geometry {
        self.circuit.geometry()
    }

    /// The level plan.
    pub fn level_plan(&self) -> LevelPlan {
        self.circuit.level_plan()
    }

    /// The rows of every piece of `rows` training rows, in the order in which the pieces are sent.
    pub fn pieces(&self, rows: usize) -> Vec<Range<usize>> {
        self.circuit.pieces(rows)
    }

    /// The number of batches that `sent` pieces form.
    pub fn batches(&self, sent: usize) -> usize {
        self.circuit.batches(sent)
    }

    /// The factor by which the logits of a range are divided.
    pub fn scale(&self, range: f64) -> Result<f64> {
        Ok(self.circuit.scale(range)?)
    }

    /// The keys that the server needs, for this range and all wider ones.
    pub fn keys(&self) -> Result<Vec<(KeyId, usize)>> {
        Ok(encrypted::keys(&self.params, &self.circuit.keys(self.params.top_level())?))
    }

    /// The layout as text. Key sets are found by it.
    pub fn key(&self) -> String {
        let (LayoutShape { features, classes, range, .. }, rows) = (self.shape(), self.geometry().rows());
        format!("{rows} rows, {features} features, {classes} classes, range {range}")
    }

    /// The file name of its key set in a project.
    pub fn key_file(&self) -> String {
        let (LayoutShape { features, classes, range, .. }, rows) = (self.shape(), self.geometry().rows());
        format!("keys-{rows}-{features}-{classes}-{range}.hetal")
    }

    /// The inputs of [`Layout::new`].
    pub fn shape(&self) -> LayoutShape {
        let g = self.geometry();
        let range = self.circuit.ranges().first().copied().unwrap_or(0.0);
        LayoutShape { batch: self.batch, features: g.features(), classes: g.classes(), range }
    }

    fn limbs(&self, level: usize) -> usize {
        self.params.limbs(level)
    }

    /// Bytes of a set of keys.
    pub fn key_bytes(&self, keys: &[(KeyId, usize)]) -> Result<u64> {
        Ok(key_set_len(&self.params, keys).map_err(hetal_ckks::Error::from)?)
    }

    /// Bytes of a row blob without labels.
    pub fn feature_bytes(&self) -> u64 {
        self.geometry().blocks() as u64
            * seeded_ciphertext_len(&self.params, self.limbs(self.level_plan().fresh_features()))
    }

    /// Bytes of a row blob with labels.
    pub fn batch_bytes(&self) -> u64 {
        self.feature_bytes() + seeded_ciphertext_len(&self.params, self.limbs(self.level_plan().labels()))
    }

    /// Bytes of a row blob with labels if both halves of every ciphertext were sent.
    pub fn unseeded_batch_bytes(&self) -> u64 {
        self.unseeded_feature_bytes() + ciphertext_len(&self.params, self.limbs(self.level_plan().labels()))
    }

    /// Bytes of a row blob without labels if both halves of every ciphertext were sent.
    pub fn unseeded_feature_bytes(&self) -> u64 {
        self.geometry().blocks() as u64 * ciphertext_len(&self.params, self.limbs(self.level_plan().fresh_features()))
    }

    /// Bytes of the logits of one row blob.
    pub fn logit_bytes(&self) -> u64 {
        ciphertext_len(&self.params, self.limbs(self.level_plan().logits()))
    }

    /// Bytes of an encrypted classifier: its parts one after the other.
    pub fn weight_bytes(&self) -> u64 {
        self.geometry().parts() as u64 * ciphertext_len(&self.params, self.limbs(self.level_plan().weights()))
    }

    /// Bytes of server memory for the shifted versions of one piece.
    pub fn version_bytes(&self) -> u64 {
        let versions = (self.geometry().blocks() * self.geometry().padded_classes()) as u64;
        versions * 2 * self.limbs(self.level_plan().features()) as u64 * self.limb_bytes()
    }

    fn limb_bytes(&self) -> u64 {
        self.params.degree() as u64 * 8
    }
}

/// Bytes of server memory for keys on a CPU, uniform halves included.
pub fn resident_key_bytes(params: &Params, keys: &[(KeyId, usize)]) -> u64 {
    let limbs = |&(id, q): &(KeyId, usize)| id.total_limbs(params, q);
    (keys.iter().map(limbs).sum::<usize>() * 8 * hetal_ring::packed::words(params.degree())) as u64
}

/// The least memory in bytes for a training with these keys on a CPU. Prepared batches come on top.
pub fn server_bytes(params: &Params, keys: &[(KeyId, usize)]) -> u64 {
    resident_key_bytes(params, keys) + BESIDE_KEYS * params.degree() as u64
}
