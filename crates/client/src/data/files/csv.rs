//! CSV: one row per sample, with or without a header, and optionally a label column.

use super::{FileProblem, Labels, Parsed, Table};
use csv::{ByteRecord, ReaderBuilder};
use hetal_learn::Matrix;
use hetal_learn::geometry::MAX_FEATURES;

const FORMAT: &str = "CSV";
/// The longest field in bytes.
const MAX_FIELD: usize = 1024;

/// Usual texts for a missing number. They do not make a row a header.
const MISSING: [&str; 9] = ["", "na", "n/a", "#n/a", "null", "none", "?", "-", "."];
/// A row with fewer numbers may contain 0, 1, 2 as values, not as column numbers.
const FEWEST_COUNTED: usize = 3;

/// The rows of a file and the names of its columns, if it has a header.
struct Rows<'a> {
    reader: csv::Reader<&'a [u8]>,
    header: Option<Vec<String>>,
    /// Rows that were read to find out whether there is a header, the first one last.
    waiting: Vec<ByteRecord>,
    columns: usize,
    count: usize,
}

impl<'a> Rows<'a> {
    /// Opens a file. `label` is the name of the label column, which helps to recognise a header.
    fn new(bytes: &'a [u8], label: Option<&str>) -> Parsed<Self> {
        let reader = ReaderBuilder::new().has_headers(false).flexible(true).trim(csv::Trim::All).from_reader(bytes);
        let mut rows = Self { reader, header: None, waiting: Vec::new(), columns: 0, count: 0 };
        let first = rows.record()?.ok_or(FileProblem::Empty)?;
        rows.columns = first.len();
        // One column may contain the labels.
        if rows.columns > MAX_FEATURES + 1 {
            let reason = format!("it has {} columns, more than the limit of {}", rows.columns, MAX_FEATURES + 1);
            return Err(FileProblem::format(FORMAT, reason));
        }
        let second = rows.record()?;
        let is_header = is_header(&first, second.as_ref(), label);
        rows.waiting.extend(second);
        if is_header {
            rows.header = Some(first.iter().map(|f| String::from_utf8_lossy(f).into_owned()).collect());
        } else {
            rows.waiting.push(first);
        }
        Ok(rows)
    }

    /// Refuses files whose fields are separated by semicolons or tabs: each row looks like one
    /// field.
    fn require_commas(&self) -> Parsed<()> {
        let first = self.header.as_ref().and_then(|header| header.first().cloned());
        let first = first.or_else(|| Some(String::from_utf8_lossy(self.waiting.last()?.get(0)?).into_owned()));
        let marks = [(';', "semicolons"), ('\t', "tabs")];
        let found = marks.iter().find(|(mark, _)| first.as_ref().is_some_and(|field| field.contains(*mark)));
        match found {
            Some((_, name)) if self.columns == 1 => {
                let reason = format!(
                    "its fields are separated by {name}: save it with commas between fields and decimal points"
                );
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

    /// Reads the next row, which must have as many columns as the first.
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
                    format!("row {}, column {}: the field has more than {MAX_FIELD} bytes", self.count, column + 1);
                Err(FileProblem::format(FORMAT, reason))
            }
            None => Ok(Some(record)),
        }
    }

    /// The index of a column by its name, or by its number counted from 1.
    fn column(&self, name: &str) -> Parsed<usize> {
        let named = self.header.as_ref().and_then(|header| header.iter().position(|h| h == name));
        if self.header.iter().flatten().filter(|h| *h == name).count() > 1 {
            return Err(FileProblem::Duplicate { what: "columns", name: name.to_owned() });
        }
        let numbered = || name.parse::<usize>().ok().filter(|n| (1..=self.columns).contains(n)).map(|n| n - 1);
        named.or_else(numbered).ok_or_else(|| FileProblem::Missing {
            what: format!("column {name}"),
            known: match &self.header {
                Some(header) => header.join(", "),
                None => format!("columns 1 to {} (no header)", self.columns),
            },
        })
    }

    fn names_no_first_column(&self) -> bool {
        self.header.as_ref().is_some_and(|header| header.first().is_some_and(String::is_empty))
    }

