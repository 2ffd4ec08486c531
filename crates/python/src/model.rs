//! Models: read, applied to rows, published.

use crate::background::quietly;
use crate::errors::{Error, Result};
use crate::settings::EstimatorSettings;
use crate::training::type_name;
use hetal_client::model::export::{ExportOptions, Format, publish};
use hetal_client::{Model, Project, model};
use hetal_keys::Passphrase;
use hetal_learn::Matrix;
use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyReadonlyArray2};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// A decrypted classifier. It is private.
#[pyclass(frozen, module = "hetal._native")]
pub struct Classifier(pub Model);

#[pymethods]
impl Classifier {
    /// The classifier of the text of a model file.
    #[new]
    fn new(py: Python<'_>, text: &str) -> PyResult<Self> {
        let model = Model::from_text(text, Path::new("a pickled model"));
        Ok(Self(model.map_err(|error| Error::from(error).to_py(py))?))
    }

    /// A pickle holds the text of the model file.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let text = self.0.to_text().map_err(|error| Error::from(error).to_py(py))?;
        Ok((py.get_type::<Self>().into_any(), (text,)))
    }

    /// The weights for rows as they are given, and the biases.
    fn weights<'py>(&self, py: Python<'py>) -> (Bound<'py, PyArray2<f64>>, Bound<'py, PyArray1<f64>>) {
        let shape = (self.0.classes.len(), self.0.features());
        let weights = Array2::from_shape_fn(shape, |(k, h)| self.0.weights[k][h]);
        (weights.into_pyarray(py), self.0.bias.clone().into_pyarray(py))
    }

    /// The probability of each class for each row, and the row's logits.
    fn probabilities<'py>(
        &self,
        py: Python<'py>,
        rows: PyReadonlyArray2<'py, f64>,
    ) -> PyResult<(Bound<'py, PyArray2<f64>>, Bound<'py, PyArray2<f64>>)> {
        let rows = matrix(&rows);
        let (probabilities, logits) = quietly(py, move || {
            let logits = self.0.logits(&rows)?;
            Ok((model::probabilities(&logits), logits))
        })?;
        Ok((array(py, probabilities)?, array(py, logits)?))
    }

    /// What the model file says beside the weights.
    fn about<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let (model, training) = (&self.0, &self.0.training);
        dict.set_item("name", &model.name)?;
        dict.set_item("classes", &model.classes)?;
        dict.set_item("class_type", model.class_type.map(type_name))?;
        dict.set_item("columns", model.columns.as_ref())?;
        dict.set_item("features", model.features())?;
        dict.set_item("scaling", model.normalisation.scaling().name())?;
        dict.set_item("imputes", model.normalisation.fill().is_some())?;
        dict.set_item("prior", model.prior.as_ref().map(|prior| prior.share))?;
        dict.set_item("param_set", &training.set)?;
        dict.set_item("epochs", training.epochs)?;
        dict.set_item("best_epoch", training.best_epoch)?;
        dict.set_item("checks", training.checks())?;
        dict.set_item("best_check", training.best_check())?;
        dict.set_item("check_every", training.check_every)?;
        dict.set_item("iterations", training.iterations)?;
        dict.set_item("validation_loss", training.validation_loss)?;
        dict.set_item("validation_accuracy", training.validation_accuracy)?;
        dict.set_item("validated_on_training_rows", training.validated_on_training_rows)?;
        dict.set_item("rows", training.rows)?;
        dict.set_item("validation_rows", training.validation_rows)?;
        dict.set_item("batch_size", training.batch)?;
        dict.set_item("learning_rate", training.rate)?;
        dict.set_item("max_epochs", training.max_epochs)?;
        dict.set_item("patience", training.patience)?;
        dict.set_item("alpha", training.alpha)?;
        dict.set_item("weighted", training.weighted)?;
        dict.set_item("job", &training.job)?;
        Ok(dict)
    }
}

/// Reads a model of a project. Returns it and its path.
#[pyfunction]
pub fn load(py: Python<'_>, settings: EstimatorSettings) -> PyResult<(Classifier, PathBuf)> {
    quietly(py, move || {
        let (project, name) = (Project::open_without_lock(&settings.project)?, named(&settings)?);
        Ok((Classifier(open(&settings, &project, &name)?), project.model(&name)?))
    })
}

/// Writes a model that may be published. Returns the standard deviation of the noise of each
/// weight, and how many more numbers may be published under the secret key.
#[pyfunction]
pub fn export(
    py: Python<'_>,
    settings: EstimatorSettings,
    format: String,
    out: PathBuf,
) -> PyResult<(f64, Option<u64>)> {
    let format = match format.as_str() {
        "safetensors" => Format::Safetensors,
        "npz" => Format::Npz,
        "onnx" => Format::Onnx,
        "sklearn" => Format::Sklearn,
        _ => return Err(Error::Parameter(format!("unknown format {format:?}")).to_py(py)),
    };
    quietly(py, move || {
        let mut project = Project::existing(&settings.project)?;
        settings.set_passphrase(&mut project)?;
        let model = open(&settings, &project, &named(&settings)?)?;
        let (published, _) = publish(&mut project, &model, &ExportOptions::default(), &mut |_| {})?;
        hetal_cli::write_public(&out, &published.bytes(format)).map_err(|e| Error::Parameter(e.to_string()))?;
        Ok((published.sigma, project.settings().released.map(|released| released.left)))
    })
}

/// The name of the model, which a fitted estimator knows.
pub fn named(settings: &EstimatorSettings) -> Result<String> {
    settings.name.clone().ok_or_else(|| Error::Parameter("a model has a name: give name".to_owned()))
}

/// Reads the model of a name.
pub fn open(settings: &EstimatorSettings, project: &Project, name: &str) -> Result<Model> {
    let passphrase = settings.passphrase.clone().map(|text| Passphrase::new(Zeroizing::new(text))).transpose()?;
    Ok(Model::open(&project.model(name)?, passphrase.as_ref())?)
}

/// A matrix as an array.
pub fn array<'py>(py: Python<'py>, matrix: Matrix) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let shape = (matrix.rows(), matrix.columns());
    let array = Array2::from_shape_vec(shape, matrix.values().to_vec());
    Ok(array.map_err(|error| Error::Defect(error.to_string()).to_py(py))?.into_pyarray(py))
}

/// An array as a matrix.
pub fn matrix(rows: &PyReadonlyArray2<'_, f64>) -> Matrix {
    let array = rows.as_array();
    Matrix::from_fn(array.nrows(), array.ncols(), |i, h| array[[i, h]])
}
