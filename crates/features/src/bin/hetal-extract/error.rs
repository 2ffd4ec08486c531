//! Errors of the program: what happened, to which input, what to do next. Messages quote names of
//! files, which may come from anyone: characters that act on a terminal are replaced.

use hetal_extract_api::sanitize_terminal;
use std::path::Path;

/// The result of a step.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading or extracting failed.
    #[error("{}", sanitize_terminal(&.0.to_string()))]
    Features(#[from] hetal_features::Error),
    /// The manifest of an extraction cannot be read.
    #[error("{}", sanitize_terminal(&.0.to_string()))]
    Manifest(#[from] hetal_extract_api::manifest::Error),
    /// A damaged picture or an empty text, where such are refused.
    #[error("{}: {}; --bad skip leaves such samples out and lists them", sanitize_terminal(.item), sanitize_terminal(.reason))]
    BadSample {
        /// Which sample.
        item: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file that cannot be used.
    #[error("{}: {}", sanitize_terminal(.path), sanitize_terminal(.reason))]
    File {
        /// Which file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The network of a classifier is gone.
    #[error(
        "{}: no such file; the network that made the features is not there any more: say where it is with --network",
        sanitize_terminal(.path)
    )]
    NoNetwork {
        /// What was looked for.
        path: String,
    },
    /// A network of the catalogue that is not pinned.
    #[error(
        "no {missing} of {name} is known to this program: give --revision and --sha256, which the pages \
         https://huggingface.co/{hub}/commits/main and https://huggingface.co/{hub}/blob/main/model.safetensors show, or a folder \
         with {files}"
    )]
    NotPinned {
        /// Its short name.
        name: &'static str,
        /// Its name on the hub.
        hub: &'static str,
        /// What is not known.
        missing: &'static str,
        /// The files it consists of.
        files: String,
    },
    /// A network of the catalogue that is nowhere to be downloaded from.
    #[error(
        "{name} has no copy on the hub that this program reads: give its file, see docs/features.md for where to get it"
    )]
    NotOnHub {
        /// Its short name.
        name: &'static str,
    },
    /// No folder for downloaded models is known.
    #[error("no folder to keep downloaded models in is known: name one with --models")]
    NoCache,
    /// The worker ended without a result.
    #[error("{}", sanitize_terminal(.0))]
    Died(String),
    /// The worker reported an error, as a message for the user.
    #[error("{}", sanitize_terminal(.0))]
    Failed(String),
    /// The worker cannot be started.
    #[error("the process that reads the files cannot be started: {0}")]
    Start(std::io::Error),
    /// The limits cannot be set.
    #[error("the limits on memory and open files cannot be set: {0}")]
    Limits(std::io::Error),
    /// Arguments or a request that cannot be understood.
    #[error("{0}")]
    Arguments(String),
    /// The result cannot be printed.
    #[error("standard output: {0}")]
    Output(std::io::Error),
}

impl Error {
    /// A file that cannot be used.
    pub fn file(path: &Path, reason: impl Into<String>) -> Self {
        Self::File { path: path.display().to_string(), reason: reason.into() }
    }
}
