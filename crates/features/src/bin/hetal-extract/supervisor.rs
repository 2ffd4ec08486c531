//! Starts the worker, shows its progress, and explains what happened if it dies.
//!
//! The worker reads the files of others, so nothing that it sends is trusted: lines and what is
//! kept of them are bounded, and a worker that breaks a bound is ended.

use crate::bars;
use crate::error::{Error, Result};
use crate::events::{Assignment, MAX_LINE, Task, WorkerEvent};
use crate::limits::Limits;
use crate::worker::WORKER;
use hetal_extract_api::protocol::{HUB_SECRETS, SECRETS};
use hetal_extract_api::{read_line, sanitize_terminal};
use indicatif::ProgressBar;
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufReader, Read, Write};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that are kept of the end of the worker's standard error.
const STDERR_TAIL: usize = 16 << 10;

/// Samples that a message names.
const NAMED: usize = 4;

/// Samples that may be read at a time. An extraction reads chunks of at most 512.
const MAX_READING: usize = 4096;

/// How long a worker that closed its output may take to end.
const GRACE: Duration = Duration::from_secs(5);
/// How often its end is looked for.
const TICK: Duration = Duration::from_millis(5);

/// Events that wait to be shown. A worker that is faster waits.
const EVENT_QUEUE: usize = 1024;

/// What the worker sent is no event, or too much: why.
type BrokenWorker = String;

/// Why no more events are read.
#[derive(Debug, PartialEq)]
enum EndOfEvents {
    /// The worker closed its output.
    Closed,
    /// No event came in time.
    Stalled,
    /// The worker does not keep to the protocol.
    Broken(BrokenWorker),
}

/// Runs a task in a worker. A worker that is silent for `stall` is killed.
pub fn supervise(task: Task, limits: Limits, stall: Duration) -> Result<()> {
    let is_resumable = matches!(task, Task::Extract(_));
    let has_options = !matches!(task, Task::ReadTable(_));
    let mut worker = start()?;
    let (Some(mut input), Some(output), Some(errors)) =
        (worker.stdin.take(), worker.stdout.take(), worker.stderr.take())
    else {
        return Err(Error::Start(std::io::Error::other("it has no pipes")));
    };
    let (events, stderr_tail) = (events(output), stderr_tail(errors));
    let line = serde_json::to_string(&Assignment { task, limits }).map_err(|e| Error::Arguments(e.to_string()))?;
    // A worker that has already ended is noticed below.
    input.write_all(line.as_bytes()).and_then(|()| input.write_all(b"\n")).and_then(|()| input.flush()).ok();
    let mut progress = Progress::new();
    let end = progress.follow(&events, stall);
    let grace = if end == EndOfEvents::Closed { GRACE } else { Duration::ZERO };
    let status = end_of(&mut worker, grace).map_err(Error::Start)?;
    // Open until here: the worker ends when its input is closed.
    drop(input);
    progress.bar.finish_and_clear();
    if let (EndOfEvents::Closed | EndOfEvents::Stalled, Some(outcome)) = (&end, progress.outcome.take()) {
        return outcome;
    }
    let stderr = finished(stderr_tail).unwrap_or_default();
    let happened = WorkerExit { end, status, stderr: &stderr, stall, limits, has_options }.explain();
    let kept = if is_resumable { "; finished samples are kept, and the same command continues from there" } else { "" };
    Err(Error::Died(format!("reading {happened} while {}{kept}", progress.working_on())))
}

/// Waits for the end of a worker, and kills one that has not ended after `grace`.
fn end_of(worker: &mut Child, grace: Duration) -> std::io::Result<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < grace {
        if let Some(status) = worker.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(TICK);
    }
    worker.kill().ok();
    worker.wait()
}

/// The result of a thread that ends with the worker; `None` if something else keeps it going.
fn finished(thread: JoinHandle<String>) -> Option<String> {
    let start = Instant::now();
    while !thread.is_finished() && start.elapsed() < GRACE {
        std::thread::sleep(TICK);
    }
    if thread.is_finished() { thread.join().ok() } else { None }
}

/// Starts this program again as a worker, without secrets in its environment.
fn start() -> Result<Child> {
    let program = std::env::current_exe().map_err(Error::Start)?;
    let mut command = Command::new(program);
    command.arg(WORKER).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    SECRETS.iter().chain(&HUB_SECRETS).for_each(|name| {
        command.env_remove(name);
    });
    // A message quotes the end of its standard error, which a backtrace would push out.
    command.env("RUST_BACKTRACE", "0");
    command.spawn().map_err(Error::Start)
}

