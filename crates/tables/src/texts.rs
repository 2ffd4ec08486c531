//! Columns of texts, for data sets of sentences and of names of files.

use crate::columns::Columns;
use crate::files::bytes;
use crate::sheet::{FieldRules, Sheet, text};
use crate::{Error, FileFormat, Note, Options, Parsed};
use std::path::Path;

/// The columns of a text table that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Texts {
    /// One text of each column for each row.
    pub rows: Vec<Vec<String>>,
    /// What was guessed.
    pub notes: Vec<Note>,
}

/// Reads columns of a text table (CSV, TSV or JSON lines) as they are. The first row of a CSV or
/// TSV file names its columns. A field has at most `max_field` bytes.
pub fn read_texts(path: &Path, columns: &[&str], max_field: usize, options: &Options) -> Result<Texts, Error> {
    let format = FileFormat::of(path)?;
    let parsed = bytes(path).and_then(|bytes| parse_texts(format, &bytes, columns, max_field, options));
    parsed.map_err(|problem| Error { path: path.to_owned(), problem })
}

/// Parses columns of a text table.
pub fn parse_texts(
    format: FileFormat,
    bytes: &[u8],
    columns: &[&str],
    max_field: usize,
    options: &Options,
) -> Parsed<Texts> {
    let asked = columns.iter().map(|name| (*name).to_owned()).collect();
    let options = Options { header: options.header.or(Some(true)), columns: asked, ..options.clone() };
    let text = text(bytes, &options)?;
    let mut sheet = Sheet::new(&text, format, &options, FieldRules { most: max_field, are_texts: true })?;
    let names = sheet.names.take();
    let known = Columns::new(names.as_deref(), sheet.width);
    let places: Vec<usize> = columns.iter().map(|name| known.index_of(name)).collect::<Parsed<_>>()?;
    let mut rows = Vec::new();
    while let Some(record) = sheet.next()? {
        rows.push(places.iter().map(|&place| record.get(place).unwrap_or_default().to_owned()).collect());
    }
    Ok(Texts { rows, notes: sheet.notes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileProblem;

    #[test]
    fn columns_of_texts_are_read_as_they_are() {
        let read =
            |format, text: &str| parse_texts(format, text.as_bytes(), &["text", "label"], 100, &Options::default());
        let expected = [["play, please ", "a"], ["stop", "b"]].map(|row| row.map(str::to_owned).to_vec());
        let csv = read(FileFormat::Csv, "id,label,text\n1,a,\"play, please \"\n2,b,stop\n").unwrap();
        assert_eq!(csv.rows, expected);
        let semicolons = read(FileFormat::Csv, "text;label\nplay, please ;a\nstop;b\n").unwrap();
        assert_eq!((semicolons.rows, semicolons.notes.len()), (expected.to_vec(), 1));
        let lines =
            "{\"text\": \"play, please \", \"label\": \"a\", \"tags\": [1]}\n{\"label\": \"b\", \"text\": \"stop\"}\n";
        assert_eq!(read(FileFormat::JsonLines, lines).unwrap().rows, expected);
        let missing = read(FileFormat::JsonLines, "{\"words\": 1, \"label\": 2}\n").unwrap_err();
        assert_eq!(missing, FileProblem::Missing { what: "column text".into(), known: "words, label".into() });
        let long = format!("text,label\n\"{}", "x".repeat(200));
        assert!(read(FileFormat::Csv, &long).unwrap_err().to_string().contains("is a quotation mark missing?"));
        let long = format!("{{\"text\": \"{}\", \"label\": 1}}", "x".repeat(200));
        assert!(
            read(FileFormat::JsonLines, &long).unwrap_err().to_string().contains("line 1: it has more than 100 bytes")
        );
    }
}
