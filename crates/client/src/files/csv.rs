//! CSV: a row per sample, with or without a heading, labels in a column.

use super::{Labels, Parsed, Problem, Table};
use csv::{ByteRecord, ReaderBuilder};
use hetal_learn::Matrix;
use hetal_learn::geometry::MAX_FEATURES;

const FORMAT: &str = "CSV";
/// No number and no class has a longer name.
const MAX_FIELD: usize = 1024;

/// The rows of a file and the names of its columns, if it has a heading.
struct Rows<'a> {
    reader: csv::Reader<&'a [u8]>,
    heading: Option<Vec<String>>,
    first: Option<ByteRecord>,
    columns: usize,
    count: usize,
}

impl<'a> Rows<'a> {
    /// A first line in which nothing is a number (but perhaps the label) is a heading.
    fn new(bytes: &'a [u8]) -> Parsed<Self> {
        let reader = ReaderBuilder::new().has_headers(false).flexible(true).trim(csv::Trim::All).from_reader(bytes);
        let mut rows = Self { reader, heading: None, first: None, columns: 0, count: 0 };
        let first = rows.record()?.ok_or(Problem::Empty)?;
        rows.columns = first.len();
        // One column more than features: the labels.
        if rows.columns > MAX_FEATURES + 1 {
            let reason = format!("it has {} columns, at most {} are read", rows.columns, MAX_FEATURES + 1);
            return Err(Problem::format(FORMAT, reason));
        }
        if first.iter().any(|field| number(field).is_some()) {
            rows.first = Some(first);
        } else {
            rows.heading = Some(first.iter().map(|f| String::from_utf8_lossy(f).into_owned()).collect());
        }
        Ok(rows)
    }

    fn record(&mut self) -> Parsed<Option<ByteRecord>> {
        let mut record = ByteRecord::new();
        let more = self.reader.read_byte_record(&mut record).map_err(|e| Problem::format(FORMAT, e.to_string()))?;
        Ok(more.then_some(record))
    }

    /// The next row, which has as many columns as the first.
    fn next(&mut self) -> Parsed<Option<ByteRecord>> {
        let record = match self.first.take() {
            Some(first) => Some(first),
            None => self.record()?,
        };
        let Some(record) = record else { return Ok(None) };
        self.count += 1;
        if record.len() != self.columns {
            return Err(Problem::Ragged { row: self.count, found: record.len(), expected: self.columns });
        }
        match record.iter().position(|field| field.len() > MAX_FIELD) {
            Some(column) => {
                let reason =
                    format!("row {}, column {}: a field of more than {MAX_FIELD} bytes", self.count, column + 1);
                Err(Problem::format(FORMAT, reason))
            }
            None => Ok(Some(record)),
        }
    }

    /// The place of a column by its name, or by its number from 1.
    fn column(&self, name: &str) -> Parsed<usize> {
        let named = self.heading.as_ref().and_then(|heading| heading.iter().position(|h| h == name));
        let numbered = || name.parse::<usize>().ok().filter(|n| (1..=self.columns).contains(n)).map(|n| n - 1);
        named.or_else(numbered).ok_or_else(|| Problem::Missing {
            what: format!("column {name}"),
            known: match &self.heading {
                Some(heading) => heading.join(", "),
                None => format!("1 to {} (no heading)", self.columns),
            },
        })
    }

    fn name(&self, column: usize) -> String {
        let named = self.heading.as_ref().and_then(|heading| heading.get(column));
        named.cloned().unwrap_or_else(|| (column + 1).to_string())
    }
}

fn number(field: &[u8]) -> Option<f64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Parses features, and labels in the column `label`.
pub fn parse(bytes: &[u8], label: Option<&str>) -> Parsed<Table> {
    let mut rows = Rows::new(bytes)?;
    let label = label.map(|name| rows.column(name)).transpose()?;
    let (mut values, mut labels) = (Vec::new(), Vec::new());
    while let Some(record) = rows.next()? {
        for (column, field) in record.iter().enumerate() {
            if Some(column) == label {
                labels.push(String::from_utf8_lossy(field).into_owned());
            } else {
                values.push(number(field).ok_or_else(|| Problem::NotANumber {
                    row: rows.count,
                    column: rows.name(column),
                    text: String::from_utf8_lossy(field).into_owned(),
                })?);
            }
        }
    }
    if rows.count == 0 {
        return Err(Problem::Empty);
    }
    let columns = rows.columns - usize::from(label.is_some());
    let features = Matrix::new(rows.count, columns, values).map_err(|e| Problem::format(FORMAT, e.to_string()))?;
    Ok(Table { features, labels: label.map(|_| to_labels(labels)) })
}

/// Parses a file of labels: one column, or the column of a name.
pub fn parse_labels(bytes: &[u8], column: Option<&str>) -> Parsed<Labels> {
    let mut rows = Rows::new(bytes)?;
    let column = match column {
        Some(name) => rows.column(name)?,
        None if rows.columns == 1 => 0,
        None => {
            let known = format!("{} columns: name one", rows.columns);
            return Err(Problem::Missing { what: "single column of labels".to_owned(), known });
        }
    };
    // A file of names has no number in its first line: what looked like a heading is a label, unless it was asked for.
    let mut labels: Vec<String> = match (&rows.heading, rows.columns) {
        (Some(heading), 1)
            if !["label", "labels", "class", "y"].contains(&heading[0].to_ascii_lowercase().as_str()) =>
        {
            vec![heading[0].clone()]
        }
        _ => Vec::new(),
    };
    while let Some(record) = rows.next()? {
        labels.extend(record.get(column).map(|field| String::from_utf8_lossy(field).into_owned()));
    }
    if labels.is_empty() { Err(Problem::Empty) } else { Ok(to_labels(labels)) }
}

/// Numbers if all are.
fn to_labels(texts: Vec<String>) -> Labels {
    match texts.iter().map(|t| t.parse().ok()).collect() {
        Some(numbers) => Labels::Numbers(numbers),
        None => Labels::Names(texts),
    }
}
