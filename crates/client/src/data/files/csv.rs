//! CSV: a row per sample, with or without a heading, labels in a column.

use super::{FileProblem, Labels, Parsed, Table};
use csv::{ByteRecord, ReaderBuilder};
use hetal_learn::Matrix;
use hetal_learn::geometry::MAX_FEATURES;

const FORMAT: &str = "CSV";
/// No number and no class has a longer name.
const MAX_FIELD: usize = 1024;

/// What stands for a number that is missing: a row that begins with one is no heading.
const MISSING: [&str; 9] = ["", "na", "n/a", "#n/a", "null", "none", "?", "-", "."];
/// Fewer columns may hold 0, 1, 2 as values.
const FEWEST_COUNTED: usize = 3;

/// The rows of a file and the names of its columns, if it has a heading.
struct Rows<'a> {
    reader: csv::Reader<&'a [u8]>,
    heading: Option<Vec<String>>,
    /// Rows that were looked at to find out, the first last.
    waiting: Vec<ByteRecord>,
    columns: usize,
    count: usize,
}

impl<'a> Rows<'a> {
    /// `label` is the column that will be asked for.
    fn new(bytes: &'a [u8], label: Option<&str>) -> Parsed<Self> {
        let reader = ReaderBuilder::new().has_headers(false).flexible(true).trim(csv::Trim::All).from_reader(bytes);
        let mut rows = Self { reader, heading: None, waiting: Vec::new(), columns: 0, count: 0 };
        let first = rows.record()?.ok_or(FileProblem::Empty)?;
        rows.columns = first.len();
        // One column more than features: the labels.
        if rows.columns > MAX_FEATURES + 1 {
            let reason = format!("it has {} columns, at most {} are read", rows.columns, MAX_FEATURES + 1);
            return Err(FileProblem::format(FORMAT, reason));
        }
        let second = rows.record()?;
        let is_heading = is_heading(&first, second.as_ref(), label);
        rows.waiting.extend(second);
        if is_heading {
            rows.heading = Some(first.iter().map(|f| String::from_utf8_lossy(f).into_owned()).collect());
        } else {
            rows.waiting.push(first);
        }
        Ok(rows)
    }

    /// Fields between other marks than commas look like one field.
    fn require_commas(&self) -> Parsed<()> {
        let first = self.heading.as_ref().and_then(|heading| heading.first().cloned());
        let first = first.or_else(|| Some(String::from_utf8_lossy(self.waiting.last()?.get(0)?).into_owned()));
        let marks = [(';', "semicolons"), ('\t', "tabs")];
        let found = marks.iter().find(|(mark, _)| first.as_ref().is_some_and(|field| field.contains(*mark)));
        match found {
            Some((_, name)) if self.columns == 1 => {
                let reason = format!("its fields are separated by {name}: save it with commas, and points in numbers");
                Err(FileProblem::format(FORMAT, reason))
            }
            _ => Ok(()),
        }
    }

    fn record(&mut self) -> Parsed<Option<ByteRecord>> {
        let mut record = ByteRecord::new();
        let more = self.reader.read_byte_record(&mut record).map_err(|e| FileProblem::format(FORMAT, e.to_string()))?;
        Ok(more.then_some(record))
    }

    /// The next row, which has as many columns as the first.
    fn next(&mut self) -> Parsed<Option<ByteRecord>> {
        let record = match self.waiting.pop() {
            Some(first) => Some(first),
            None => self.record()?,
        };
        let Some(record) = record else { return Ok(None) };
        self.count += 1;
        if record.len() != self.columns {
            return Err(FileProblem::Ragged { row: self.count, found: record.len(), expected: self.columns });
        }
        match record.iter().position(|field| field.len() > MAX_FIELD) {
            Some(column) => {
                let reason =
                    format!("row {}, column {}: a field of more than {MAX_FIELD} bytes", self.count, column + 1);
                Err(FileProblem::format(FORMAT, reason))
            }
            None => Ok(Some(record)),
        }
    }

    /// The place of a column by its name, or by its number from 1.
    fn column(&self, name: &str) -> Parsed<usize> {
        let named = self.heading.as_ref().and_then(|heading| heading.iter().position(|h| h == name));
        let numbered = || name.parse::<usize>().ok().filter(|n| (1..=self.columns).contains(n)).map(|n| n - 1);
        named.or_else(numbered).ok_or_else(|| FileProblem::Missing {
            what: format!("column {name}"),
            known: match &self.heading {
                Some(heading) => heading.join(", "),
                None => format!("1 to {} (no heading)", self.columns),
            },
        })
    }

    fn names_no_first_column(&self) -> bool {
        self.heading.as_ref().is_some_and(|heading| heading.first().is_some_and(String::is_empty))
    }

    /// A field of the row that was read last, as a label.
    fn label(&self, column: usize, field: &[u8]) -> Parsed<String> {
        if field.is_empty() {
            return Err(FileProblem::NoLabel { row: self.count, column: self.name(column) });
        }
        Ok(String::from_utf8_lossy(field).into_owned())
    }

