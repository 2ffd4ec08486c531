//! What a table looks like, and what looks wrong with it.

use crate::sanitize::shown;
use crate::{Column, LabelType, Labels, MAX_NAMED, Missing, Note, Table};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Fewer rows say little about which columns identify rows.
const FEWEST_ROWS_OF_IDS: usize = 10;
/// Tables of fewer rows are a warning.
const FEW_ROWS: usize = 50;
/// Classes of fewer rows are a warning.
const FEW_ROWS_OF_CLASS: usize = 8;

/// A report on a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Rows.
    pub rows: usize,
    /// Feature columns.
    pub columns: usize,
    /// Their names, if the file has names.
    pub names: Option<Vec<String>>,
    /// The column or array of labels.
    pub label: Option<String>,
    /// The type of the labels.
    pub label_type: Option<LabelType>,
    /// The classes in order.
    pub classes: Vec<ClassCount>,
    /// Columns that have the same value in every row.
    pub constant: Vec<String>,
    /// Columns that look like an identifier or an index of the rows.
    pub id_like: Vec<String>,
    /// Columns of truth values, which are read as 1 and 0.
    pub booleans: Vec<String>,
    /// How much the columns differ in scale.
    pub scales: Option<Scales>,
    /// Missing values.
    pub missing: Missing,
    /// What was guessed, each with the option that decides it.
    pub guesses: Vec<Note>,
    /// What looks wrong, each with the option that answers it.
    pub warnings: Vec<Note>,
}

/// A class and its rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassCount {
    /// The class.
    pub class: String,
    /// Its rows.
    pub rows: usize,
}

/// The smallest and the largest standard deviation of a column that is not constant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scales {
    /// The column of the smallest one.
    pub smallest_column: String,
    /// The smallest one.
    pub smallest: f64,
    /// The column of the largest one.
    pub largest_column: String,
    /// The largest one.
    pub largest: f64,
}

impl Report {
    /// Looks at a table and its labels, which may come from another file.
    pub fn new(table: &Table, labels: Option<&Labels>) -> Self {
        let labels = labels.or(table.labels.as_ref());
        let columns: Vec<ColumnFacts> = (0..table.columns.len()).map(|k| ColumnFacts::new(table, k)).collect();
        let of = |wanted: &dyn Fn(&ColumnFacts) -> bool| -> Vec<String> {
            let chosen = table.columns.iter().zip(&columns).filter(|(_, facts)| wanted(facts));
            chosen.map(|(column, _)| column.to_string()).collect()
        };
        let mut report = Self {
            rows: table.rows,
            columns: table.columns.len(),
            names: table.names(),
            label: table.label_name.clone(),
            label_type: labels.map(Labels::label_type),
            classes: labels.map(class_counts).unwrap_or_default(),
            constant: of(&|facts| facts.is_constant),
            id_like: of(&|facts| facts.is_id),
            booleans: table.booleans.clone(),
            scales: scales(&table.columns, &columns),
            missing: table.missing.clone(),
            guesses: table.notes.clone(),
            warnings: Vec::new(),
        };
        report.warnings = report.found_warnings();
        report
    }

    fn found_warnings(&self) -> Vec<Note> {
        let mut warnings = Vec::new();
        let mut warn = |text: String, flag: String| warnings.push(Note::new(text, flag));
        if self.rows < FEW_ROWS {
            warn(
                format!("only {} rows: the accuracy on a few validation rows says little", self.rows),
                "--validation".into(),
            );
        }
        if !self.constant.is_empty() {
            let text = format!(
                "{} in every row the same value, which tells nothing",
                with_verb(&self.constant, "has", "have")
            );
            warn(text, dropping(&self.constant));
        }
        if !self.id_like.is_empty() {
            let text = format!(
                "{} like identifiers of rows, which mislead a classifier",
                with_verb(&self.id_like, "looks", "look")
            );
            warn(text, dropping(&self.id_like));
        }
        if self.missing.count > 0 {
            warn(self.missing.to_string(), format!("--impute, --drop {}", self.missing.names()));
        }
        let small: Vec<String> = self
            .classes
            .iter()
            .filter(|class| class.rows < FEW_ROWS_OF_CLASS)
            .map(|class| format!("{} ({})", class.class, class.rows))
            .collect();
        if !small.is_empty() {
            warn(format!("classes with few rows: {}", listed(&small)), "--validation".into());
        }
        if self.classes.len() == 1 {
            warn(format!("all rows have the class {}", self.classes[0].class), "--label-column".into());
        }
        warnings
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = format!("{} rows, {} columns", self.rows, self.columns);
        if let Some(names) = &self.names {
            text += &format!(": {}", shown(&listed(names)));
        }
        text.push('\n');
        if !self.classes.is_empty() {
            let kind = match self.label_type {
                Some(LabelType::Integer) => ", whole numbers",
                Some(LabelType::Boolean) => ", truth values",
                Some(LabelType::Text) | None => "",
            };
            let classes: Vec<String> = self.classes.iter().map(|c| format!("{} ({})", c.class, c.rows)).collect();
            text += &format!("{} classes{kind}: {}\n", classes.len(), shown(&listed(&classes)));
        }
        if let Some(Scales { smallest_column, smallest, largest_column, largest }) = &self.scales {
            let (least, most) = (shown(smallest_column), shown(largest_column));
            text += &format!("spread of columns: {smallest:.3} ({least}) to {largest:.3} ({most})\n");
        }
        if !self.booleans.is_empty() {
            text += &format!("True and False are read as 1 and 0: {}\n", shown(&listed(&self.booleans)));
        }
        self.guesses.iter().for_each(|guess| text += &format!("guessed: {guess}\n"));
        self.warnings.iter().for_each(|warning| text += &format!("warning: {warning}\n"));
        text
    }
}

