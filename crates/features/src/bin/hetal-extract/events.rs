//! The messages between the supervisor and its worker. Each is a line of JSON.

use crate::limits::Limits;
use hetal_extract_api::protocol::{Encode, ReadTable};
use hetal_extract_api::shorten;
use hetal_features::hub::PinnedModel;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// The first message to the worker, on standard input.
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
    /// The columns of a Parquet or Arrow file into one file.
    ReadTable(ReadTable),
}

/// A data set into files.
#[derive(Serialize, Deserialize)]
pub struct ExtractTask {
    /// The arguments as they came.
    pub arguments: Vec<OsString>,
    /// The most samples of each part.
    pub at_most: Option<[usize; 3]>,
    /// The network.
    pub model: ResolvedNetwork,
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
pub struct ResolvedNetwork {
    /// Its folder or file.
    pub path: OsString,
    /// What it must be, if it came from the hub.
    pub pin: Option<PinnedModel>,
}

/// The most bytes of an event. The supervisor ends a worker that sends a longer line.
pub const MAX_LINE: usize = 64 << 10;

/// The most characters of a text in an event. JSON writes a character in at most 12 bytes.
const MAX_TEXT: usize = 4096;

/// What the worker reports, on standard output.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum WorkerEvent {
    /// The current activity, as it follows "while".
    Activity(String),
    /// The number of all samples.
    Total(u64),
    /// A sample is being read: its number and name.
    Begin(usize, String),
    /// A sample has been read.
    End(usize),
    /// The number of finished samples.
    Done(u64),
    /// There is progress that is not counted in samples.
    Alive,
    /// A note for the user.
    Note(String),
    /// The task is done.
    Finished,
    /// The task failed, with the message for the user.
    Failed(String),
}

impl WorkerEvent {
    /// The event as a line, with its end. Long texts are shortened.
    pub fn to_line(&self) -> String {
        let short = |text: &String| shorten(text, MAX_TEXT);
        let event = match self {
            Self::Activity(text) => &Self::Activity(short(text)),
            Self::Begin(index, name) => &Self::Begin(*index, short(name)),
            Self::Note(text) => &Self::Note(short(text)),
            Self::Failed(text) => &Self::Failed(short(text)),
            other => other,
        };
        serde_json::to_string(event).unwrap_or_default() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_fit_in_a_line() {
        for character in ["x", "\x1b", "\u{10ffff}", "\""] {
            let text = character.repeat(1 << 20);
            let events = [
                WorkerEvent::Activity(text.clone()),
                WorkerEvent::Begin(usize::MAX, text.clone()),
                WorkerEvent::Note(text.clone()),
                WorkerEvent::Failed(text),
            ];
            events.iter().for_each(|event| assert!(event.to_line().len() <= MAX_LINE, "{character:?}"));
        }
        let short = WorkerEvent::Begin(3, "cat/1.png".to_owned());
        assert_eq!(serde_json::from_str::<WorkerEvent>(&short.to_line()).unwrap(), short);
    }
}
