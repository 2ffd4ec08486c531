//! The layout of a training: its circuit, the keys it needs, and the size of everything that is
//! sent.

use crate::Result;
use crate::ciphertexts::LOGIT_LIMBS;
use hetal_circuits::encrypted;
use hetal_ckks::bytes::{ciphertext_len, key_set_len, rounded_ciphertext_len, seeded_ciphertext_len};
use hetal_ckks::{KeyId, Params, ROUNDED_BITS};
use hetal_learn::{Circuit, Geometry, KeyPlan, LevelPlan, RowForm, RowVector};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// Bytes per coefficient that a training needs besides keys and prepared batches: bootstrapping
/// matrices, plaintexts of the circuit and temporary values. These are 5.75 GiB at the degree
/// of `full`.
const BESIDE_KEYS: u64 = 92 << 10;

/// The inputs of a layout. Project folders store it as an array of four numbers, of a fifth element
/// if rows have weights, and of a fifth and sixth if its key plan is not [`KeyPlan::Fast`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "StoredShape", into = "StoredShape")]
pub struct LayoutShape {
    /// Rows of a batch.
    pub batch: usize,
    /// Features of a row.
    pub features: usize,
    /// Classes.
    pub classes: usize,
    /// The initial range of logits.
    pub range: f64,
    /// Whether rows have weights.
    pub weighted: bool,
    /// How many keys the server gets.
    pub key_plan: KeyPlan,
}

/// A shape in a project folder.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StoredShape {
    Plain(usize, usize, usize, f64),
    Weighted(usize, usize, usize, f64, bool),
    Planned(usize, usize, usize, f64, bool, KeyPlan),
}

impl From<StoredShape> for LayoutShape {
    fn from(stored: StoredShape) -> Self {
        let plain = |batch, features, classes, range| Self {
            batch,
            features,
            classes,
            range,
            weighted: false,
            key_plan: KeyPlan::Fast,
        };
        match stored {
            StoredShape::Plain(batch, features, classes, range) => plain(batch, features, classes, range),
            StoredShape::Weighted(batch, features, classes, range, weighted) => {
                Self { weighted, ..plain(batch, features, classes, range) }
            }
            StoredShape::Planned(batch, features, classes, range, weighted, key_plan) => {
                Self { batch, features, classes, range, weighted, key_plan }
            }
        }
    }
}

