//! What is to be classified: pictures, texts or features, as named on the command line.

use super::data::names;
use crate::private_folder::PrivateFolder;
use crate::{Error, Result, extract};
use hetal_client::Model;
use hetal_client::files::{self, Labels};
use hetal_extract_api::Manifest;
use hetal_extract_api::arguments::DeviceArgument;
use hetal_extract_api::protocol::{Encode, Request};
use hetal_learn::Matrix;
use std::path::{Path, PathBuf};

/// Pictures, texts or features.
#[derive(clap::Args, Debug)]
#[command(group(clap::ArgGroup::new("input").required(true)))]
pub struct Inputs {
    /// Pictures (JPEG or PNG), for a model of features that `hetal extract` made.
    #[arg(group = "input", value_name = "PICTURE")]
    pub pictures: Vec<PathBuf>,
    /// A text, for a model of features that `hetal extract` made; may be given more than once.
    #[arg(long, group = "input")]
    pub text: Vec<String>,
    /// Features of the rows: .npy, .npz, .safetensors or .csv.
    #[arg(long, group = "input", value_name = "FILE")]
    pub features: Option<PathBuf>,
    /// Where the network is now that made the features, if it is not where it was. Another one is refused.
    #[arg(long, value_name = "DIR")]
    pub network: Option<PathBuf>,
    /// Where downloaded networks are kept.
    #[arg(long, env = "HETAL_MODELS", value_name = "DIR")]
    pub models: Option<PathBuf>,
    /// Where the network runs that makes the features.
    #[arg(long, value_enum, default_value = "auto")]
    pub device: DeviceArgument,
}

/// Rows to classify.
pub struct Rows {
    /// What each is called, for pictures and texts.
    pub names: Option<Vec<String>>,
    /// One row each.
    pub features: Matrix,
    /// True labels, where the feature file holds them.
    pub labels: Option<Labels>,
}

impl Inputs {
    /// Reads features, or makes them by the network that the model was trained with. Labels of a feature file are those of its
    /// `label_column`, or those under a usual name, unless they are `elsewhere`.
    pub fn rows(&self, model: &Model, path: &Path, label_column: Option<&str>, elsewhere: bool) -> Result<Rows> {
        if let Some(file) = &self.features {
            let table = if elsewhere { None } else { Some(files::table(file, label_column)?) };
            let (features, labels) = match table {
                Some(table) => (table.features, table.labels),
                None => (files::features(file)?, None),
            };
            return Ok(Rows { names: None, features, labels });
        }
        let manifest = manifest(model, path)?.ok_or_else(|| Error::NoExtraction { model: model.name.clone() })?;
        let names = self.pictures.iter().map(|path| path.display().to_string()).chain(self.text.iter().cloned());
        let names: Vec<String> = names.collect();
        let features = self.encoded(manifest, names.len())?;
        Ok(Rows { names: Some(names), features, labels: None })
    }

    /// Features of pictures or texts, which another process reads.
    fn encoded(&self, manifest: Manifest, rows: usize) -> Result<Matrix> {
        let (columns, folder) = (manifest.model.columns, PrivateFolder::new()?);
        let out = folder.path().join("features.npy");
        extract::carry_out(&Request::Encode(Box::new(Encode {
            manifest,
            pictures: self.pictures.iter().map(|path| path.clone().into_os_string()).collect(),
            texts: self.text.clone(),
            network: self.network.clone().map(PathBuf::into_os_string),
            models: self.models.clone().map(PathBuf::into_os_string),
            device: self.device,
            out: out.clone().into_os_string(),
        })))?;
        let features = files::features(&out)?;
        match (features.rows(), features.columns()) == (rows, columns) {
            true => Ok(features),
            false => Err(Error::Extraction(format!(
                "the extractor made {} rows of {} numbers, {rows} rows of {columns} were asked for",
                features.rows(),
                features.columns()
            ))),
        }
    }
}

/// How the features of a model were made, where it carries that.
pub fn manifest(model: &Model, path: &Path) -> Result<Option<Manifest>> {
    Ok(model.extraction.as_ref().map(|value| Manifest::carried(value, path)).transpose()?)
}

/// Labels with the names of the model's classes, which may be numbers.
pub fn truth(labels: Labels, model: &Model, path: &Path) -> Result<Labels> {
    if labels.classes().iter().all(|label| model.classes.contains(label)) {
        return Ok(labels);
    }
    names(labels, manifest(model, path)?.as_ref())
}
