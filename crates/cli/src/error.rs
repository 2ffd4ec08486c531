//! Errors of the program: what happened, to which input, and what to do next.

use hetal_extract_api::sanitize_terminal;
use std::path::PathBuf;

/// The result of a command.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An experiment failed.
    #[error(transparent)]
    Experiment(#[from] hetal_experiments::Error),
    /// An operation of the CKKS scheme failed.
    #[error(transparent)]
    Scheme(#[from] hetal_ckks::Error),
    /// A parameter of a training is invalid.
    #[error(transparent)]
    Learn(#[from] hetal_learn::Error),
    /// The data owner's side failed.
    #[error(transparent)]
    Client(#[from] hetal_client::Error),
    /// The server in this process failed, or the machine has too little for it.
    #[error(transparent)]
    Local(#[from] hetal_local::Error),
    /// A secret key file cannot be read or written.
    #[error(transparent)]
    Keys(#[from] hetal_keys::Error),
    /// The GPU of the embedded server failed.
    #[error("the GPU failed: {reason}. Run the same command again to continue from the last checkpoint")]
    GpuFailed {
        /// The failure that the server saw.
        reason: String,
    },
    /// The two typed passphrases differ.
    #[error("the two passphrases differ: nothing was written, run the command again")]
    PassphrasesDiffer,
    /// A passphrase is needed and was not given.
    #[error("a passphrase is needed: give --passphrase-file FILE, set HETAL_PASSPHRASE, or type it in a terminal")]
    NoPassphrase,
    /// The environment variable for the passphrase is empty.
    #[error(
        "HETAL_PASSPHRASE is set, but empty, and an empty passphrase protects nothing: set it to the passphrase, or \
         unset it"
    )]
    EmptyVariable,
    /// A passphrase was requested for an existing key without one.
    #[error(
        "the secret key {} exists and has no passphrase: `hetal keys rotate --passphrase` makes a new key with one",
        .path.display()
    )]
    NotLocked {
        /// The file of the key.
        path: PathBuf,
    },
    /// The name of a job is invalid.
    #[error("{name:?} is not the id of one of your jobs, nor how a single id begins: `hetal jobs` lists your jobs")]
    JobName {
        /// The name that was given.
        name: String,
    },
    /// `hetal plan` has no rows.
    #[error("nothing to plan: give --features FILE (with labels), or --rows, --columns and --classes")]
    NothingToPlan,
    /// The operating system returns no random bytes.
    #[error("the operating system returns no random bytes: {reason}")]
    Randomness {
        /// The problem.
        reason: String,
    },
    /// `hetal-extract` failed.
    #[error(transparent)]
    Extractor(#[from] hetal_extract_api::extractor::Error),
    /// A manifest cannot be used.
    #[error("{}", sanitize_terminal(&.0.to_string()))]
    Manifest(#[from] hetal_extract_api::manifest::Error),
    /// Pictures or texts were given to a model without a manifest.
    #[error(
        "model {model} has no record of the network that made its features, so it cannot classify pictures or texts: \
         give --features, or train on the output of `hetal extract` (with its manifest.json next to the features, \
         or --manifest)"
    )]
    NoExtraction {
        /// The model.
        model: String,
    },
    /// A manifest describes other features.
    #[error("{path}: describes {described} columns, but {features} has {found}: give the manifest of these features")]
    OtherManifest {
        /// The manifest.
        path: String,
        /// The number of columns that it describes.
        described: usize,
        /// The features.
        features: String,
        /// The number of their columns.
        found: usize,
    },
    /// A file cannot be read or written.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// The problem.
        reason: String,
    },
}