    fn name(&self, column: usize) -> String {
        let named = self.heading.as_ref().and_then(|heading| heading.get(column));
        named.cloned().unwrap_or_else(|| (column + 1).to_string())
    }
}

/// Whether a first line names columns: nothing in it is a number, or one of its fields is the name asked for, or they are numbers that
/// count columns (as pandas writes them), or a word stands above a number. A word beside a number that names no column, as 5.1, is a damaged
/// number of a row.
fn is_heading(first: &ByteRecord, second: Option<&ByteRecord>, label: Option<&str>) -> bool {
    // A label that is asked for by its number may be a word in one row and a number in the next.
    let numbered = label.and_then(|name| name.parse::<usize>().ok());
    let named = label.filter(|_| numbered.is_none());
    let is_word = |field: &[u8]| {
        let missing = |word: &&str| field.eq_ignore_ascii_case(word.as_bytes());
        number(field).is_none() && !MISSING.iter().any(missing)
    };
    let above_number = |column: usize| second.and_then(|s| s.get(column)).is_some_and(|field| number(field).is_some());
    let word_above_number =
        |(column, field): (usize, &[u8])| numbered != Some(column + 1) && is_word(field) && above_number(column);
    first.iter().all(|field| number(field).is_none())
        || named.is_some_and(|name| first.iter().any(|field| field == name.as_bytes()))
        || counts(first)
        || first.iter().all(may_be_name) && first.iter().enumerate().any(word_above_number)
}

/// Whether a field may name a column: it is no number, or a plain one.
fn may_be_name(field: &[u8]) -> bool {
    number(field).is_none() || field.iter().all(u8::is_ascii_digit)
}

/// Whether the numbers among some fields are 0, 1, 2 and so on.
fn counts(fields: &ByteRecord) -> bool {
    let numbers: Vec<&[u8]> = fields.iter().filter(|field| number(field).is_some()).collect();
    numbers.len() >= FEWEST_COUNTED && numbers.iter().enumerate().all(|(k, field)| *field == k.to_string().as_bytes())
}

fn number(field: &[u8]) -> Option<f64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Parses features, and labels in the column `label`.
pub fn parse(bytes: &[u8], label: Option<&str>) -> Parsed<Table> {
    let mut rows = Rows::new(bytes, label)?;
    rows.require_commas()?;
    let label = label.map(|name| rows.column(name)).transpose()?;
    let (mut values, mut labels) = (Vec::new(), Vec::new());
    while let Some(record) = rows.next()? {
        for (column, field) in record.iter().enumerate() {
            if Some(column) == label {
                labels.push(rows.label(column, field)?);
            } else {
                values.push(number(field).ok_or_else(|| FileProblem::NotANumber {
                    row: rows.count,
                    column: rows.name(column),
                    text: String::from_utf8_lossy(field).into_owned(),
                })?);
            }
        }
    }
    if rows.count == 0 {
        return Err(FileProblem::Empty);
    }
    let columns = rows.columns - usize::from(label.is_some());
    let features = Matrix::new(rows.count, columns, values).map_err(|e| FileProblem::format(FORMAT, e.to_string()))?;
    if rows.names_no_first_column() && label != Some(0) && (0..rows.count).all(|i| features[(i, 0)] == i as f64) {
        let reason = "its first column has no name and only counts the rows: write it without (pandas: index=False)";
        return Err(FileProblem::format(FORMAT, reason));
    }
    Ok(Table { features, labels: label.map(|_| to_labels(labels)) })
}

/// Parses a file of labels: one column, or the column of a name.
pub fn parse_labels(bytes: &[u8], name: Option<&str>) -> Parsed<Labels> {
    let mut rows = Rows::new(bytes, name)?;
    let column = match name {
        Some(name) => {
            rows.require_commas()?;
            rows.column(name)?
        }
        None if rows.columns == 1 => 0,
        None => {
            let known = format!("{} columns: name one", rows.columns);
            return Err(FileProblem::Missing { what: "single column of labels".to_owned(), known });
        }
    };
    // A file of names has no number in its first line: what looked like a heading is a label, unless it is the name that was asked for or a
    // usual one.
    let is_usual = |text: &str| ["label", "labels", "class", "y"].contains(&text.to_ascii_lowercase().as_str());
    let is_label = |heading: &Vec<String>| name != Some(&heading[0]) && !is_usual(&heading[0]);
    if rows.columns == 1
        && let Some(label) = rows.heading.take_if(|heading| is_label(heading))
    {
        rows.waiting.push(ByteRecord::from(label));
    }
    let mut labels = Vec::new();
    while let Some(record) = rows.next()? {
        labels.extend(record.get(column).map(|field| rows.label(column, field)).transpose()?);
    }
    if labels.is_empty() { Err(FileProblem::Empty) } else { Ok(to_labels(labels)) }
}

/// Numbers if all are.
fn to_labels(texts: Vec<String>) -> Labels {
    match texts.iter().map(|t| t.parse().ok()).collect() {
        Some(numbers) => Labels::Numbers(numbers),
        None => Labels::Names(texts),
    }
}
