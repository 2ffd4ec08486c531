//! Errors of feature extraction: what happened, to which input, what to do.

use std::path::{Path, PathBuf};

/// The result of an extraction step.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong between raw data and feature vectors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, read or written.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{path}: {reason}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it and what would be right.
        reason: String,
    },
    /// The weights of a model are not where they were looked for.
    #[error(
        "{path}: no such file; a model is a folder with config.json and model.safetensors (or an .onnx file), \
         see docs/features.md for where to get one"
    )]
    NoWeights {
        /// The missing file.
        path: PathBuf,
    },
    /// The weights belong to another architecture.
    #[error("{path}: has no tensor {name}, so it is no {architecture} checkpoint; it holds {holds}")]
    NoTensor {
        /// The file of weights.
        path: PathBuf,
        /// What was looked for.
        name: String,
        /// What the configuration says the model is.
        architecture: &'static str,
        /// Some of the names it does hold.
        holds: String,
    },
    /// A tensor has another shape than the configuration says.
    #[error("{path}: tensor {name} has shape {found:?}, the configuration asks for {expected:?}")]
    Shape {
        /// The file of weights.
        path: PathBuf,
        /// Which tensor.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape it must have.
        expected: Vec<usize>,
    },
    /// A model that is not built in.
    #[error("{path}: model type {found} is not supported; built in are {known}, others can be brought as .onnx files")]
    Architecture {
        /// The configuration.
        path: PathBuf,
        /// What it names.
        found: String,
        /// What there is.
        known: &'static str,
    },
    /// An item of the data set that cannot be used.
    #[error("{item}: {reason}")]
    Item {
        /// The item, by file name or row.
        item: String,
        /// Why not.
        reason: String,
    },
    /// Images for a model of sentences or the other way round.
    #[error("the model reads {reads}, the data set holds {holds}")]
    Kind {
        /// What the model reads.
        reads: &'static str,
        /// What it was given.
        holds: &'static str,
    },
    /// A data set that cannot be split or has nothing in it.
    #[error("{path}: {reason}")]
    Dataset {
        /// The data set.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The tokenizer refused.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// A card is asked for, and this program knows of none.
    #[error(
        "this program was built without support for NVIDIA cards: build it with `cargo build --release -p hetal-features \
         --features cuda --bin hetal-extract` (docs/features.md), or take --device cpu"
    )]
    NoCuda,
    /// A card is asked for, and none can be used.
    #[error("no NVIDIA card can be used: {reason}; --device cpu runs the network without one")]
    NoCard {
        /// What the driver said.
        reason: String,
    },
    /// The tensor library refused.
    #[error("tensor arithmetic: {0}")]
    Tensor(#[from] candle_core::Error),
    /// A download failed or gave other bytes than were pinned.
    #[error("{address}: {reason}")]
    Download {
        /// What was asked for.
        address: String,
        /// What happened and what to do.
        reason: String,
    },
}

impl Error {
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }

    pub(crate) fn file(path: &Path, reason: impl Into<String>) -> Self {
        Self::File { path: path.to_owned(), reason: reason.into() }
    }

    pub(crate) fn item(item: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Item { item: item.into(), reason: reason.into() }
    }

    pub(crate) fn dataset(path: &Path, reason: impl Into<String>) -> Self {
        Self::Dataset { path: path.to_owned(), reason: reason.into() }
    }
}

impl From<hetal_extract_api::manifest::Error> for Error {
    fn from(error: hetal_extract_api::manifest::Error) -> Self {
        Self::File { path: error.path, reason: error.reason }
    }
}
