//! Progress events as dictionaries.

use crate::errors::in_python;
use hetal_client::rpc::Phase;
use hetal_client::training::{ProgressEvent, Round};
use hetal_learn::Verdict;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An event of the work.
pub enum Event {
    /// Another process or thread uses the project folder.
    Waiting(String),
    /// The server was chosen, and the training has a name.
    Begun {
        /// Where the server is.
        server: String,
        /// The name of the training.
        name: String,
        /// The project folder.
        project: String,
        /// Whether an interrupted training goes on.
        resumed: bool,
    },
    /// How rows are prepared, and the hyper-parameters that are asked for.
    Chosen(String),
    /// The connection is broken and retried.
    Broken(String),
    /// The work was asked to end, and ends after the step in progress.
    Stopping,
    /// The training.
    Progress(ProgressEvent),
    /// A round was judged.
    Judged {
        /// Its number, counted from 1.
        number: usize,
        /// The round.
        round: Round,
        /// Seconds since the round before it.
        seconds: f64,
    },
}

/// The event as a dictionary: `kind`, and what belongs to it.
pub fn to_dict<'py>(py: Python<'py>, event: &Event) -> PyResult<Option<Bound<'py, PyDict>>> {
    let dict = PyDict::new(py);
    let of = |kind: &str| dict.set_item("kind", kind);
    let counted = |kind: &str, done: u64, total: u64| -> PyResult<()> {
        of(kind)?;
        dict.set_item("done", done)?;
        dict.set_item("total", total)
    };
    let text = |kind: &str, text: &str| -> PyResult<()> {
        of(kind)?;
        dict.set_item("text", text)
    };
    match event {
        Event::Waiting(folder) => text("waiting", folder)?,
        Event::Broken(reason) => text("broken", reason)?,
        Event::Stopping => of("stopping")?,
        Event::Chosen(chosen) => text("chosen", &in_python(chosen.clone()))?,
        Event::Begun { server, name, project, resumed } => {
            of("begun")?;
            dict.set_item("server", server)?;
            dict.set_item("name", name)?;
            dict.set_item("project", project)?;
            dict.set_item("resumed", resumed)?;
        }
        Event::Judged { number, round, seconds } => {
            let check = round_dict(py, *number, round, Some(*seconds))?;
            check.set_item("kind", "epoch")?;
            return Ok(Some(check));
        }
        Event::Progress(progress) => match progress {
            ProgressEvent::Comparing => of("comparing")?,
            ProgressEvent::Keys { done, total } => counted("keys", *done as u64, *total as u64)?,
            ProgressEvent::Encrypting { done, total } => counted("encrypting", *done as u64, *total as u64)?,
            ProgressEvent::SendingKeys { sent, total } => counted("sending_keys", *sent, *total)?,
            ProgressEvent::SendingRows { sent, total } => counted("sending_rows", *sent, *total)?,
            ProgressEvent::Queued => of("queued")?,
            ProgressEvent::Started(engine) => text("started", engine)?,
            ProgressEvent::Working(working) => {
                let kind = match working.phase {
                    _ if working.resting => "resting",
                    Phase::Preparing => "preparing",
                    Phase::Training => "training",
                    Phase::Validating => "validating",
                    Phase::Classifying => "classifying",
                };
                counted(kind, working.done, working.total)?;
                dict.set_item("epoch", working.epoch)?;
            }
            ProgressEvent::Stranded(names) => text("stranded", &names.join(", "))?,
            ProgressEvent::Restarted { reason } => text("restarted", reason)?,
            ProgressEvent::Abandoned { job, cancelled } => {
                text("abandoned", &job.to_string())?;
                dict.set_item("cancelled", cancelled)?;
            }
            ProgressEvent::Checking => of("checking")?,
            ProgressEvent::Outliers { count, .. } => text("outliers", &count.to_string())?,
            ProgressEvent::Judged { .. } => return Ok(None),
        },
    }
    Ok(Some(dict))
}

/// A judged round as a dictionary.
pub fn round_dict<'py>(
    py: Python<'py>,
    number: usize,
    round: &Round,
    seconds: Option<f64>,
) -> PyResult<Bound<'py, PyDict>> {
    let verdict = match round.verdict {
        Verdict::Continue => "continue",
        Verdict::Stop => "stop",
        Verdict::LowerRate => "lower_rate",
        Verdict::WidenRange => "widen_range",
    };
    let dict = PyDict::new(py);
    dict.set_item("check", number)?;
    // The old name of the same number.
    dict.set_item("epoch", number)?;
    dict.set_item("loss", round.loss)?;
    dict.set_item("accuracy", round.accuracy)?;
    dict.set_item("largest_logit", round.largest)?;
    dict.set_item("verdict", verdict)?;
    dict.set_item("accepted", round.accepted)?;
    dict.set_item("seconds", seconds)?;
    Ok(dict)
}
