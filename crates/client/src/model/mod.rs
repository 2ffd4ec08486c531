//! The model file: a decrypted classifier and its provenance.

pub mod export;
mod history;

use crate::data::WeightError;
use crate::{Error, Result, TrainingData, project};
use hetal_keys::Passphrase;
use hetal_keys::locked_file::{self, FileSealer};
use hetal_learn::{Matrix, Normalisation, reference, softmax};
use hetal_tables::LabelType;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::Path;

pub use history::TrainingHistory;

const FORMAT: &str = "hetal-model";
/// Since version 2 the normalisation has scales of columns, and a preparation of rows that earlier
/// programs do not know.
const VERSION: u32 = 2;
const NOTICE: &str = "PRIVATE: these are exact decryptions. Together with the ciphertexts that the server \
                      holds they give the secret key away. Publish a model only as `hetal model export` writes it.";

/// A classifier for features as they are. Its weights are private, so `Debug` omits them.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Model {
    format: String,
    version: u32,
    notice: String,
    /// Its name in the project.
    pub name: String,
    /// The names of the classes.
    pub classes: Vec<String>,
    /// A weight for each class and feature, with the normalisation folded in.
    pub weights: Vec<Vec<f64>>,
    /// A bias for each class.
    pub bias: Vec<f64>,
    /// The normalisation of the features in training.
    pub normalisation: Normalisation,
    /// Four times the largest difference of a decrypted weight to the plaintext reference, rounded
    /// up to a power of two, or `None` without a reference. It bounds the noise of each weight.
    pub noise: Option<f64>,
    /// How it was trained.
    pub training: Provenance,
    /// The manifest of the feature extraction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extraction: Option<serde_json::Value>,
    /// The names of the feature columns, in order. Models of arrays and of earlier versions have
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Vec<String>>,
    /// The type of the classes. Models of earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_type: Option<LabelType>,
    /// What was subtracted from the biases, if anything was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prior: Option<Prior>,
    /// What an export needs of the training. Models of earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<TrainingHistory>,
}

/// Logarithms of class shares that were subtracted from the biases of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prior {
    /// The share of the logarithms that was subtracted.
    pub share: f64,
    /// What was subtracted from the bias of each class. The sum is 0.
    pub shift: Vec<f64>,
}

impl Prior {
    /// A share of the logarithms of class shares, or `None` for none.
    ///
    /// # Errors
    ///
    /// Fails if the share is not between 0 and 1, or if a class has no rows that count.
    pub fn new(share: f64, data: &TrainingData) -> Result<Option<Self>> {
        // The comparison also refuses NaN.
        if !(0.0..=1.0).contains(&share) {
            return Err(WeightError::PriorShare { share }.into());
        }
        if share == 0.0 {
            return Ok(None);
        }
        let shares = data.class_shares();
        if let Some(class) = shares.iter().position(|&share| share <= 0.0) {
            return Err(WeightError::NoPrior { class: data.classes[class].clone() }.into());
        }
        let logarithms: Vec<f64> = shares.into_iter().map(libm::log).collect();
        let mean = logarithms.iter().sum::<f64>() / logarithms.len() as f64;
        Ok(Some(Self { share, shift: logarithms.iter().map(|logarithm| share * (logarithm - mean)).collect() }))
    }
}

