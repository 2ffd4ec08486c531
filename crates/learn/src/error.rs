//! What can go wrong in training.

/// The result of a training operation.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong in training, and what would help.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The circuit below failed.
    #[error(transparent)]
    Circuit(#[from] hetal_circuits::Error),
    /// A batch, its features and classes do not fit one ciphertext of weights.
    #[error(
        "{rows} rows of {features} features in {classes} classes do not fit {slots} slots: take fewer rows, features or classes"
    )]
    DoesNotFit {
        /// Slots of a ciphertext.
        slots: usize,
        /// Rows of a batch.
        rows: usize,
        /// Features of a row.
        features: usize,
        /// Classes.
        classes: usize,
    },
    /// A number outside what is possible.
    #[error("{what} is {value}, must be {must}")]
    Invalid {
        /// Which number.
        what: &'static str,
        /// What it is.
        value: f64,
        /// What it must be.
        must: &'static str,
    },
    /// A matrix of another shape than needed.
    #[error("{what} is {rows} x {columns}, must be {must_rows} x {must_columns}")]
    Shape {
        /// Which matrix.
        what: &'static str,
        /// Its rows.
        rows: usize,
        /// Its columns.
        columns: usize,
        /// The rows it must have (at most).
        must_rows: usize,
        /// The columns it must have.
        must_columns: usize,
    },
    /// A label outside `0..classes`.
    #[error("row {row}: label {label} is not below {classes}")]
    Label {
        /// The row.
        row: usize,
        /// Its label.
        label: usize,
        /// The number of classes.
        classes: usize,
    },
    /// No softmax constants for a number of classes and a range.
    #[error("no softmax constants for {classes} classes on [-{range}, {range}]: run the search")]
    NoConstants {
        /// The number of classes.
        classes: usize,
        /// The range of logits.
        range: f64,
    },
    /// A step deeper than all levels, or too few levels left at the end.
    #[error("{operation} takes {needs} levels, there are {has}")]
    TooDeep {
        /// What does not fit.
        operation: &'static str,
        /// The levels it takes.
        needs: usize,
        /// The levels there are.
        has: usize,
    },
    /// A table of constants that does not make sense.
    #[error("softmax constants: {0}")]
    Constants(String),
}
