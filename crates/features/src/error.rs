//! Errors of feature extraction: what happened, to which input, what to do next. Messages quote
//! names and values from files of others, without control characters and shortened.

use crate::untrusted::quoted;
use std::path::{Path, PathBuf};

/// The result of an extraction step.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong between raw data and feature vectors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, read or written.
    #[error("{}: {source}", shown(.path))]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {}", shown(.path), quoted(.reason))]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        reason: String,
    },
    /// The weights of a model are not where they were looked for.
    #[error(
        "{}: no such file; a model is a folder with config.json and model.safetensors (or an .onnx file), \
         see docs/features.md for where to get one",
        shown(.path)
    )]
    NoWeights {
        /// The missing file.
        path: PathBuf,
    },
    /// The weights belong to another architecture.
    #[error(
        "{}: has no tensor {}, so it is no {architecture} checkpoint (it holds {}); get the network again, or correct \
         model_type in config.json",
        shown(.path),
        quoted(.name),
        quoted(.holds)
    )]
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
    #[error(
        "{}: tensor {} has the shape {found:?}, but the configuration says {expected:?}; get the weights and config.json \
         of one network",
        shown(.path),
        quoted(.name)
    )]
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
    /// A model of an unsupported type.
    #[error(
        "{}: model type {} is not supported; use one of {known}, or export the network as an .onnx file",
        shown(.path),
        quoted(.found)
    )]
    Architecture {
        /// The configuration.
        path: PathBuf,
        /// What it names.
        found: String,
        /// What there is.
        known: &'static str,
    },
    /// A sample of the data set that cannot be used.
    #[error("{}: {}", quoted(.item), quoted(.reason))]
    Item {
        /// The item, by file name or row.
        item: String,
        /// Why not.
        reason: String,
    },
    /// Images for a model of sentences or the other way round.
    #[error("the model reads {reads}, but the data set holds {holds}; use another model or data set")]
    Kind {
        /// What the model reads.
        reads: &'static str,
        /// What it was given.
        holds: &'static str,
    },
    /// A data set that cannot be split or has nothing in it.
    #[error("{}: {}", shown(.path), quoted(.reason))]
    Dataset {
        /// The data set.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A Parquet or Arrow file cannot be read. The process that asked for it names it.
    #[error("{}", quoted(.0))]
    Table(String),
    /// The tokenizer failed.
    #[error("the tokenizer cannot read a text: {}; get tokenizer.json again", quoted(.0))]
    Tokenizer(String),
    /// A GPU was requested, but this build does not support GPUs.
    #[error(
        "this program was built without support for NVIDIA GPUs: build it with `cargo build --release -p hetal-features \
         --features cuda --bin hetal-extract` (docs/features.md), or use --device cpu"
    )]
    NoCuda,
    /// A GPU was requested, but none can be used.
    #[error("no NVIDIA GPU can be used: {reason}; --device cpu runs the network without one")]
    NoGpu {
        /// What the driver said.
        reason: String,
    },
    /// An operation of the tensor library failed.
    #[error("an operation of the network failed: {}; check the files of the network", quoted(&.0.to_string()))]
    Tensor(#[from] candle_core::Error),
    /// A download failed or gave other bytes than were pinned.
    #[error("{}: {}", quoted(.address), quoted(.reason))]
    Download {
        /// What was asked for.
        address: String,
        /// What happened and what to do.
        reason: String,
    },
}

/// A path as it may stand in a message.
fn shown(path: &Path) -> String {
    quoted(&path.display().to_string())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What stands in a file must not act on a terminal, in whatever field of an error it arrives.
    #[test]
    fn no_message_holds_control_characters() {
        let bad = || "a\x1b]0;b\x07\u{202e}\n".to_owned();
        let path = || PathBuf::from(bad());
        let errors = [
            Error::io(&path())(std::io::Error::other("x")),
            Error::file(&path(), bad()),
            Error::NoWeights { path: path() },
            Error::NoTensor { path: path(), name: bad(), architecture: "BERT", holds: bad() },
            Error::Shape { path: path(), name: bad(), found: vec![], expected: vec![] },
            Error::Architecture { path: path(), found: bad(), known: "bert" },
            Error::item(bad(), bad()),
            Error::dataset(&path(), bad()),
            Error::Tokenizer(bad()),
            Error::Tensor(candle_core::Error::Msg(bad())),
            Error::Download { address: bad(), reason: bad() },
        ];
        for error in errors {
            let text = error.to_string();
            assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'), "{text:?}");
        }
        let long = Error::dataset(Path::new("x"), "y".repeat(1 << 20)).to_string();
        assert!(long.len() < 3000, "{}", long.len());
    }
}