/// How a classifier was trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// The parameter set.
    pub set: String,
    /// Training rows.
    pub rows: usize,
    /// Validation rows.
    pub validation_rows: usize,
    /// Whether the validation rows are the training rows, so that loss and accuracy flatter.
    #[serde(default)]
    pub validated_on_training_rows: bool,
    /// Rows of a batch.
    pub batch: usize,
    /// The initial learning rate, unless the server hides it.
    pub rate: Option<f64>,
    /// Checks without improvement before the training stopped.
    pub patience: usize,
    /// The most epochs.
    pub max_epochs: usize,
    /// The initial range of logits.
    pub range: f64,
    /// Epochs until the last accepted check, the last one perhaps in part.
    pub epochs: usize,
    /// The epoch in which the best check was.
    pub best_epoch: usize,
    /// Iterations, repeated ones included.
    pub iterations: u64,
    /// Loss on the validation rows.
    pub validation_loss: f64,
    /// Share of correct validation rows.
    pub validation_accuracy: f64,
    /// The server that trained it.
    pub server: String,
    /// The id of the job on the server.
    pub job: String,
    /// The name of the blob of the encrypted weights on the server.
    pub weights: String,
    /// The id of the secret key it was trained under.
    #[serde(default)]
    pub key_id: Option<String>,
    /// The factor of `|W|^2 / 2` in the loss, unless the server hides it. Models of earlier
    /// versions have none.
    #[serde(default)]
    pub alpha: Option<f64>,
    /// Whether the training rows had different weights.
    #[serde(default)]
    pub weighted: bool,
    /// Accepted checks; 0 in models of earlier versions, which had one an epoch.
    #[serde(default)]
    pub(crate) checks: usize,
    /// The check whose weights these are; 0 in models of earlier versions.
    #[serde(default)]
    pub(crate) best_check: usize,
    /// Iterations between two checks; 0 in models of earlier versions.
    #[serde(default)]
    pub check_every: usize,
}

impl Provenance {
    /// Accepted checks.
    pub fn checks(&self) -> usize {
        if self.checks == 0 { self.epochs } else { self.checks }
    }

    /// The check whose weights these are, counted from 1.
    pub fn best_check(&self) -> usize {
        if self.best_check == 0 { self.best_epoch } else { self.best_check }
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shape = (self.classes.len(), self.features());
        f.debug_struct("Model").field("name", &self.name).field("shape", &shape).finish_non_exhaustive()
    }
}

impl Model {
    /// Creates a model from weights for normalised features (classes x features + 1).
    pub fn new(
        name: &str,
        classes: Vec<String>,
        normalised: &Matrix,
        normalisation: Normalisation,
        noise: Option<f64>,
        training: Provenance,
    ) -> Result<Self> {
        let folded = normalisation.fold(normalised)?;
        let features = folded.columns() - 1;
        Ok(Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            notice: NOTICE.to_owned(),
            name: name.to_owned(),
            classes,
            weights: (0..folded.rows()).map(|k| folded.row(k)[..features].to_vec()).collect(),
            bias: (0..folded.rows()).map(|k| folded[(k, features)]).collect(),
            normalisation,
            noise,
            training,
            extraction: None,
            columns: None,
            class_type: None,
            prior: None,
            history: None,
        })
    }

    /// Subtracts the logarithms of class shares from the biases.
    pub fn subtract(&mut self, prior: Prior) {
        self.bias.iter_mut().zip(&prior.shift).for_each(|(bias, shift)| *bias -= shift);
        self.prior = Some(prior);
    }

    /// Reads a model file without a lock.
    pub fn load(path: &Path) -> Result<Self> {
        Self::open(path, None)
    }

    /// Returns whether a model file is locked with a passphrase. A missing file is not.
    pub fn is_locked(path: &Path) -> bool {
        let mut start = [0; locked_file::MAGIC.len()];
        std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok()
            && locked_file::is_locked(&start)
    }

    /// Reads a model file, which may be locked with a passphrase.
    pub fn open(path: &Path, passphrase: Option<&Passphrase>) -> Result<Self> {
        let model: Self =
            project::read_private(path, passphrase)?.ok_or_else(|| Error::NoModel { path: path.to_owned() })?;
        model.checked(path)
    }

    /// The text of a model file without a lock. It is private.
    pub fn to_text(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| damaged(Path::new(&self.name), error.to_string()))
    }

    /// Reads the text of a model file. `path` says in errors where it is from.
    pub fn from_text(text: &str, path: &Path) -> Result<Self> {
        let model: Self = serde_json::from_str(text).map_err(|error| damaged(path, error.to_string()))?;
        model.checked(path)
    }

    fn checked(self, path: &Path) -> Result<Self> {
        if !(1..=VERSION).contains(&self.version) {
            return Err(Error::NewerFile { path: path.to_owned(), found: self.version, known: VERSION });
        }
        match self.is_whole() {
            true => Ok(self),
            false => Err(damaged(path, "its format, classes, weights and biases do not match".to_owned())),
        }
    }

    /// Returns whether format, classes, weights and biases match.
    pub(crate) fn is_whole(&self) -> bool {
        let features = self.features();
        self.format == FORMAT
            && features > 0
            && self.classes.len() == self.weights.len()
            && self.classes.len() == self.bias.len()
            && self.weights.iter().all(|row| row.len() == features)
            && self.normalisation.is_for(features)
            && self.columns.as_ref().is_none_or(|names| names.len() == features)
            && self.prior.as_ref().is_none_or(|prior| {
                prior.shift.len() == self.bias.len() && prior.shift.iter().all(|shift| shift.is_finite())
            })
            && self.weights.iter().flatten().chain(&self.bias).all(|w| w.is_finite())
    }

    /// Writes the model file, readable for its owner only and locked if there is a passphrase.
    pub fn save(&self, path: &Path, passphrase: Option<&Passphrase>) -> Result<()> {
        let lock = passphrase.map(FileSealer::new).transpose()?;
        project::write_private(path, self, lock.as_ref())
    }

    /// The number of features of a row.
    pub fn features(&self) -> usize {
        self.weights.first().map_or(0, Vec::len)
    }

    /// The weights as a matrix (classes x features + 1), the bias last.
    pub fn matrix(&self) -> Matrix {
        matrix(&self.weights, &self.bias)
    }

    /// Computes the logits of rows.
    pub fn logits(&self, features: &Matrix) -> Result<Matrix> {
        if features.columns() != self.features() {
            return Err(Error::FeatureCount { found: features.columns(), expected: self.features() });
        }
        require_finite(&self.normalisation.filled(features))?;
        Ok(reference::logits(&self.normalisation.prepared(features), &self.matrix())?)
    }
}

