//! Labels and the classes that they name.

use crate::cells::{Cell, boolean};
use crate::{FileProblem, MAX_CLASSES, Note, Parsed};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The labels of rows. All have one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Labels {
    /// Whole numbers.
    Integers(Vec<i64>),
    /// Truth values.
    Booleans(Vec<bool>),
    /// Names.
    Texts(Vec<String>),
}

/// The type of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LabelType {
    /// Whole numbers.
    Integer,
    /// Truth values.
    Boolean,
    /// Names.
    Text,
}

/// Whole numbers up to this have an exact double.
const EXACT: f64 = (1u64 << 53) as f64;

impl Labels {
    /// The number of labels.
    pub fn len(&self) -> usize {
        match self {
            Self::Integers(numbers) => numbers.len(),
            Self::Booleans(values) => values.len(),
            Self::Texts(names) => names.len(),
        }
    }

    /// Returns whether there are no labels.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their type.
    pub fn label_type(&self) -> LabelType {
        match self {
            Self::Integers(_) => LabelType::Integer,
            Self::Booleans(_) => LabelType::Boolean,
            Self::Texts(_) => LabelType::Text,
        }
    }

    /// The labels as text. Truth values are written like Python's.
    pub fn texts(&self) -> Vec<String> {
        match self {
            Self::Integers(numbers) => numbers.iter().map(i64::to_string).collect(),
            Self::Booleans(values) => values.iter().copied().map(python).collect(),
            Self::Texts(names) => names.clone(),
        }
    }

    /// The distinct labels in order: numbers by value, false before true, names alphabetically.
    pub fn classes(&self) -> Vec<String> {
        match self {
            Self::Integers(numbers) => distinct(numbers).iter().map(i64::to_string).collect(),
            Self::Booleans(values) => distinct(values).into_iter().map(python).collect(),
            Self::Texts(names) => distinct(names),
        }
    }

    /// The labels of these rows, in this order.
    pub fn selected(&self, rows: &[usize]) -> Self {
        match self {
            Self::Integers(numbers) => Self::Integers(rows.iter().map(|&row| numbers[row]).collect()),
            Self::Booleans(values) => Self::Booleans(rows.iter().map(|&row| values[row]).collect()),
            Self::Texts(names) => Self::Texts(rows.iter().map(|&row| names[row].clone()).collect()),
        }
    }

    /// The first `count` labels.
    pub fn first(&self, count: usize) -> Self {
        match self {
            Self::Integers(numbers) => Self::Integers(numbers.iter().take(count).copied().collect()),
            Self::Booleans(values) => Self::Booleans(values.iter().take(count).copied().collect()),
            Self::Texts(names) => Self::Texts(names.iter().take(count).cloned().collect()),
        }
    }

    /// Labels of numbers with fractions: whole ones are integers, others a regression target.
    pub(crate) fn from_floats(values: &[f64], column: &str) -> Parsed<Self> {
        let missing = |x: &f64| x.is_nan();
        if let Some(row) = values.iter().position(missing) {
            let count = values.iter().filter(|x| missing(x)).count();
            return Err(FileProblem::NoLabel { row: row + 1, count, column: column.to_owned() });
        }
        match values.iter().position(|&x| !is_whole(x)) {
            Some(row) => Err(regression(values, row, column)),
            None => Ok(Self::Integers(values.iter().map(|&x| x as i64).collect())),
        }
    }

    /// Labels of a text table. They are integers if all are whole numbers, truth values if all are
    /// True or False, and names otherwise.
    pub(crate) fn from_texts(texts: Vec<String>, column: &str, notes: &mut Vec<Note>) -> Parsed<Self> {
        if let Some(row) = texts.iter().position(|text| text.trim().is_empty()) {
            let count = texts.iter().filter(|text| text.trim().is_empty()).count();
            return Err(FileProblem::NoLabel { row: row + 1, count, column: column.to_owned() });
        }
        if let Some(values) = texts.iter().map(|text| boolean(text)).collect() {
            return Ok(Self::Booleans(values));
        }
        let numbers: Vec<Option<f64>> = texts.iter().map(|text| number(text)).collect();
        if let Some(values) = numbers.iter().copied().collect::<Option<Vec<f64>>>() {
            if let Some(row) = values.iter().position(|&x| !is_whole(x) && x.fract() != 0.0) {
                return Err(regression(&values, row, column));
            }
            // 007 and 7 are two codes, and so are numbers that a double does not hold.
            let code = texts.iter().find(|text| has_leading_zero(text));
            match (code, texts.iter().map(|text| integer(text)).collect()) {
                (None, Some(integers)) => return Ok(Self::Integers(integers)),
                (Some(code), _) => {
                    let text = format!("the labels of {column} are taken as names, because {code} begins with a zero");
                    notes.push(Note::new(text, "--label-column"));
                }
                (None, None) => {}
            }
        } else {
            notes.extend(mixture(&texts, &numbers, column));
        }
        Ok(Self::Texts(texts))
    }

    /// Refuses more classes than can be trained.
    pub(crate) fn require_few_classes(&self, column: &str) -> Parsed<()> {
        let found = match self {
            Self::Integers(numbers) => numbers.iter().collect::<BTreeSet<_>>().len(),
            Self::Booleans(_) => 2,
            Self::Texts(names) => names.iter().collect::<BTreeSet<_>>().len(),
        };
        match found > MAX_CLASSES {
            true => Err(FileProblem::TooManyClasses { column: column.to_owned(), found, most: MAX_CLASSES }),
            false => Ok(()),
        }
    }
}

fn python(truth: bool) -> String {
    if truth { "True" } else { "False" }.to_owned()
}

fn distinct<T: Ord + Clone>(values: &[T]) -> Vec<T> {
    values.iter().cloned().collect::<BTreeSet<T>>().into_iter().collect()
}

fn number(text: &str) -> Option<f64> {
    match Cell::of(text, false) {
        Cell::Number(x) if x.is_finite() => Some(x),
        _ => None,
    }
}

fn is_whole(x: f64) -> bool {
    x.fract() == 0.0 && x.abs() <= EXACT
}

fn integer(text: &str) -> Option<i64> {
    text.trim().parse().ok().or_else(|| number(text).filter(|&x| is_whole(x)).map(|x| x as i64))
}

fn has_leading_zero(text: &str) -> bool {
    let digits = text.trim().trim_start_matches(['-', '+']).as_bytes();
    matches!(digits, [b'0', next, ..] if next.is_ascii_digit())
}

fn regression(values: &[f64], row: usize, column: &str) -> FileProblem {
    let distinct = values.iter().map(|x| x.to_bits()).collect::<BTreeSet<_>>().len();
    FileProblem::Regression { column: column.to_owned(), row: row + 1, value: values[row], distinct }
}

/// What to say about labels of which only some are numbers, and about words for nothing.
fn mixture(texts: &[String], numbers: &[Option<f64>], column: &str) -> Option<Note> {
    if let Some((text, _)) = texts.iter().zip(numbers).find(|(text, _)| Cell::of(text, false) == Cell::Missing) {
        let said = format!("{text:?} in {column} is taken as the name of a class, not as a missing label");
        return Some(Note::new(said, "--label-column"));
    }
    let count = numbers.iter().flatten().count();
    (count > 0).then(|| {
        let said = format!("the labels of {column} are taken as names, because {count} are numbers and others are not");
        Note::new(said, "--label-column")
    })
}
