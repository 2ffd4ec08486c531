//! Parquet and Arrow files. The program `hetal-extract` reads them in a process with limits, and
//! hands their columns over in a [`column_file`](crate::column_file).

use crate::column_file::{ColumnBlock, ColumnContent, ColumnFileReader, ColumnHeading, ColumnKind};
use crate::columns::{Columns, Selection};
use crate::{Column, FileFormat, FileProblem, Labels, Missing, Note, Options, Parsed, Table};
use hetal_extract_api::protocol::{ReadTable, Request};
use hetal_extract_api::{PrivateFolder, extractor, open_regular};
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The features of a file, with labels and names of rows if they were asked for.
pub(crate) fn read(path: &Path, options: &Options) -> Parsed<Table> {
    let request = ReadTable {
        columns: options.columns.clone(),
        drop: options.drop.clone(),
        expected: options.expected.clone(),
        label: options.label.clone(),
        id: options.id.clone(),
        ..ReadTable::default()
    };
    handed_over(path, request, |reader| Table::from_columns(reader, options))
}

/// The labels of a file.
pub(crate) fn read_labels(path: &Path, column: Option<&str>) -> Parsed<(Labels, Vec<Note>)> {
    let request = ReadTable { label: column.map(str::to_owned), is_labels: true, ..ReadTable::default() };
    handed_over(path, request, |reader| labels_of(reader, column))
}

/// Lets `hetal-extract` read a file, and reads what it hands over.
fn handed_over<T>(
    path: &Path,
    request: ReadTable,
    read: impl FnOnce(ColumnFileReader<BufReader<File>>) -> Parsed<T>,
) -> Parsed<T> {
    let io = |error: std::io::Error| FileProblem::Io(error.to_string());
    // Refuses pipes and missing files before a process is started.
    open_regular(path).map_err(io)?;
    let folder = PrivateFolder::new().map_err(io)?;
    let out = folder.path().join("columns");
    let path = std::path::absolute(path).map_err(io)?.into_os_string();
    let request = Request::ReadTable(ReadTable { path, out: out.clone().into_os_string(), ..request });
    extractor::send_request(&request).map_err(|error| FileProblem::Extractor(error.to_string()))?;
    read(ColumnFileReader::new(BufReader::new(open_regular(&out).map_err(io)?))?)
}

/// Parses what `hetal-extract` handed over.
pub fn parse(input: impl BufRead, options: &Options) -> Parsed<Table> {
    Table::from_columns(ColumnFileReader::new(input)?, options)
}

/// What to write of each column of a file: the numbers of features, the texts of labels and of
/// names of rows. Both processes choose with the same rules.
pub fn contents(columns: &mut [ColumnHeading], request: &ReadTable) -> Parsed<()> {
    let options = Options {
        columns: request.columns.clone(),
        drop: request.drop.clone(),
        expected: request.expected.clone(),
        label: request.label.clone(),
        id: request.id.clone(),
        ..Options::default()
    };
    columns.iter_mut().for_each(|column| column.content = ColumnContent::Nothing);
    let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
    let texts: Vec<usize> = if request.is_labels {
        vec![label_place(columns, request.label.as_deref())?]
    } else {
        let selection = selection(columns, &names, &options)?;
        selection.features.iter().for_each(|&place| columns[place].content = ColumnContent::Numbers);
        selection.label.into_iter().chain(selection.id).collect()
    };
    texts.iter().for_each(|&place| columns[place].content = ColumnContent::Texts);
    for column in columns.iter_mut() {
        let is_number = matches!(column.kind, ColumnKind::Integer | ColumnKind::Float | ColumnKind::Boolean);
        let is_usable = match column.content {
            ColumnContent::Numbers => is_number,
            _ => is_number || column.kind == ColumnKind::Text,
        };
        if !is_usable {
            column.content = ColumnContent::Nothing;
        }
    }
    Ok(())
}

fn selection(columns: &[ColumnHeading], names: &[String], options: &Options) -> Parsed<Selection> {
    let is_index: Vec<bool> = columns.iter().map(|column| column.is_index).collect();
    Columns::new(Some(names), names.len()).with_index(&is_index).select(options)
}

