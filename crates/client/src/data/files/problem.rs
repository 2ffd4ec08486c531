//! What can be wrong with a file.

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FileProblem {
    /// The system failed.
    #[error("{0}")]
    Io(String),
    /// A name that tells no format.
    #[error("its name must end in .npy, .npz, .safetensors or .csv")]
    Extension,
    /// Too large.
    #[error("has {bytes} bytes, more than {most}")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The most that is read.
        most: u64,
    },
    /// Bytes of another format, or damaged ones.
    #[error("is no {format} file: {reason}")]
    Format {
        /// The format it should have.
        format: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// An array of the wrong number of dimensions.
    #[error("{array} has {found} dimensions, must have {must}")]
    Dimensions {
        /// Which array.
        array: String,
        /// Its dimensions.
        found: usize,
        /// What it must have.
        must: &'static str,
    },
    /// Values that are of no use here.
    #[error("{array} holds {found}, must hold {must}")]
    Kind {
        /// Which array.
        array: String,
        /// What it holds.
        found: String,
        /// What it must hold.
        must: &'static str,
    },
    /// No array or column of a name.
    #[error("has no {what}; there are: {known}")]
    Missing {
        /// What was looked for.
        what: String,
        /// What there is.
        known: String,
    },
    /// A value of a table that is no number.
    #[error("row {row}, column {column}: {text:?} is not a number (if these are the labels: --label-column {column})")]
    NotANumber {
        /// The row, counted from 1 without the heading.
        row: usize,
        /// The column's name, or its number from 1.
        column: String,
        /// What is there.
        text: String,
    },
    /// A row without a label.
    #[error("row {row}, column {column}: the label is missing; leave the row out, or give it one")]
    NoLabel {
        /// The row, counted from 1 without the heading.
        row: usize,
        /// The column or array of the labels.
        column: String,
    },
    /// A row of another length than the first.
    #[error("row {row} has {found} columns, the first has {expected}")]
    Ragged {
        /// The row, counted from 1 without the heading.
        row: usize,
        /// Its columns.
        found: usize,
        /// The first row's.
        expected: usize,
    },
    /// Nothing in it.
    #[error("has no rows")]
    Empty,
}

impl FileProblem {
    pub(crate) fn format(format: &'static str, reason: impl Into<String>) -> Self {
        Self::Format { format, reason: reason.into() }
    }
}

/// The result of parsing bytes.
pub type Parsed<T> = std::result::Result<T, FileProblem>;
