//! The rows of a text table: CSV with any delimiter, or JSON lines.

use crate::encoding::decode;
use crate::{FileFormat, FileProblem, MAX_COLUMNS, Note, Options, Parsed, delimiter, heading};
use csv::{ReaderBuilder, StringRecord};
use std::collections::VecDeque;

/// How the fields of a table are taken.
#[derive(Clone, Copy)]
pub(crate) struct FieldRules {
    /// The longest one in bytes.
    pub most: usize,
    /// Whether they are texts: spaces around a text belong to it, and a line of JSON may have other
    /// columns than those asked for.
    pub are_texts: bool,
}

impl FieldRules {
    /// FieldRules of a table of numbers.
    pub const NUMBERS: Self = Self { most: 1024, are_texts: false };
}

/// The longest name of a column in bytes.
const MOST_NAME: usize = 4096;
/// The rows that are read to find out whether the first one is a heading.
const SAMPLE: usize = 100;

/// The rows of a text table, with the names of its columns if it has them.
pub(crate) struct Sheet<'a> {
    source: Source<'a>,
    format: &'static str,
    /// Rows that were read to find out whether there is a heading.
    waiting: VecDeque<StringRecord>,
    /// The names of the columns.
    pub names: Option<Vec<String>>,
    /// Columns of a row.
    pub width: usize,
    /// The number of the current row, counted from 1 without the heading.
    pub row: usize,
    /// What was guessed.
    pub notes: Vec<Note>,
    fields: FieldRules,
}

enum Source<'a> {
    Delimited(Box<csv::Reader<&'a [u8]>>),
    Lines(json_lines::Lines<'a>),
}

/// Decodes a text file.
pub(crate) fn text<'a>(bytes: &'a [u8], options: &Options) -> Parsed<std::borrow::Cow<'a, str>> {
    decode(bytes, options.encoding)
}

impl<'a> Sheet<'a> {
    /// Opens a table. `format` is [`FileFormat::Csv`], [`FileFormat::Tsv`] or
    /// [`FileFormat::JsonLines`].
    pub fn new(text: &'a str, format: FileFormat, options: &Options, fields: FieldRules) -> Parsed<Self> {
        let mut sheet = match format {
            FileFormat::JsonLines => Self::json_lines(text, options, fields)?,
            _ => Self::delimited(text, format, options, fields)?,
        };
        let first = sheet.waiting.front().ok_or(FileProblem::Empty)?;
        sheet.width = first.len();
        if sheet.width > MAX_COLUMNS {
            let reason = format!("it has {} columns, more than the limit of {MAX_COLUMNS}", sheet.width);
            return Err(FileProblem::format(sheet.format, reason));
        }
        sheet.require_fields_that_end(&sheet.waiting[0], "row 1", fields.most.max(MOST_NAME))?;
        if sheet.names.is_none() && format != FileFormat::JsonLines {
            let (is_heading, note) = heading::decide(sheet.waiting.make_contiguous(), options);
            sheet.notes.extend(note);
            if is_heading {
                sheet.names =
                    sheet.waiting.pop_front().map(|first| first.iter().map(|name| name.trim().to_owned()).collect());
            }
        }
        if let Some(names) = &sheet.names {
            sheet.require_fields_that_end(&StringRecord::from(names.clone()), "the heading", MOST_NAME)?;
        }
        Ok(sheet)
    }

    /// Refuses a field of more than `most` bytes. A quotation mark that is never closed makes a
    /// field of the whole rest.
    fn require_fields_that_end(&self, record: &StringRecord, which: &str, most: usize) -> Parsed<()> {
        let Some(column) = record.iter().position(|field| field.len() > most) else { return Ok(()) };
        let reason = format!(
            "{which}, column {}: the field has more than {most} bytes; is a quotation mark missing?",
            column + 1
        );
        Err(FileProblem::format(self.format, reason))
    }

    fn empty(source: Source<'a>, format: &'static str, fields: FieldRules) -> Self {
        let (waiting, notes) = (VecDeque::new(), Vec::new());
        Self { source, format, waiting, names: None, width: 0, row: 0, notes, fields }
    }

