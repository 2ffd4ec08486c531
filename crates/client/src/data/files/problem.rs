//! What can be wrong with a file of features or labels.
//!
//! Problems quote names and values of the file, which may come from anyone. They are kept as they
//! are and made safe for a terminal when they are shown.

use crate::sanitize::sanitize_foreign_text as shown;

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FileProblem {
    /// The operating system cannot read the file.
    #[error("{}", shown(.0))]
    Io(String),
    /// The extension names no known format.
    #[error("unknown file extension: the name must end in .npy, .npz, .safetensors or .csv")]
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
    #[error("{} has {found} dimensions, and must have {must}", shown(.array))]
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
    /// A field of a table is not a number.
    #[error(
        "row {row}, column {}: {:?} is not a number (if this is the label column: --label-column {})",
        shown(.column), shown(.text), shown(.column)
    )]
    NotANumber {
        /// The row, counted from 1 without the header.
        row: usize,
        /// The name of the column, or its number counted from 1.
        column: String,
        /// The content of the field.
        text: String,
    },
    /// A row has no label.
    #[error("row {row}, column {}: the label is missing: give the row a label, or remove the row", shown(.column))]
    NoLabel {
        /// The row, counted from 1 without the header.
        row: usize,
        /// The column or array of the labels.
        column: String,
    },
    /// A row has another length than the first row.
    #[error("row {row} has {found} columns, and the first row has {expected}")]
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
    #[error("the file has no rows")]
    Empty,
}

impl FileProblem {
    pub(crate) fn format(format: &'static str, reason: impl Into<String>) -> Self {
        Self::Format { format, reason: reason.into() }
    }
}

/// An empty vector with room for `count` values. A lack of memory is an error and does not end the
/// program.
pub(super) fn reserved<T>(count: usize) -> Parsed<Vec<T>> {
    let mut values = Vec::new();
    let bytes = count.saturating_mul(size_of::<T>());
    values.try_reserve_exact(count).map_err(|_| FileProblem::Memory { bytes })?;
    Ok(values)
}

/// The result of parsing bytes.
pub type Parsed<T> = std::result::Result<T, FileProblem>;