/// The worker's events, read by a thread of their own. After an error nothing more is read.
fn events(output: impl Read + Send + 'static) -> Receiver<std::result::Result<WorkerEvent, BrokenWorker>> {
    let (sender, receiver) = sync_channel(EVENT_QUEUE);
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        loop {
            let event = match read_line(&mut output, MAX_LINE) {
                Ok(Some(line)) => serde_json::from_slice(&line).map_err(|error| format!("sent no event: {error}")),
                Ok(None) => break,
                Err(error) => Err(format!("sent no event: {error}")),
            };
            let is_broken = event.is_err();
            if sender.send(event).is_err() || is_broken {
                break;
            }
        }
    });
    receiver
}

/// The end of the worker's standard error: why it panicked or gave up.
fn stderr_tail(mut errors: ChildStderr) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let (mut kept, mut buffer) = (VecDeque::new(), [0; 4096]);
        while let Ok(read @ 1..) = errors.read(&mut buffer) {
            kept.extend(&buffer[..read]);
            kept.drain(..kept.len().saturating_sub(STDERR_TAIL));
        }
        String::from_utf8_lossy(kept.make_contiguous()).into_owned()
    })
}

/// The progress of a worker.
struct Progress {
    bar: ProgressBar,
    /// Whether the first count of samples has come. It holds the samples of earlier runs, which say
    /// nothing about the time that is left.
    counted: bool,
    activity: String,
    reading: BTreeMap<usize, String>,
    outcome: Option<Result<()>>,
}

impl Progress {
    fn new() -> Self {
        let bar = bars::spinner("starting");
        Self { bar, counted: false, activity: "it started".to_owned(), reading: BTreeMap::new(), outcome: None }
    }

    /// Records events until the last one, or until the worker stalls or breaks a bound.
    fn follow(
        &mut self,
        events: &Receiver<std::result::Result<WorkerEvent, BrokenWorker>>,
        stall: Duration,
    ) -> EndOfEvents {
        loop {
            let recorded = match events.recv_timeout(stall) {
                Ok(event) => event.and_then(|event| self.record(event)),
                Err(RecvTimeoutError::Disconnected) => return EndOfEvents::Closed,
                Err(RecvTimeoutError::Timeout) => return EndOfEvents::Stalled,
            };
            if let Err(reason) = recorded {
                return EndOfEvents::Broken(reason);
            }
        }
    }

    fn record(&mut self, event: WorkerEvent) -> std::result::Result<(), BrokenWorker> {
        match event {
            WorkerEvent::Activity(activity) => {
                if self.bar.length().is_none() {
                    self.bar.set_message(sanitize_terminal(&activity));
                }
                self.activity = activity;
            }
            WorkerEvent::Total(samples) => {
                self.bar.finish_and_clear();
                self.bar = bars::bar(samples, "extracting features");
            }
            WorkerEvent::Begin(index, name) => {
                self.reading.insert(index, name);
                if self.reading.len() > MAX_READING {
                    return Err(format!("reads more than {MAX_READING} samples at a time"));
                }
            }
            WorkerEvent::End(index) => {
                self.reading.remove(&index);
            }
            WorkerEvent::Done(samples) => {
                if !std::mem::replace(&mut self.counted, true) {
                    self.bar.reset_eta();
                }
                self.bar.set_position(samples);
            }
            WorkerEvent::Alive => {}
            WorkerEvent::Note(note) => self.bar.suspend(|| eprintln!("note: {}", sanitize_terminal(&note))),
            WorkerEvent::Finished => self.outcome = Some(Ok(())),
            WorkerEvent::Failed(reason) => self.outcome = Some(Err(Error::Failed(reason))),
        }
        Ok(())
    }

    /// The last known activity of the worker, as it follows "while".
    fn working_on(&self) -> String {
        let names: Vec<&str> = self.reading.values().take(NAMED).map(String::as_str).collect();
        match (names.len(), self.reading.len()) {
            (0, _) => self.activity.clone(),
            (named, all) if named == all => format!("reading {}", names.join(", ")),
            (named, all) => format!("reading {} and {} more", names.join(", "), all - named),
        }
    }
}

/// How a worker ended that reported no result.
struct WorkerExit<'a> {
    end: EndOfEvents,
    status: ExitStatus,
    stderr: &'a str,
    stall: Duration,
    limits: Limits,
    /// Whether the user can change the limits.
    has_options: bool,
}

