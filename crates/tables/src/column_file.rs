//! Typed columns in a file: how `hetal-extract` hands over what it read from a Parquet or Arrow
//! file.
//!
//! ```text
//! {"version":1,"columns":[{"name":"width","kind":"float","content":"numbers", ...}, ...]}  a line
//! rows (u32, 1 to 65,536), then for each column with content, in their order:
//!     numbers  a double for each row, NaN where the value is missing
//!     texts    for each row its length (u32, 2^32 - 1 where the value is missing) and its bytes
//! ... more rows, and 0 (u32) at the end
//! ```
//!
//! All numbers are little-endian. The process that writes such a file has read a file of anyone, so
//! the reader trusts nothing in it.

use crate::problem::reserved;
use crate::{FileProblem, MAX_COLUMNS, Parsed};
use hetal_extract_api::read_line;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Write};

const VERSION: u32 = 1;
const FORMAT: &str = "column";
/// The longest heading in bytes: names of up to 4 KiB for all columns.
const MAX_HEADING: usize = 64 << 20;
/// The most rows of a block.
pub const MAX_BLOCK: usize = 1 << 16;
/// The longest text in bytes: labels and names of rows are short.
pub const MAX_TEXT: usize = 1024;
/// Numbers that are read at a time.
const PIECE: usize = 1024;
/// The length of a text that is missing.
const MISSING: u32 = u32::MAX;

/// The type of a column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ColumnKind {
    /// Whole numbers.
    Integer,
    /// Numbers with fractions.
    Float,
    /// Truth values.
    Boolean,
    /// Texts.
    Text,
    /// Something that is no feature and no label: lists, dates.
    Other(String),
}

/// What the file has of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ColumnContent {
    /// Its values as numbers.
    Numbers,
    /// Its values as texts.
    Texts,
    /// Nothing.
    Nothing,
}

/// A column of the file that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnHeading {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: ColumnKind,
    /// Whether it is the index of a pandas table.
    pub is_index: bool,
    /// What follows of it.
    pub content: ColumnContent,
    /// Its first text and the row, counted from 1, if it is text where numbers are needed.
    pub example: Option<(usize, String)>,
}

#[derive(Serialize, Deserialize)]
struct Heading {
    version: u32,
    columns: Vec<ColumnHeading>,
}

/// Values of some rows of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum ColumnBlock {
    /// Numbers; NaN where a value is missing.
    Numbers(Vec<f64>),
    /// Texts, where they are not missing.
    Texts(Vec<Option<String>>),
}

impl ColumnBlock {
    /// The values as numbers.
    pub(crate) fn numbers(&self) -> Vec<f64> {
        let number = |text: &Option<String>| match text.as_deref() {
            Some("true") => 1.0,
            Some("false") => 0.0,
            Some(text) => text.parse().unwrap_or(f64::NAN),
            None => f64::NAN,
        };
        match self {
            Self::Numbers(numbers) => numbers.clone(),
            Self::Texts(texts) => texts.iter().map(number).collect(),
        }
    }
}

/// Writes a column file.
pub struct Writer<W> {
    output: W,
}

impl<W: Write> Writer<W> {
    /// Writes the heading.
    pub fn new(mut output: W, columns: &[ColumnHeading]) -> io::Result<Self> {
        let heading = Heading { version: VERSION, columns: columns.to_vec() };
        serde_json::to_writer(&mut output, &heading)?;
        output.write_all(b"\n")?;
        Ok(Self { output })
    }

    /// Writes rows: a block for each column with content, in their order.
    pub fn write(&mut self, rows: usize, blocks: &[ColumnBlock]) -> io::Result<()> {
        self.output.write_all(&(rows as u32).to_le_bytes())?;
        for block in blocks {
            match block {
                ColumnBlock::Numbers(numbers) => {
                    numbers.iter().try_for_each(|number| self.output.write_all(&number.to_le_bytes()))?;
                }
                ColumnBlock::Texts(texts) => texts.iter().try_for_each(|text| self.text(text.as_deref()))?,
            }
        }
        Ok(())
    }

    fn text(&mut self, text: Option<&str>) -> io::Result<()> {
        let Some(text) = text else { return self.output.write_all(&MISSING.to_le_bytes()) };
        self.output.write_all(&(text.len() as u32).to_le_bytes())?;
        self.output.write_all(text.as_bytes())
    }

    /// Writes the end.
    pub fn finish(mut self) -> io::Result<()> {
        self.output.write_all(&0u32.to_le_bytes())?;
        self.output.flush()
    }
}

/// Reads a column file.
pub struct ColumnFileReader<R> {
    input: R,
    /// The columns of the file that was read.
    pub columns: Vec<ColumnHeading>,
}

fn damaged(reason: impl std::fmt::Display) -> FileProblem {
    FileProblem::format(FORMAT, reason.to_string())
}

impl<R: BufRead> ColumnFileReader<R> {
    /// Reads the heading.
    pub fn new(mut input: R) -> Parsed<Self> {
        let line = read_line(&mut input, MAX_HEADING).map_err(damaged)?.ok_or_else(|| damaged("it is empty"))?;
        let heading: Heading = serde_json::from_slice(&line).map_err(damaged)?;
        if heading.version != VERSION {
            return Err(damaged(format!("it has version {}, not {VERSION}", heading.version)));
        }
        if heading.columns.len() > MAX_COLUMNS {
            let found = heading.columns.len();
            return Err(damaged(format!("it has {found} columns, more than the limit of {MAX_COLUMNS}")));
        }
        Ok(Self { input, columns: heading.columns })
    }

