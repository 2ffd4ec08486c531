//! Tables of texts or of pictures' files, with a class in each row. `hetal_tables` reads CSV, TSV
//! and JSON lines, [`columnar`](crate::columnar) Parquet and Arrow.

use super::{FoundSamples, SampleSource, entries, file_name, folder, number_classes, part_named};
use crate::{Error, Result, columnar};
use hetal_tables::{Encoding, FileFormat, FileProblem, Options};
use std::path::{Path, PathBuf};

/// Longer rows are refused: a missing quotation mark or line end makes a row of the whole file.
const MAX_ROW: usize = 16 << 20;

/// The columns that are read.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleColumns {
    /// The column of texts or of pictures' files.
    pub content: String,
    /// Whether that column names files of pictures, relative to the table.
    pub files: bool,
    /// The column of class names.
    pub label: String,
    /// The encoding of text tables.
    pub encoding: Encoding,
    /// Whether the first row of a CSV or TSV table names its columns.
    pub header: bool,
    /// What separates the fields of a CSV table, or `None` to find out.
    pub delimiter: Option<u8>,
}

impl Default for SampleColumns {
    fn default() -> Self {
        let (content, label) = ("text".to_owned(), "label".to_owned());
        Self { content, files: false, label, encoding: Encoding::default(), header: true, delimiter: None }
    }
}

impl SampleColumns {
    fn options(&self) -> Options {
        let Self { encoding, header, delimiter, .. } = *self;
        Options { encoding, header: Some(header), delimiter, ..Options::default() }
    }
}

type Named = (String, String, SampleSource);

/// The extensions of tables.
pub(crate) const KINDS: [&str; 8] = ["csv", "tsv", "jsonl", "ndjson", "parquet", "arrow", "feather", "ipc"];

/// Reads one table, or the tables `train`, `val`, `test` of a folder.
pub(crate) fn read(path: &Path, columns: &SampleColumns) -> Result<FoundSamples> {
    let mut notes = Vec::new();
    if !path.is_dir() {
        let parts = [Some(table(path, columns, &mut notes)?), None, None];
        return Ok(FoundSamples { notes, ..number_classes(parts) });
    }
    let mut read = |index| part(path, index)?.map(|path| table(&path, columns, &mut notes)).transpose();
    let parts = [read(0)?, read(1)?, read(2)?];
    if parts.iter().all(Option::is_none) {
        return Err(Error::dataset(path, "has no table train.csv (or .tsv, .jsonl, .parquet, .arrow) in it"));
    }
    Ok(FoundSamples { notes, ..number_classes(parts) })
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
pub(super) fn detected(folder: &Path, columns: &SampleColumns) -> bool {
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

fn table(path: &Path, columns: &SampleColumns, notes: &mut Vec<String>) -> Result<Vec<Named>> {
    let rows = rows(path, columns, notes)?;
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

/// The two columns, row by row.
fn rows(path: &Path, columns: &SampleColumns, notes: &mut Vec<String>) -> Result<Vec<[String; 2]>> {
    let names = [columns.content.as_str(), columns.label.as_str()];
    match FileFormat::of(path) {
        Ok(FileFormat::Csv | FileFormat::Tsv | FileFormat::JsonLines) => {}
        Ok(format @ (FileFormat::Parquet | FileFormat::Arrow)) => return columnar::texts(path, format, names),
        _ => return Err(Error::dataset(path, "is no table; a table is .csv, .tsv, .jsonl, .parquet or .arrow")),
    }
    let texts = hetal_tables::read_texts(path, &names, MAX_ROW, &columns.options());
    let texts = texts.map_err(|error| Error::dataset(path, reason(error.problem)))?;
    notes.extend(texts.notes.iter().map(|note| format!("{}: {}", file_name(path), note.text)));
    let pair = |row: Vec<String>| <[String; 2]>::try_from(row).unwrap_or_default();
    Ok(texts.rows.into_iter().map(pair).collect())
}

/// What is wrong with a table, in the words of this program.
fn reason(problem: FileProblem) -> String {
    match problem {
        FileProblem::Missing { what, known } => {
            format!("has no {what}, but {known}; name the columns with --text-column and --label-column")
        }
        FileProblem::Duplicate { what, name } => format!("has two {what} {name}; rename one of them"),
        FileProblem::Encoding { row, byte, value, .. } => {
            format!(
                "line {row}, byte {byte}: {value:#04x} is not valid UTF-8; save it as UTF-8, or name its encoding \
                 with --encoding"
            )
        }
        other => other.to_string(),
    }
}
