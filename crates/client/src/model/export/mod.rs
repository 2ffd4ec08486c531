//! Export of models that may be published.
//!
//! The server has ciphertexts of the weights, so their exact decryptions would reveal the secret
//! key. An export goes through [`hetal_keys::Release`], which adds noise that hides the noise of
//! the decryption. The noise is added once, and all formats contain the same released numbers.

mod onnx;
mod release;
mod table;
mod weight_noise;

use crate::{Model, model};
use hetal_learn::{Matrix, Scaling};
use hetal_tables::{LabelType, npy, npz, safetensors};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

pub use onnx::{read_gemm, write as write_onnx};
pub use release::{ExportEvent, ExportOptions, MODELS, ReleaseLimits, SECURITY, TOLERATED_LOSS, publish};
pub use table::{ReleaseLine, ReleaseTable};

/// An export format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `weights` (classes x features), `bias`, class names in the metadata.
    Safetensors,
    /// `coef`, `intercept`, `classes` as NumPy arrays.
    Npz,
    /// An ONNX graph from features to probabilities.
    Onnx,
    /// JSON with the fields of scikit-learn's `LogisticRegression`.
    Sklearn,
}

/// A classifier that may be published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// The names of the classes.
    pub classes: Vec<String>,
    /// A weight for each class and feature.
    pub weights: Vec<Vec<f64>>,
    /// A bias for each class.
    pub bias: Vec<f64>,
    /// Standard deviation of the noise added to each weight for normalised features.
    pub sigma: f64,
    /// Bits of security of the release.
    pub security: u32,
    /// BLAKE3 hash of the exact weights.
    source: String,
    /// The type of the classes, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    class_type: Option<LabelType>,
    /// What is done to rows before the weights apply.
    #[serde(default, skip_serializing_if = "RowPreparation::is_empty")]
    pub rows: RowPreparation,
    /// The accuracies on the validation rows, if these were there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<ReleasedAccuracy>,
}

/// The accuracy of published numbers on validation rows, and that of the private model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReleasedAccuracy {
    /// Of the private model.
    pub private: f64,
    /// Of the published numbers.
    pub published: f64,
}

/// What is done to rows before weights apply, because weights cannot express it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowPreparation {
    /// The values that replace missing ones, one a column.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impute: Option<Vec<f64>>,
    /// The transformation of rows: `unit-row` or `sqrt`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<Scaling>,
}

impl RowPreparation {
    fn of(model: &Model) -> Self {
        let scaling = model.normalisation.scaling();
        Self {
            impute: model.normalisation.fill().map(<[f64]>::to_vec),
            scale: scaling.transforms_rows().then_some(scaling),
        }
    }

    /// Returns whether weights apply to rows as they are.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Published {
    /// The weights as a matrix (classes x features + 1), the bias last.
    pub fn matrix(&self) -> Matrix {
        model::matrix(&self.weights, &self.bias)
    }

    /// Encodes the model in a format.
    pub fn bytes(&self, format: Format) -> Vec<u8> {
        let (classes, features) = (self.classes.len(), self.weights.first().map_or(0, Vec::len));
        let flat: Vec<f64> = self.weights.iter().flatten().copied().collect();
        match format {
            Format::Safetensors => {
                let names = serde_json::Value::from(self.classes.clone()).to_string();
                let mut metadata: BTreeMap<String, String> =
                    [("classes".to_owned(), names), ("format".to_owned(), "hetal".to_owned())].into();
                if !self.rows.is_empty() {
                    metadata.insert("rows".to_owned(), json!(self.rows).to_string());
                }
                let arrays: [(&str, &[usize], &[f64]); 2] =
                    [("weights", &[classes, features], &flat), ("bias", &[classes], &self.bias)];
                safetensors::write(&arrays, &metadata)
            }
            Format::Npz => {
                let (coef, intercept) = self.sklearn();
                let coef_flat: Vec<f64> = coef.concat();
                let mut arrays = vec![
                    ("coef", npy::write_doubles(&[coef.len(), features], &coef_flat)),
                    ("intercept", npy::write_doubles(&[intercept.len()], &intercept)),
                    ("classes", self.class_array()),
                ];
                arrays
                    .extend(self.rows.impute.as_ref().map(|fill| ("impute", npy::write_doubles(&[fill.len()], fill))));
                arrays.extend(self.rows.scale.map(|scale| ("scale", npy::write_texts(&[scale.name().to_owned()]))));
                npz::write(&arrays)
            }
            Format::Onnx => onnx::write(&self.classes, &self.weights, &self.bias, &self.rows),
            Format::Sklearn => {
                let (coef, intercept) = self.sklearn();
                let mut value = json!({ "coef": coef, "intercept": intercept, "classes": self.typed_classes() });
                if !self.rows.is_empty() {
                    value["rows"] = json!(self.rows);
                }
                value.to_string().into_bytes()
            }
        }
    }

