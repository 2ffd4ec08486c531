//! Tables of texts or of pictures' files, with a class in each row: CSV, TSV, JSON lines, Parquet.

use super::{Found, SampleSource, entries, file_name, folder, number_classes, parquet, part_named};
use crate::{Error, Result, untrusted};
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Longer rows are refused: a missing quotation mark or line end makes a row of the whole file.
const MAX_ROW: usize = 16 << 20;

/// The columns that are read.
#[derive(Debug, Clone, PartialEq)]
pub struct Columns {
    /// The column of texts or of pictures' files.
    pub content: String,
    /// Whether that column names files of pictures, relative to the table.
    pub files: bool,
    /// The column of class names.
    pub label: String,
}

impl Default for Columns {
    fn default() -> Self {
        Self { content: "text".to_owned(), files: false, label: "label".to_owned() }
    }
}

type Named = (String, String, SampleSource);

/// The extensions of tables.
pub(crate) const KINDS: [&str; 5] = ["csv", "tsv", "jsonl", "ndjson", "parquet"];

/// Reads one table, or the tables `train`, `val`, `test` of a folder.
pub(crate) fn read(path: &Path, columns: &Columns) -> Result<Found> {
    if !path.is_dir() {
        return Ok(number_classes([Some(table(path, columns)?), None, None]));
    }
    let read = |index| part(path, index)?.map(|path| table(&path, columns)).transpose();
    let parts = [read(0)?, read(1)?, read(2)?];
    if parts.iter().all(Option::is_none) {
        return Err(Error::dataset(path, "has no table train.csv (or .tsv, .jsonl, .parquet) in it"));
    }
    Ok(number_classes(parts))
}

/// Finds the table of a part in a folder, by its name.
pub(super) fn part(folder: &Path, index: usize) -> Result<Option<PathBuf>> {
    // A folder of pictures may lie beside the table that lists them, under the same name.
    let is_table =
        |path: &Path| path.is_file() && KINDS.iter().any(|&kind| path.extension().is_some_and(|e| e == kind));
    let is_part = |path: &Path| path.file_stem().and_then(|stem| part_named(&stem.to_string_lossy())) == Some(index);
    let mut tables: Vec<PathBuf> =
        entries(folder)?.into_iter().filter(|path| is_part(path) && is_table(path)).collect();
    match &tables[..] {
        [one, two, ..] => {
            let reason =
                format!("holds {} and {}, tables of one part; put them into one", file_name(one), file_name(two));
            Err(Error::dataset(folder, reason))
        }
        _ => Ok(tables.pop()),
    }
}

/// Whether a folder holds a table for each part. Beside folders of classes, a table counts only if
/// it is named `train` or lists files of pictures; otherwise it may be about something else.
pub(super) fn detected(folder: &Path, columns: &Columns) -> bool {
    match part(folder, 0) {
        Ok(None) => false,
        Ok(Some(table)) => {
            let is_train = table.file_stem().is_some_and(|stem| stem.eq_ignore_ascii_case("train"));
            is_train || columns.files || !folder::holds_classes(folder)
        }
        // The error is reported when the tables are read.
        Err(_) => folder.is_dir(),
    }
}

fn table(path: &Path, columns: &Columns) -> Result<Vec<Named>> {
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
    let rows = match extension.as_str() {
        "csv" => delimited(path, columns, b',')?,
        "tsv" => delimited(path, columns, b'\t')?,
        "jsonl" | "ndjson" => json_lines(path, columns)?,
        "parquet" => parquet::read(path, columns)?,
        other => return Err(Error::dataset(path, format!("is .{other}; a table is .csv, .tsv, .jsonl or .parquet"))),
    };
    if let Some(row) = rows.iter().position(|[_, label]| label.trim().is_empty()) {
        return Err(Error::dataset(
            path,
            format!("row {}: no {}; fill in the class or remove the row", row + 1, columns.label),
        ));
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    let named = |(row, [content, label]): (usize, [String; 2])| {
        let source =
            if columns.files { SampleSource::File(folder.join(&content)) } else { SampleSource::Text(content) };
        (format!("{} row {}", file_name(path), row + 1), label.trim().to_owned(), source)
    };
    Ok(rows.into_iter().enumerate().map(named).collect())
}

pub(super) fn no_column(path: &Path, name: &str, have: &str) -> Error {
    Error::dataset(
        path,
        format!("has no column {name}, but {have}; name the columns with --text-column and --label-column"),
    )
}

pub(super) fn two_columns(path: &Path, name: &str) -> Error {
    Error::dataset(path, format!("has two columns {name}; rename one of them"))
}

fn delimited(path: &Path, columns: &Columns, delimiter: u8) -> Result<Vec<[String; 2]>> {
    let bad = |e: csv::Error| match e.kind() {
        csv::ErrorKind::Utf8 { .. } => Error::dataset(path, format!("{e}; save it as UTF-8")),
        csv::ErrorKind::Io(e) => Error::dataset(path, e.to_string()),
        _ => Error::dataset(path, format!("{e}; correct the row, or write the file again")),
    };
    let file = untrusted::open(path).map_err(Error::io(path))?;
    let (file, next_record) = untrusted::RecordReader::new(file, MAX_ROW);
    let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).from_reader(file);
    let header = reader.headers().map_err(bad)?.clone();
    // Where a comma is a decimal point, programs put a semicolon between columns.
    if delimiter == b',' && header.len() == 1 && header.iter().any(|all| all.contains(';')) {
        return delimited(path, columns, b';');
    }
    let place = |name: &str| {
        let mut found = header.iter().enumerate().filter(|(_, column)| column.trim() == name);
        match (found.next(), found.next()) {
            (Some((place, _)), None) => Ok(place),
            (Some(_), Some(_)) => Err(two_columns(path, name)),
            (None, _) => Err(no_column(path, name, &header.iter().collect::<Vec<_>>().join(", "))),
        }
    };
    let places = [place(&columns.content)?, place(&columns.label)?];
    let row = |record: csv::StringRecord| places.map(|place| record.get(place).unwrap_or_default().to_owned());
    let record = |record: std::result::Result<csv::StringRecord, csv::Error>| {
        next_record.start();
        record.map(row).map_err(bad)
    };
    reader.records().map(record).collect()
}

fn json_lines(path: &Path, columns: &Columns) -> Result<Vec<[String; 2]>> {
    let mut reader = BufReader::new(untrusted::open(path).map_err(Error::io(path))?);
    let mut rows = Vec::new();
    for number in 1u64.. {
        let bad = |reason: String| Error::dataset(path, format!("line {number}: {reason}; correct the line"));
        let Some(line) = untrusted::read_line(&mut reader, MAX_ROW).map_err(|e| bad(e.to_string()))? else { break };
        // Some programs begin a file with a mark of its byte order, which UTF-8 has no need of.
        let mark = if number == 1 { "\u{feff}" } else { "" };
        let line = line.strip_prefix(mark.as_bytes()).unwrap_or(&line).trim_ascii();
        if line.is_empty() {
            continue;
        }
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(line).map_err(|e| bad(e.to_string()))?;
        let value = |name: &str| match object.get(name) {
            Some(serde_json::Value::String(text)) => Ok(text.clone()),
            Some(serde_json::Value::Null) => Ok(String::new()),
            Some(other) => Ok(other.to_string()),
            None => Err(no_column(path, name, &object.keys().cloned().collect::<Vec<_>>().join(", "))),
        };
        rows.push([value(&columns.content)?, value(&columns.label)?]);
    }
    Ok(rows)
}
