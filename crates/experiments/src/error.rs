//! Errors of experiments.

/// The result of an experiment.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed experiment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Encrypted rows of another size than planned.
    #[error("rows in {form} take {written} bytes, where {planned} are planned: this is a bug, report it")]
    UploadSize {
        /// The form.
        form: &'static str,
        /// Bytes planned.
        planned: u64,
        /// Bytes written.
        written: u64,
    },
    /// An operation of the CKKS scheme failed.
    #[error(transparent)]
    Scheme(#[from] hetal_ckks::Error),
    /// A circuit failed.
    #[error(transparent)]
    Circuit(#[from] hetal_circuits::Error),
    /// The GPU is missing or failed.
    #[error(transparent)]
    Gpu(#[from] hetal_cuda::Error),
    /// A training failed.
    #[error(transparent)]
    Learn(#[from] hetal_learn::Error),
    /// The data owner's side failed.
    #[error(transparent)]
    Client(#[from] hetal_client::Error),
    /// A file cannot be read or written.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// The problem.
        reason: String,
    },
    /// No epoch of a training was accepted.
    #[error("no epoch of the training was accepted: its logits left every range")]
    NothingLearned,
    /// A custom shape has no rows, no features or no classes.
    #[error("invalid shape: --batch, --features and --classes must be at least 1")]
    EmptyShape,
    /// Pauses between kernels were asked for on the CPU.
    #[error("--shake needs --engine cuda: only the kernels of a GPU run concurrently")]
    ShakeNeedsGpu,
    /// The benchmark has no preset of this name.
    #[error("unknown shape {name}: use one of {known}")]
    UnknownShape {
        /// The name that was given.
        name: String,
        /// The known names.
        known: String,
    },
    /// The arguments that `hetal reproduce` derives for a benchmark are invalid.
    #[error("invalid arguments of a benchmark: {reason}")]
    Arguments {
        /// The problem.
        reason: String,
    },
    /// The training needs more memory than the GPU has free.
    #[error(
        "the training needs {:.1} GiB on the GPU, and {:.1} GiB are free: use a larger GPU, fewer \
         rows, --versions auto or --engine cpu",
        gib(*.needed), gib(*.free)
    )]
    DoesNotFit {
        /// The bytes that are needed.
        needed: usize,
        /// The bytes that are free.
        free: usize,
    },
    /// The dry run that estimates device memory failed.
    #[error("cannot estimate the device memory of the training: {reason}")]
    MemoryEstimate {
        /// The problem.
        reason: String,
    },
    /// The self-test found differences.
    #[error("self-test failed: {differ} results differ; do not use this engine, and report the output of --json")]
    SelfTest {
        /// The number of results that differ.
        differ: usize,
    },
    /// The bootstrapping error of a set is unknown.
    #[error("set {set} has no measured precision: run `hetal bench ops --set {set}` and add the result to params.rs")]
    NotMeasured {
        /// The parameter set.
        set: String,
    },
    /// The parameter set has too few levels for a benchmark.
    #[error("the benchmark needs {needs} levels, and the parameter set has {has}: use a larger set")]
    TooFewLevels {
        /// The levels that are needed.
        needs: usize,
        /// The levels of the set.
        has: usize,
    },
    /// A thread pool cannot start.
    #[error("cannot start {threads} threads: {reason}")]
    Threads {
        /// The number of threads.
        threads: usize,
        /// The problem.
        reason: String,
    },
    /// The process that measures a second parameter set failed.
    #[error("the process that measures set {set} failed: {reason}")]
    Subprocess {
        /// The parameter set.
        set: String,
        /// The output of the process.
        reason: String,
    },
}

fn gib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
