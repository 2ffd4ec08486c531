//! What a training does just now, and the seconds of its phases: the file that `hetal ui` and
//! reports read. It holds no decrypted value.

use super::{PhaseProgress, ProgressEvent};
use crate::project::{read, write};
use hetal_report::{CurrentPhase, PreparationRecord, TrainedShape, iso};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// The file in the folder of a training.
pub(crate) const LIVE: &str = "progress.json";
/// The file is written at most once in this time, unless the phase changes.
const PERIOD: Duration = Duration::from_secs(1);

/// The content of the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LiveFile {
    /// When the training began, in UTC.
    pub began: String,
    pub command: Option<String>,
    pub shape: TrainedShape,
    pub preparation: PreparationRecord,
    /// The process that works on it: its number, and when it started in the system's ticks.
    pub process: (u32, u64),
    /// Whether the training has ended. Its process may go on.
    pub ended: bool,
    /// Seconds of each phase over all runs, in the order in which they began.
    pub phases: Vec<hetal_report::PhaseSeconds>,
    /// Seconds from the beginning to each check.
    pub checks: Vec<Option<f64>>,
    pub engine: Option<String>,
    pub progress: CurrentPhase,
}

impl LiveFile {
    /// Reads the file of a training.
    pub fn read(folder: &Path) -> crate::Result<Option<Self>> {
        read(&folder.join(LIVE))
    }

    /// Whether the process that wrote it still runs.
    pub fn is_running(&self) -> bool {
        self.process.1 != 0 && started_at(self.process.0) == Some(self.process.1)
    }

    fn seconds(&self) -> f64 {
        self.phases.iter().map(|phase| phase.seconds).sum()
    }
}

