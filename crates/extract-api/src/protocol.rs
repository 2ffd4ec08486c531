//! What `hetal` asks of `hetal-extract`, and what it is told.
//!
//! `hetal-extract request` reads one line of JSON from standard input, a [`Request`], and prints
//! one line of JSON, a [`Reply`]. The request holds everything that is private: nothing of it is on
//! the command line, which other users of the machine can see. Standard input stays open while the
//! caller runs; when it is closed, the extractor ends.

use crate::arguments::DeviceArgument;
use crate::manifest::Manifest;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// The version of the messages. A change of them raises it, so that a program that was built
/// earlier is not misunderstood.
macro_rules! protocol {
    () => {
        2
    };
}

/// The version of both programs and of the messages between them.
pub const VERSION_TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), " (protocol ", protocol!(), ")");

/// The name of the program.
pub const PROGRAM: &str = "hetal-extract";

/// The argument under which the program carries out one request.
pub const REQUEST: &str = "request";

/// Variables of the environment that neither the extractor nor its worker gets.
pub const SECRETS: [&str; 2] = ["HETAL_TOKEN", "HETAL_PASSPHRASE"];

/// Tokens of the hub: the extractor downloads with them, its worker does not get them.
pub const HUB_SECRETS: [&str; 2] = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];

/// What the program says of its version.
pub fn version_line() -> String {
    format!("{PROGRAM} {VERSION_TEXT}")
}

/// Why a program of another version cannot be used, given the line it says of its version.
pub fn version_difference(line: &str) -> Option<String> {
    let line = line.trim();
    if line == version_line() {
        return None;
    }
    let Some(theirs) = parsed(line) else {
        return Some(format!(
            "is no {PROGRAM}: it says {:?} of its version",
            line.chars().take(80).collect::<String>()
        ));
    };
    let older = parsed(&version_line()).is_some_and(|ours| theirs < ours);
    let update = if older { PROGRAM } else { "hetal" };
    Some(format!("is of another version: it says {line:?}, this is {:?}; update {update}", version_line()))
}

/// Version and protocol as numbers.
fn parsed(line: &str) -> Option<(Vec<u64>, u64)> {
    let (version, protocol) = line.strip_prefix(PROGRAM)?.trim().split_once(" (protocol ")?;
    let version = version.split('.').map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
    Some((version, protocol.strip_suffix(')')?.parse().ok()?))
}

/// What `hetal` asks for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Features of a few pictures or texts, for a prediction.
    Encode(Box<Encode>),
    /// An extraction, as the command line of `hetal-extract` would ask for it.
    Extract(Extract),
    /// The columns of a Parquet or Arrow file.
    ReadTable(ReadTable),
}

/// Features of a few pictures or texts. Paths are operating system strings: names of files need not
/// be UTF-8.
#[derive(Debug, Serialize, Deserialize)]
pub struct Encode {
    /// How the features of the classifier were made: the same network is used.
    pub manifest: Manifest,
    /// Pictures to read; empty if there are texts.
    pub pictures: Vec<OsString>,
    /// Texts to read.
    pub texts: Vec<String>,
    /// Where the network is now, if it is not where it was.
    pub network: Option<OsString>,
    /// Where downloaded networks are kept.
    pub models: Option<OsString>,
    /// Where the network runs.
    pub device: DeviceArgument,
    /// The `.npy` file to write.
    pub out: OsString,
}

/// An extraction.
#[derive(Debug, Serialize, Deserialize)]
pub struct Extract {
    /// The arguments.
    pub arguments: Vec<OsString>,
    /// The most samples of each part: training, validation, test.
    pub at_most: Option<[usize; 3]>,
}

/// The columns of a Parquet or Arrow file, for `hetal_tables::column_file`. Columns are named, or
/// numbered from 1.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadTable {
    /// The file.
    pub path: OsString,
    /// The features; all columns if there are none.
    pub columns: Vec<String>,
    /// Columns to leave out.
    pub drop: Vec<String>,
    /// The features by name, in this order. Others are left out.
    pub expected: Option<Vec<String>>,
    /// The column of labels.
    pub label: Option<String>,
    /// The column that names the rows.
    pub id: Option<String>,
    /// Whether it is a file of labels: there are no features.
    pub is_labels: bool,
    /// The file to write.
    pub out: OsString,
}

/// What `hetal` is told.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// It was done.
    Done,
    /// It failed, with the message for the user.
    Failed(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VERSION;

    #[test]
    fn another_version_says_what_to_update() {
        assert_eq!(version_difference(&format!("{}\n", version_line())), None);
        let said = |line: &str| version_difference(line).unwrap_or_default();
        assert!(said("hetal-extract 0.0.9 (protocol 9)").ends_with("update hetal-extract"));
        assert!(said("hetal-extract 99.0.0 (protocol 1)").ends_with("update hetal"));
        assert!(said(&format!("hetal-extract {VERSION} (protocol 0)")).ends_with("update hetal-extract"));
        for other in ["", "hetal-extract", "ls (GNU coreutils) 9.1", "hetal-extract 1.x (protocol 1)"] {
            assert!(said(other).contains("is no hetal-extract"), "{other}");
        }
    }
}
