//! Files by their formats: which table or labels a file holds.

use crate::problem::reserved;
use crate::sheet::{FieldRules, Sheet, text};
use crate::{
    Array, Error, FileProblem, Labels, MAX_FILE_BYTES, Note, Options, Parsed, Table, columnar, heading, npy, npz,
    safetensors,
};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The usual names of the feature array in a file of several arrays.
const FEATURE_NAMES: [&str; 4] = ["features", "x", "X", "embeddings"];
/// The usual names of the label array.
const LABEL_NAMES: [&str; 5] = ["labels", "label", "y", "Y", "class"];
/// The usual names of the array of weights.
const WEIGHT_NAMES: [&str; 4] = ["sample_weight", "sample_weights", "weights", "weight"];
/// The usual headings of a file of labels, in small letters.
const LABEL_HEADINGS: [&str; 8] = ["label", "labels", "class", "classes", "target", "targets", "y", "species"];

/// A file format, recognised by its extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// One NumPy array.
    Npy,
    /// Several NumPy arrays.
    Npz,
    /// Several arrays in the safetensors format.
    Safetensors,
    /// Text whose fields are separated by commas, or by what is found in it.
    Csv,
    /// Text whose fields are separated by tabs.
    Tsv,
    /// JSON lines.
    JsonLines,
    /// Columns in the Parquet format.
    Parquet,
    /// Columns in the IPC format of Arrow, which Feather is too.
    Arrow,
}

impl FileFormat {
    /// The format of a file, by its extension.
    pub fn of(path: &Path) -> Result<Self, Error> {
        match path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase).as_deref() {
            Some("npy") => Ok(Self::Npy),
            Some("npz") => Ok(Self::Npz),
            Some("safetensors") => Ok(Self::Safetensors),
            Some("csv") => Ok(Self::Csv),
            Some("tsv" | "tab") => Ok(Self::Tsv),
            Some("jsonl" | "ndjson") => Ok(Self::JsonLines),
            Some("parquet" | "pq") => Ok(Self::Parquet),
            Some("arrow" | "feather" | "ipc") => Ok(Self::Arrow),
            _ => Err(Error { path: path.to_owned(), problem: FileProblem::Extension }),
        }
    }
}

/// Reads features, and labels if the options or the names of arrays say where they are.
pub fn read(path: &Path, options: &Options) -> Result<Table, Error> {
    let format = FileFormat::of(path)?;
    let parsed = match columnar::is_columnar(format) {
        true => columnar_table(path, options),
        false => bytes(path).and_then(|bytes| parse(format, &bytes, options)),
    };
    in_file(path, parsed)
}

/// Reads labels from a file of their own: a one-dimensional array, or a table with one column or a
/// column named `column`. If there should be `rows` labels, that decides whether the first one is
/// a heading.
pub fn read_labels(
    path: &Path,
    column: Option<&str>,
    rows: Option<usize>,
    options: &Options,
) -> Result<(Labels, Vec<Note>), Error> {
    let format = FileFormat::of(path)?;
    let parsed = match columnar::is_columnar(format) {
        true => columnar::read_labels(path, column),
        false => bytes(path).and_then(|bytes| parse_labels(format, &bytes, column, rows, options)),
    };
    in_file(path, parsed)
}

/// Reads the weights of rows from a file of their own: a one-dimensional array, or a table with one
/// column or a column named `column`.
pub fn read_weights(path: &Path, column: Option<&str>, options: &Options) -> Result<(Vec<f64>, Vec<Note>), Error> {
    let format = FileFormat::of(path)?;
    let parsed = match columnar::is_columnar(format) {
        true => columnar_weights(path, column, options),
        false => bytes(path).and_then(|bytes| parse_weights(format, &bytes, column, options)),
    };
    in_file(path, parsed)
}

/// A Parquet or Arrow table. Its weights are read like features, in a second pass.
fn columnar_table(path: &Path, options: &Options) -> Parsed<Table> {
    let Some(name) = &options.weight else { return columnar::read(path, options) };
    if options.label.as_ref() == Some(name) {
        return Err(FileProblem::LabelAndWeight { column: name.clone() });
    }
    let drop = options.drop.iter().chain([name]).cloned().collect();
    let mut table = columnar::read(path, &Options { drop, weight: None, ..options.clone() })?;
    table.weights = Some(columnar_weights(path, Some(name), options)?.0);
    table.weight_name = Some(name.clone());
    Ok(table)
}

fn columnar_weights(path: &Path, column: Option<&str>, options: &Options) -> Parsed<(Vec<f64>, Vec<Note>)> {
    only_column(columnar::read(path, &weight_options(column, options))?)
}

/// The options that read weights like features.
fn weight_options(column: Option<&str>, options: &Options) -> Options {
    let Options { encoding, header, delimiter, decimal_comma, .. } = options.clone();
    let columns = column.map(str::to_owned).into_iter().collect();
    Options { encoding, header, delimiter, decimal_comma, columns, ignore_labels: true, ..Options::default() }
}

