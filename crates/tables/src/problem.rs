//! What can be wrong with a file of features or labels.
//!
//! Problems quote names and values of the file, which may come from anyone. They are kept as they
//! are and made safe for a terminal when they are shown.

use crate::sanitize::shown;
use std::path::PathBuf;

/// A file of features or labels that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}: {problem}", shown(&.path.to_string_lossy()))]
pub struct Error {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: FileProblem,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FileProblem {
    /// The operating system cannot read the file.
    #[error("{}", shown(.0))]
    Io(String),
    /// The extension names no known format.
    #[error(
        "unknown file extension: the name must end in .npy, .npz, .safetensors, .csv, .tsv, .jsonl, .parquet or .arrow"
    )]
    Extension,
    /// The file is too large.
    #[error("the file has {bytes} bytes, more than the limit of {most}: split it or drop columns")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The largest size that is read.
        most: u64,
    },
    /// The file is damaged or has another format.
    #[error("not a valid {format} file: {}", shown(.reason))]
    Format {
        /// The expected format.
        format: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// An array has the wrong number of dimensions.
    #[error(
        "{} has {found} dimension{}, and must have {must}: reshape it (numpy.reshape)",
        shown(.array), if *found == 1 { "" } else { "s" }
    )]
    Dimensions {
        /// The array.
        array: String,
        /// Its dimensions.
        found: usize,
        /// The required dimensions.
        must: &'static str,
    },
    /// An array contains values of the wrong kind.
    #[error("{} contains {}, and must contain {must}", shown(.array), shown(.found))]
    Kind {
        /// The array.
        array: String,
        /// What it contains.
        found: String,
        /// What it must contain.
        must: &'static str,
    },
    /// An array or column does not exist.
    #[error("{} not found; the file contains: {}", shown(.what), shown(.known))]
    Missing {
        /// What was looked for.
        what: String,
        /// What the file contains.
        known: String,
    },
    /// A byte is not valid in the encoding.
    #[error("line {row}, byte {byte}: {value:#04x} is not valid {encoding}: {advice}")]
    Encoding {
        /// The line, counted from 1.
        row: usize,
        /// The byte, counted from 0.
        byte: usize,
        /// The byte there.
        value: u8,
        /// The encoding that was tried.
        encoding: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A text file has a NUL byte.
    #[error(
        "line {row}, byte {byte}: a NUL byte, so this is no text in UTF-8: is it UTF-16 (--encoding utf-16) or binary?"
    )]
    Binary {
        /// The line, counted from 1.
        row: usize,
        /// The byte, counted from 0.
        byte: usize,
    },
    /// A delimiter that cannot separate fields.
    #[error("{name:?} cannot separate fields: give one character such as ',' ';' or '|', or the word tab or space")]
    Delimiter {
        /// What was given.
        name: String,
    },
    /// A field among numbers is not a number.
    #[error(
        "row {row}, column {}: {:?} is not a number, and {others} other fields of the column are: correct it, or \
         leave the column out with --drop {}",
        shown(.column), shown(.text), shown(.column)
    )]
    NotANumber {
        /// The row, counted from 1 without the header.
        row: usize,
        /// The name of the column, or its number counted from 1.
        column: String,
        /// The content of the field.
        text: String,
        /// Fields of the column that are numbers.
        others: usize,
    },
    /// Columns of text.
    #[error(
        "{}: leave out text with --drop {}, or write it as numbers (`hetal extract` makes features of texts). If it \
         is the class of each row: --label-column {}",
        text_columns(.columns), shown(&names(.columns)), shown(&.columns.first().map_or_else(String::new, |c| c.0.clone()))
    )]
    Text {
        /// The columns, each with the row and the content of its first field that is text.
        columns: Vec<(String, usize, String)>,
    },
    /// A typed column that holds neither numbers nor truth values nor texts.
    #[error(
        "column {} holds {}: write them as columns of numbers, or leave the column out with --drop {}",
        shown(.column), shown(.found), shown(.column)
    )]
    NotPlain {
        /// The column.
        column: String,
        /// What it holds.
        found: String,
    },
    /// The program that reads Parquet and Arrow files failed.
    #[error("{}", shown(.0))]
    Extractor(String),
    /// A column of dates.
    #[error(
        "column {} has dates ({:?} in row {row}): leave it out with --drop {}, or write it as numbers, such as days \
         since a start",
        shown(.column), shown(.text), shown(.column)
    )]
    Dates {
        /// The column.
        column: String,
        /// The first row with a date.
        row: usize,
        /// The date.
        text: String,
    },
    /// A decimal comma.
    #[error("row {row}, column {}: {:?} has a comma: give --decimal , if that is a decimal comma", shown(.column), shown(.text))]
    DecimalComma {
        /// The row, counted from 1 without the header.
        row: usize,
        /// The column.
        column: String,
        /// The content of the field.
        text: String,
    },
    /// A point where decimals have a comma.
    #[error(
        "row {row}, column {}: {:?} has a point, and --decimal , was given: write numbers without marks of thousands",
        shown(.column), shown(.text)
    )]
    DecimalPoint {
        /// The row, counted from 1 without the header.
        row: usize,
        /// The column.
        column: String,
        /// The content of the field.
        text: String,
    },
    /// A column has both truth values and numbers.
    #[error(
        "row {row}, column {}: {:?} among numbers: write 1 and 0, or True and False, in the whole column",
        shown(.column), shown(.text)
    )]
    Mixed {
        /// The first row with a truth value.
        row: usize,
        /// The column.
        column: String,
        /// The content of the field.
        text: String,
    },
    /// A value is infinite.
    #[error("row {row}, column {}: {value} is not a finite number: correct it, or remove the row", shown(.column))]
    NotFinite {
        /// The row, counted from 1 without the header.
        row: usize,
        /// The column.
        column: String,
        /// The value.
        value: f64,
    },
    /// A value is too large to train with.
    #[error(
        "row {row}, column {}: {value:e} is out of range, and values may have at most {most:e} in magnitude: divide \
         the column, or leave it out with --drop {}",
        shown(.column), shown(.column)
    )]
    OutOfRange {
        /// The row, counted from 1 without the header.
        row: usize,
        /// The column.
        column: String,
        /// The value.
        value: f64,
        /// The largest magnitude.
        most: f64,
    },
    /// Values are missing.
    #[error(
        "{missing}: train with --impute median, remove these rows, or leave the columns out with --drop {}",
        shown(&.missing.names())
    )]
    MissingValues {
        /// Where.
        missing: crate::Missing,
    },
    /// The columns that are needed are not there.
    #[error("{}", other_columns(.missing, .extra))]
    OtherColumns {
        /// Needed columns that the file lacks.
        missing: Vec<String>,
        /// Columns of the file that are not needed.
        extra: Vec<String>,
    },
    /// A file without names has another number of columns.
    #[error(
        "the rows have {found} columns without names, and {expected} are needed ({}): give the same columns in the \
         same order, or a file with their names",
        shown(.names)
    )]
    ColumnCount {
        /// Columns of the file.
        found: usize,
        /// Columns that are needed.
        expected: usize,
        /// Their names.
        names: String,
    },
    /// A column without a name.
    #[error(
        "column {column} has no name: name it, or leave it out with --drop {column}{} (if the first line is a row: \
         --header no)",
        if *.column == 1 { ", or save without the index (pandas: index=False)" } else { "" }
    )]
    NoName {
        /// The column, counted from 1.
        column: usize,
    },
    /// Too many columns.
    #[error(
        "{found} feature columns, and at most {most} can be trained: choose some with --columns, or leave some out \
         with --drop"
    )]
    TooManyFeatures {
        /// Columns there are.
        found: usize,
        /// The most.
        most: usize,
    },
    /// No column is left.
    #[error("no feature columns are left: check --columns, --drop and --label-column")]
    NoFeatures,
    /// A target that is not a class.
    #[error(
        "{} holds fractions ({value} in row {row}; {distinct} different values): that is a regression target, and hetal trains \
         classifiers. Choose a column of classes, or write ranges of values as classes",
        shown(.column)
    )]
    Regression {
        /// The column or array of labels.
        column: String,
        /// The first row with a fraction.
        row: usize,
        /// The fraction.
        value: f64,
        /// Different values.
        distinct: usize,
    },
    /// Several labels in a row.
    #[error(
        "{} holds {found} labels a row, and a row has one class: choose one column, or of one-hot rows the place of \
         the 1 (numpy.argmax(labels, axis=1))",
        shown(.column)
    )]
    SeveralLabels {
        /// The column or array of labels.
        column: String,
        /// Labels of a row.
        found: usize,
    },
    /// Too many classes.
    #[error(
        "{} holds {found} different classes, and at most {most} can be trained: join rare classes. If it is an \
         identifier or a quantity, choose another column",
        shown(.column)
    )]
    TooManyClasses {
        /// The column or array of labels.
        column: String,
        /// Different labels.
        found: usize,
        /// The most.
        most: usize,
    },
    /// One column is to hold labels and weights.
    #[error("column {} is named for the labels and for the weights of rows: name two columns", shown(.column))]
    LabelAndWeight {
        /// The column.
        column: String,
    },
    /// A weight of a row is not a number.
    #[error(
        "row {row}, column {}: the weight is {:?}, but must be a number: correct it, or remove the row",
        shown(.column), shown(.text)
    )]
    Weight {
        /// The row, counted from 1.
        row: usize,
        /// The column of weights.
        column: String,
        /// The field.
        text: String,
    },
    /// Only one class.
    #[error("all rows have the class {:?}: a classifier needs rows of two classes or more", shown(.class))]
    OneClass {
        /// The class.
        class: String,
    },
    /// Rows have no label.
    #[error(
        "row {row}, column {}: the label is missing{}: give the row a label, or remove the row",
        shown(.column), if *.count > 1 { format!(" (as in {} rows)", .count) } else { String::new() }
    )]
    NoLabel {
        /// The first such row, counted from 1 without the header.
        row: usize,
        /// Such rows.
        count: usize,
        /// The column or array of the labels.
        column: String,
    },
    /// A row has another length than the first row.
    #[error(
        "row {row} has {found} columns, and the first line has {expected}: is a quotation mark or a delimiter missing?{}",
        if *.found == .expected + 1 && *.row == 1 { " (R writes names of rows: save with row.names = FALSE)" } else { "" }
    )]
    Ragged {
        /// The row, counted from 1 without the header.
        row: usize,
        /// Its columns.
        found: usize,
        /// The columns of the first row.
        expected: usize,
    },
    /// Two arrays or columns have one name.
    #[error("two {what} are named {}: rename one of them, so that it is clear which one is meant", shown(.name))]
    Duplicate {
        /// Arrays or columns.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// There is not enough memory for the values.
    #[error("its values need {bytes} bytes of memory, which are not available: split the file or drop columns")]
    Memory {
        /// The bytes.
        bytes: usize,
    },
    /// The file has no rows.
    #[error("the file has no rows: check that it is the right one and complete")]
    Empty,
}

