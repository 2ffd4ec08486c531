//! Inputs of a classification: pictures, texts or features.

use super::data::{names, print_note};
use super::table::TableArguments;
use crate::{Error, Result};
use hetal_client::Model;
use hetal_client::data::tables::{self, Options};
use hetal_client::data::{Labels, matrix};
use hetal_extract_api::arguments::DeviceArgument;
use hetal_extract_api::protocol::{Encode, Request};
use hetal_extract_api::{Manifest, PrivateFolder, extractor, sanitize_terminal};
use hetal_learn::Matrix;
use std::path::{Path, PathBuf};

/// Pictures, texts or features.
#[derive(clap::Args, Debug)]
#[command(group(clap::ArgGroup::new("input").required(true)))]
pub struct InputArguments {
    /// Pictures (JPEG or PNG), for a model trained on output of `hetal extract`.
    #[arg(group = "input", value_name = "PICTURE")]
    pub pictures: Vec<PathBuf>,
    /// A text, for a model trained on output of `hetal extract`; may be given more than once.
    #[arg(long, group = "input")]
    pub text: Vec<String>,
    /// Features of the rows: .npy, .npz, .safetensors, .csv, .tsv, .jsonl, .parquet or .arrow.
    /// Named columns are found by the names of the training, in any order; columns without names
    /// by their order.
    #[arg(long, group = "input", value_name = "FILE")]
    pub features: Option<PathBuf>,
    /// The feature columns of a file without names, or for a model without them: by name or by
    /// number (the first is 1), separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "features", help_heading = "Tables")]
    pub columns: Vec<String>,
    /// How the feature file is read.
    #[command(flatten)]
    pub table: TableArguments,
    /// The new folder of the network that made the features, if it moved. Another network is
    /// refused.
    #[arg(long, value_name = "DIR")]
    pub network: Option<PathBuf>,
    /// The folder of downloaded networks.
    #[arg(long, env = "HETAL_MODELS", value_name = "DIR")]
    pub models: Option<PathBuf>,
    /// Where the network runs.
    #[arg(long, value_enum, default_value = "auto")]
    pub device: DeviceArgument,
}

/// What is read of a feature file beside features.
pub struct ColumnsBeside<'a> {
    /// The column or array of true labels.
    pub label: Option<&'a str>,
    /// The column that names the rows.
    pub id: Option<&'a str>,
    /// Whether the true labels are in a file of their own.
    pub labels_elsewhere: bool,
}

/// Rows to classify.
pub struct RowsToClassify {
    /// The names of pictures, texts and rows.
    pub names: Option<Vec<String>>,
    /// The features, one row for each input.
    pub features: Matrix,
    /// True labels, if the feature file contains them.
    pub labels: Option<Labels>,
}

impl InputArguments {
    /// Reads features, or computes them with the network of the model.
    ///
    /// The labels of a feature file are in the column that was asked for or under a usual name.
    pub fn rows(&self, model: &Model, path: &Path, asked: &ColumnsBeside) -> Result<RowsToClassify> {
        if let Some(file) = &self.features {
            return self.table_rows(file, model, asked);
        }
        let manifest = manifest(model, path)?.ok_or_else(|| Error::NoExtraction { model: model.name.clone() })?;
        let names = self.pictures.iter().map(|path| path.display().to_string()).chain(self.text.iter().cloned());
        let names: Vec<String> = names.collect();
        let features = self.encoded(manifest, names.len())?;
        Ok(RowsToClassify { names: Some(names), features, labels: None })
    }

    /// Reads features, with the columns that the model was trained on.
    fn table_rows(&self, file: &Path, model: &Model, asked: &ColumnsBeside) -> Result<RowsToClassify> {
        let options = Options {
            expected: model.columns.clone(),
            id: asked.id.map(str::to_owned),
            ignore_labels: asked.labels_elsewhere,
            // The model knows what replaces them.
            keep_missing: model.normalisation.fill().is_some(),
            ..self.table.options(asked.label, &self.columns)
        };
        let mut table = tables::read(file, &options).map_err(hetal_client::Error::from)?;
        let name = file.display().to_string();
        table.notes.iter().for_each(|note| print_note(&name, note));
        if model.columns.is_none() && table.names().is_some() {
            eprintln!(
                "note: the model has no names of columns: those of {} are taken in their order",
                sanitize_terminal(&name)
            );
        }
        let (labels, names) = (table.labels.take(), table.ids.take());
        Ok(RowsToClassify { names, features: matrix(table)?, labels })
    }

    /// Computes features of pictures or texts in another process.
    fn encoded(&self, manifest: Manifest, rows: usize) -> Result<Matrix> {
        let private = PrivateFolder::new().map_err(|error| extractor::Error::Failed(error.to_string()))?;
        let (columns, folder) = (manifest.model.columns, private);
        let out = folder.path().join("features.npy");
        extractor::send_request(&Request::Encode(Box::new(Encode {
            manifest,
            pictures: self.pictures.iter().map(|path| path.clone().into_os_string()).collect(),
            texts: self.text.clone(),
            network: self.network.clone().map(PathBuf::into_os_string),
            models: self.models.clone().map(PathBuf::into_os_string),
            device: self.device,
            out: out.clone().into_os_string(),
        })))?;
        let features = matrix(tables::read(&out, &Options::default()).map_err(hetal_client::Error::from)?)?;
        match (features.rows(), features.columns()) == (rows, columns) {
            true => Ok(features),
            false => Err(Error::Extractor(extractor::Error::Failed(format!(
                "hetal-extract returned {} rows of {} numbers instead of {rows} rows of {columns}",
                features.rows(),
                features.columns()
            )))),
        }
    }
}

/// The manifest of the features that a model was trained on, if it stores one.
pub fn manifest(model: &Model, path: &Path) -> Result<Option<Manifest>> {
    Ok(model.extraction.as_ref().map(|value| Manifest::from_model(value, path)).transpose()?)
}

/// Replaces class numbers by the class names of a model, unless they are its class names.
pub fn true_labels(labels: Labels, model: &Model, path: &Path) -> Result<Labels> {
    if labels.classes().iter().all(|label| model.classes.contains(label)) {
        return Ok(labels);
    }
    names(labels, manifest(model, path)?.as_ref())
}