impl From<LayoutShape> for StoredShape {
    fn from(LayoutShape { batch, features, classes, range, weighted, key_plan }: LayoutShape) -> Self {
        match (weighted, key_plan) {
            (false, KeyPlan::Fast) => Self::Plain(batch, features, classes, range),
            (true, KeyPlan::Fast) => Self::Weighted(batch, features, classes, range, weighted),
            _ => Self::Planned(batch, features, classes, range, weighted, key_plan),
        }
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
    /// Creates the layout of a shape.
    pub fn new(params: Arc<Params>, shape: LayoutShape) -> Result<Self> {
        let LayoutShape { batch, features, classes, range, weighted, key_plan } = shape;
        let level_plan = LevelPlan::of(weighted).with_keys(key_plan);
        let circuit = Circuit::with_plan(params.slots(), batch, features, classes, range, level_plan)?;
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

    /// The keys that the server works with, for this range and all wider ones.
    pub fn working_keys(&self) -> Result<Vec<(KeyId, usize)>> {
        let circuit = self.circuit.keys(self.params.top_level())?;
        Ok(encrypted::keys_with_plan(&self.params, &circuit, self.level_plan().key_plan()))
    }

    /// The keys of a new key set. The server derives the others.
    pub fn sent_keys(&self) -> Result<Vec<(KeyId, usize)>> {
        Ok(encrypted::sent_keys(&self.params, &self.working_keys()?, self.level_plan().key_plan()))
    }

    /// The lists of keys that a key set may have, that of a new one first. Sets of earlier versions
    /// have all keys that the server works with.
    pub fn accepted_keys(&self) -> Result<[Vec<(KeyId, usize)>; 2]> {
        let working = self.working_keys()?;
        Ok([encrypted::sent_keys(&self.params, &working, self.level_plan().key_plan()), working])
    }

    /// The layout as text. Key sets are found by it.
    pub fn key(&self) -> String {
        let LayoutShape { features, classes, range, weighted, key_plan, .. } = self.shape();
        let rows = self.geometry().rows();
        let weights = if weighted { ", weights of rows" } else { "" };
        let plan = if key_plan == KeyPlan::Fast { String::new() } else { format!(", key plan {}", key_plan.name()) };
        format!("{rows} rows, {features} features, {classes} classes, range {range}{weights}{plan}")
    }

    /// The file name of its key set in a project.
    pub fn key_file(&self) -> String {
        let LayoutShape { features, classes, range, weighted, key_plan, .. } = self.shape();
        let rows = self.geometry().rows();
        let weights = if weighted { "-weighted" } else { "" };
        let plan = if key_plan == KeyPlan::Fast { String::new() } else { format!("-{}", key_plan.name()) };
        format!("keys-{rows}-{features}-{classes}-{range}{weights}{plan}.hetal")
    }

    /// The inputs of [`Layout::new`].
    pub fn shape(&self) -> LayoutShape {
        let g = self.geometry();
        let range = self.circuit.ranges().first().copied().unwrap_or(0.0);
        let (weighted, key_plan) = (self.level_plan().is_weighted(), self.level_plan().key_plan());
        LayoutShape { batch: self.batch, features: g.features(), classes: g.classes(), range, weighted, key_plan }
    }

    fn limbs(&self, level: usize) -> usize {
        self.params.limbs(level)
    }

    /// Bytes of a set of keys.
    pub fn key_bytes(&self, keys: &[(KeyId, usize)]) -> Result<u64> {
        Ok(key_set_len(&self.params, keys).map_err(hetal_ckks::Error::from)?)
    }

    /// The ciphertexts of a row blob.
    pub fn row_vectors(&self, with_labels: bool) -> Vec<RowVector> {
        RowVector::of_blob(self.geometry().blocks(), self.level_plan(), with_labels)
    }

    /// Bytes of a row blob in a form, with or without labels. With labels it also has the weights
    /// of its rows if rows have weights.
    pub fn row_bytes(&self, form: RowForm, with_labels: bool) -> u64 {
        self.sum_over(with_labels, |limbs| match form {
            RowForm::Slots => seeded_ciphertext_len(&self.params, limbs),
            RowForm::Coefficients => rounded_ciphertext_len(&self.params, ROUNDED_BITS),
        })
    }

    /// Bytes of a row blob in slot form if both halves of every ciphertext were sent.
    pub fn unseeded_row_bytes(&self, with_labels: bool) -> u64 {
        self.sum_over(with_labels, |limbs| ciphertext_len(&self.params, limbs))
    }

    fn sum_over(&self, with_labels: bool, bytes: impl Fn(usize) -> u64) -> u64 {
        let limbs = |vector: RowVector| self.limbs(vector.level(self.level_plan()));
        self.row_vectors(with_labels).into_iter().map(limbs).map(bytes).sum()
    }

    /// Bytes of the logits of one row blob, which have one prime when they are returned.
    pub fn logit_bytes(&self) -> u64 {
        ciphertext_len(&self.params, LOGIT_LIMBS)
    }

    /// Bytes of an encrypted classifier: its parts one after the other.
    pub fn weight_bytes(&self) -> u64 {
        self.geometry().parts() as u64 * ciphertext_len(&self.params, self.limbs(self.level_plan().weights()))
    }

    /// Bytes of server memory for the shifted versions of one piece.
    pub fn shifted_version_bytes(&self) -> u64 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use hetal_ckks::security;

    /// Shapes without weights are stored as before, and stored ones are read.
    #[test]
    fn shapes_are_stored_as_arrays() {
        let key_plan = KeyPlan::Fast;
        let plain = LayoutShape { batch: 32, features: 6, classes: 3, range: 128.0, weighted: false, key_plan };
        let weighted = LayoutShape { weighted: true, ..plain };
        for (shape, text) in [
            (plain, "[32,6,3,128.0]"),
            (weighted, "[32,6,3,128.0,true]"),
            (LayoutShape { key_plan: KeyPlan::Small, ..plain }, "[32,6,3,128.0,false,\"Small\"]"),
        ] {
            assert_eq!(serde_json::to_string(&shape).unwrap(), text);
            assert_eq!(serde_json::from_str::<LayoutShape>(text).unwrap(), shape);
        }
        for bad in ["[32,6,3]", "[32,6,3,128.0,true,1]", "[32,6,3,128.0,1]"] {
            assert!(serde_json::from_str::<LayoutShape>(bad).is_err(), "{bad}");
        }
    }

    /// Weighted rows take one ciphertext more, and have key sets of their own.
    #[test]
    fn weights_take_a_ciphertext() {
        let params = Arc::new(Params::named("insecure-toy11").unwrap());
        let shape =
            LayoutShape { batch: 32, features: 6, classes: 3, range: 32.0, weighted: false, key_plan: KeyPlan::Fast };
        let plain = Layout::new(Arc::clone(&params), shape).unwrap();
        let weighted = Layout::new(Arc::clone(&params), LayoutShape { weighted: true, ..shape }).unwrap();
        let level = weighted.level_plan().row_weights();
        let more = seeded_ciphertext_len(&params, params.limbs(level));
        let bytes = |layout: &Layout, labels| layout.row_bytes(RowForm::Slots, labels);
        assert_eq!(bytes(&weighted, true), bytes(&plain, true) + more);
        assert_eq!(bytes(&weighted, false), bytes(&plain, false));
        let blocks = plain.geometry().blocks() as u64;
        let one = rounded_ciphertext_len(&params, ROUNDED_BITS);
        assert_eq!(weighted.row_bytes(RowForm::Coefficients, true), (blocks + 2) * one);
        assert_eq!(plain.row_bytes(RowForm::Coefficients, false), blocks * one);
        assert_eq!((plain.shape(), weighted.shape().weighted), (shape, true));
        assert!(plain.key() != weighted.key() && plain.key_file() != weighted.key_file());
    }

    /// Checks a key against the security table, under the secret that it is encrypted with.
    fn assert_secure(params: &Params, (id, limbs): (KeyId, usize)) {
        let literal = params.literal();
        let weight = if id == KeyId::ToSparse { literal.sparse_weight } else { literal.secret_weight };
        let log_qp = params.log_qp(id.basis(params, limbs));
        let refused = |bits| security::require(&id.to_string(), params.log_n(), weight, bits).is_err();
        assert!(!refused(log_qp), "{id} of {limbs} limbs: {log_qp} bits, weight {weight}");
        let most = security::largest_log_qp(params.log_n(), weight);
        assert!(!refused(most) && refused(most + 1.0), "one bit beyond the table");
        // A master key has the primes of the largest rotation keys, and their security.
        if let KeyId::Master(_) = id {
            assert_eq!((id.basis(params, limbs), weight), (params.full_basis(), 512));
            assert!((log_qp - 1661.0).abs() < 1.0, "{log_qp}");
        }
    }

    /// Key sets of the shapes of the paper in MB, by plan.
    #[test]
    fn balanced_key_sets_stay_small_for_every_shape() {
        let params = Arc::new(Params::named("full").unwrap());
        for (name, batch, features, classes) in [
            ("mnist", 1024, 768, 10),
            ("cifar10", 2048, 768, 10),
            ("facemask", 512, 768, 3),
            ("dermamnist", 1024, 768, 7),
            ("snips", 1024, 768, 7),
        ] {
            let sizes = KeyPlan::OFFERED.map(|key_plan| {
                let shape = LayoutShape { batch, features, classes, range: 32.0, weighted: false, key_plan };
                let layout = Layout::new(Arc::clone(&params), shape).unwrap();
                let (keys, working) = (layout.sent_keys().unwrap(), layout.working_keys().unwrap());
                keys.iter().chain(&working).for_each(|&key| assert_secure(&params, key));
                assert_eq!(keys == working, key_plan == KeyPlan::Fast, "{name}, {key_plan:?}");
                (keys.len(), layout.key_bytes(&keys).unwrap() as f64 / 1e6)
            });
            println!("{name}: {sizes:?}");
            let [fast, balanced, small] = sizes.map(|(_, megabytes)| megabytes);
            assert!(balanced < 990.0 && small < 760.0 && balanced < 0.5 * fast, "{name}: {sizes:?}");
        }
    }
}
