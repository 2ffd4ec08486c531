//! Errors of experiments.

/// The result of an experiment.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong in an experiment.
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
    /// The data owner's side refused.
    #[error(transparent)]
    Client(#[from] hetal_client::Error),
    /// A file that cannot be used.
    #[error("{path}: {reason}")]
    File {
        /// Which file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A shape without rows, features or classes.
    #[error("--batch, --features and --classes are at least 1")]
    NoShape,
    /// The CPU's work is in one order.
    #[error("--shake is for --engine cuda: only a GPU's kernels run beside each other")]
    NothingToShake,
    /// A shape that has no preset.
    #[error("no shape is named {name}; there are {known}")]
    Shape {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A job larger than the card.
    #[error(
        "this training needs {:.1} GiB on the GPU even when versions are made again for each batch, {:.1} GiB are free: \
         use a larger card, fewer rows, or --engine cpu",
        gib(*.needed), gib(*.free)
    )]
    DoesNotFit {
        /// Bytes needed at least.
        needed: usize,
        /// Bytes free.
        free: usize,
    },
    /// A training that does not even run without a card.
    #[error("the training cannot be planned: {reason}")]
    Rehearsal {
        /// Why.
        reason: String,
    },
    /// Bytes that should be equal are not.
    #[error("self-test: {differ} results differ; do not use this engine, and report it with the output of --json")]
    SelfTest {
        /// How many.
        differ: usize,
    },
    /// A set whose errors nobody measured.
    #[error(
        "the errors of set {set} were not measured: run `hetal bench ops --set {set}` and add them to the table of sets"
    )]
    NotMeasured {
        /// The set.
        set: String,
    },
    /// A set with too few levels for a benchmark.
    #[error("the benchmark takes {needs} levels, the set has {has}")]
    TooFewLevels {
        /// The levels it takes.
        needs: usize,
        /// The levels there are.
        has: usize,
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

fn gib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