    /// Reads the next rows: their number, and a block for each column with content.
    pub fn next_rows(&mut self) -> Parsed<Option<(usize, Vec<ColumnBlock>)>> {
        let rows = self.length()? as usize;
        if rows > MAX_BLOCK {
            return Err(damaged(format!("a block has {rows} rows, more than {MAX_BLOCK}")));
        }
        if rows == 0 {
            return match self.input.read(&mut [0]).map_err(damaged)? {
                0 => Ok(None),
                _ => Err(damaged("bytes follow its end")),
            };
        }
        let contents: Vec<ColumnContent> = self.columns.iter().map(|column| column.content).collect();
        let mut blocks = Vec::new();
        for content in contents {
            match content {
                ColumnContent::Numbers => blocks.push(ColumnBlock::Numbers(self.numbers(rows)?)),
                ColumnContent::Texts => blocks.push(ColumnBlock::Texts(self.texts(rows)?)),
                ColumnContent::Nothing => {}
            }
        }
        Ok(Some((rows, blocks)))
    }

    fn length(&mut self) -> Parsed<u32> {
        let mut bytes = [0; 4];
        self.input.read_exact(&mut bytes).map_err(|_| damaged("it ends too early"))?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn bytes(&mut self, count: usize) -> Parsed<Vec<u8>> {
        let mut bytes = reserved(count)?;
        bytes.resize(count, 0);
        self.input.read_exact(&mut bytes).map_err(|_| damaged("it ends too early"))?;
        Ok(bytes)
    }

    /// Reads numbers piece by piece: memory is taken for bytes that are there.
    fn numbers(&mut self, rows: usize) -> Parsed<Vec<f64>> {
        let mut numbers = Vec::new();
        while numbers.len() < rows {
            let count = (rows - numbers.len()).min(PIECE);
            let bytes = self.bytes(8 * count)?;
            numbers.extend(bytes.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)));
        }
        Ok(numbers)
    }

    fn texts(&mut self, rows: usize) -> Parsed<Vec<Option<String>>> {
        let mut texts = Vec::new();
        for _ in 0..rows {
            texts.push(match self.length()? {
                MISSING => None,
                length if length as usize > MAX_TEXT => return Err(damaged(format!("a text has {length} bytes"))),
                length => Some(String::from_utf8(self.bytes(length as usize)?).map_err(damaged)?),
            });
        }
        Ok(texts)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::columnar::parse;
    use crate::{Labels, Options};

    fn heading(name: &str, kind: ColumnKind, content: ColumnContent) -> ColumnHeading {
        ColumnHeading { name: name.to_owned(), kind, is_index: false, content, example: None }
    }

    /// A file of two features, labels and a column that is not handed over.
    pub(crate) fn sample() -> Vec<u8> {
        let columns = [
            heading("a", ColumnKind::Float, ColumnContent::Numbers),
            heading("list", ColumnKind::Other("lists".to_owned()), ColumnContent::Nothing),
            heading("kind", ColumnKind::Text, ColumnContent::Texts),
            heading("b", ColumnKind::Boolean, ColumnContent::Numbers),
        ];
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes, &columns).unwrap();
        let texts = |texts: &[&str]| ColumnBlock::Texts(texts.iter().map(|text| Some((*text).to_owned())).collect());
        let some = [ColumnBlock::Numbers(vec![0.5, -1e10]), texts(&["x", "0"]), ColumnBlock::Numbers(vec![1.0, 0.0])];
        writer.write(2, &some).unwrap();
        writer.write(1, &[ColumnBlock::Numbers(vec![3.0]), texts(&["x"]), ColumnBlock::Numbers(vec![1.0])]).unwrap();
        writer.finish().unwrap();
        bytes
    }

    fn options() -> Options {
        Options { drop: vec!["list".to_owned()], ..Options::labelled("kind") }
    }

    #[test]
    fn columns_survive_a_file() {
        let table = parse(&sample()[..], &options()).unwrap();
        assert_eq!(table.values, [0.5, 1.0, -1e10, 0.0, 3.0, 1.0]);
        // Texts that look like numbers are names.
        assert_eq!(table.labels, Some(Labels::Texts(["x", "0", "x"].map(str::to_owned).to_vec())));
        assert_eq!((table.booleans, table.label_name), (vec!["b".to_owned()], Some("kind".to_owned())));
        let refused = parse(&sample()[..], &Options::labelled("kind")).unwrap_err().to_string();
        assert_eq!(
            refused,
            "column list holds lists: write them as columns of numbers, or leave the column out with --drop list"
        );
    }

    #[test]
    fn what_is_cut_off_or_added_is_refused() {
        let whole = sample();
        for end in 0..whole.len() {
            assert!(parse(&whole[..end], &options()).is_err(), "cut at {end}");
        }
        assert!(parse(&[&whole[..], b"x"].concat()[..], &options()).is_err());
        // Other columns than those that were asked for.
        let asked = Options { columns: vec!["kind".to_owned()], ..Options::default() };
        assert!(parse(&whole[..], &asked).is_err());
    }
}
