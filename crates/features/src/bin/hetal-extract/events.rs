//! What the supervisor and its worker tell each other, each message a line of JSON.

use crate::limits::Limits;
use hetal_extract_api::protocol::Encode;
use hetal_features::hub::Pin;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// What the worker is told, on standard input.
#[derive(Serialize, Deserialize)]
pub struct Assignment {
    /// What to do.
    pub task: Task,
    /// With which limits.
    pub limits: Limits,
}

/// What to do.
#[derive(Serialize, Deserialize)]
pub enum Task {
    /// A data set into files.
    Extract(ExtractTask),
    /// A few pictures or texts into one file.
    Encode(EncodeTask),
}

/// A data set into files.
#[derive(Serialize, Deserialize)]
pub struct ExtractTask {
    /// The arguments as they came.
    pub arguments: Vec<OsString>,
    /// The most samples of each part.
    pub at_most: Option<[usize; 3]>,
    /// The network.
    pub model: Model,
}

/// A few pictures or texts into one file.
#[derive(Serialize, Deserialize)]
pub struct EncodeTask {
    /// Which, and by which network.
    pub request: Box<Encode>,
    /// Where the network is, if it is not where it was.
    pub folder: Option<OsString>,
}

/// A network on this machine.
#[derive(Serialize, Deserialize)]
pub struct Model {
    /// Its folder or file.
    pub path: OsString,
    /// What it must be, if it came from the hub.
    pub pin: Option<Pin>,
}

/// What the worker tells, on standard output.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// What it does now, as it follows "while".
    Doing(String),
    /// So many samples there are in all.
    Total(u64),
    /// A sample is being read.
    Begin(usize, String),
    /// It has been read.
    End(usize),
    /// So many samples are done.
    Done(u64),
    /// It makes progress.
    Alive,
    /// What the user should know.
    Note(String),
    /// All is done.
    Finished,
    /// It cannot be done.
    Failed(String),
}
