//! Job specs: what a job is to do.

use crate::{Error, Result};
use hetal_ckks::Params;
use hetal_ckks::ROUNDED_BITS;
use hetal_ckks::bytes::{rounded_ciphertext_len, seeded_ciphertext_len};
use hetal_learn::agreement::CIRCUIT_VERSION;
use hetal_learn::{Agreement, Circuit, KeyPlan, LevelPlan, RowForm, RowVector};
use hetal_wire::{BlobName, JobId};
use serde::{Deserialize, Serialize};

/// What a job is to do, validated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JobSpec {
    /// Train a classifier.
    Training(TrainingSpec),
    /// Classify rows with the weights of a training.
    Classification(ClassificationSpec),
}

/// What a training is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingSpec {
    /// Name of the parameter set.
    pub set: String,
    /// Features of a row.
    pub features: usize,
    /// Number of classes.
    pub classes: usize,
    /// The key set.
    #[serde(with = "text")]
    pub keys: BlobName,
    /// Row blobs with feature blocks and labels, and with weights of rows if the agreement says so.
    pub batches: Vec<RowBlob>,
    /// Row blobs with feature blocks.
    pub validation: Vec<RowBlob>,
    /// The agreed hyper-parameters.
    pub agreement: Agreement,
    /// The form of all rows.
    #[serde(default)]
    pub form: RowForm,
    /// The plan of the key set.
    #[serde(default)]
    pub key_plan: KeyPlan,
}

/// What a classification is to do: classify rows with the weights, keys and shape of a training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassificationSpec {
    /// The job of the training.
    #[serde(with = "text")]
    pub job: JobId,
    /// The spec of the training.
    pub training: TrainingSpec,
    /// The weights: an output of the training.
    #[serde(with = "text")]
    pub weights: BlobName,
    /// Row blobs with feature blocks.
    pub queries: Vec<RowBlob>,
    /// The form of the queries.
    #[serde(default)]
    pub form: RowForm,
}

/// An uploaded blob of rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowBlob {
    /// The blob.
    #[serde(with = "text")]
    pub blob: BlobName,
    /// The number of rows without padding.
    pub rows: usize,
}

/// Serialises names as text.
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
    /// The form of the rows that the job reads.
    pub fn form(&self) -> RowForm {
        match self {
            Self::Training(training) => training.form,
            Self::Classification(work) => work.form,
        }
    }

    /// The uploads that the job needs as long as it exists.
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

    /// The spec of the training: the job itself, or the one that a classification uses.
    pub fn training(&self) -> &TrainingSpec {
        match self {
            Self::Training(training) => training,
            Self::Classification(work) => &work.training,
        }
    }
}

impl TrainingSpec {
    /// Whether this version computes with the circuit of the training.
    pub fn has_current_circuit(&self) -> bool {
        self.agreement.circuit == CIRCUIT_VERSION
    }

    /// The circuit for the shape of the training.
    pub fn circuit(&self, params: &Params) -> Result<Circuit> {
        let Agreement { batch, range, weighted, .. } = self.agreement;
        if !self.has_current_circuit() {
            return Err(Error::invalid("the training was begun by another version of hetal: train again"));
        }
        let level_plan = LevelPlan::of(weighted).with_keys(self.key_plan);
        Circuit::with_plan(params.slots(), batch, self.features, self.classes, range, level_plan)
            .map_err(Error::invalid)
    }
}

/// What the ciphertexts of a row blob hold, in their order.
pub fn row_vectors(circuit: &Circuit, with_labels: bool) -> Vec<RowVector> {
    RowVector::of_blob(circuit.geometry().blocks(), circuit.level_plan(), with_labels)
}

/// Bytes of a row blob.
pub fn row_blob_len(params: &Params, circuit: &Circuit, form: RowForm, with_labels: bool) -> u64 {
    let plan = circuit.level_plan();
    let len = |vector: RowVector| match form {
        RowForm::Slots => seeded_ciphertext_len(params, params.limbs(vector.level(plan))),
        RowForm::Coefficients => rounded_ciphertext_len(params, ROUNDED_BITS),
    };
    row_vectors(circuit, with_labels).into_iter().map(len).sum()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A spec as commit 1915e71 stored it, whose circuit was another one.
    #[test]
    fn a_training_of_another_circuit_is_read_and_refused() {
        let blob = "75".repeat(32);
        let rows = format!(r#"[{{"blob":"{blob}","rows":29}}]"#);
        let agreement = r#"{"batch":29,"rate":2.0,"lowering":0.5,"momentum":"Nesterov","patience":3,
            "max_epochs":9,"range":128.0,"seed":0,"rate_hidden":false}"#;
        let text = format!(
            r#"{{"Training":{{"set":"insecure-toy11","features":4,"classes":3,"keys":"{blob}",
            "batches":{rows},"validation":{rows},"agreement":{agreement}}}}}"#
        );
        let mut spec: JobSpec = serde_json::from_str(&text).unwrap();
        assert_eq!(spec.uploads().count(), 3);
        let params = Params::named("insecure-toy11").unwrap();
        let refused = spec.training().circuit(&params).unwrap_err().to_string();
        assert!(refused.contains("another version") && refused.contains("train again"), "{refused}");
        if let JobSpec::Training(training) = &mut spec {
            training.agreement.circuit = CIRCUIT_VERSION;
            training.agreement.range = 32.0;
        }
        spec.training().circuit(&params).unwrap();
    }
}
