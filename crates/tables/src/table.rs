//! Tables of numbers, with labels if the file has them.

use crate::cells::{Cell, has_decimal_comma, is_date};
use crate::columns::Columns;
use crate::problem::reserved;
use crate::sheet::Sheet;
use crate::{Array, Column, FileProblem, Labels, MAX_VALUE, Missing, Options, Parsed};
use serde::Serialize;

/// Something that was decided without being asked, or that looks wrong, with the option that
/// answers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// What it is.
    pub text: String,
    /// The option that answers it.
    pub flag: String,
}

impl Note {
    pub(crate) fn new(text: impl Into<String>, flag: impl Into<String>) -> Self {
        Self { text: text.into(), flag: flag.into() }
    }
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", crate::sanitize::shown(&self.text), crate::sanitize::shown(&self.flag))
    }
}

/// A table of numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The feature columns.
    pub columns: Vec<Column>,
    /// Rows.
    pub rows: usize,
    /// The values, row by row. Missing ones are NaN.
    pub values: Vec<f64>,
    /// One label per row.
    pub labels: Option<Labels>,
    /// The name or number of the label column, or the name of the label array.
    pub label_name: Option<String>,
    /// The name of each row, if [`Options::id`] asked for them.
    pub ids: Option<Vec<String>>,
    /// One weight per row.
    pub weights: Option<Vec<f64>>,
    /// The name or number of the column of weights, or the name of their array.
    pub weight_name: Option<String>,
    /// Columns of truth values, which are read as 1 and 0.
    pub booleans: Vec<String>,
    /// Missing values, if [`Options::keep_missing`] allowed them.
    pub missing: Missing,
    /// What was guessed.
    pub notes: Vec<Note>,
}

impl Table {
    /// A table of values, row by row, whose columns have no names.
    pub fn new(columns: usize, values: Vec<f64>, labels: Option<Labels>) -> Self {
        Self {
            columns: (1..=columns).map(|number| Column { number, name: None }).collect(),
            rows: values.len().checked_div(columns).unwrap_or(0),
            values,
            labels,
            label_name: None,
            ids: None,
            weights: None,
            weight_name: None,
            booleans: Vec::new(),
            missing: Missing::default(),
            notes: Vec::new(),
        }
    }

