//! Progress as JSON lines, for programs that follow a training.
//!
//! Every line is an object with the field `event`, and every field has a name that records have for
//! the same thing. `docs/reports.md` lists them.

use hetal_client::training::{PhaseProgress, ProgressEvent, ShownRound};
use hetal_extract_api::escape_json;
use hetal_report::Unit;
use serde::Serialize;
use std::io::Write;
use std::time::{Duration, Instant};

/// The version of the lines. Fields may be added without a new one.
const VERSION: u32 = 1;
/// A phase has at most one line in this time, beside those of its first and last moment.
const PERIOD: Duration = Duration::from_secs(1);

/// A line.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    /// The first line.
    Begin { version: u32, program: &'a str },
    /// What is done of a phase.
    Phase { phase: &'a str, done: u64, total: u64, unit: Unit, epoch: usize, seconds: f64 },
    /// The server computes on this engine.
    Engine { engine: &'a str, seconds: f64 },
    /// A check was judged.
    Check {
        number: usize,
        #[serde(flatten)]
        shown: ShownRound,
        seconds: f64,
    },
    /// Something that people are told too.
    Note { text: &'a str, seconds: f64 },
}

/// Writes events as lines.
pub struct EventLines<W> {
    out: W,
    began: Instant,
    epoch: usize,
    /// The last line of a phase: its name, what was done of it, and when it was written.
    last: Option<(PhaseProgress, Instant)>,
}

impl<W: Write> EventLines<W> {
    /// Begins with the line that names program and version.
    pub fn new(out: W) -> Self {
        let mut lines = Self { out, began: Instant::now(), epoch: 0, last: None };
        lines.write(&Line::Begin { version: VERSION, program: concat!("hetal ", env!("CARGO_PKG_VERSION")) });
        lines
    }

    /// Writes what is machine-readable of an event.
    pub fn event(&mut self, event: &ProgressEvent) {
        if let ProgressEvent::Working(progress) = event
            && !progress.resting
        {
            self.epoch = progress.epoch;
        }
        let seconds = self.seconds();
        match event {
            ProgressEvent::Started(engine) => self.write(&Line::Engine { engine, seconds }),
            ProgressEvent::Judged { number, round } => {
                self.write(&Line::Check { number: *number, shown: round.shown(), seconds });
            }
            _ => {}
        }
        if let Some(now) = event.phase() {
            self.phase(now);
        }
    }

    fn phase(&mut self, now: PhaseProgress) {
        let is_due = self.last.is_none_or(|(last, when)| {
            let ends = now.done == now.total && last.done < now.done;
            now.name != last.name || now.done < last.done || ends || when.elapsed() >= PERIOD && now != last
        });
        if is_due {
            self.last = Some((now, Instant::now()));
            let PhaseProgress { name: phase, done, total, unit } = now;
            self.write(&Line::Phase { phase, done, total, unit, epoch: self.epoch, seconds: self.seconds() });
        }
    }

    /// Writes what people are told too.
    pub fn note(&mut self, text: &str) {
        let seconds = self.seconds();
        self.write(&Line::Note { text: text.trim_end(), seconds });
    }

    /// Seconds since the first line.
    fn seconds(&self) -> f64 {
        (self.began.elapsed().as_secs_f64() * 10.0).round() / 10.0
    }

    /// A line, in one write. Whoever follows the events may end before the training does.
    fn write(&mut self, line: &Line<'_>) {
        if let Ok(text) = serde_json::to_string(line) {
            let _ = self.out.write_all(format!("{}\n", escape_json(&text)).as_bytes());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hetal_client::training::Round;
    use hetal_learn::Verdict;
    use serde_json::{Value, json};

    /// The lines of some events, without their times.
    fn lines(events: &[ProgressEvent]) -> Vec<Value> {
        let mut lines = EventLines::new(Vec::new());
        events.iter().for_each(|event| lines.event(event));
        lines.note("a note\n\u{1b}[2J\n");
        let text = String::from_utf8(lines.out).unwrap();
        assert!(!text.contains('\u{1b}'), "{text}");
        let line = |line: &str| {
            let mut value: Value = serde_json::from_str(line).unwrap();
            let seconds = value.as_object_mut().unwrap().remove("seconds");
            assert!(value["event"] == "begin" || seconds.is_some_and(|seconds| seconds.is_number()), "{line}");
            value
        };
        text.lines().map(line).collect()
    }

    #[test]
    fn lines_have_stable_fields() {
        let round =
            Round { verdict: Verdict::LowerRate, accepted: false, loss: 0.987_65, accuracy: 0.5, largest: 61.0 };
        let rows = |sent| ProgressEvent::SendingRows { sent, total: 4096 };
        let lines = lines(&[
            rows(0),
            rows(1024),
            rows(4096),
            ProgressEvent::Started("cpu".to_owned()),
            ProgressEvent::Judged { number: 3, round },
        ]);
        let phase = |phase: &str, done: u64, total: u64, unit: &str| json!({ "event": "phase", "phase": phase, "done": done, "total": total, "unit": unit, "epoch": 0 });
        let expected = [
            json!({ "event": "begin", "version": 1, "program": "hetal 0.1.0" }),
            // The line in the middle came less than a second after the first.
            phase("sending rows", 0, 4096, "bytes"),
            phase("sending rows", 4096, 4096, "bytes"),
            json!({ "event": "engine", "engine": "cpu" }),
            phase("server: preparing", 0, 0, "pieces"),
            json!({
                "event": "check", "number": 3, "verdict": "lower_rate", "accepted": false, "loss": 0.988,
                "accuracy": 0.5, "largest_logit": 61.0,
            }),
            json!({ "event": "note", "text": "a note\n\u{1b}[2J" }),
        ];
        assert_eq!(lines, expected);
    }
}
