//! A training on the terminal: bars with the time left, or lines where there is no terminal.

use super::bytes;
use crate::progress;
use hetal_client::rpc::Phase;
use hetal_client::training::{Round, Step};
use hetal_learn::Verdict;
use indicatif::ProgressBar;
use std::io::IsTerminal;

/// Shows steps as they happen.
pub struct Steps {
    terminal: bool,
    stage: String,
    bar: Option<ProgressBar>,
}

impl Default for Steps {
    fn default() -> Self {
        Self::new()
    }
}

impl Steps {
    /// On standard error, so that `--json` has standard output for itself.
    pub fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { terminal, stage: String::new(), bar: None }
    }

    /// Shows a step.
    pub fn show(&mut self, step: Step) {
        match step {
            Step::Comparing => self.bar("looking at the key set", 0, 1),
            Step::Keys(done, all) => self.bar("making keys", done as u64, all as u64),
            Step::Stranded(names) => names.iter().for_each(|name| self.line(&stranded(name))),
            Step::Encrypting(done, all) => self.bar("encrypting rows", done as u64, all as u64),
            Step::SendingKeys(done, all) => self.bar(&format!("sending keys ({})", bytes(all)), done >> 20, all >> 20),
            Step::SendingRows(done, all) => self.bar(&format!("sending rows ({})", bytes(all)), done >> 20, all >> 20),
            Step::Queued => self.line("in the server's queue"),
            Step::Started(engine) => self.line(&format!("the server computes on: {engine}")),
            Step::Working(progress) if progress.resting => self.line(
                "the server's GPU failed or lacks memory: the job rests at its last checkpoint and goes on when it works again",
            ),
            Step::Working(progress) => {
                let name = match progress.phase {
                    Phase::Preparing => "server: preparing".to_owned(),
                    Phase::Training => format!("server: training, epoch {}", progress.epoch),
                    Phase::Validating => format!("server: validating epoch {}", progress.epoch),
                    Phase::Classifying => "server: classifying".to_owned(),
                };
                self.bar(&name, progress.done, progress.total);
            }
            Step::Judged(number, round) => self.judged(number, &round),
            Step::Checking => self.line("exact training on this machine, to compare with"),
        }
    }

    fn judged(&mut self, number: usize, round: &Round) {
        let verdict = match round.verdict {
            Verdict::Continue => "continue",
            Verdict::Stop => "stop",
            Verdict::LowerRate => "again with a lower rate",
            Verdict::WidenRange => "again with a wider range",
        };
        self.line(&format!(
            "round {number}: validation loss {:.4}, accuracy {:.2} %; told the server: {verdict}",
            round.loss,
            100.0 * round.accuracy
        ));
    }

    /// Shows a line that stays.
    pub fn line(&mut self, text: &str) {
        self.clear();
        eprintln!("{text}");
    }

    fn bar(&mut self, name: &str, done: u64, all: u64) {
        if self.stage != name {
            self.clear();
            self.stage = name.to_owned();
            if self.terminal {
                let bar = progress::bar(all);
                bar.set_message(name.to_owned());
                self.bar = Some(bar);
            } else {
                eprintln!("{name}");
            }
        }
        if let Some(bar) = &self.bar {
            bar.set_length(all);
            bar.set_position(done);
        }
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.stage.clear();
    }
}

/// What became of a training whose key set was replaced, and what to do.
pub fn stranded(name: &str) -> String {
    format!(
        "the training {name} was interrupted with the old key set: begin it again with `hetal train --name {name} --replace`"
    )
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.clear();
    }
}
