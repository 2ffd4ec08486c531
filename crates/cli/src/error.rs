//! Errors of the program: what happened, to which input, what to do.

/// The result of a command.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong in a command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The scheme refused.
    #[error(transparent)]
    Scheme(#[from] hetal_ckks::Error),
    /// A circuit could not run.
    #[error(transparent)]
    Circuit(#[from] hetal_circuits::Error),
    /// The GPU is missing or failed.
    #[error(transparent)]
    Gpu(#[from] hetal_cuda::Error),
    /// Training refused.
    #[error(transparent)]
    Learn(#[from] hetal_learn::Error),
    /// Features could not be extracted.
    #[error(transparent)]
    Features(#[from] hetal_features::Error),
    /// A damaged picture or an empty text, where such are refused.
    #[error("{item}: {reason}; --bad skip leaves such samples out and lists them")]
    BadSample {
        /// Which sample.
        item: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file that cannot be used.
    #[error("{path}: {reason}")]
    File {
        /// Which file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A shape that has no preset.
    #[error("no shape is named {name}; there are {known}")]
    Shape {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The thread pool could not be made.
    #[error("cannot start {threads} threads: {reason}")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// Why not.
        reason: String,
    },
    /// A second process of the program failed.
    #[error("the measurement of set {set} in a process of its own failed: {reason}")]
    Child {
        /// The set it was to measure.
        set: String,
        /// What it said.
        reason: String,
    },
}
