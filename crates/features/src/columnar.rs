//! Parquet and Arrow files: columns of numbers, truth values and texts.
//!
//! The parsers trust the sizes that a file names, so they run in the worker, whose memory and time
//! are limited. What they return is bounded by the size of the file.

mod cells;
mod handover;

use crate::{Error, Result, untrusted};
use arrow_array::RecordBatch;
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, SchemaRef};
use hetal_tables::column_file::{ColumnContent, ColumnHeading, ColumnKind, MAX_BLOCK};
use hetal_tables::columnar::pandas_index;
use hetal_tables::{FileFormat, MAX_COLUMNS};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

pub use handover::hand_over;

/// The values of a batch of rows, all columns together.
const BATCH_VALUES: usize = 1 << 22;
/// The most rows of a batch.
const BATCH_ROWS: usize = 8192;

/// The most memory that texts of a data set may take.
const MAX_BYTES: u64 = 4 << 30;
/// Memory for each byte of the file. Text packs some 10 times, a repeated class some 100 times.
const BYTES_A_BYTE: u64 = 256;
/// Memory that any table may take: a small file can hold a few lines many times.
const MIN_BYTES: u64 = 16 << 20;
/// The memory of a value beside its characters, from its page to its sample: strings, their blocks
/// on the heap, vectors, half of a sample and of its name (`tests/fuzz.rs` measures it).
const VALUE: usize = 192;

/// The bytes that values may still take.
struct MemoryBudget {
    left: u64,
    most: u64,
}

impl MemoryBudget {
    /// The budget for a file: a multiple of its size, at least `least` and at most `most`.
    fn new(file: u64, least: u64, most: u64) -> Self {
        let most = file.saturating_mul(BYTES_A_BYTE).clamp(least, most);
        Self { left: most, most }
    }

    /// Reserves memory.
    fn take(&mut self, bytes: usize) -> std::result::Result<(), String> {
        self.left = self.left.checked_sub(bytes as u64).ok_or_else(|| {
            format!(
                "its values would take more than {} MiB, the limit for a file of its size (at most {BYTES_A_BYTE} \
                 times the size): split it, or leave out columns",
                self.most >> 20
            )
        })?;
        Ok(())
    }
}

/// A file of columns.
struct ColumnarFile {
    source: Source,
    schema: SchemaRef,
    /// Its columns, none of which is read yet.
    columns: Vec<ColumnHeading>,
    /// Its size in bytes.
    size: u64,
}

enum Source {
    Parquet(Box<ParquetRecordBatchReaderBuilder<File>>),
    ArrowFile(File),
    ArrowStream(File),
}

fn damaged(reason: impl std::fmt::Display) -> String {
    format!("{reason}; the file is damaged or of an unknown form: write it again, or save it as CSV")
}

impl ColumnarFile {
    /// Opens a file and reads its schema.
    fn open(mut file: File, format: FileFormat) -> std::result::Result<Self, String> {
        let size = file.metadata().map_err(|error| error.to_string())?.len();
        let (source, schema, index) = match format {
            FileFormat::Parquet => {
                let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(damaged)?;
                let metadata = builder.metadata().file_metadata().key_value_metadata();
                let pandas = metadata.into_iter().flatten().find(|pair| pair.key == "pandas");
                let index = pandas.and_then(|pair| pair.value.clone());
                let schema = builder.schema().clone();
                (Source::Parquet(Box::new(builder)), schema, index)
            }
            _ => {
                let mut magic = [0; 6];
                let is_file = file.read_exact(&mut magic).is_ok() && &magic == b"ARROW1";
                if magic.starts_with(b"FEA1") {
                    return Err("is Feather of version 1: write it again as version 2, or save it as CSV".to_owned());
                }
                file.rewind().map_err(|error| error.to_string())?;
                let again = file.try_clone().map_err(|error| error.to_string())?;
                let schema = if is_file {
                    FileReader::try_new(BufReader::new(again), None).map_err(damaged)?.schema()
                } else {
                    StreamReader::try_new(BufReader::new(again), None).map_err(damaged)?.schema()
                };
                file.rewind().map_err(|error| error.to_string())?;
                let index = schema.metadata().get("pandas").cloned();
                (if is_file { Source::ArrowFile(file) } else { Source::ArrowStream(file) }, schema, index)
            }
        };
        if schema.fields().len() > MAX_COLUMNS {
            let found = schema.fields().len();
            return Err(format!("has {found} columns, more than the limit of {MAX_COLUMNS}: split the file"));
        }
        let index = index.map(|text| pandas_index(&text)).unwrap_or_default();
        let heading = |field: &arrow_schema::FieldRef| ColumnHeading {
            name: field.name().clone(),
            kind: cells::kind(field.data_type()),
            is_index: index.contains(field.name()),
            content: ColumnContent::Nothing,
            example: None,
        };
        let columns = schema.fields().iter().map(heading).collect();
        Ok(Self { source, schema, columns, size })
    }