/// The values of a table of one column.
fn only_column(table: Table) -> Parsed<(Vec<f64>, Vec<Note>)> {
    match table.columns.len() {
        1 => Ok((table.values, table.notes)),
        width => {
            let known = format!("{width} columns; name one of them with FILE#NAME");
            Err(FileProblem::Missing { what: "a single column of weights".to_owned(), known })
        }
    }
}

fn in_file<T>(path: &Path, parsed: Parsed<T>) -> Result<T, Error> {
    parsed.map_err(|problem| Error { path: path.to_owned(), problem })
}

/// Reads the bytes of a regular file.
pub(crate) fn bytes(path: &Path) -> Parsed<Vec<u8>> {
    let io = |e: std::io::Error| FileProblem::Io(e.to_string());
    let file = hetal_extract_api::open_regular(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    if length > MAX_FILE_BYTES {
        return Err(FileProblem::TooLarge { bytes: length, most: MAX_FILE_BYTES });
    }
    let mut bytes = reserved(length as usize)?;
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes)
}

/// Parses the bytes of a feature file.
pub fn parse(format: FileFormat, bytes: &[u8], options: &Options) -> Parsed<Table> {
    match format {
        FileFormat::Npy => {
            let only_numbers = |name: &String, advice: &str| {
                let known = format!("one array of numbers; give the {advice}");
                Err(FileProblem::Missing { what: format!("column {name}"), known })
            };
            match (options.label.as_ref().filter(|_| !options.ignore_labels), &options.weight) {
                (Some(name), _) => only_numbers(name, "labels with --labels"),
                (None, Some(name)) => only_numbers(name, "weights with --sample-weight"),
                (None, None) => Table::from_array(npy::parse(bytes)?, "the array", options),
            }
        }
        FileFormat::Npz => several(npz::parse(bytes)?, options),
        FileFormat::Safetensors => several(safetensors::parse(bytes)?, options),
        FileFormat::Csv | FileFormat::Tsv | FileFormat::JsonLines => {
            Table::from_sheet(Sheet::new(&text(bytes, options)?, format, options, FieldRules::NUMBERS)?, options)
        }
        FileFormat::Parquet | FileFormat::Arrow => Err(only_files()),
    }
}

fn only_files() -> FileProblem {
    FileProblem::Extractor("hetal-extract reads Parquet and Arrow from files only".to_owned())
}

/// Parses the bytes of a label file.
pub fn parse_labels(
    format: FileFormat,
    bytes: &[u8],
    column: Option<&str>,
    rows: Option<usize>,
    options: &Options,
) -> Parsed<(Labels, Vec<Note>)> {
    let mut arrays = match format {
        FileFormat::Npy => return Ok((npy::parse(bytes)?.labels("the array")?, Vec::new())),
        FileFormat::Csv | FileFormat::Tsv | FileFormat::JsonLines => {
            let options = Options { label: column.map(str::to_owned), ..options.clone() };
            return label_sheet(
                Sheet::new(&text(bytes, &options)?, format, &options, FieldRules::NUMBERS)?,
                rows,
                &options,
            );
        }
        FileFormat::Npz => npz::parse(bytes)?,
        FileFormat::Safetensors => safetensors::parse(bytes)?,
        FileFormat::Parquet | FileFormat::Arrow => return Err(only_files()),
    };
    let found = find(&arrays, column, &LABEL_NAMES).or_else(|| only(&arrays, 1).filter(|_| column.is_none()));
    let found = found.ok_or_else(|| missing(&arrays, column, "an array of labels"))?;
    let (name, array) = arrays.swap_remove(found);
    Ok((array.labels(&name)?, Vec::new()))
}

/// Parses the bytes of a file of weights.
pub fn parse_weights(
    format: FileFormat,
    bytes: &[u8],
    column: Option<&str>,
    options: &Options,
) -> Parsed<(Vec<f64>, Vec<Note>)> {
    let mut arrays = match format {
        FileFormat::Npy => return Ok((npy::parse(bytes)?.weights("the array")?, Vec::new())),
        FileFormat::Csv | FileFormat::Tsv | FileFormat::JsonLines => {
            return only_column(parse(format, bytes, &weight_options(column, options))?);
        }
        FileFormat::Parquet | FileFormat::Arrow => return Err(only_files()),
        FileFormat::Npz => npz::parse(bytes)?,
        FileFormat::Safetensors => safetensors::parse(bytes)?,
    };
    let found = find(&arrays, column, &WEIGHT_NAMES).or_else(|| only(&arrays, 1).filter(|_| column.is_none()));
    let found = found.ok_or_else(|| missing(&arrays, column, "an array of weights"))?;
    let (name, array) = arrays.swap_remove(found);
    Ok((array.weights(&name)?, Vec::new()))
}

