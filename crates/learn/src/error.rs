//! Errors of training.

/// The result of a training operation.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of training. The message says what to do about it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the circuit.
    #[error(transparent)]
    Circuit(#[from] hetal_circuits::Error),
    /// More classes than the slots can hold.
    #[error("{classes} classes do not fit {slots} slots: take a parameter set with more")]
    DoesNotFit {
        /// Slots of a ciphertext.
        slots: usize,
        /// Classes.
        classes: usize,
    },
    /// A number outside its range.
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
    #[error("{}", wrong_shape(.what, (*.rows, *.columns), (*.must_rows, *.must_columns)))]
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
    #[error("row {}: label {label} is not below {classes}", .row + 1)]
    Label {
        /// The row, counted from 0; in words from 1.
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
    /// A repeated training that ended before a check.
    #[error("the verdicts of this training end before check {check}")]
    NoSuchCheck {
        /// The check, counted from 1.
        check: usize,
    },
    /// Trials of a training whose noise differs too much.
    #[error(
        "the noise of the weights is unstable: its 2-norm is typically {typical:.1e} and {largest:.1e} in one of the \
         trials, so no bound follows from them. Train with a lower learning rate"
    )]
    UnstableNoise {
        /// The root of the mean square of the norms.
        typical: f64,
        /// The largest.
        largest: f64,
    },
    /// A feature that is not a finite number.
    #[error("row {}, column {}: {value} is not a finite number", .row + 1, .column + 1)]
    NotFinite {
        /// The row, counted from 0; in words from 1.
        row: usize,
        /// The column, counted from 0; in words from 1.
        column: usize,
        /// What is there.
        value: f64,
    },
    /// A feature that is too large to compute with.
    #[error(
        "row {}, column {}: {value:e} is out of range, must be at most {limit:e} in magnitude: rescale the features",
        .row + 1, .column + 1
    )]
    OutOfRange {
        /// The row, counted from 0; in words from 1.
        row: usize,
        /// The column, counted from 0; in words from 1.
        column: usize,
        /// What is there.
        value: f64,
        /// The largest magnitude.
        limit: f64,
    },
    /// The rate schedule was not published.
    #[error("the operator hides the learning rates: a plain reference of this training cannot be computed")]
    RateHidden,
    /// A row longer than the guard allows after normalisation. The message names its largest
    /// feature.
    #[error(
        "row {}: length {norm:.3} is beyond the guard of {guard:.3} (largest in column {}): normalise on data like it, or leave it out",
        .row + 1, .column + 1
    )]
    BeyondGuard {
        /// The row, counted from 0; in words from 1.
        row: usize,
        /// The column of its largest feature.
        column: usize,
        /// Its length.
        norm: f64,
        /// The longest allowed.
        guard: f64,
    },
    /// A column without any value to replace missing ones by.
    #[error("column {} has no value in any training row: leave it out with --drop", .column + 1)]
    EmptyColumn {
        /// The column, counted from 0; in words from 1.
        column: usize,
    },
    /// Nothing to train on.
    #[error("there are no rows")]
    NoRows,
    /// As many labels as rows are needed.
    #[error("{rows} rows, but {labels} labels")]
    LabelCount {
        /// Rows there are.
        rows: usize,
        /// Labels there are.
        labels: usize,
    },
    /// A class that no row has.
    #[error("class {class} has no rows")]
    EmptyClass {
        /// The class.
        class: usize,
    },
    /// A batch larger than the data.
    #[error("a batch of {batch} rows is larger than the data's {rows}")]
    BatchTooLarge {
        /// Rows of a batch.
        batch: usize,
        /// Rows of the data.
        rows: usize,
    },
    /// A hyper-parameter outside what the server allows.
    #[error("{what} of {asked} is not allowed here: {lowest} to {highest}")]
    NotAllowed {
        /// Which one.
        what: &'static str,
        /// What was asked for.
        asked: f64,
        /// The least allowed.
        lowest: f64,
        /// The most allowed.
        highest: f64,
    },
    /// An answer that the session does not wait for.
    #[error("{got} came while {waiting}")]
    OutOfTurn {
        /// What came.
        got: &'static str,
        /// What the session was doing.
        waiting: &'static str,
    },
    /// A checkpoint whose ciphertexts do not match its record.
    #[error("a checkpoint with {got} ciphertexts, its record names {expected}")]
    Checkpoint {
        /// Ciphertexts given.
        got: usize,
        /// Ciphertexts its record names.
        expected: usize,
    },
    /// An invalid table of constants.
    #[error("softmax constants: {0}")]
    Constants(String),
}

/// The words for a wrong shape. Any number of rows will do if as many as can be may be there.
fn wrong_shape(what: &str, (rows, columns): (usize, usize), (must_rows, must_columns): (usize, usize)) -> String {
    match must_rows {
        usize::MAX => format!("{what} has {columns} columns, must have {must_columns}"),
        _ => format!("{what} is {rows} x {columns}, must be {must_rows} x {must_columns}"),
    }
}
