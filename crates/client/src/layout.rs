//! What a training looks like from its owner's side: layout, keys, and the sizes of everything that is sent.

use crate::Result;
use hetal_circuits::encrypted;
use hetal_ckks::bytes::{ciphertext_len, key_set_len, seeded_ciphertext_len};
use hetal_ckks::{KeyId, Params};
use hetal_learn::{Circuit, Geometry, LevelPlan};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// Bytes for each coefficient that training takes beside keys and prepared batches: bootstrapping matrices, the circuit's plaintexts, work;
/// 5.5 GiB at the degree of `full`.
const BESIDE_KEYS: u64 = 88 << 10;

/// What a layout is made from. Project folders hold it as an array of four numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "(usize, usize, usize, f64)", into = "(usize, usize, usize, f64)")]
pub struct LayoutShape {
    /// Rows of a batch.
    pub batch: usize,
    /// Features of a row.
    pub features: usize,
    /// Classes.
    pub classes: usize,
    /// Logits lie in `[-range, range]` at first.
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

/// The circuit of a shape under a parameter set.
#[derive(Clone)]
pub struct Layout {
    /// The parameter set.
    pub params: Arc<Params>,
    circuit: Circuit,
    batch: usize,
}

impl Layout {
    /// The layout for batches of up to `batch` rows, whose logits lie in `[-range, range]` at first.
    pub fn new(params: Arc<Params>, batch: usize, features: usize, classes: usize, range: f64) -> Result<Self> {
        let circuit = Circuit::new(params.slots(), batch, features, classes, range)?;
        Ok(Self { params, circuit, batch })
    }

    /// The layout of a batch.
    pub fn geometry(&self) -> &Geometry {
        self.circuit.geometry()
    }

    /// The levels.
    pub fn level_plan(&self) -> LevelPlan {
        self.circuit.level_plan()
    }

    /// The rows of every piece of `rows` training rows, in the order in which they are sent.
    pub fn pieces(&self, rows: usize) -> Vec<Range<usize>> {
        self.circuit.pieces(rows)
    }

    /// How many batches `sent` pieces make up.
    pub fn batches(&self, sent: usize) -> usize {
        self.circuit.batches(sent)
    }

    /// What logits come divided by, for one of the ranges.
    pub fn scale(&self, range: f64) -> Result<f64> {
        Ok(self.circuit.scale(range)?)
    }

    /// The keys the server needs, for this range and those it may be widened to.
    pub fn keys(&self) -> Result<Vec<(KeyId, usize)>> {
        Ok(encrypted::keys(&self.params, &self.circuit.keys(self.params.top_level())?))
    }

    /// What a key set is made for.
    pub fn key(&self) -> String {
        let (LayoutShape { features, classes, range, .. }, rows) = (self.shape(), self.geometry().rows());
        format!("{rows} rows, {features} features, {classes} classes, range {range}")
    }

    /// The file of such a key set in a project.
    pub fn key_file(&self) -> String {
        let (LayoutShape { features, classes, range, .. }, rows) = (self.shape(), self.geometry().rows());
        format!("keys-{rows}-{features}-{classes}-{range}.hetal")
    }

    /// What [`Layout::new`] makes it from: rows of a batch, features, classes, range.
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

    /// Bytes of the encrypted features of a batch, or of validation rows.
    pub fn feature_bytes(&self) -> u64 {
        self.geometry().blocks() as u64
            * seeded_ciphertext_len(&self.params, self.limbs(self.level_plan().fresh_features()))
    }

    /// Bytes of an encrypted piece of a batch with its labels.
    pub fn batch_bytes(&self) -> u64 {
        self.feature_bytes() + seeded_ciphertext_len(&self.params, self.limbs(self.level_plan().probabilities()))
    }

    /// Bytes of an encrypted batch with its labels if both halves of every ciphertext were sent.
    pub fn unseeded_batch_bytes(&self) -> u64 {
        self.unseeded_feature_bytes() + ciphertext_len(&self.params, self.limbs(self.level_plan().probabilities()))
    }

    /// Bytes of validation rows if both halves of every ciphertext were sent.
    pub fn unseeded_feature_bytes(&self) -> u64 {
        self.geometry().blocks() as u64 * ciphertext_len(&self.params, self.limbs(self.level_plan().fresh_features()))
    }

    /// Bytes of the logits of up to a batch of rows.
    pub fn logit_bytes(&self) -> u64 {
        ciphertext_len(&self.params, self.limbs(self.level_plan().logits()))
    }

    /// Bytes of an encrypted classifier: its ciphertexts one after the other.
    pub fn weight_bytes(&self) -> u64 {
        self.geometry().parts() as u64 * ciphertext_len(&self.params, self.limbs(self.level_plan().weights()))
    }

    /// Bytes of the server's memory for the row-shifted versions of one batch.
    pub fn version_bytes(&self) -> u64 {
        let versions = (self.geometry().blocks() * self.geometry().padded_classes()) as u64;
        versions * 2 * self.limbs(self.level_plan().features()) as u64 * self.limb_bytes()
    }

    fn limb_bytes(&self) -> u64 {
        self.params.degree() as u64 * 8
    }
}

/// Bytes of the server's memory for keys on a CPU, uniform halves included.
pub fn resident_key_bytes(params: &Params, keys: &[(KeyId, usize)]) -> u64 {
    let limbs = |&(id, q): &(KeyId, usize)| id.total_limbs(params, q);
    (keys.iter().map(limbs).sum::<usize>() * 8 * hetal_ring::packed::words(params.degree())) as u64
}

/// Bytes that a server on a CPU takes at least to train under these keys; each batch that stays prepared comes to it.
pub fn server_bytes(params: &Params, keys: &[(KeyId, usize)]) -> u64 {
    resident_key_bytes(params, keys) + BESIDE_KEYS * params.degree() as u64
}