/// The column of labels: that of this name or number, or the only one beside the index.
fn label_place(columns: &[ColumnHeading], name: Option<&str>) -> Parsed<usize> {
    let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
    if let Some(name) = name {
        return Columns::new(Some(&names), names.len()).index_of(name);
    }
    let mut others = (0..columns.len()).filter(|&place| !columns[place].is_index);
    match (others.next(), others.next()) {
        (Some(place), None) => Ok(place),
        _ => {
            let known = format!("{}; name one of them with FILE#NAME", names.join(", "));
            Err(FileProblem::Missing { what: "a single column of labels".to_owned(), known })
        }
    }
}

/// Reads labels only.
fn labels_of(mut reader: ColumnFileReader<impl BufRead>, column: Option<&str>) -> Parsed<(Labels, Vec<Note>)> {
    let place = label_place(&reader.columns, column)?;
    let heading = reader.columns[place].clone();
    require_content(&heading, ColumnContent::Texts)?;
    let mut texts = Vec::new();
    while let Some((_, blocks)) = reader.next_rows()? {
        for block in blocks {
            match block {
                ColumnBlock::Texts(some) => texts.extend(some),
                ColumnBlock::Numbers(_) => return Err(handed_over_wrongly()),
            }
        }
    }
    if texts.is_empty() {
        return Err(FileProblem::Empty);
    }
    Ok((typed_labels(&heading, texts)?, Vec::new()))
}

fn handed_over_wrongly() -> FileProblem {
    FileProblem::Extractor("hetal-extract handed over other columns than it was asked for: update it".to_owned())
}

/// Refuses a column that does not hold what is needed.
fn require_content(column: &ColumnHeading, needed: ColumnContent) -> Parsed<()> {
    let name = || column.name.clone();
    match &column.kind {
        ColumnKind::Other(found) => Err(FileProblem::NotPlain { column: name(), found: found.clone() }),
        _ if column.content == needed => Ok(()),
        // The column that names the rows can be a feature too.
        ColumnKind::Integer | ColumnKind::Float | ColumnKind::Boolean if column.content == ColumnContent::Texts => {
            Ok(())
        }
        ColumnKind::Text if needed == ColumnContent::Numbers => {
            let (row, text) = column.example.clone().unwrap_or_default();
            Err(FileProblem::Text { columns: vec![(name(), row, text)] })
        }
        _ => Err(handed_over_wrongly()),
    }
}

/// Labels with the type of their column. Texts stay names, even if they look like numbers.
fn typed_labels(column: &ColumnHeading, texts: Vec<Option<String>>) -> Parsed<Labels> {
    let missing = |text: &Option<String>| text.as_ref().is_none_or(|text| text.trim().is_empty());
    if let Some(row) = texts.iter().position(missing) {
        let count = texts.iter().filter(|text| missing(text)).count();
        return Err(FileProblem::NoLabel { row: row + 1, count, column: column.name.clone() });
    }
    let what = format!("column {}", column.name);
    let texts = texts.into_iter().flatten();
    let labels = match column.kind {
        ColumnKind::Integer => {
            let large = || FileProblem::Kind {
                array: what.clone(),
                found: "integers of 2^63 or more".to_owned(),
                must: "smaller ones",
            };
            Labels::Integers(texts.map(|text| text.parse().map_err(|_| large())).collect::<Parsed<_>>()?)
        }
        ColumnKind::Boolean => Labels::Booleans(texts.map(|text| text == "true").collect()),
        ColumnKind::Float => {
            let numbers: Vec<f64> = texts.map(|text| text.parse().unwrap_or(f64::NAN)).collect();
            Labels::from_floats(&numbers, &what).map_err(|problem| match problem {
                // This one says `column` itself.
                FileProblem::NoLabel { row, count, .. } => {
                    FileProblem::NoLabel { row, count, column: column.name.clone() }
                }
                other => other,
            })?
        }
        ColumnKind::Text | ColumnKind::Other(_) => Labels::Texts(texts.collect()),
    };
    labels.require_few_classes(&what)?;
    Ok(labels)
}

