//! How a file is read, where it does not say so itself.

use crate::{FileProblem, Parsed};

/// The encoding of a text file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// UTF-8, with or without a byte order mark.
    #[default]
    Utf8,
    /// ISO 8859-1: a byte is a code point.
    Latin1,
    /// Latin-1 as Windows extends it.
    Windows1252,
    /// UTF-16: little-endian, unless its byte order mark says otherwise.
    Utf16,
}

impl Encoding {
    /// The names of all encodings.
    pub const NAMES: [&str; 4] = ["utf-8", "latin1", "windows-1252", "utf-16"];

    /// The encoding of this name.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "utf-8" | "utf8" => Self::Utf8,
            "latin1" | "latin-1" | "iso-8859-1" => Self::Latin1,
            "windows-1252" | "cp1252" => Self::Windows1252,
            "utf-16" | "utf16" => Self::Utf16,
            _ => return None,
        })
    }
}

/// How a table is read. The default guesses by the rules of the crate's documentation, and every
/// guess is in [`crate::Table::notes`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The encoding of text.
    pub encoding: Encoding,
    /// Whether the first row names the columns, or `None` to find out.
    pub header: Option<bool>,
    /// What separates fields, or `None` to find out.
    pub delimiter: Option<u8>,
    /// Whether decimals have a comma instead of a point.
    pub decimal_comma: bool,
    /// The columns to read, by name or by number from 1. Empty: all.
    pub columns: Vec<String>,
    /// The columns to leave out, by name or by number from 1.
    pub drop: Vec<String>,
    /// The column of labels, by name or by number from 1, or the array of labels in a file of
    /// several arrays.
    pub label: Option<String>,
    /// The column that names the rows, by name or by number from 1. It is no feature, unless it is
    /// in [`Options::expected`].
    pub id: Option<String>,
    /// The column of weights of rows, by name or by number from 1, or the array of weights in a
    /// file of several arrays.
    pub weight: Option<String>,
    /// Whether labels are ignored: an array of labels is not looked for.
    pub ignore_labels: bool,
    /// The names of the columns that are needed, in this order. Others are left out. A file
    /// without names must have as many columns.
    pub expected: Option<Vec<String>>,
    /// Whether missing values are kept as NaN. Otherwise they are an error.
    pub keep_missing: bool,
}

impl Options {
    /// The options for a table whose labels are in this column or array.
    pub fn labelled(label: &str) -> Self {
        Self { label: Some(label.to_owned()), ..Self::default() }
    }

    /// The delimiter of this name: one character, `tab` or `space`.
    pub fn delimiter_named(name: &str) -> Parsed<u8> {
        match (name, name.as_bytes()) {
            ("tab" | "\\t", _) => Ok(b'\t'),
            ("space", _) => Ok(b' '),
            (_, &[byte]) if byte.is_ascii() && !byte.is_ascii_alphanumeric() && !b"\"\r\n.-+".contains(&byte) => {
                Ok(byte)
            }
            _ => Err(FileProblem::Delimiter { name: name.to_owned() }),
        }
    }

    /// The columns that were asked for, by name or by number.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let apart = self.label.iter().chain(&self.id).chain(&self.weight);
        apart.chain(&self.columns).chain(&self.drop).map(String::as_str)
    }
}
