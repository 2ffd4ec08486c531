//! What is to be classified: pictures, texts or features, as named on the command line.

use super::data::names;
use crate::extract::DeviceArgument;
use crate::{Error, Result, extract, progress};
use hetal_client::Model;
use hetal_client::data::{Labels, files};
use hetal_client::rpc::sanitize_terminal;
use hetal_features::picture::Picture;
use hetal_features::sentence::Reading;
use hetal_features::{Extractor, Manifest};
use hetal_learn::Matrix;
use std::path::{Path, PathBuf};

/// Pictures or texts that go through the network between two steps of the bar.
const CHUNK: usize = 8;

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
        let extractor = extract::reopen(&manifest, self.network.as_deref(), self.models.as_deref(), self.device)?;
        let rows = if self.text.is_empty() {
            in_chunks(&self.pictures, |paths| pictures(&extractor, paths))?
        } else {
            in_chunks(&self.text, |texts| sentences(&extractor, texts))?
        };
        let names = self.pictures.iter().map(|path| path.display().to_string()).chain(self.text.iter().cloned());
        let columns = extractor.identity().columns;
        let features = Matrix::from_fn(rows.len(), columns, |i, h| f64::from(rows[i][h]));
        Ok(Rows { names: Some(names.collect()), features, labels: None })
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

fn in_chunks<T>(inputs: &[T], extract: impl Fn(&[T]) -> Result<Vec<Vec<f32>>>) -> Result<Vec<Vec<f32>>> {
    let bar = progress::bar(inputs.len() as u64).with_message("extracting features");
    let mut rows = Vec::with_capacity(inputs.len());
    for chunk in inputs.chunks(CHUNK) {
        rows.extend(extract(chunk)?);
        bar.inc(chunk.len() as u64);
    }
    bar.finish_and_clear();
    Ok(rows)
}

fn pictures(extractor: &Extractor, paths: &[PathBuf]) -> Result<Vec<Vec<f32>>> {
    let pictures = paths.iter().map(|path| Ok(extractor.fitted(&Picture::open(path)?)));
    Ok(extractor.extract_pictures(&pictures.collect::<hetal_features::Result<Vec<_>>>()?)?)
}

fn sentences(extractor: &Extractor, texts: &[String]) -> Result<Vec<Vec<f32>>> {
    for text in texts {
        if text.trim().is_empty() {
            return Err(Error::File { path: "--text".to_owned(), reason: "the text is empty".to_owned() });
        }
        if extractor.tokens(text)?.reading == Reading::Beginning {
            let beginning = sanitize_terminal(&text.chars().take(40).collect::<String>());
            eprintln!("note: a text is longer than the network reads, its end does not count: {beginning}...");
        }
    }
    Ok(extractor.extract_texts(&texts.iter().map(|text| text.trim()).collect::<Vec<_>>())?)
}
