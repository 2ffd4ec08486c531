//! Features of sentences and pictures, computed by the program `hetal-extract`.

use crate::background;
use crate::errors::{Error, Result};
use crate::model::array;
use hetal_client::data::tables::{self, Options};
use hetal_extract_api::arguments::DeviceArgument;
use hetal_extract_api::extractor::send_request;
use hetal_extract_api::protocol::{Encode, Extract, Request};
use hetal_extract_api::{Manifest, PrivateFolder};
use numpy::PyArray2;
use pyo3::prelude::*;
use serde_json::json;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where a network is, where it runs, and where downloaded networks are kept.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Network {
    network: OsString,
    device: String,
    models: Option<PathBuf>,
}

/// Describes a network: the manifest of a few samples of its kind, as JSON. It names the network's
/// files by their hashes, so that another network is refused later.
#[pyfunction]
pub fn describe(py: Python<'_>, network: Network, is_text: bool, samples: Vec<OsString>) -> PyResult<String> {
    background::quietly(py, move || {
        let folder = PrivateFolder::new().map_err(no_folder)?;
        let (data, out) = (folder.path().join("samples.jsonl"), folder.path().join("features"));
        write_samples(&data, is_text, &samples)?;
        let mut arguments = vec![
            option("model", network.network.clone()),
            option("data", data.into_os_string()),
            option("out", out.clone().into_os_string()),
            option("device", network.device.clone().into()),
        ];
        if !is_text {
            arguments.push(option("path-column", "text".into()));
        }
        if let Some(models) = &network.models {
            arguments.push(option("models", models.clone().into_os_string()));
        }
        send_request(&Request::Extract(Extract { arguments, at_most: None }))?;
        let manifest = Manifest::read(&out).map_err(|error| Error::Extractor(error.to_string()))?;
        serde_json::to_string(&manifest).map_err(|error| Error::Defect(error.to_string()))
    })
}

/// A table of a few samples. Every part of an extraction needs some of each class.
fn write_samples(path: &Path, is_text: bool, samples: &[OsString]) -> Result<()> {
    let mut lines = String::new();
    for (k, sample) in samples.iter().cycle().take(SAMPLES).enumerate() {
        let text = sample.to_str().ok_or_else(|| Error::Parameter(format!("{sample:?} is not UTF-8")))?;
        // Equal texts are one sample, so each gets its number.
        let text = if is_text { format!("{text} {k}") } else { text.to_owned() };
        lines += &format!("{}\n", json!({ "text": text, "label": if k % 2 == 0 { "a" } else { "b" } }));
    }
    let failed = |e: std::io::Error| hetal_client::Error::Io {
        operation: "writing",
        path: path.to_owned(),
        message: e.to_string(),
    };
    std::fs::write(path, lines).map_err(|e| failed(e).into())
}

/// The samples that a description is made of.
const SAMPLES: usize = 24;

/// The features of sentences or pictures, by the network of a description.
#[pyfunction]
pub fn encode<'py>(
    py: Python<'py>,
    network: Network,
    description: String,
    is_text: bool,
    inputs: Vec<OsString>,
) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let features = background::quietly(py, move || {
        let manifest: Manifest = serde_json::from_str(&description).map_err(|e| Error::Parameter(e.to_string()))?;
        let (columns, folder) = (manifest.model.columns, PrivateFolder::new().map_err(no_folder)?);
        let (out, rows) = (folder.path().join("features.npy"), inputs.len());
        let (texts, pictures) = if is_text { (texts(&inputs)?, Vec::new()) } else { (Vec::new(), inputs) };
        let is_folder = Path::new(&network.network).exists();
        send_request(&Request::Encode(Box::new(Encode {
            manifest,
            pictures,
            texts,
            network: is_folder.then(|| network.network.clone()),
            models: network.models.clone().map(PathBuf::into_os_string),
            device: device(&network.device)?,
            out: out.clone().into_os_string(),
        })))?;
        let table = tables::read(&out, &Options::default()).map_err(hetal_client::Error::from)?;
        let features = hetal_client::data::matrix(table)?;
        if (features.rows(), features.columns()) != (rows, columns) {
            return Err(Error::Defect(format!("{} rows of {} features", features.rows(), features.columns())));
        }
        Ok(features)
    })?;
    array(py, features)
}

/// A temporary folder that cannot be made.
fn no_folder(error: std::io::Error) -> Error {
    let path = std::env::temp_dir();
    hetal_client::Error::Io { operation: "making a folder in", path, message: error.to_string() }.into()
}

fn texts(inputs: &[OsString]) -> Result<Vec<String>> {
    let text = |input: &OsString| input.to_str().map(str::to_owned);
    inputs.iter().map(text).collect::<Option<_>>().ok_or_else(|| Error::Parameter("a text is not UTF-8".to_owned()))
}

fn device(name: &str) -> Result<DeviceArgument> {
    match name {
        "auto" => Ok(DeviceArgument::Auto),
        "cpu" => Ok(DeviceArgument::Cpu),
        "cuda" => Ok(DeviceArgument::Cuda),
        _ => Err(Error::Parameter(format!("device is {name:?}, must be \"auto\", \"cpu\" or \"cuda\""))),
    }
}

/// An option in one word: a path may begin like another option.
fn option(name: &str, value: OsString) -> OsString {
    let mut word = OsString::from(format!("--{name}="));
    word.push(value);
    word
}