    /// The classes with their type: numbers, truth values or names.
    fn typed_classes(&self) -> serde_json::Value {
        match (self.integers(), self.booleans()) {
            (Some(numbers), _) => json!(numbers),
            (None, Some(values)) => json!(values),
            (None, None) => json!(self.classes),
        }
    }

    /// The classes as a NumPy array of their type.
    fn class_array(&self) -> Vec<u8> {
        match (self.integers(), self.booleans()) {
            (Some(numbers), _) => npy::write_integers(&[numbers.len()], &numbers),
            (None, Some(values)) => npy::write_booleans(&[values.len()], &values),
            (None, None) => npy::write_texts(&self.classes),
        }
    }

    fn integers(&self) -> Option<Vec<i64>> {
        let are_integers = self.class_type == Some(LabelType::Integer);
        self.classes.iter().map(|class| class.parse().ok().filter(|_| are_integers)).collect()
    }

    fn booleans(&self) -> Option<Vec<bool>> {
        let are_booleans = self.class_type == Some(LabelType::Boolean);
        let truth = |class: &String| match class.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        };
        self.classes.iter().map(|class| truth(class).filter(|_| are_booleans)).collect()
    }

    /// Coefficients and intercepts of scikit-learn: for two classes only their difference.
    fn sklearn(&self) -> (Vec<Vec<f64>>, Vec<f64>) {
        match (&self.weights[..], &self.bias[..]) {
            ([no, yes], [b_no, b_yes]) => (vec![yes.iter().zip(no).map(|(a, b)| a - b).collect()], vec![b_yes - b_no]),
            _ => (self.weights.clone(), self.bias.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::model;
    use crate::{Error, Project};
    use std::path::PathBuf;

    /// The limits of these tests: models of 15 numbers.
    const OPTIONS: ExportOptions =
        ExportOptions { limits: Some(ReleaseLimits { models: 4, security: 10 }), accept_loss: false };

    fn publish(
        project: &mut Project,
        model: &Model,
        options: Option<ExportOptions>,
    ) -> crate::Result<(Published, PathBuf)> {
        let options = options.unwrap_or(match project.settings().released {
            Some(_) => ExportOptions::default(),
            None => OPTIONS,
        });
        super::publish(project, model, &options, &mut |_| {})
    }
    use hetal_testkit::TempDir;

    fn published(folder: &TempDir) -> (Project, Model, Published) {
        let mut project = Project::open(&folder.path().join("p"), Some("insecure-toy11")).unwrap();
        let model = model();
        project.adopt_key("22".to_owned(), None).unwrap();
        let (published, _) = publish(&mut project, &model, None).unwrap();
        (project, model, published)
    }

    fn copy(from: &std::path::Path, to: &std::path::Path) {
        std::fs::create_dir(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().flatten() {
            let (path, target) = (entry.path(), to.join(entry.file_name()));
            if path.is_dir() { copy(&path, &target) } else { std::fs::copy(&path, &target).map(drop).unwrap() }
        }
    }

    /// Whole numbers and truth values leave as such, so that they equal the labels of others.
    #[test]
    fn classes_are_exported_with_their_type() {
        let folder = TempDir::new();
        let (_, _, mut published) = published(&folder);
        let exported = |published: &Published| {
            let json: serde_json::Value = serde_json::from_slice(&published.bytes(Format::Sklearn)).unwrap();
            let arrays = npz::parse(&published.bytes(Format::Npz)).unwrap();
            let classes = arrays.into_iter().find(|(name, _)| name == "classes").unwrap().1.values;
            (json["classes"].clone(), classes)
        };
        let names = ["red", "green", "blue"].map(str::to_owned).to_vec();
        assert_eq!(exported(&published), (json!(names), hetal_tables::Values::Texts(names)));
        published.classes = ["-1", "7", "10"].map(str::to_owned).to_vec();
        published.class_type = Some(LabelType::Integer);
        assert_eq!(exported(&published), (json!([-1, 7, 10]), hetal_tables::Values::Integers(vec![-1, 7, 10])));
        published.classes = ["False", "True"].map(str::to_owned).to_vec();
        published.class_type = Some(LabelType::Boolean);
        assert_eq!(exported(&published), (json!([false, true]), hetal_tables::Values::Booleans(vec![false, true])));
    }

    /// What weights cannot express is in every format, and only then.
    #[test]
    fn exports_say_what_is_done_to_rows() {
        let folder = TempDir::new();
        let (_, _, mut published) = published(&folder);
        let formats = [Format::Safetensors, Format::Npz, Format::Onnx, Format::Sklearn];
        let plain = formats.map(|format| published.bytes(format));
        let mentions = |bytes: &[u8], word: &str| bytes.windows(word.len()).any(|window| window == word.as_bytes());
        assert!(plain.iter().all(|bytes| !mentions(bytes, "sqrt") && !mentions(bytes, "impute")));
        assert!(!mentions(&plain[2], "ReduceL2"));
        published.rows = RowPreparation { impute: Some(vec![0.25; 4]), scale: Some(Scaling::Sqrt) };
        let [safetensors, npz, onnx, sklearn] = formats.map(|format| published.bytes(format));
        assert!(mentions(&safetensors, "sqrt") && mentions(&safetensors, "impute"));
        let arrays = npz::parse(&npz).unwrap();
        assert_eq!(arrays[3].1.values, hetal_tables::Values::Floats(vec![0.25; 4]));
        assert_eq!(arrays[4].1.values, hetal_tables::Values::Texts(vec!["sqrt".to_owned()]));
        for operator in ["IsNaN", "Where", "Sign", "Sqrt", "ReduceL2", "Div"] {
            assert!(mentions(&onnx, operator), "{operator}");
        }
        assert_eq!(read_gemm(&onnx), read_gemm(&plain[2]));
        let json: serde_json::Value = serde_json::from_slice(&sklearn).unwrap();
        assert_eq!(json["rows"], json!({ "impute": [0.25, 0.25, 0.25, 0.25], "scale": "sqrt" }));
    }

    /// A copy of a project folder has a copy of the release budget, so it publishes nothing.
    #[cfg(unix)]
    #[test]
    fn a_copied_folder_publishes_nothing() {
        let folder = TempDir::new();
        let root = folder.path().join("p");
        let mut project = Project::open(&root, Some("insecure-toy11")).unwrap();
        project.adopt_key("22".to_owned(), None).unwrap();
        drop(project);
        // Copied before the first export, and again after it.
        copy(&root, &folder.path().join("early"));
        let (project, mut model, first) = published(&folder);
        drop(project);
        copy(&root, &folder.path().join("late"));
        let publish_in = |name: &str, model: &Model| {
            publish(&mut Project::existing(&folder.path().join(name)).unwrap(), model, None)
        };
        // What was published before may be written again.
        assert_eq!(publish_in("late", &model).unwrap().0, first);
        (model.name, model.bias[0]) = ("other".to_owned(), 7.0);
        for name in ["early", "late"] {
            let error = publish_in(name, &model).unwrap_err();
            assert!(matches!(error, Error::CopiedFolder { .. }), "{error}");
            assert!(error.to_string().contains("--moved"), "{error}");
        }
        assert!(publish_in("p", &model).is_ok(), "the folder itself still publishes");
        // A folder that was moved within a disk is the same; after another move its owner says so.
        std::fs::rename(&root, folder.path().join("q")).unwrap();
        (model.name, model.bias[0]) = ("third".to_owned(), 8.0);
        assert!(publish_in("q", &model).is_ok());
        Project::existing(&folder.path().join("late")).unwrap().declare_moved().unwrap();
        assert!(publish_in("late", &model).is_ok());
        // A new key is counted where it is made; the old one comes back with its count.
        let mut early = Project::existing(&folder.path().join("early")).unwrap();
        early.retire_keys().unwrap();
        early.adopt_key("23".to_owned(), None).unwrap();
        model.training.key_id = Some("23".to_owned());
        assert!(publish(&mut early, &model, None).is_ok());
        early.retire_keys().unwrap();
        early.adopt_key("22".to_owned(), None).unwrap();
        (model.name, model.training.key_id) = ("fourth".to_owned(), Some("22".to_owned()));
        assert!(matches!(publish(&mut early, &model, None), Err(Error::CopiedFolder { .. })));
    }

    /// A project that has a key and no home may have been copied before homes were recorded.
    #[cfg(unix)]
    #[test]
    fn a_key_without_a_home_publishes_nothing_unasked() {
        let folder = TempDir::new();
        let (mut project, mut model, _) = published(&folder);
        project.update(|s| s.home = None).unwrap();
        drop(project);
        let mut project = Project::existing(&folder.path().join("p")).unwrap();
        (model.name, model.bias[0]) = ("other".to_owned(), 7.0);
        let error = publish(&mut project, &model, None).unwrap_err();
        assert!(matches!(error, Error::CopiedFolder { .. }) && error.to_string().contains("--moved"), "{error}");
        // It keeps no home while another key is used.
        project.retire_keys().unwrap();
        project.adopt_key("23".to_owned(), None).unwrap();
        project.retire_keys().unwrap();
        project.adopt_key("22".to_owned(), None).unwrap();
        assert!(matches!(publish(&mut project, &model, None), Err(Error::CopiedFolder { .. })));
        project.declare_moved().unwrap();
        assert!(publish(&mut project, &model, None).is_ok());
    }

    #[test]
    fn what_is_published_is_flooded_once_and_counted() {
        let folder = TempDir::new();
        let (mut project, model, first) = published(&folder);
        let difference = first.matrix().max_difference(&model.matrix());
        assert!(difference > 0.0 && difference < 0.1, "{difference}");
        let again = publish(&mut project, &model, None).unwrap().0;
        // The first export fixed the limits: other ones are refused.
        assert_eq!(publish(&mut project, &model, Some(OPTIONS)).unwrap().0, again);
        for (models, security) in [(4, 11), (5, 10)] {
            let limits = ExportOptions::limited(models, security);
            let refused = publish(&mut project, &model, Some(limits));
            assert!(matches!(refused, Err(Error::ReleaseFixed { security: 10, .. })), "{limits:?}");
        }
        assert_eq!(again, first, "a second export publishes nothing new");
        let released = project.settings().released.unwrap();
        assert_eq!((released.numbers, released.left), (60, 45));
        let mut noisier = model.clone();
        (noisier.noise, noisier.bias[0]) = (Some(1e-3), 0.5);
        assert!(matches!(publish(&mut project, &noisier, None), Err(Error::Noisier { .. })));
        noisier.noise = None;
        assert!(matches!(publish(&mut project, &noisier, None), Err(Error::NoiseUnknown)));
        for k in 0..4 {
            let mut other = model.clone();
            (other.name, other.bias[0]) = (format!("m{k}"), k as f64);
            let result = publish(&mut project, &other, None);
            assert_eq!(result.is_ok(), k < 3, "{k}: {result:?}");
        }
    }

    #[test]
    fn what_cannot_be_released_costs_nothing() {
        let folder = TempDir::new();
        let (mut project, model, _) = published(&folder);
        let before = project.settings().released;
        let mut huge = model.clone();
        huge.bias[0] = 1e200;
        let result = publish(&mut project, &huge, None);
        assert!(matches!(result, Err(Error::Keys(hetal_keys::Error::NotReleasable { .. }))), "{result:?}");
        assert_eq!(project.settings().released, before);
        let mut fresh = Project::open(&folder.path().join("q"), Some("insecure-toy11")).unwrap();
        fresh.adopt_key("22".to_owned(), None).unwrap();
        let many = publish(&mut fresh, &model, Some(ExportOptions::limited(u64::MAX, 10)));
        assert!(matches!(many, Err(Error::TooManyModels { .. })), "{many:?}");
    }

    /// New keys have their own budget; a model of old keys must not be counted with it.
    #[test]
    fn a_model_of_another_key_is_not_published() {
        let folder = TempDir::new();
        let (mut project, model, first) = published(&folder);
        project.retire_keys().unwrap();
        project.adopt_key("33".to_owned(), None).unwrap();
        assert_eq!(publish(&mut project, &model, None).unwrap().0, first, "published numbers are not secret");
        assert_eq!(publish(&mut project, &model, Some(OPTIONS)).unwrap().0, first, "with the same options");
        let refused = publish(&mut project, &model, Some(ExportOptions::limited(4, 11)));
        assert!(matches!(refused, Err(Error::ReleaseFixed { security: 10, .. })), "{refused:?}");
        let mut other = model.clone();
        (other.name, other.bias[0]) = ("other".to_owned(), 0.5);
        let refused = publish(&mut project, &other, None);
        assert!(matches!(refused, Err(Error::OtherKeyModel { .. })), "{refused:?}");
        other.training.key_id = None;
        assert!(matches!(publish(&mut project, &other, None), Err(Error::OtherKeyModel { .. })));
        // The old key comes back with its remaining budget.
        project.adopt_key("22".to_owned(), None).unwrap();
        assert_eq!(project.settings().released.map(|r| r.left), Some(45));
    }

    #[test]
    fn every_format_holds_the_same_numbers() {
        let folder = TempDir::new();
        let (_, _, published) = published(&folder);
        let flat: Vec<f64> = published.weights.concat();
        let bytes = published.bytes(Format::Safetensors);
        let theirs = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let weights = theirs.tensor("weights").unwrap();
        let values: Vec<f64> =
            weights.data().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!((weights.shape(), values), (&[3, 4][..], flat.clone()));
        let arrays = npz::parse(&published.bytes(Format::Npz)).unwrap();
        assert_eq!(arrays[0].1.clone().numbers("coef").unwrap().2, flat);
        assert_eq!(arrays[2].1.clone().labels("classes").unwrap().texts(), published.classes);
        let (weights, bias, classes) = read_gemm(&published.bytes(Format::Onnx)).unwrap();
        let single = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<_>>();
        assert_eq!((weights, bias, classes), (single(&flat), single(&published.bias), published.classes.clone()));
        let json: serde_json::Value = serde_json::from_slice(&published.bytes(Format::Sklearn)).unwrap();
        assert_eq!(json["coef"][2][3].as_f64().unwrap(), published.weights[2][3]);
        let two = Published {
            classes: vec!["a".into(), "b".into()],
            weights: published.weights[..2].to_vec(),
            bias: published.bias[..2].to_vec(),
            ..published
        };
        let (coef, intercept) = two.sklearn();
        assert_eq!((coef.len(), intercept.len()), (1, 1));
        assert_eq!(coef[0][0], two.weights[1][0] - two.weights[0][0]);
    }
}