/// Finds features and labels among named arrays. An array is taken for labels by its name only: an
/// index or a weight has one number per row too.
fn several(mut arrays: Vec<(String, Array)>, options: &Options) -> Parsed<Table> {
    let features = find(&arrays, None, &FEATURE_NAMES).or_else(|| only(&arrays, 2));
    let features = features.ok_or_else(|| missing(&arrays, None, "a two-dimensional array of features"))?;
    let label = options.label.as_deref();
    let labels = match find(&arrays, label, &LABEL_NAMES) {
        _ if options.ignore_labels => None,
        None if label.is_some() => return Err(missing(&arrays, label, "an array of labels")),
        found => found,
    };
    let labels = labels.map(|place| arrays[place].clone());
    // Weights change what is learned, so they are taken only if they were asked for.
    let weights = options.weight.as_deref().map(|name| {
        let found = find(&arrays, Some(name), &[]).ok_or_else(|| missing(&arrays, Some(name), "weights"))?;
        Ok((name.to_owned(), arrays[found].1.clone().weights(name)?))
    });
    let weights = weights.transpose()?;
    let (name, array) = arrays.swap_remove(features);
    let mut table = Table::from_array(array, &name, options)?;
    if let Some((name, array)) = labels {
        table.labels = Some(array.labels(&name)?);
        table.label_name = Some(name);
    }
    (table.weight_name, table.weights) = weights.unzip();
    Ok(table)
}

/// Finds the array with a name, or with one of the usual names.
fn find(arrays: &[(String, Array)], name: Option<&str>, usual: &[&str]) -> Option<usize> {
    let named = |wanted: &str| arrays.iter().position(|(name, _)| name == wanted);
    match name {
        Some(name) => named(name),
        None => usual.iter().find_map(|name| named(name)),
    }
}

/// Finds the array with this many dimensions, if there is exactly one.
fn only(arrays: &[(String, Array)], dimensions: usize) -> Option<usize> {
    let mut fitting = (0..arrays.len()).filter(|&k| arrays[k].1.shape.len() == dimensions);
    fitting.next().filter(|_| fitting.next().is_none())
}

fn missing(arrays: &[(String, Array)], name: Option<&str>, what: &str) -> FileProblem {
    FileProblem::Missing {
        what: name.map_or_else(|| what.to_owned(), |name| format!("array {name}")),
        known: arrays.iter().map(|(name, a)| format!("{name} {:?}", a.shape)).collect::<Vec<_>>().join(", "),
    }
}

/// Reads the labels of a text table: its only column, or the column that was asked for.
fn label_sheet(mut sheet: Sheet<'_>, rows: Option<usize>, options: &Options) -> Parsed<(Labels, Vec<Note>)> {
    let names = sheet.names.clone();
    let column = match &options.label {
        Some(name) => crate::columns::Columns::new(names.as_deref(), sheet.width).index_of(name)?,
        None => match (sheet.width, names.as_deref()) {
            (1, _) => 0,
            // pandas writes the index before a column of labels.
            (2, Some([index, _])) if index.is_empty() => 1,
            (width, _) => {
                let known = format!("{width} columns; name one of them with FILE#NAME");
                return Err(FileProblem::Missing { what: "a single column of labels".to_owned(), known });
            }
        },
    };
    let asked_for = options.label.is_some() && names.as_ref().and_then(|n| n.get(column)) == options.label.as_ref();
    let is_lines = names.is_some() && options.header.is_none() && !asked_for && sheet.width == 1;
    if is_lines && sheet.has_guessed_names() {
        sheet.without_heading();
    }
    let mut notes = std::mem::take(&mut sheet.notes);
    let mut texts = Vec::new();
    let heading = sheet.names.take();
    while let Some(record) = sheet.next()? {
        texts.push(record.get(column).unwrap_or_default().to_owned());
    }
    if heading.is_none() && options.header.is_none() && begins_with_heading(&texts, rows) {
        let first = texts.remove(0);
        notes.clear();
        notes.push(Note::new(format!("{first:?} above the labels is taken as their heading"), "--header no"));
    }
    if texts.is_empty() {
        return Err(FileProblem::Empty);
    }
    let name = heading.and_then(|names| names.get(column).cloned()).unwrap_or_else(|| (column + 1).to_string());
    Ok((crate::table::labels_of(texts, &name, &mut notes)?, notes))
}

/// Returns whether the first of the texts is a heading: it is a word above numbers, or one of the
/// usual headings that no other label has, or there is one text too many.
fn begins_with_heading(texts: &[String], rows: Option<usize>) -> bool {
    let Some((first, labels)) = texts.split_first() else { return false };
    let above_numbers =
        heading::is_word(first) && !labels.is_empty() && !labels.iter().any(|text| heading::is_word(text));
    let usual = LABEL_HEADINGS.contains(&first.to_ascii_lowercase().as_str()) && !labels.contains(first);
    above_numbers || usual || rows.is_some_and(|rows| rows > 0 && texts.len() == rows + 1)
}

/// Splits a path from the name after its last `#`, as in `data.npz#labels`.
pub fn split_name(text: &str) -> (PathBuf, Option<String>) {
    match text.rsplit_once('#') {
        Some((path, name)) if !path.is_empty() && !name.is_empty() => (path.into(), Some(name.to_owned())),
        _ => (text.into(), None),
    }
}
