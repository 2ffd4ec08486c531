//! Models: read, applied to rows, published.

use crate::errors::{Error, Result};
use crate::settings::Settings;
use crate::work::quietly;
use hetal_client::model::export::{Format, publish};
use hetal_client::{Model, Project, model};
use hetal_keys::Passphrase;
use hetal_learn::{Matrix, reference};
use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray2, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use zeroize::Zeroizing;

/// Reads a model of a project.
#[pyfunction]
pub fn load<'py>(py: Python<'py>, settings: Settings) -> PyResult<Bound<'py, PyDict>> {
    let (model, path) = quietly(py, move || {
        let (project, name) = (Project::open_without_lock(&settings.project)?, named(&settings)?);
        let path = project.model(&name)?;
        Ok((open(&settings, &project, &name)?, path))
    })?;
    let dict = to_dict(py, &model)?;
    dict.set_item("path", path)?;
    Ok(dict)
}

/// The probability of each class for each row, and the row's logits.
#[pyfunction]
pub fn probabilities<'py>(
    py: Python<'py>,
    weights: PyReadonlyArray2<'py, f64>,
    bias: PyReadonlyArray1<'py, f64>,
    rows: PyReadonlyArray2<'py, f64>,
) -> PyResult<(Bound<'py, PyArray2<f64>>, Bound<'py, PyArray2<f64>>)> {
    let (weights, bias, rows) = (weights.as_array(), bias.as_array(), rows.as_array());
    if weights.nrows() != bias.len() || weights.ncols() != rows.ncols() {
        return Err(Error::Defect("shapes of weights, bias and rows".to_owned()).to_py(py));
    }
    let features = weights.ncols();
    let value = |k: usize, h: usize| if h == features { bias[k] } else { weights[[k, h]] };
    let weights = Matrix::from_fn(bias.len(), features + 1, value);
    let rows = Matrix::from_fn(rows.nrows(), features, |i, h| rows[[i, h]]);
    let (probabilities, logits) = quietly(py, move || {
        let logits = reference::logits(&rows, &weights)?;
        Ok((model::probabilities(&logits), logits))
    })?;
    Ok((array(py, probabilities)?, array(py, logits)?))
}

/// Writes a model that may be published. Returns the standard deviation of the noise of each
/// weight, and how many more numbers may be published under the secret key.
#[pyfunction]
pub fn export(py: Python<'_>, settings: Settings, format: String, out: PathBuf) -> PyResult<(f64, Option<u64>)> {
    let format = match format.as_str() {
        "safetensors" => Format::Safetensors,
        "npz" => Format::Npz,
        "onnx" => Format::Onnx,
        "sklearn" => Format::Sklearn,
        _ => return Err(Error::Parameter(format!("unknown format {format:?}")).to_py(py)),
    };
    quietly(py, move || {
        let mut project = Project::existing(&settings.project)?;
        let model = open(&settings, &project, &named(&settings)?)?;
        let (published, _) = publish(&mut project, &model, None)?;
        hetal_cli::write_public(&out, &published.bytes(format)).map_err(|e| Error::Parameter(e.to_string()))?;
        Ok((published.sigma, project.settings().released.map(|released| released.left)))
    })
}

/// The name of the model, which a fitted estimator knows.
pub fn named(settings: &Settings) -> Result<String> {
    settings.name.clone().ok_or_else(|| Error::Parameter("a model has a name: give name".to_owned()))
}

/// Reads the model of a name.
pub fn open(settings: &Settings, project: &Project, name: &str) -> Result<Model> {
    let passphrase = settings.passphrase.clone().map(|text| Passphrase::new(Zeroizing::new(text))).transpose()?;
    Ok(Model::open(&project.model(name)?, passphrase.as_ref())?)
}

/// A model as a dictionary.
pub fn to_dict<'py>(py: Python<'py>, model: &Model) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let training = &model.training;
    let features = model.features();
    let weights = Array2::from_shape_fn((model.classes.len(), features), |(k, h)| model.weights[k][h]);
    dict.set_item("name", &model.name)?;
    dict.set_item("classes", &model.classes)?;
    dict.set_item("class_type", model.class_type.map(crate::training::type_name))?;
    dict.set_item("columns", model.columns.as_ref())?;
    dict.set_item("weights", weights.into_pyarray(py))?;
    dict.set_item("bias", model.bias.clone().into_pyarray(py))?;
    dict.set_item("param_set", &training.set)?;
    dict.set_item("epochs", training.epochs)?;
    dict.set_item("best_epoch", training.best_epoch)?;
    dict.set_item("iterations", training.iterations)?;
    dict.set_item("validation_loss", training.validation_loss)?;
    dict.set_item("validation_accuracy", training.validation_accuracy)?;
    dict.set_item("rows", training.rows)?;
    dict.set_item("validation_rows", training.validation_rows)?;
    dict.set_item("batch_size", training.batch)?;
    dict.set_item("learning_rate", training.rate)?;
    dict.set_item("job", &training.job)?;
    Ok(dict)
}

/// A matrix as an array.
pub fn array<'py>(py: Python<'py>, matrix: Matrix) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let shape = (matrix.rows(), matrix.columns());
    let array = Array2::from_shape_vec(shape, matrix.values().to_vec());
    Ok(array.map_err(|error| Error::Defect(error.to_string()).to_py(py))?.into_pyarray(py))
}