    /// Reads some columns, given by ascending places, in batches of at most [`MAX_BLOCK`] rows.
    fn batches(self, places: &[usize]) -> std::result::Result<Batches, String> {
        let rows = (BATCH_VALUES / places.len().max(1)).clamp(64, BATCH_ROWS);
        let places = places.to_vec();
        let reader: Box<dyn Iterator<Item = std::result::Result<RecordBatch, ArrowError>>> = match self.source {
            Source::Parquet(builder) => {
                let mask = ProjectionMask::roots(builder.parquet_schema(), places);
                Box::new(builder.with_projection(mask).with_batch_size(rows).build().map_err(damaged)?)
            }
            Source::ArrowFile(file) => {
                Box::new(FileReader::try_new(BufReader::new(file), Some(places)).map_err(damaged)?)
            }
            Source::ArrowStream(file) => {
                Box::new(StreamReader::try_new(BufReader::new(file), Some(places)).map_err(damaged)?)
            }
        };
        Ok(Batches { reader, rest: None })
    }
}

/// Batches of rows.
struct Batches {
    reader: Box<dyn Iterator<Item = std::result::Result<RecordBatch, ArrowError>>>,
    /// Rows of a batch that was too long.
    rest: Option<RecordBatch>,
}

impl Batches {
    /// The next rows.
    fn next(&mut self) -> std::result::Result<Option<RecordBatch>, String> {
        let batch = match self.rest.take() {
            Some(rest) => rest,
            None => loop {
                match self.reader.next().transpose().map_err(damaged)? {
                    None => return Ok(None),
                    Some(batch) if batch.num_rows() == 0 => {}
                    Some(batch) => break batch,
                }
            },
        };
        if batch.num_rows() <= MAX_BLOCK {
            return Ok(Some(batch));
        }
        self.rest = Some(batch.slice(MAX_BLOCK, batch.num_rows() - MAX_BLOCK));
        Ok(Some(batch.slice(0, MAX_BLOCK)))
    }
}

/// Runs a parser of others, whose panics mean that the file is damaged.
fn catch_panics<T>(parser: impl FnOnce() -> std::result::Result<T, String>) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(parser)).unwrap_or_else(|_| Err(damaged("its parser failed")))
}

/// Reads columns of texts, row by row. A missing value is an empty text. Numbers and truth values
/// are written as text.
pub(crate) fn texts(path: &Path, format: FileFormat, names: [&str; 2]) -> Result<Vec<[String; 2]>> {
    let file = untrusted::open(path).map_err(Error::io(path))?;
    catch_panics(|| text_rows(file, format, names)).map_err(|reason| Error::dataset(path, reason))
}

fn text_rows(file: File, format: FileFormat, names: [&str; 2]) -> std::result::Result<Vec<[String; 2]>, String> {
    let file = ColumnarFile::open(file, format)?;
    let mut places = [0; 2];
    for (place, name) in places.iter_mut().zip(names) {
        *place = plain_column(&file.columns, name)?;
    }
    let mut budget = MemoryBudget::new(file.size, MIN_BYTES, MAX_BYTES);
    let (kept, is_swapped) = if places[0] <= places[1] { (places, false) } else { ([places[1], places[0]], true) };
    let kept = if kept[0] == kept[1] { &kept[..1] } else { &kept[..] };
    let mut batches = file.batches(kept)?;
    let mut rows = Vec::new();
    while let Some(batch) = batches.next()? {
        budget.take(2 * VALUE * batch.num_rows())?;
        let mut columns = Vec::with_capacity(2);
        for array in batch.columns() {
            let texts = cells::texts(array)?;
            texts.iter().flatten().try_for_each(|text| budget.take(text.len()))?;
            columns.push(texts.into_iter().map(Option::unwrap_or_default));
        }
        match (columns.pop(), columns.pop()) {
            (Some(last), Some(first)) if is_swapped => rows.extend(last.zip(first).map(<[String; 2]>::from)),
            (Some(last), Some(first)) => rows.extend(first.zip(last).map(<[String; 2]>::from)),
            (Some(only), None) => rows.extend(only.map(|text| [text.clone(), text])),
            _ => return Err(damaged("a part lacks a column")),
        }
    }
    Ok(rows)
}

/// The place of a column of numbers, truth values or texts.
fn plain_column(columns: &[ColumnHeading], name: &str) -> std::result::Result<usize, String> {
    let mut found = columns.iter().enumerate().filter(|(_, column)| column.name == name);
    match (found.next(), found.next()) {
        (Some(_), Some(_)) => Err(format!("has two columns {name}; rename one of them")),
        (Some((place, column)), None) => match &column.kind {
            ColumnKind::Other(held) => Err(format!("column {name} holds {held}; name a column of texts or numbers")),
            _ => Ok(place),
        },
        (None, _) => {
            let have: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
            Err(format!(
                "has no column {name}, but {}; name the columns with --text-column and --label-column",
                have.join(", ")
            ))
        }
    }
}