fn damaged(path: &Path, reason: String) -> Error {
    Error::Damaged { path: path.to_owned(), reason }
}

/// Refuses features that are not finite. The error names the first one, counted as in files.
pub(crate) fn require_finite(features: &Matrix) -> Result<()> {
    let columns = features.columns().max(1);
    match features.values().iter().position(|x| !x.is_finite()) {
        Some(k) => Err(Error::NotFinite { row: k / columns + 1, column: k % columns + 1, value: features.values()[k] }),
        None => Ok(()),
    }
}

/// Computes the softmax of each row.
pub fn probabilities(logits: &Matrix) -> Matrix {
    let mut probabilities = logits.clone();
    (0..logits.rows()).for_each(|i| softmax::exact(probabilities.row_mut(i)));
    probabilities
}

/// Combines weights and biases into one matrix, the bias last.
pub(crate) fn matrix(weights: &[Vec<f64>], bias: &[f64]) -> Matrix {
    let features = weights.first().map_or(0, Vec::len);
    let value = |k: usize, h: usize| if h == features { bias[k] } else { weights[k][h] };
    Matrix::from_fn(bias.len(), features + 1, value)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use hetal_learn::Scaling;
    use hetal_testkit::TempDir;

    pub(crate) fn model() -> Model {
        let features = Matrix::from_fn(9, 4, |i, j| libm::sin((i * 5 + j * 3) as f64) * 3.0 + j as f64);
        let normalisation = Normalisation::fit(&features, 10.0).unwrap();
        let weights = Matrix::from_fn(3, 5, |k, h| libm::cos((2 * k + 7 * h) as f64));
        let training = Provenance {
            set: "insecure-toy11".to_owned(),
            rows: 9,
            validation_rows: 3,
            validated_on_training_rows: false,
            batch: 8,
            rate: Some(1.0),
            patience: 3,
            max_epochs: 5,
            range: 128.0,
            epochs: 2,
            best_epoch: 1,
            checks: 2,
            best_check: 1,
            check_every: 4,
            iterations: 4,
            validation_loss: 0.5,
            validation_accuracy: 0.75,
            server: "localhost:1".to_owned(),
            job: "00".to_owned(),
            weights: "11".to_owned(),
            key_id: Some("22".to_owned()),
            alpha: Some(0.0),
            weighted: false,
        };
        let classes = ["red", "green", "blue"].map(str::to_owned).to_vec();
        Model::new("m", classes, &weights, normalisation, Some(1e-7), training).unwrap()
    }

    #[test]
    fn a_model_comes_back_to_the_last_bit_and_is_its_owner_s() {
        let folder = TempDir::new();
        let path = folder.path().join("m.json");
        let model = model();
        model.save(&path, None).unwrap();
        assert_eq!(Model::load(&path).unwrap(), model);
        assert!(std::fs::read_to_string(&path).unwrap().contains("PRIVATE"));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let text = model.to_text().unwrap();
        assert_eq!(Model::from_text(&text, &path).unwrap(), model);
        assert!(matches!(Model::from_text(&text[1..], &path), Err(Error::Damaged { .. })));
        let mut broken = model.clone();
        broken.bias.pop();
        broken.save(&path, None).unwrap();
        assert!(matches!(Model::load(&path), Err(Error::Damaged { .. })));
        assert!(matches!(Model::load(&folder.path().join("x")), Err(Error::NoModel { .. })));
        assert!(matches!(model.logits(&Matrix::zeros(1, 3)), Err(Error::FeatureCount { found: 3, expected: 4 })));
        let mut rows = Matrix::zeros(3, 4);
        rows[(1, 2)] = f64::NAN;
        let error = model.logits(&rows).unwrap_err().to_string();
        assert!(error.contains("row 2, column 3"), "{error}");
    }

    /// Rows as they are give the logits of the rows that were trained on, whatever their scaling.
    #[test]
    fn predictions_are_those_of_the_normalised_rows() {
        let mut rows =
            Matrix::from_fn(50, 4, |i, j| libm::sin((i * 5 + j * 3) as f64) * [1e4, 1.0, 1e-3, 0.0][j] + 2.0);
        let weights = Matrix::from_fn(3, 5, |k, h| libm::cos((2 * k + 7 * h) as f64));
        for scaling in [Scaling::None, Scaling::Standard, Scaling::UnitRow, Scaling::Sqrt] {
            let normalisation = Normalisation::fit_scaled(&rows, scaling, 10.0).unwrap().with_fill(vec![0.5; 4]);
            let old = model();
            let model = Model::new("m", old.classes, &weights, normalisation, None, old.training).unwrap();
            let before = rows[(3, 1)];
            rows[(3, 1)] = f64::NAN;
            let trained = reference::logits(&model.normalisation.apply(&rows).unwrap(), &weights).unwrap();
            assert!(model.logits(&rows).unwrap().max_difference(&trained) < 1e-9, "{scaling:?}");
            rows[(3, 1)] = f64::INFINITY;
            let error = model.logits(&rows).unwrap_err().to_string();
            assert!(error.contains("row 4, column 2"), "{scaling:?}: {error}");
            rows[(3, 1)] = before;
        }
    }

    /// Names of columns and the type of classes are kept. A file of an earlier version has neither.
    #[test]
    fn a_model_remembers_its_columns_and_the_type_of_its_classes() {
        let folder = TempDir::new();
        let path = folder.path().join("m.json");
        let mut model = model();
        let old = serde_json::to_string(&model).unwrap();
        assert!(!old.contains("columns") && !old.contains("class_type"), "{old}");
        model.columns = Some(["a", "b", "c", "d"].map(str::to_owned).to_vec());
        model.class_type = Some(LabelType::Boolean);
        model.save(&path, None).unwrap();
        assert_eq!(Model::load(&path).unwrap(), model);
        assert!(std::fs::read_to_string(&path).unwrap().contains("\"boolean\""));
        model.columns = Some(vec!["a".to_owned()]);
        model.save(&path, None).unwrap();
        assert!(matches!(Model::load(&path), Err(Error::Damaged { .. })));
        let before: Model = serde_json::from_slice(include_bytes!("../../tests/samples/model.json")).unwrap();
        assert!(before.is_whole() && before.columns.is_none() && before.class_type.is_none());
        // A file of version 1 still loads, one of a later version does not.
        std::fs::write(&path, include_bytes!("../../tests/samples/model.json")).unwrap();
        assert_eq!(Model::load(&path).unwrap().version, 1);
        let mut later = before;
        later.version = VERSION + 1;
        later.save(&path, None).unwrap();
        assert!(matches!(Model::load(&path), Err(Error::NewerFile { .. })));
    }

    /// With a passphrase the file is locked like the secret key. A file without a lock is still
    /// read.
    #[test]
    fn a_locked_model_needs_its_passphrase() {
        let folder = TempDir::new();
        let path = folder.path().join("m.json");
        let passphrase = |text: &str| Passphrase::new(text.to_owned().into()).unwrap();
        let (right, wrong) = (passphrase("a b c"), passphrase("a b d"));
        let model = model();
        model.save(&path, Some(&right)).unwrap();
        assert!(Model::is_locked(&path));
        let bytes = std::fs::read(&path).unwrap();
        assert!(!bytes.windows(7).any(|window| window == b"PRIVATE" || window == b"weights"), "it is encrypted");
        assert_eq!(Model::open(&path, Some(&right)).unwrap(), model);
        assert!(matches!(Model::load(&path), Err(Error::Keys(hetal_keys::Error::Locked { .. }))));
        let refused = Model::open(&path, Some(&wrong));
        assert!(matches!(refused, Err(Error::Keys(hetal_keys::Error::Passphrase { .. }))), "{refused:?}");
        for at in [0, 20, bytes.len() / 2, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, damaged).unwrap();
            assert!(Model::open(&path, Some(&right)).is_err(), "byte {at}");
        }
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(Model::open(&path, Some(&right)).is_err());
        model.save(&path, None).unwrap();
        assert!(!Model::is_locked(&path));
        assert_eq!(Model::open(&path, Some(&right)).unwrap(), model);
    }

    /// The biases of rare classes rise by half the logarithm of their share, and the file says so.
    #[test]
    fn a_prior_is_subtracted_from_the_biases() {
        let labels = (0..40).map(|k| i64::from(k % 4 == 0)).collect();
        let features = Matrix::from_fn(40, 4, |i, j| (i * i + j) as f64);
        let (labels, file) = (hetal_tables::Labels::Integers(labels), String::new());
        let rows = crate::Labelled { features, labels, file, columns: None, weights: None };
        let data = TrainingData::new(&rows, None, &crate::data::Preparation::default()).unwrap();
        let shares = data.class_shares();
        assert!((shares[0] - 0.75).abs() < 0.01 && (shares[0] + shares[1] - 1.0).abs() < 1e-12, "{shares:?}");
        let prior = Prior::new(0.5, &data).unwrap().unwrap();
        let half = 0.5 * libm::log(shares[0] / shares[1]);
        assert!((prior.shift[0] - prior.shift[1] - half).abs() < 1e-12);
        assert!((prior.shift[0] + prior.shift[1]).abs() < 1e-12);
        assert_eq!(Prior::new(0.0, &data).unwrap(), None);
        for bad in [-0.1, 1.1, f64::NAN] {
            assert!(Prior::new(bad, &data).is_err(), "{bad}");
        }
        let (before, prior) = (model(), Prior { share: 0.5, shift: vec![0.5, -0.25, -0.25] });
        let mut after = before.clone();
        after.subtract(prior);
        assert_eq!((after.bias[0], after.bias[2]), (before.bias[0] - 0.5, before.bias[2] + 0.25));
        let text = serde_json::to_string(&after).unwrap();
        assert_eq!(serde_json::from_str::<Model>(&text).unwrap(), after);
        after.prior = Some(Prior { share: 0.5, shift: vec![0.0] });
        assert!(!after.is_whole());
    }

    #[test]
    fn weights_are_not_printed() {
        let model = model();
        let printed = format!("{model:?}");
        assert!(printed.contains("(3, 4)") && !printed.contains(&model.weights[0][0].to_string()), "{printed}");
    }
}
