//! Writes columns of a Parquet or Arrow file for the process that asked for them.

use super::{ColumnarFile, MemoryBudget, catch_panics, cells};
use crate::{Error, Result, untrusted};
use arrow_array::RecordBatch;
use hetal_extract_api::protocol::ReadTable;
use hetal_tables::column_file::{ColumnBlock, ColumnContent, ColumnHeading, ColumnKind, MAX_TEXT, Writer};
use hetal_tables::{FileFormat, MAX_FILE_BYTES, columnar};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

/// Bytes that the columns of a small file may take: a table of zeros packs well.
const MIN_BYTES: u64 = 1 << 30;

/// Reads the columns that are asked for, and writes them. `alive` is called after some rows. Errors
/// do not name the file: the process that asked knows it.
pub fn hand_over(request: &ReadTable, alive: impl Fn()) -> Result<()> {
    let path = Path::new(&request.path);
    let format = FileFormat::of(path).map_err(|error| Error::Table(error.problem.to_string()))?;
    let file = untrusted::open(path).map_err(|error| Error::Table(error.to_string()))?;
    catch_panics(|| hand_over_file(file, format, request, alive)).map_err(Error::Table)
}

fn hand_over_file(
    file: File,
    format: FileFormat,
    request: &ReadTable,
    alive: impl Fn(),
) -> std::result::Result<(), String> {
    let file = ColumnarFile::open(file, format)?;
    let mut columns = file.columns.clone();
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    debug_assert_eq!(names.len(), file.schema.fields().len());
    // Which columns cannot be chosen, the other process finds out by the same rules, and says so.
    let chosen = columnar::contents(&mut columns, request);
    let examples = text_features(&columns, request).filter(|_| chosen.is_ok());
    let mut budget = MemoryBudget::new(file.size, MIN_BYTES, MAX_FILE_BYTES);
    let out = Path::new(&request.out);
    let failed = |error: std::io::Error| format!("{}: {error}", out.display());
    if chosen.is_err() || examples.is_some() {
        add_examples(file, &mut columns, &examples.unwrap_or_default())?;
        columns.iter_mut().for_each(|column| column.content = ColumnContent::Nothing);
        return Writer::new(create(out)?, &columns).and_then(Writer::finish).map_err(failed);
    }
    let places: Vec<usize> = (0..columns.len()).filter(|&k| columns[k].content != ColumnContent::Nothing).collect();
    let mut writer = Writer::new(create(out)?, &columns).map_err(failed)?;
    let mut batches = file.batches(&places)?;
    let mut first_row = 1;
    while let Some(batch) = batches.next()? {
        let rows = batch.num_rows();
        // A row counts even if it has no values.
        budget.take(8 * rows * (1 + places.len()))?;
        let blocks = blocks(&batch, &columns, &places, first_row)?;
        for text in blocks.iter().filter_map(texts_of).flatten().flatten() {
            budget.take(text.len())?;
        }
        writer.write(rows, &blocks).map_err(failed)?;
        first_row += rows;
        alive();
    }
    writer.finish().map_err(failed)
}

/// The columns of text that were chosen as features, if there are any. They are refused, with an
/// example of their texts.
fn text_features(columns: &[ColumnHeading], request: &ReadTable) -> Option<Vec<usize>> {
    if request.is_labels {
        return None;
    }
    // As if all columns were numbers.
    let mut numbers = columns.to_vec();
    numbers.iter_mut().for_each(|column| column.kind = ColumnKind::Float);
    columnar::contents(&mut numbers, request).ok()?;
    let is_text =
        |place: &usize| numbers[*place].content == ColumnContent::Numbers && columns[*place].kind == ColumnKind::Text;
    let places: Vec<usize> = (0..columns.len()).filter(is_text).collect();
    (!places.is_empty()).then_some(places)
}

/// Adds the first text of the first rows to some columns.
fn add_examples(
    file: ColumnarFile,
    columns: &mut [ColumnHeading],
    places: &[usize],
) -> std::result::Result<(), String> {
    if places.is_empty() {
        return Ok(());
    }
    let Some(batch) = file.batches(places)?.next()? else { return Ok(()) };
    for (&place, array) in places.iter().zip(batch.columns()) {
        let mut texts = cells::texts(array)?.into_iter().enumerate();
        let found = texts.find_map(|(row, text)| Some((row + 1, text?)));
        columns[place].example = found.map(|(row, text)| (row, hetal_extract_api::shorten(&text, 80)));
    }
    Ok(())
}

fn create(path: &Path) -> std::result::Result<BufWriter<File>, String> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(BufWriter::new).map_err(|error| format!("{}: {error}", path.display()))
}

/// The values of a batch, column by column.
fn blocks(
    batch: &RecordBatch,
    columns: &[ColumnHeading],
    places: &[usize],
    first_row: usize,
) -> std::result::Result<Vec<ColumnBlock>, String> {
    if batch.num_columns() != places.len() {
        return Err(super::damaged("a part lacks a column"));
    }
    let block = |(&place, array): (&usize, &arrow_array::ArrayRef)| {
        let column = &columns[place];
        if column.content == ColumnContent::Numbers {
            return cells::numbers(array).map(ColumnBlock::Numbers);
        }
        let texts = cells::texts(array)?;
        let is_long = |text: &Option<String>| text.as_ref().is_some_and(|text| text.len() > MAX_TEXT);
        match texts.iter().position(is_long) {
            Some(k) => Err(format!(
                "row {}, column {}: the text has more than {MAX_TEXT} bytes, too many for a label or a name",
                first_row + k,
                column.name
            )),
            None => Ok(ColumnBlock::Texts(texts)),
        }
    };
    places.iter().zip(batch.columns()).map(block).collect()
}

fn texts_of(block: &ColumnBlock) -> Option<&Vec<Option<String>>> {
    match block {
        ColumnBlock::Texts(texts) => Some(texts),
        ColumnBlock::Numbers(_) => None,
    }
}