    fn delimited(text: &'a str, format: FileFormat, options: &Options, fields: FieldRules) -> Parsed<Self> {
        let usual = if format == FileFormat::Tsv { b'\t' } else { b',' };
        let found = options
            .delimiter
            .unwrap_or_else(|| if format == FileFormat::Tsv { b'\t' } else { delimiter::detect(text) });
        let reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .trim(if fields.are_texts { csv::Trim::None } else { csv::Trim::All })
            .delimiter(found)
            .from_reader(text.as_bytes());
        let mut sheet = Self::empty(Source::Delimited(Box::new(reader)), "CSV", fields);
        if options.delimiter.is_none() && found != usual {
            let name = match found {
                b'\t' => "tabs",
                b';' => "semicolons",
                _ => "vertical bars",
            };
            sheet.notes.push(Note::new(format!("fields are separated by {name}"), "--delimiter ,"));
        }
        while sheet.waiting.len() < SAMPLE {
            let Some(record) = sheet.read()? else { break };
            sheet.waiting.push_back(record);
        }
        Ok(sheet)
    }

    fn json_lines(text: &'a str, options: &Options, fields: FieldRules) -> Parsed<Self> {
        let wanted = if fields.are_texts { &options.columns[..] } else { &[] };
        let mut lines = json_lines::Lines::new(text, wanted, fields.most);
        let first = lines.next_record()?;
        let names = lines.names().map(<[String]>::to_vec);
        let mut sheet = Self::empty(Source::Lines(lines), json_lines::FORMAT, fields);
        sheet.names = names;
        sheet.waiting.extend(first);
        Ok(sheet)
    }

    fn read(&mut self) -> Parsed<Option<StringRecord>> {
        match &mut self.source {
            Source::Lines(lines) => lines.next_record(),
            Source::Delimited(reader) => {
                let mut record = StringRecord::new();
                let more =
                    reader.read_record(&mut record).map_err(|e| FileProblem::format(self.format, e.to_string()))?;
                Ok(more.then_some(record))
            }
        }
    }

    /// Returns whether the names are a first row that was taken as a heading.
    pub fn has_guessed_names(&self) -> bool {
        self.names.is_some() && matches!(self.source, Source::Delimited(_))
    }

    /// Puts the names back as the first row.
    pub fn without_heading(&mut self) {
        if let Some(names) = self.names.take() {
            self.waiting.push_front(StringRecord::from(names));
        }
    }

    /// Reads the next row, which must have as many columns as the first.
    pub fn next(&mut self) -> Parsed<Option<StringRecord>> {
        let record = match self.waiting.pop_front() {
            Some(first) => Some(first),
            None => self.read()?,
        };
        let Some(record) = record else { return Ok(None) };
        self.row += 1;
        self.require_fields_that_end(&record, &format!("row {}", self.row), self.fields.most)?;
        if record.len() != self.width {
            return Err(FileProblem::Ragged { row: self.row, found: record.len(), expected: self.width });
        }
        Ok(Some(record))
    }
}

mod json_lines {
    //! JSON lines: an object or an array of plain values in each line.

    use crate::{FileProblem, MAX_COLUMNS, Parsed};
    use csv::StringRecord;
    use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
    use serde_json::Value;
    use std::collections::HashMap;

    pub const FORMAT: &str = "JSON lines";