impl Table {
    /// Reads features, with labels and names of rows if they were asked for.
    pub(crate) fn from_columns(mut reader: ColumnFileReader<impl BufRead>, options: &Options) -> Parsed<Self> {
        let headings = reader.columns.clone();
        let names: Vec<String> = headings.iter().map(|column| column.name.clone()).collect();
        let selection = selection(&headings, &names, options)?;
        require_features(&headings, &selection.features)?;
        for place in selection.label.into_iter().chain(selection.id) {
            require_content(&headings[place], ColumnContent::Texts)?;
        }
        let width = selection.features.len();
        let mut feature = vec![None; headings.len()];
        selection.features.iter().enumerate().for_each(|(k, &place)| feature[place] = Some(k));
        let with_content: Vec<usize> =
            (0..headings.len()).filter(|&place| headings[place].content != ColumnContent::Nothing).collect();
        let (mut rows, mut values) = (0, Vec::new());
        let (mut labels, mut ids) = (Vec::new(), Vec::new());
        while let Some((count, blocks)) = reader.next_rows()? {
            let start = rows * width;
            rows += count;
            let bytes = size_of::<f64>() * rows * width;
            values.try_reserve(count * width).map_err(|_| FileProblem::Memory { bytes })?;
            values.resize(rows * width, f64::NAN);
            for (&place, block) in with_content.iter().zip(blocks) {
                if let Some(k) = feature[place] {
                    let fields = values[start..].iter_mut().skip(k).step_by(width);
                    fields.zip(block.numbers()).for_each(|(field, number)| *field = number);
                }
                let ColumnBlock::Texts(texts) = block else { continue };
                if selection.id == Some(place) {
                    ids.extend(texts.iter().map(|text| text.clone().unwrap_or_default()));
                }
                if selection.label == Some(place) {
                    labels.extend(texts);
                }
            }
        }
        if rows == 0 {
            return Err(FileProblem::Empty);
        }
        if selection.label.is_some() && labels.len() != rows || selection.id.is_some() && ids.len() != rows {
            return Err(handed_over_wrongly());
        }
        let columns = Columns::new(Some(&names), names.len());
        let features: Vec<Column> = selection.features.iter().map(|&place| columns.column(place)).collect();
        let is_boolean = |place: &&usize| headings[**place].kind == ColumnKind::Boolean;
        let booleans = selection.features.iter().filter(is_boolean).map(|&place| names[place].clone()).collect();
        let label = selection.label.map(|place| typed_labels(&headings[place], labels)).transpose()?;
        let mut table = Self {
            columns: features,
            rows,
            values,
            labels: label,
            label_name: selection.label.map(|place| columns.column(place).to_string()),
            ids: selection.id.map(|_| ids),
            weights: None,
            weight_name: None,
            booleans,
            missing: Missing::default(),
            notes: selection.notes,
        };
        table.check_numbers(options)?;
        Ok(table)
    }
}

/// Refuses features that are no numbers. All columns of text are named together.
fn require_features(headings: &[ColumnHeading], features: &[usize]) -> Parsed<()> {
    let mut texts: Vec<(String, usize, String)> = Vec::new();
    let mut first = None;
    for &place in features {
        match require_content(&headings[place], ColumnContent::Numbers) {
            Ok(()) => {}
            Err(FileProblem::Text { columns }) => texts.extend(columns),
            Err(problem) => first = first.or(Some(problem)),
        }
    }
    match (texts.is_empty(), first) {
        (true, None) => Ok(()),
        (true, Some(problem)) => Err(problem),
        (false, _) => Err(FileProblem::Text { columns: texts }),
    }
}

/// Whether a format is read by `hetal-extract`.
pub(crate) fn is_columnar(format: FileFormat) -> bool {
    matches!(format, FileFormat::Parquet | FileFormat::Arrow)
}

/// The names of the index columns that pandas wrote into the metadata of a file.
pub fn pandas_index(metadata: &str) -> HashSet<String> {
    let value: serde_json::Value = serde_json::from_str(metadata).unwrap_or_default();
    let columns = value.get("index_columns").and_then(serde_json::Value::as_array);
    columns.into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect()
}