/// When a process started, in ticks since the system did. Numbers of processes are used again.
fn started_at(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program is in parentheses and may contain spaces.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Follows the events of a training.
pub(crate) struct Live {
    path: PathBuf,
    file: LiveFile,
    /// When the seconds of the current phase were last counted.
    counted: Instant,
    written: Option<Instant>,
    /// What was done of the current phase when it was first seen, and when.
    first: (u64, Instant),
}

impl Live {
    /// A training that begins.
    pub fn begin(folder: &Path, command: Option<String>, shape: TrainedShape, preparation: PreparationRecord) -> Self {
        Self::of(folder, LiveFile { began: now(), command, shape, preparation, ..LiveFile::default() })
    }

    /// A training that goes on, if its file is there.
    pub fn resume(folder: &Path) -> Option<Self> {
        Some(Self::of(folder, LiveFile::read(folder).ok()??))
    }

    fn of(folder: &Path, mut file: LiveFile) -> Self {
        let process = std::process::id();
        (file.process, file.ended) = ((process, started_at(process).unwrap_or(0)), false);
        let now = Instant::now();
        Self { path: folder.join(LIVE), file, counted: now, written: None, first: (0, now) }
    }

    /// What the training did when, until now.
    pub fn file(&mut self) -> &LiveFile {
        self.count();
        &self.file
    }

    /// Ends the training, before `job.json` says so.
    pub fn end(&mut self) {
        self.file.ended = true;
        self.write();
    }

    /// Follows an event, before anybody else does.
    pub fn observe(&mut self, event: &ProgressEvent) {
        self.count();
        match event {
            ProgressEvent::Started(engine) => self.file.engine = Some(engine.clone()),
            ProgressEvent::Working(progress) if !progress.resting => {
                self.file.progress.epoch = progress.epoch as u64;
            }
            ProgressEvent::Judged { number, .. } => self.judged(*number),
            _ => {}
        }
        if let Some(now) = event.phase() {
            self.phase(&now);
        }
    }

    /// Adds the time since the last event to the current phase.
    fn count(&mut self) {
        let passed = self.counted.elapsed().as_secs_f64();
        self.counted = Instant::now();
        let current = &self.file.progress.phase;
        if let Some(phase) = self.file.phases.iter_mut().find(|phase| phase.name == *current) {
            phase.seconds += passed;
        }
    }

    fn phase(&mut self, now: &PhaseProgress) {
        let PhaseProgress { name, done, total, unit } = *now;
        let progress = &mut self.file.progress;
        let is_new = progress.phase != name || done < progress.done;
        if is_new {
            self.first = (done, Instant::now());
        }
        if progress.phase != name {
            name.clone_into(&mut progress.phase);
            if !self.file.phases.iter().any(|phase| phase.name == name) {
                self.file.phases.push(hetal_report::PhaseSeconds { name: name.to_owned(), seconds: 0.0 });
            }
        }
        let (first, since) = (self.first.0, self.first.1.elapsed().as_secs_f64());
        let moved = done.saturating_sub(first);
        let left = (moved > 0).then(|| since / moved as f64 * total.saturating_sub(done) as f64);
        (progress.done, progress.total, progress.unit) = (done, total, unit);
        progress.seconds_left = left.map(f64::round);
        if is_new || self.written.is_none_or(|written| written.elapsed() >= PERIOD) {
            self.write();
        }
    }

    /// The same work in every check, whatever its verdict.
    fn judged(&mut self, number: usize) {
        let seconds = self.file.seconds();
        self.file.checks.resize(number.saturating_sub(1), None);
        self.file.checks.push(Some(tenths(seconds)));
        self.write();
    }

    /// Writes the file. Whoever cannot write it finds that out with the files that matter.
    fn write(&mut self) {
        self.file.progress.at = now();
        self.file.progress.engine.clone_from(&self.file.engine);
        self.written = Some(Instant::now());
        let _ = write(&self.path, &self.file);
    }
}

/// Seconds as reports have them.
pub(crate) fn tenths(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}

/// The time in UTC.
pub(crate) fn now() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    iso(since.map_or(0, |since| since.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::{JobProgress, Phase};
    use crate::training::Round;
    use hetal_learn::Verdict;
    use hetal_testkit::TempDir;

    fn working(phase: Phase, done: u64) -> ProgressEvent {
        let progress = JobProgress { phase, done, total: 8, epoch: 2, iterations: done, resting: false };
        ProgressEvent::Working(progress)
    }

    fn judged(number: usize) -> ProgressEvent {
        let round = Round { verdict: Verdict::Continue, accepted: true, loss: 0.1, accuracy: 0.9, largest: 3.0 };
        ProgressEvent::Judged { number, round }
    }

    #[test]
    fn a_training_that_goes_on_keeps_its_phases() {
        let folder = TempDir::new();
        let mut live = Live::begin(folder.path(), None, TrainedShape::default(), PreparationRecord::default());
        live.observe(&ProgressEvent::SendingRows { sent: 5, total: 10 });
        live.observe(&ProgressEvent::Queued);
        live.observe(&ProgressEvent::Started("cpu".to_owned()));
        live.observe(&working(Phase::Training, 3));
        live.observe(&judged(1));
        drop(live);
        let file = LiveFile::read(folder.path()).unwrap().unwrap();
        assert!(file.is_running());
        assert_eq!((file.progress.phase.as_str(), file.progress.done), ("server: training", 3));
        let mut live = Live::resume(folder.path()).unwrap();
        // The record of the first check is followed by the third: the second had no time.
        live.observe(&working(Phase::Validating, 1));
        live.observe(&working(Phase::Training, 1));
        live.observe(&judged(3));
        live.end();
        let file = live.file();
        let names: Vec<_> = file.phases.iter().map(|phase| phase.name.as_str()).collect();
        let expected =
            ["sending rows", "waiting in the queue", "server: preparing", "server: training", "server: validating"];
        assert_eq!(names, expected);
        assert_eq!(file.checks.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true]);
        assert!(file.ended);
        assert_eq!((file.engine.as_deref(), file.progress.epoch), (Some("cpu"), 2));
    }

    #[test]
    fn a_process_that_is_gone_does_not_run() {
        let mut file = LiveFile { process: (std::process::id(), 1), ..LiveFile::default() };
        assert!(!file.is_running(), "another process of the same number");
        file.process = (u32::MAX, 1);
        assert!(!file.is_running());
        assert!(!LiveFile::default().is_running());
    }
}