    /// Converts a field of the current row to a label.
    fn label(&self, column: usize, field: &[u8]) -> Parsed<String> {
        if field.is_empty() {
            return Err(FileProblem::NoLabel { row: self.count, column: self.name(column) });
        }
        Ok(String::from_utf8_lossy(field).into_owned())
    }

    fn name(&self, column: usize) -> String {
        let named = self.header.as_ref().and_then(|header| header.get(column));
        named.cloned().unwrap_or_else(|| (column + 1).to_string())
    }
}

/// Returns whether the first row is a header. It is one in each of these cases:
///
/// - no field is a number;
/// - a field is the name of the label column;
/// - its numbers count the columns, as pandas writes them;
/// - a word stands above a number, and no other field is a number that cannot name a column. A word
///   beside `5.1` is a damaged number in a row, not a header.
fn is_header(first: &ByteRecord, second: Option<&ByteRecord>, label: Option<&str>) -> bool {
    // A label column given by its number may contain a word in one row and a number in the next.
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

/// Returns whether a field may name a column: it is not a number, or it has only digits.
fn may_be_name(field: &[u8]) -> bool {
    number(field).is_none() || field.iter().all(u8::is_ascii_digit)
}

/// Returns whether the numbers among the fields are 0, 1, 2 and so on.
fn counts(fields: &ByteRecord) -> bool {
    let numbers: Vec<&[u8]> = fields.iter().filter(|field| number(field).is_some()).collect();
    numbers.len() >= FEWEST_COUNTED && numbers.iter().enumerate().all(|(k, field)| *field == k.to_string().as_bytes())
}

fn number(field: &[u8]) -> Option<f64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Parses features, and labels from the column `label`.
pub fn parse(bytes: &[u8], label: Option<&str>) -> Parsed<Table> {
    let mut rows = Rows::new(bytes, label)?;
    rows.require_commas()?;
    let label = label.map(|name| rows.column(name)).transpose()?;
    let (mut values, mut labels): (Vec<f64>, Vec<String>) = (Vec::new(), Vec::new());
    while let Some(record) = rows.next()? {
        let bytes = size_of::<f64>() * (values.len() + record.len());
        values.try_reserve(record.len()).map_err(|_| FileProblem::Memory { bytes })?;
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
        let reason =
            "its first column has no name and only counts the rows: save it without that column (pandas: index=False)";
        return Err(FileProblem::format(FORMAT, reason));
    }
    Ok(Table { features, labels: label.map(|_| to_labels(labels)) })
}

/// Parses a label file: its only column, or the column named `name`.
pub fn parse_labels(bytes: &[u8], name: Option<&str>) -> Parsed<Labels> {
    let mut rows = Rows::new(bytes, name)?;
    let column = match name {
        Some(name) => {
            rows.require_commas()?;
            rows.column(name)?
        }
        None if rows.columns == 1 => 0,
        None => {
            let known = format!("{} columns; name one of them with FILE#NAME", rows.columns);
            return Err(FileProblem::Missing { what: "a single column of labels".to_owned(), known });
        }
    };
    // A file of names has no number in its first row. What looks like a header is a label, unless
    // it is the requested name or a usual one.
    let is_usual = |text: &str| ["label", "labels", "class", "y"].contains(&text.to_ascii_lowercase().as_str());
    let is_label = |header: &Vec<String>| name != Some(&header[0]) && !is_usual(&header[0]);
    if rows.columns == 1
        && let Some(label) = rows.header.take_if(|header| is_label(header))
    {
        rows.waiting.push(ByteRecord::from(label));
    }
    let mut labels = Vec::new();
    while let Some(record) = rows.next()? {
        labels.extend(record.get(column).map(|field| rows.label(column, field)).transpose()?);
    }
    if labels.is_empty() { Err(FileProblem::Empty) } else { Ok(to_labels(labels)) }
}

/// Converts labels to numbers if all of them are numbers.
fn to_labels(texts: Vec<String>) -> Labels {
    match texts.iter().map(|t| t.parse().ok()).collect() {
        Some(numbers) => Labels::Numbers(numbers),
        None => Labels::Names(texts),
    }
}