    /// The lines of a file.
    pub struct Lines<'a> {
        lines: std::iter::Enumerate<std::str::Lines<'a>>,
        names: Option<Vec<String>>,
        places: HashMap<String, usize>,
        is_first: bool,
        /// Whether these columns were asked for, and others are ignored.
        is_choice: bool,
        /// The longest line of texts in bytes.
        most: usize,
    }

    /// One line.
    enum Line {
        Object(Vec<(String, Value)>),
        Array(Vec<Value>),
    }

    impl<'de> Deserialize<'de> for Line {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_any(LineVisitor)
        }
    }

    struct LineVisitor;

    impl<'de> Visitor<'de> for LineVisitor {
        type Value = Line;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object or an array in each line")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Line, A::Error> {
            let mut fields: Vec<(String, Value)> = Vec::new();
            let mut seen = std::collections::HashSet::new();
            while let Some((name, value)) = map.next_entry::<String, Value>()? {
                if !seen.insert(name.clone()) {
                    return Err(A::Error::custom(format!("two columns are named {name}")));
                }
                fields.push((name, value));
                require_few(fields.len())?;
            }
            Ok(Line::Object(fields))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Line, A::Error> {
            let mut values = Vec::new();
            while let Some(value) = sequence.next_element()? {
                values.push(value);
                require_few(values.len())?;
            }
            Ok(Line::Array(values))
        }
    }

    /// The values of the columns that were asked for, all of which must be there.
    fn chosen(names: &[String], mut fields: Vec<(String, Value)>) -> Parsed<Vec<Value>> {
        let known = fields.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        let value = |name: &String| match fields.iter_mut().find(|(other, _)| other == name) {
            Some((_, value)) => Ok(value.take()),
            None => Err(FileProblem::Missing { what: format!("column {name}"), known: known.clone() }),
        };
        names.iter().map(value).collect()
    }

    /// Refuses a line that would need far more memory than it has bytes.
    fn require_few<E: serde::de::Error>(count: usize) -> Result<(), E> {
        match count > MAX_COLUMNS {
            true => Err(E::custom(format!("it has more columns than the limit of {MAX_COLUMNS}"))),
            false => Ok(()),
        }
    }

    impl<'a> Lines<'a> {
        /// Reads the columns `wanted`, or all of the first line.
        pub fn new(text: &'a str, wanted: &[String], most: usize) -> Self {
            let (lines, is_choice) = (text.lines().enumerate(), !wanted.is_empty());
            let mut all = Self { lines, names: None, places: HashMap::new(), is_first: !is_choice, is_choice, most };
            if is_choice {
                all.name(wanted.to_vec());
            }
            all
        }

        fn name(&mut self, names: Vec<String>) {
            self.places = names.iter().cloned().enumerate().map(|(place, name)| (name, place)).collect();
            self.names = Some(names);
        }

        /// The names of the columns: the keys of the first object.
        pub fn names(&self) -> Option<&[String]> {
            self.names.as_deref()
        }

        /// Reads the next line that is not empty.
        pub fn next_record(&mut self) -> Parsed<Option<StringRecord>> {
            let Some((number, line)) = self.lines.find(|(_, line)| !line.trim().is_empty()) else { return Ok(None) };
            let bad = |reason: String| FileProblem::format(FORMAT, format!("line {}: {reason}", number + 1));
            if self.is_choice && line.len() > self.most {
                return Err(bad(format!("it has more than {} bytes", self.most)));
            }
            let line: Line = serde_json::from_str(line).map_err(|e| {
                let hint = if line.contains("NaN") { " (NaN is not JSON: write null)" } else { "" };
                bad(format!("{e}{hint}"))
            })?;
            if std::mem::replace(&mut self.is_first, false)
                && let Line::Object(fields) = &line
            {
                self.name(fields.iter().map(|(name, _)| name.clone()).collect());
            }
            let values = match (line, &self.names) {
                (Line::Array(values), None) => values,
                (Line::Object(fields), Some(names)) if self.is_choice => chosen(names, fields)?,
                (Line::Object(fields), Some(names)) => {
                    let mut values = vec![Value::Null; names.len()];
                    for (name, value) in fields {
                        let unknown = || bad(format!("column {name} is not in the first line"));
                        values[*self.places.get(&name).ok_or_else(unknown)?] = value;
                    }
                    values
                }
                _ => return Err(bad("some lines are objects and others are arrays".to_owned())),
            };
            let field = |(place, value): (usize, &Value)| match value {
                Value::Null => Ok(String::new()),
                Value::Bool(truth) => Ok(truth.to_string()),
                Value::Number(number) => Ok(number.to_string()),
                Value::String(text) => Ok(text.clone()),
                Value::Array(_) | Value::Object(_) => {
                    let name =
                        self.names.as_ref().map_or_else(|| (place + 1).to_string(), |names| names[place].clone());
                    Err(bad(format!("column {name} holds a list or an object: write a column for each of its values")))
                }
            };
            let fields: Vec<String> = values.iter().enumerate().map(field).collect::<Parsed<_>>()?;
            Ok(Some(fields.into_iter().collect()))
        }
    }
}
