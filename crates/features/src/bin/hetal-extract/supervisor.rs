//! Starts the worker, shows how far it is, and says what happened if it dies.

use crate::bars;
use crate::error::{Error, Result};
use crate::events::{Assignment, Event, Task};
use crate::limits::Limits;
use crate::worker::WORKER;
use hetal_extract_api::protocol::{HUB_SECRETS, SECRETS};
use hetal_extract_api::sanitize_terminal;
use indicatif::ProgressBar;
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes that are kept of what a worker says as it dies.
const LAST_WORDS: usize = 16 << 10;

/// Samples that a message names.
const NAMED: usize = 4;

/// Runs a task in a worker. A worker that is silent for `stall` is killed.
pub fn supervise(task: Task, limits: Limits, stall: Duration) -> Result<()> {
    let goes_on = matches!(task, Task::Extract(_));
    let mut worker = start()?;
    let (Some(mut input), Some(output), Some(errors)) =
        (worker.stdin.take(), worker.stdout.take(), worker.stderr.take())
    else {
        return Err(Error::Start(std::io::Error::other("it has no pipes")));
    };
    let (events, last_words) = (events(output), last_words(errors));
    let line = serde_json::to_string(&Assignment { task, limits }).map_err(|e| Error::Arguments(e.to_string()))?;
    // A worker that is dead already is noticed below.
    input.write_all(line.as_bytes()).and_then(|()| input.write_all(b"\n")).and_then(|()| input.flush()).ok();
    let mut progress = Progress::new();
    let stalled = loop {
        match events.recv_timeout(stall) {
            Ok(event) => progress.hear(event),
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => {
                worker.kill().ok();
                break true;
            }
        }
    };
    let status = worker.wait().map_err(Error::Start)?;
    // Open until here: its end tells the worker that nobody hears it.
    drop(input);
    progress.bar.finish_and_clear();
    if let Some(outcome) = progress.outcome.take() {
        return outcome;
    }
    let words = last_words.join().unwrap_or_default();
    let stalled = stalled.then_some(stall);
    let happened = Death { status, words: &words, stalled, limits }.explain();
    let kept = if goes_on { "; what is finished is kept, and the same command goes on from there" } else { "" };
    Err(Error::Died(format!("reading {happened} while {}{kept}", progress.working_on())))
}

/// This program again, as a worker, without anything secret in its environment.
fn start() -> Result<Child> {
    let program = std::env::current_exe().map_err(Error::Start)?;
    let mut command = Command::new(program);
    command.arg(WORKER).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    SECRETS.iter().chain(&HUB_SECRETS).for_each(|name| {
        command.env_remove(name);
    });
    // Its last words are read below: a backtrace would drown them.
    command.env("RUST_BACKTRACE", "0");
    command.spawn().map_err(Error::Start)
}

/// What the worker tells, from a thread of its own.
fn events(output: ChildStdout) -> Receiver<Event> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(std::result::Result::ok) {
            let unread = |error: serde_json::Error| Event::Failed(format!("the worker sent no event: {error}"));
            let event = serde_json::from_str(&line).unwrap_or_else(unread);
            if sender.send(event).is_err() {
                break;
            }
        }
    });
    receiver
}

/// The last of what the worker writes to standard error: why it panicked or gave up.
fn last_words(mut errors: ChildStderr) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let (mut kept, mut buffer) = (VecDeque::new(), [0; 4096]);
        while let Ok(read @ 1..) = errors.read(&mut buffer) {
            kept.extend(&buffer[..read]);
            kept.drain(..kept.len().saturating_sub(LAST_WORDS));
        }
        String::from_utf8_lossy(kept.make_contiguous()).into_owned()
    })
}

/// How far a worker is.
struct Progress {
    bar: ProgressBar,
    /// Whether the first count of samples has come: what earlier runs did says nothing about the
    /// time that is left.
    counted: bool,
    doing: String,
    reading: BTreeMap<usize, String>,
    outcome: Option<Result<()>>,
}

impl Progress {
    fn new() -> Self {
        let bar = bars::spinner("starting");
        Self { bar, counted: false, doing: "it started".to_owned(), reading: BTreeMap::new(), outcome: None }
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Doing(what) => {
                if self.bar.length().is_none() {
                    self.bar.set_message(sanitize_terminal(&what));
                }
                self.doing = what;
            }
            Event::Total(samples) => {
                self.bar.finish_and_clear();
                self.bar = bars::bar(samples, "extracting features");
            }
            Event::Begin(index, name) => {
                self.reading.insert(index, name);
            }
            Event::End(index) => {
                self.reading.remove(&index);
            }
            Event::Done(samples) => {
                if !std::mem::replace(&mut self.counted, true) {
                    self.bar.reset_eta();
                }
                self.bar.set_position(samples);
            }
            Event::Alive => {}
            Event::Note(note) => self.bar.suspend(|| eprintln!("note: {}", sanitize_terminal(&note))),
            Event::Finished => self.outcome = Some(Ok(())),
            Event::Failed(reason) => self.outcome = Some(Err(Error::Failed(reason))),
        }
    }

    /// What the worker was last heard to do, as it follows "while".
    fn working_on(&self) -> String {
        let names: Vec<&str> = self.reading.values().take(NAMED).map(String::as_str).collect();
        match (names.len(), self.reading.len()) {
            (0, _) => self.doing.clone(),
            (named, all) if named == all => format!("reading {}", names.join(", ")),
            (named, all) => format!("reading {} and {} more", names.join(", "), all - named),
        }
    }
}

/// How a worker ended that told no result.
struct Death<'a> {
    status: ExitStatus,
    words: &'a str,
    stalled: Option<Duration>,
    limits: Limits,
}

impl Death<'_> {
    /// What happened, as it follows "reading".
    fn explain(&self) -> String {
        if let Some(stall) = self.stalled {
            return format!("made no progress for {} seconds (--stall-seconds) and was ended", stall.as_secs());
        }
        if let (true, Some(gib)) = (self.is_starved(), self.limits.memory_gib()) {
            return format!("needed more than {gib:.2} GiB of memory (--memory-gib)");
        }
        if let Some(signal) = signal(self.status) {
            return format!("was ended by signal {signal}");
        }
        let said = |line: &&str| !line.trim().is_empty() && !line.starts_with("note:");
        match self.words.lines().rev().find(said) {
            Some(line) => format!("failed ({line})"),
            None => format!("failed ({})", self.status),
        }
    }

    /// Whether an allocation was refused: the standard library and the system's libraries say so
    /// before they give up.
    fn is_starved(&self) -> bool {
        let signs =
            ["memory allocation of", "Cannot allocate memory", "out of memory", "Resource temporarily unavailable"];
        signs.iter().any(|sign| self.words.contains(sign))
    }
}

#[cfg(unix)]
fn signal(status: ExitStatus) -> Option<String> {
    let number = std::os::unix::process::ExitStatusExt::signal(&status)?;
    Some(match number {
        4 => "4 (SIGILL)".to_owned(),
        6 => "6 (SIGABRT)".to_owned(),
        7 => "7 (SIGBUS)".to_owned(),
        8 => "8 (SIGFPE)".to_owned(),
        9 => "9 (SIGKILL; the system sends it when memory runs out)".to_owned(),
        11 => "11 (SIGSEGV)".to_owned(),
        15 => "15 (SIGTERM)".to_owned(),
        other => other.to_string(),
    })
}

#[cfg(not(unix))]
fn signal(_: ExitStatus) -> Option<String> {
    None
}