fn names(columns: &[(String, usize, String)]) -> String {
    columns.iter().map(|(name, ..)| name.as_str()).collect::<Vec<_>>().join(",")
}

fn text_columns(columns: &[(String, usize, String)]) -> String {
    let one = |(name, row, text): &(String, usize, String)| {
        format!("column {} is text ({:?} in row {row})", shown(name), shown(text))
    };
    columns.iter().take(crate::MAX_NAMED).map(one).collect::<Vec<_>>().join(", ")
}

fn other_columns(missing: &[String], extra: &[String]) -> String {
    let list = |names: &[String]| shown(&names.join(", "));
    let extra = match extra {
        [] => String::new(),
        extra => format!("; it has these besides: {}", list(extra)),
    };
    format!("the file lacks these columns of the training: {}{extra}. Rename or add columns", list(missing))
}

impl FileProblem {
    pub(crate) fn format(format: &'static str, reason: impl Into<String>) -> Self {
        Self::Format { format, reason: reason.into() }
    }
}

/// An empty vector with room for `count` values. A lack of memory is an error and does not end the
/// program.
pub(crate) fn reserved<T>(count: usize) -> Parsed<Vec<T>> {
    let mut values = Vec::new();
    let bytes = count.saturating_mul(size_of::<T>());
    values.try_reserve_exact(count).map_err(|_| FileProblem::Memory { bytes })?;
    Ok(values)
}

/// The result of parsing bytes.
pub type Parsed<T> = std::result::Result<T, FileProblem>;