/// The first names of a list, and how many more there are.
fn listed(names: &[String]) -> String {
    match names.len() > MAX_NAMED {
        true => format!("{} and {} more", names[..MAX_NAMED].join(", "), names.len() - MAX_NAMED),
        false => names.join(", "),
    }
}

fn with_verb(names: &[String], one: &str, several: &str) -> String {
    match names {
        [name] => format!("column {name} {one}"),
        names => format!("columns {} {several}", listed(names)),
    }
}

fn dropping(names: &[String]) -> String {
    format!("--drop {}", names.join(","))
}

fn class_counts(labels: &Labels) -> Vec<ClassCount> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    labels.texts().into_iter().for_each(|label| *counts.entry(label).or_default() += 1);
    let count = |class: String| ClassCount { rows: counts.get(&class).copied().unwrap_or(0), class };
    labels.classes().into_iter().map(count).collect()
}

/// What is known about a column.
struct ColumnFacts {
    is_constant: bool,
    is_id: bool,
    /// The standard deviation of the values that are there.
    spread: f64,
}

impl ColumnFacts {
    fn new(table: &Table, column: usize) -> Self {
        let there = (0..table.rows).map(|row| table.row(row)[column]).filter(|x| !x.is_nan());
        let there: Vec<f64> = there.collect();
        let values = || there.iter().copied();
        let count = values().count().max(1) as f64;
        let mean = values().sum::<f64>() / count;
        let variance = values().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
        let first = values().next();
        let is_constant = values().all(|x| Some(x) == first);
        let spread = if is_constant { 0.0 } else { variance.sqrt() };
        Self { is_constant, is_id: is_id_like(&table.columns[column], values, table.rows), spread }
    }
}

/// Returns whether a column looks like an identifier: a different whole number in every row, and
/// the numbers ascend, or nearly fill their range, or the column is named like one.
fn is_id_like<I: Iterator<Item = f64>>(column: &Column, values: impl Fn() -> I, rows: usize) -> bool {
    if rows < FEWEST_ROWS_OF_IDS || values().count() < rows || values().any(|x| x.fract() != 0.0) {
        return false;
    }
    let ascends = || values().zip(values().skip(1)).all(|(a, b)| a < b);
    let (least, most) = values().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(x), b.max(x)));
    let is_dense = most - least < 2.0 * rows as f64;
    let is_named = column.name.as_ref().is_some_and(|name| is_name_of_id(name));
    // Distinct as numbers: -0 and 0 have the same text of bits after adding 0.
    ascends()
        || (is_dense || is_named) && values().map(|x| (x + 0.0).to_bits()).collect::<BTreeSet<u64>>().len() == rows
}

fn is_name_of_id(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["id", "index", "key", "uuid"]
        .into_iter()
        .any(|word| name == word || name.ends_with(&format!("_{word}")) || name.ends_with(&format!(" {word}")))
}

/// The columns with the smallest and the largest spread.
fn scales(columns: &[Column], facts: &[ColumnFacts]) -> Option<Scales> {
    let mut varying: Vec<(&Column, f64)> =
        columns.iter().zip(facts).map(|(column, facts)| (column, facts.spread)).filter(|(_, s)| *s > 0.0).collect();
    varying.sort_by(|a, b| a.1.total_cmp(&b.1));
    let ((least, smallest), (most, largest)) = (varying.first()?, varying.last()?);
    Some(Scales {
        smallest_column: least.to_string(),
        smallest: *smallest,
        largest_column: most.to_string(),
        largest: *largest,
    })
}