impl WorkerExit<'_> {
    /// What happened, as it follows "reading".
    fn explain(&self) -> String {
        let option = |name: &str| if self.has_options { format!(" ({name})") } else { String::new() };
        match &self.end {
            EndOfEvents::Stalled => {
                let seconds = self.stall.as_secs();
                return format!("made no progress for {seconds} seconds{} and was ended", option("--stall-seconds"));
            }
            EndOfEvents::Broken(reason) => {
                return format!(
                    "was ended, because its process {reason}; a file may have taken it over: check the input"
                );
            }
            EndOfEvents::Closed => {}
        }
        if let (true, Some(gib)) = (self.is_starved(), self.limits.memory_gib()) {
            return format!("needed more than {gib:.2} GiB of memory{}", option("--memory-gib"));
        }
        if let Some(signal) = signal(self.status) {
            return format!("was ended by signal {signal}");
        }
        let said = |line: &&str| !line.trim().is_empty() && !line.starts_with("note:");
        match self.stderr.lines().rev().find(said) {
            Some(line) => format!("failed ({line})"),
            None => format!("failed ({})", self.status),
        }
    }

    /// Whether an allocation was refused: the standard library and the system's libraries say so
    /// before they give up.
    fn is_starved(&self) -> bool {
        let signs =
            ["memory allocation of", "Cannot allocate memory", "out of memory", "Resource temporarily unavailable"];
        signs.iter().any(|sign| self.stderr.contains(sign))
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
        24 => "24 (SIGXCPU: it needed more processor time than its limit)".to_owned(),
        other => other.to_string(),
    })
}

#[cfg(not(unix))]
fn signal(_: ExitStatus) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    const STALL: Duration = Duration::from_secs(60);

    fn follow(output: impl Read + Send + 'static) -> (Progress, EndOfEvents) {
        let mut progress = Progress::new();
        let end = progress.follow(&events(output), STALL);
        (progress, end)
    }

    fn lines(events: impl Iterator<Item = WorkerEvent>) -> Cursor<String> {
        Cursor::new(events.map(|event| event.to_line()).collect())
    }

    #[test]
    fn events_are_recorded_until_the_output_is_closed() {
        let events = [
            WorkerEvent::Activity("loading".to_owned()),
            WorkerEvent::Begin(7, "cat/1.png".to_owned()),
            WorkerEvent::Begin(8, "cat/2.png".to_owned()),
            WorkerEvent::End(7),
        ];
        let (progress, end) = follow(lines(events.into_iter()));
        assert_eq!((progress.working_on().as_str(), end), ("reading cat/2.png", EndOfEvents::Closed));
        let (progress, _) = follow(lines([WorkerEvent::Finished].into_iter()));
        assert!(matches!(progress.outcome, Some(Ok(()))));
    }

    /// An unbounded reader would take memory until the machine has none left.
    #[test]
    fn a_line_without_end_is_a_broken_worker() {
        let (_, end) = follow(std::io::repeat(b'x'));
        let EndOfEvents::Broken(reason) = end else { panic!("{end:?}") };
        assert_eq!(reason, format!("sent no event: a line has more than {MAX_LINE} bytes"));
    }

    #[test]
    fn other_lines_are_a_broken_worker() {
        for text in ["hello\n", "{\"Begin\":[1]}\n", "\n", "\u{1b}[2J\n"] {
            let (_, end) = follow(Cursor::new(text));
            assert!(matches!(&end, EndOfEvents::Broken(reason) if reason.contains("no event")), "{end:?}");
        }
    }

    #[test]
    fn more_samples_than_can_be_read_at_a_time_are_a_broken_worker() {
        let begin = |index| WorkerEvent::Begin(index, String::new());
        let (progress, end) = follow(lines((0..MAX_READING).map(begin)));
        assert_eq!((progress.reading.len(), end), (MAX_READING, EndOfEvents::Closed));
        let (progress, end) = follow(lines((0..2 * MAX_READING).map(begin)));
        assert!(matches!(&end, EndOfEvents::Broken(reason) if reason.contains("samples at a time")), "{end:?}");
        assert_eq!(progress.reading.len(), MAX_READING + 1);
    }

    #[test]
    fn a_broken_worker_is_explained() {
        let exit = WorkerExit {
            has_options: true,
            end: EndOfEvents::Broken("sent no event".to_owned()),
            status: ExitStatus::default(),
            stderr: "",
            stall: STALL,
            limits: Limits::new(Some(1.0)),
        };
        assert!(exit.explain().contains("was ended, because its process sent no event"), "{}", exit.explain());
    }
}