    /// The names of the columns, if all have one.
    pub fn names(&self) -> Option<Vec<String>> {
        self.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// The values of a row.
    pub fn row(&self, row: usize) -> &[f64] {
        let width = self.columns.len();
        self.values.get(row * width..(row + 1) * width).unwrap_or_default()
    }

    /// Refuses what no classifier can be trained on: one class, or values beyond [`MAX_VALUE`].
    pub fn require_trainable(&self) -> Parsed<()> {
        if let Some(labels) = &self.labels
            && let [class] = &labels.classes()[..]
        {
            return Err(FileProblem::OneClass { class: class.clone() });
        }
        let width = self.columns.len().max(1);
        match self.values.iter().position(|x| x.abs() > MAX_VALUE) {
            Some(k) => Err(FileProblem::OutOfRange {
                row: k / width + 1,
                column: self.columns[k % width].to_string(),
                value: self.values[k],
                most: MAX_VALUE,
            }),
            None => Ok(()),
        }
    }

    /// Takes the chosen columns of an array.
    pub(crate) fn from_array(array: Array, name: &str, options: &Options) -> Parsed<Self> {
        let is_boolean = matches!(array.values, crate::Values::Booleans(_));
        let (rows, width, all) = array.numbers(name)?;
        if rows == 0 {
            return Err(FileProblem::Empty);
        }
        let columns = Columns::new(None, width);
        let selection = columns.select(&Options { label: None, weight: None, ..options.clone() })?;
        let names: Vec<Column> = selection.features.iter().map(|&place| columns.column(place)).collect();
        let id = |place: usize| all.iter().skip(place).step_by(width).map(f64::to_string).collect();
        let ids = selection.id.map(id);
        let values = if selection.features.iter().copied().eq(0..width) {
            all
        } else {
            let mut values = reserved(rows * names.len())?;
            for row in all.chunks_exact(width) {
                values.extend(selection.features.iter().map(|&place| row[place]));
            }
            values
        };
        let booleans = if is_boolean { names.iter().map(Column::to_string).collect() } else { Vec::new() };
        let (missing, notes) = (Missing::default(), selection.notes);
        let mut table =
            Self { columns: names, rows, values, ids, booleans, missing, notes, ..Self::new(0, Vec::new(), None) };
        table.check_numbers(options)?;
        Ok(table)
    }

    /// Counts NaN as missing and refuses infinite values.
    pub(crate) fn check_numbers(&mut self, options: &Options) -> Parsed<()> {
        let mut counts = vec![0; self.columns.len()];
        for (row, values) in self.values.chunks_exact(self.columns.len()).enumerate() {
            for (k, &value) in values.iter().enumerate() {
                if value.is_nan() {
                    counts[k] += 1;
                    self.missing.add(row + 1, &self.columns[k]);
                } else if value.is_infinite() {
                    let column = self.columns[k].to_string();
                    return Err(FileProblem::NotFinite { row: row + 1, column, value });
                }
            }
        }
        self.settle_missing(&counts, options)
    }

    fn settle_missing(&mut self, counts: &[usize], options: &Options) -> Parsed<()> {
        let named = self.columns.iter().zip(counts).filter(|(_, count)| **count > 0);
        self.missing.columns = named.map(|(column, &count)| (column.to_string(), count)).collect();
        match self.missing.count > 0 && !options.keep_missing {
            true => Err(FileProblem::MissingValues { missing: std::mem::take(&mut self.missing) }),
            false => Ok(()),
        }
    }

    /// Reads a text table.
    pub(crate) fn from_sheet(mut sheet: Sheet<'_>, options: &Options) -> Parsed<Self> {
        let names = sheet.names.take();
        let columns = Columns::new(names.as_deref(), sheet.width);
        let selection = columns.select(options)?;
        let features: Vec<Column> = selection.features.iter().map(|&place| columns.column(place)).collect();
        let mut states = vec![ColumnState::default(); features.len()];
        let (mut values, mut texts, mut missing) = (Vec::new(), Vec::new(), Missing::default());
        let mut ids = selection.id.map(|_| Vec::new());
        let mut weights = Vec::new();
        let weight_name = selection.weight.map(|place| columns.column(place).to_string());
        while let Some(record) = sheet.next()? {
            let bytes = size_of::<f64>() * (values.len() + features.len());
            values.try_reserve(features.len()).map_err(|_| FileProblem::Memory { bytes })?;
            for (k, &place) in selection.features.iter().enumerate() {
                let field = record.get(place).unwrap_or_default();
                let value = states[k].add(sheet.row, field, options.decimal_comma);
                if value.is_infinite() {
                    return Err(FileProblem::NotFinite { row: sheet.row, column: features[k].to_string(), value });
                }
                if states[k].is_missing {
                    missing.add(sheet.row, &features[k]);
                }
                values.push(value);
            }
            let text = |place: usize| record.get(place).unwrap_or_default().to_owned();
            texts.extend(selection.label.map(text));
            if let (Some(ids), Some(place)) = (&mut ids, selection.id) {
                ids.push(text(place));
            }
            if let (Some(place), Some(column)) = (selection.weight, &weight_name) {
                let field = record.get(place).unwrap_or_default();
                weights.push(weight_of(field, sheet.row, column, options)?);
            }
        }
        if sheet.row == 0 {
            return Err(FileProblem::Empty);
        }
        refuse_texts(&features, &states, options)?;
        let is_boolean = |(_, state): &(&Column, &ColumnState)| state.booleans > 0;
        let booleans = features.iter().zip(&states).filter(is_boolean).map(|(column, _)| column.to_string()).collect();
        let mut notes = std::mem::take(&mut sheet.notes);
        notes.extend(selection.notes);
        let label = selection.label.map(|place| columns.column(place).to_string());
        let mut table = Self {
            columns: features,
            rows: sheet.row,
            values,
            labels: None,
            label_name: label,
            ids,
            weights: weight_name.is_some().then_some(weights),
            weight_name,
            booleans,
            missing,
            notes,
        };
        let counts: Vec<usize> = states.iter().map(|state| state.missing).collect();
        table.settle_missing(&counts, options)?;
        if let Some(name) = &table.label_name {
            let labels = labels_of(texts, name, &mut table.notes)?;
            table.labels = Some(labels);
        }
        Ok(table)
    }
}

/// The weight in a field of a text table.
fn weight_of(field: &str, row: usize, column: &str, options: &Options) -> Parsed<f64> {
    match Cell::of(field, options.decimal_comma) {
        Cell::Number(weight) => Ok(weight),
        _ => Err(FileProblem::Weight { row, column: column.to_owned(), text: field.to_owned() }),
    }
}

/// The labels of a column of a text table.
pub(crate) fn labels_of(texts: Vec<String>, column: &str, notes: &mut Vec<Note>) -> Parsed<Labels> {
    let what = format!("column {column}");
    let labels = Labels::from_texts(texts, &what, notes).map_err(|problem| match problem {
        // This one says `column` itself.
        FileProblem::NoLabel { row, count, .. } => FileProblem::NoLabel { row, count, column: column.to_owned() },
        other => other,
    })?;
    labels.require_few_classes(&what)?;
    Ok(labels)
}

/// What the fields of a column are.
#[derive(Clone, Debug, Default)]
struct ColumnState {
    numbers: usize,
    booleans: usize,
    missing: usize,
    texts: usize,
    /// Whether the last field is missing.
    is_missing: bool,
    /// The first truth value and its row.
    boolean: Option<(usize, String)>,
    /// The first text and its row.
    text: Option<(usize, String)>,
}

impl ColumnState {
    /// Adds a field. Returns its number, or NaN if it has none.
    fn add(&mut self, row: usize, field: &str, comma: bool) -> f64 {
        let cell = Cell::of(field, comma);
        self.is_missing = cell == Cell::Missing;
        match cell {
            Cell::Number(value) => {
                self.numbers += 1;
                return value;
            }
            Cell::Boolean(truth) => {
                self.booleans += 1;
                self.boolean.get_or_insert_with(|| (row, field.to_owned()));
                return f64::from(u8::from(truth));
            }
            Cell::Missing => self.missing += 1,
            Cell::Text(text) => {
                self.texts += 1;
                self.text.get_or_insert_with(|| (row, text.to_owned()));
            }
        }
        f64::NAN
    }
}

/// Refuses columns that are not numbers, with what they are instead.
fn refuse_texts(columns: &[Column], states: &[ColumnState], options: &Options) -> Parsed<()> {
    let (mut all_text, mut first) = (Vec::new(), None);
    for (column, state) in columns.iter().zip(states) {
        let name = column.to_string();
        match (&state.text, &state.boolean) {
            (Some((row, text)), _) => match refused(name, *row, text, state, options) {
                Ok(column) => all_text.push(column),
                Err(problem) => first = first.or(Some(problem)),
            },
            (None, Some((row, text))) if state.numbers > 0 => {
                first = first.or_else(|| Some(FileProblem::Mixed { row: *row, column: name, text: text.clone() }));
            }
            _ => {}
        }
    }
    // Columns of text come first: one of them may hold the labels.
    match (all_text.is_empty(), first) {
        (true, None) => Ok(()),
        (true, Some(problem)) => Err(problem),
        (false, _) => Err(FileProblem::Text { columns: all_text }),
    }
}

/// What is wrong with a column that has a text. A column of nothing but texts is returned, because
/// all of them are named together.
fn refused(
    column: String,
    row: usize,
    text: &str,
    state: &ColumnState,
    options: &Options,
) -> Parsed<(String, usize, String)> {
    let owned = text.to_owned();
    match options.decimal_comma {
        false if has_decimal_comma(text) => return Err(FileProblem::DecimalComma { row, column, text: owned }),
        true if text.parse::<f64>().is_ok() => return Err(FileProblem::DecimalPoint { row, column, text: owned }),
        _ => {}
    }
    match state.numbers + state.booleans {
        others if others > 0 && others >= state.texts => {
            Err(FileProblem::NotANumber { row, column, text: owned, others })
        }
        _ if is_date(text) => Err(FileProblem::Dates { column, row, text: owned }),
        _ => Ok((column, row, owned)),
    }
}
