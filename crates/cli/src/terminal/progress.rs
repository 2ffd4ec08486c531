//! Progress on standard error: bars on a terminal, lines of text or of JSON elsewhere.

use crate::terminal::events::EventLines;
use crate::terminal::format::bytes;
use crate::terminal::live::LiveView;
use hetal_client::rpc::Phase;
use hetal_client::training::{ProgressEvent, Round, shown_loss};
pub use hetal_experiments::report::progress::{bar, spinner};
use hetal_learn::Verdict;
use std::io::{IsTerminal, Stderr};

/// Shows the progress of a training.
pub struct TrainingProgress {
    /// None where lines are printed instead.
    view: Option<LiveView>,
    /// Lines of JSON, instead of those for people.
    events: Option<EventLines<Stderr>>,
    stage: String,
}

impl Default for TrainingProgress {
    fn default() -> Self {
        Self::new()
    }
}

impl TrainingProgress {
    /// Progress on standard error; standard output is for results.
    pub fn new() -> Self {
        let view = std::io::stderr().is_terminal().then(LiveView::new);
        Self { view, events: None, stage: String::new() }
    }

    /// Progress of a command whose result is JSON: where nobody looks, it is JSON too.
    pub fn of_json(json: bool) -> Self {
        let mut progress = Self::new();
        progress.events = (json && progress.view.is_none()).then(|| EventLines::new(std::io::stderr()));
        progress
    }

    /// Prints text of several lines before anything else is shown.
    pub fn preface(&mut self, text: &str) {
        match &mut self.events {
            _ if text.is_empty() => {}
            Some(events) => events.note(text),
            None => eprint!("{text}"),
        }
    }

    /// Shows an event.
    pub fn show(&mut self, event: ProgressEvent) {
        if let Some(events) = &mut self.events {
            events.event(&event);
        }
        match event {
            ProgressEvent::Comparing => self.bar("checking the key set", 0, 1),
            ProgressEvent::Keys { done, total } => self.bar("making keys", done as u64, total as u64),
            ProgressEvent::Stranded(names) => names.iter().for_each(|name| self.line(&stranded(name))),
            ProgressEvent::Encrypting { done, total } => self.bar("encrypting rows", done as u64, total as u64),
            ProgressEvent::SendingKeys { sent, total } => {
                self.transfer(&format!("sending keys ({})", bytes(total)), sent, total)
            }
            ProgressEvent::SendingRows { sent, total } => {
                self.transfer(&format!("sending rows ({})", bytes(total)), sent, total)
            }
            // Lines of JSON have these already.
            ProgressEvent::Queued | ProgressEvent::Started(_) if self.events.is_some() => {}
            ProgressEvent::Queued => self.line("waiting in the server's queue"),
            ProgressEvent::Started(engine) => self.line(&format!("the server computes on {engine}")),
            ProgressEvent::Working(progress) if progress.resting => self.line(
                "the server's GPU failed or has too little memory: the job waits at its last checkpoint and \
                 continues when the GPU works again",
            ),
            ProgressEvent::Working(progress) => {
                let name = match progress.phase {
                    Phase::Preparing => "server: preparing".to_owned(),
                    Phase::Training => format!("server: training, epoch {}", progress.epoch),
                    Phase::Validating => format!("server: checking in epoch {}", progress.epoch),
                    Phase::Classifying => "server: classifying".to_owned(),
                };
                self.bar(&name, progress.done, progress.total);
            }
            ProgressEvent::Judged { number, round } => self.judged(number, &round),
            ProgressEvent::Restarted { reason } => {
                self.line(&format!("the job failed meanwhile ({reason}): starting a new one with the same rows"));
            }
            ProgressEvent::Abandoned { job, cancelled: true } => {
                self.line(&format!("the record of this training was lost: its job {job} was cancelled"));
            }
            ProgressEvent::Abandoned { job, cancelled: false } => self.line(&format!(
                "the record of this training was lost. Job {job} of the same name has not ended; if it is this \
                 project's, the new job may wait for it: end it with `hetal cancel {job}`"
            )),
            ProgressEvent::Outliers { rows, count, guard } => self.line(&outliers(&rows, count, guard)),
            ProgressEvent::Checking => {
                self.line("computing the plaintext reference: the same training on this machine, without encryption");
            }
        }
    }

    fn judged(&mut self, number: usize, round: &Round) {
        if self.events.is_some() {
            return;
        }
        let verdict = match round.verdict {
            Verdict::Continue => "continue",
            Verdict::Stop => "stop",
            Verdict::LowerRate => "retry with a lower rate",
            Verdict::WidenRange => "retry with a wider range",
        };
        // The loss of a round that was refused.
        if round.loss == f64::MAX {
            self.line(&format!("check {number}: not what an honest server sends; verdict: {verdict}"));
            return;
        }
        if let Some(view) = &mut self.view
            && round.accepted
        {
            view.check(number, round);
            if round.verdict == Verdict::Continue {
                return;
            }
        }
        self.line(&format!(
            "check {number}: validation loss {:.3}, accuracy {:.2} %; verdict: {verdict}",
            shown_loss(round.loss),
            100.0 * round.accuracy
        ));
    }

    /// Prints a permanent line.
    pub fn line(&mut self, text: &str) {
        self.stage.clear();
        match (&mut self.view, &mut self.events) {
            (Some(view), _) => {
                view.clear();
                view.line(text);
            }
            (None, Some(events)) => events.note(text),
            (None, None) => eprintln!("{text}"),
        }
    }

    fn bar(&mut self, name: &str, done: u64, all: u64) {
        self.step(name, done, all, false);
    }

    fn transfer(&mut self, name: &str, done: u64, all: u64) {
        self.step(name, done, all, true);
    }

    fn step(&mut self, name: &str, done: u64, all: u64, is_bytes: bool) {
        let is_new = self.stage != name;
        if is_new {
            name.clone_into(&mut self.stage);
        }
        match &mut self.view {
            Some(view) => {
                if is_new {
                    view.begin(name, all, is_bytes);
                }
                view.set(done, all);
            }
            None if is_new && self.events.is_none() => eprintln!("{name}"),
            None => {}
        }
    }
}

/// The message about rows that are not sent.
fn outliers(rows: &[usize], count: usize, guard: f64) -> String {
    let listed = rows.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let which = match count {
        1 => format!("row {listed} is"),
        _ if count > rows.len() => format!("{count} rows (the first are {listed}) are"),
        _ => format!("rows {listed} are"),
    };
    format!(
        "note: {which} more than {guard} times as long as the longest training row, too long for the encrypted \
         circuit: classified on this machine instead. Check the values"
    )
}

/// The message about an interrupted training whose key set was replaced.
pub fn stranded(name: &str) -> String {
    format!(
        "the interrupted training {name} used the old key set: start it again with `hetal train --name {name} --replace`"
    )
}

impl Drop for TrainingProgress {
    fn drop(&mut self) {
        if let Some(view) = &mut self.view {
            view.end();
        }
    }
}
