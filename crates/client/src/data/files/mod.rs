//! Files of features and labels: `.npy`, `.npz`, `.safetensors` and `.csv`.
//!
//! Files are not trusted. Every size is compared with the length of the file before memory is
//! allocated. Errors name the file and, if possible, the row and the column.

mod array;
pub mod csv;
pub mod npy;
pub mod npz;
mod problem;
pub mod safetensors;

pub use array::{Array, Values};
pub use problem::{FileProblem, Parsed};

use super::Labels;
use crate::{Error, Result};
use hetal_learn::Matrix;
use std::path::{Path, PathBuf};

/// Larger files are refused before they are read.
pub const MAX_FILE_BYTES: u64 = 16 << 30;
/// The usual names of the feature array in a file of several arrays.
const FEATURE_NAMES: [&str; 4] = ["features", "x", "X", "embeddings"];
/// The usual names of the label array.
const LABEL_NAMES: [&str; 5] = ["labels", "label", "y", "Y", "class"];

/// Features, and labels if the file contains them.
#[derive(Clone, Debug)]
pub struct Table {
    /// One row per sample.
    pub features: Matrix,
    /// One label per row.
    pub labels: Option<Labels>,
}

/// Reads features and labels. `label` names the label column, or the label array in a file of
/// several arrays. Without it, labels are found in `.npz` and `.safetensors` files by their usual
/// names, and `.npy` and `.csv` files have no labels.
pub fn table(path: &Path, label: Option<&str>) -> Result<Table> {
    parse_table(format_of(path)?, &read(path)?, label).map_err(|problem| file_error(path, problem))
}

/// Reads features and ignores everything else in the file.
pub fn features(path: &Path) -> Result<Matrix> {
    parse_features(format_of(path)?, &read(path)?).map_err(|problem| file_error(path, problem))
}

/// Reads labels from a file of their own: a one-dimensional array, or a table with one column or a
/// column named `column`.
pub fn labels(path: &Path, column: Option<&str>) -> Result<Labels> {
    parse_labels(format_of(path)?, &read(path)?, column).map_err(|problem| file_error(path, problem))
}

/// A file format, recognised by its extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One NumPy array.
    Npy,
    /// Several NumPy arrays.
    Npz,
    /// Several arrays in the safetensors format.
    Safetensors,
    /// Comma-separated text.
    Csv,
}

fn format_of(path: &Path) -> Result<Format> {
    match path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase).as_deref() {
        Some("npy") => Ok(Format::Npy),
        Some("npz") => Ok(Format::Npz),
        Some("safetensors") => Ok(Format::Safetensors),
        Some("csv") => Ok(Format::Csv),
        _ => Err(file_error(path, FileProblem::Extension)),
    }
}

fn file_error(path: &Path, problem: FileProblem) -> Error {
    Error::File { path: path.to_owned(), problem }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let io = |e: std::io::Error| file_error(path, FileProblem::Io(e.to_string()));
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_file() {
        return Err(file_error(path, FileProblem::Io("not a regular file".to_owned())));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(file_error(path, FileProblem::TooLarge { bytes: metadata.len(), most: MAX_FILE_BYTES }));
    }
    std::fs::read(path).map_err(io)
}

/// Parses the bytes of a feature file.
pub fn parse_table(format: Format, bytes: &[u8], label: Option<&str>) -> Parsed<Table> {
    match format {
        Format::Npy => match label {
            None => Ok(Table { features: npy::parse(bytes)?.matrix("the array")?, labels: None }),
            Some(name) => Err(FileProblem::Missing {
                what: format!("column {name}"),
                known: "one array of numbers; give the labels with --labels".to_owned(),
            }),
        },
        Format::Npz => several(npz::parse(bytes)?, label),
        Format::Safetensors => several(safetensors::parse(bytes)?, label),
        Format::Csv => csv::parse(bytes, label),
    }
}

/// Parses the features of a file and ignores everything else.
fn parse_features(format: Format, bytes: &[u8]) -> Parsed<Matrix> {
    match format {
        Format::Npz => matrix(&npz::parse(bytes)?),
        Format::Safetensors => matrix(&safetensors::parse(bytes)?),
        Format::Npy | Format::Csv => Ok(parse_table(format, bytes, None)?.features),
    }
}

/// Parses the bytes of a label file.
pub fn parse_labels(format: Format, bytes: &[u8], column: Option<&str>) -> Parsed<Labels> {
    let arrays = match format {
        Format::Npy => return npy::parse(bytes)?.labels("the array"),
        Format::Csv => return csv::parse_labels(bytes, column),
        Format::Npz => npz::parse(bytes)?,
        Format::Safetensors => safetensors::parse(bytes)?,
    };
    let found = find(&arrays, column, &LABEL_NAMES).or_else(|| only(&arrays, 1).filter(|_| column.is_none()));
    let (name, array) = found.ok_or_else(|| missing(&arrays, column, "an array of labels"))?;
    array.labels(name)
}

/// Finds features and labels among named arrays. An array is taken for labels by its name only: an
/// index or a weight has one number per row too.
fn several(arrays: Vec<(String, Array)>, label: Option<&str>) -> Parsed<Table> {
    let features = matrix(&arrays)?;
    let labels = match find(&arrays, label, &LABEL_NAMES) {
        Some((name, array)) => Some(array.labels(name)?),
        None if label.is_some() => return Err(missing(&arrays, label, "an array of labels")),
        None => None,
    };
    Ok(Table { features, labels })
}

/// Finds the features among named arrays.
fn matrix(arrays: &[(String, Array)]) -> Parsed<Matrix> {
    let found = find(arrays, None, &FEATURE_NAMES).or_else(|| only(arrays, 2));
    let (name, array) = found.ok_or_else(|| missing(arrays, None, "a two-dimensional array of features"))?;
    array.matrix(name)
}

/// Finds the array with a name, or with one of the usual names.
fn find<'a>(arrays: &'a [(String, Array)], name: Option<&str>, usual: &[&str]) -> Option<&'a (String, Array)> {
    let named = |wanted: &str| arrays.iter().find(|(name, _)| name == wanted);
    match name {
        Some(name) => named(name),
        None => usual.iter().find_map(|name| named(name)),
    }
}

/// Finds the array with this many dimensions, if there is exactly one.
fn only(arrays: &[(String, Array)], dimensions: usize) -> Option<&(String, Array)> {
    let mut fitting = arrays.iter().filter(|(_, array)| array.shape.len() == dimensions);
    fitting.next().filter(|_| fitting.next().is_none())
}

fn missing(arrays: &[(String, Array)], name: Option<&str>, what: &str) -> FileProblem {
    FileProblem::Missing {
        what: name.map_or_else(|| what.to_owned(), |name| format!("array {name}")),
        known: arrays.iter().map(|(name, a)| format!("{name} {:?}", a.shape)).collect::<Vec<_>>().join(", "),
    }
}

/// Splits a path from the name after its last `#`, as in `data.npz#labels`.
pub fn split_name(text: &str) -> (PathBuf, Option<String>) {
    match text.rsplit_once('#') {
        Some((path, name)) if !path.is_empty() && !name.is_empty() => (path.into(), Some(name.to_owned())),
        _ => (text.into(), None),
    }
}

#[cfg(test)]
mod tests;
