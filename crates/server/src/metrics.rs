//! Prometheus counters and the answers to health checks.

use crate::context::Core;
use crate::store::disk::{Disk, OsDisk};
use crate::store::state::State;
use crate::{Error, Result};
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the result of a write to the database stands for later health checks.
const WRITE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Prometheus counters since the start of the server.
pub struct Metrics {
    started: Instant,
    /// Set while the server stops.
    pub draining: AtomicBool,
    /// Requests.
    pub requests: AtomicU64,
    /// Requests that were refused or failed.
    pub refusals: AtomicU64,
    /// Bytes of blobs received.
    pub received_bytes: AtomicU64,
    /// Bytes of blobs sent.
    pub sent_bytes: AtomicU64,
    /// Training iterations.
    pub iterations: AtomicU64,
    /// Microseconds spent in training iterations.
    pub iteration_micros: AtomicU64,
    /// Checkpoints written.
    pub checkpoints: AtomicU64,
    /// Failed jobs.
    pub failures: AtomicU64,
    /// Attempts that ended because of a GPU.
    pub device_failures: AtomicU64,
    /// Operations that failed because of the disk, the database or the bucket.
    pub storage_failures: AtomicU64,
}

/// What health checks and metrics are made from.
#[derive(Clone)]
pub struct HealthSource {
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// The state database.
    pub state: Arc<dyn State>,
    /// The server's folder.
    pub folder: PathBuf,
    /// When the database was last written to, and whether that succeeded.
    written: Arc<Mutex<Option<(Instant, bool)>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            started: Instant::now(),
            draining: AtomicBool::new(false),
            requests: zero(),
            refusals: zero(),
            received_bytes: zero(),
            sent_bytes: zero(),
            iterations: zero(),
            iteration_micros: zero(),
            checkpoints: zero(),
            failures: zero(),
            device_failures: zero(),
            storage_failures: zero(),
        }
    }
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

impl Metrics {
    /// Counts an error if the disk, the database or the bucket caused it.
    pub fn count_fault(&self, error: &Error) {
        if error.is_storage_fault() {
            add(&self.storage_failures, 1);
        }
    }
}

impl HealthSource {
    /// The source of a server.
    pub fn of(core: &Core) -> Self {
        Self::new(Arc::clone(&core.metrics), Arc::clone(&core.state), core.config.folder.clone())
    }

    /// A source of these parts.
    pub fn new(metrics: Arc<Metrics>, state: Arc<dyn State>, folder: PathBuf) -> Self {
        Self { metrics, state, folder, written: Arc::default() }
    }

    /// The metrics in Prometheus' text format.
    fn text(&self) -> String {
        let (mut text, metrics) = (String::new(), &self.metrics);
        let seconds = metrics.started.elapsed().as_secs_f64();
        let _ = writeln!(text, "# TYPE hetal_uptime_seconds gauge\nhetal_uptime_seconds {seconds:.3}");
        if let Ok(free) = OsDisk.free(&self.folder) {
            let _ = writeln!(text, "# TYPE hetal_free_disk_bytes gauge\nhetal_free_disk_bytes {free}");
        }
        let counters = [
            ("requests_total", &metrics.requests),
            ("refusals_total", &metrics.refusals),
            ("received_bytes_total", &metrics.received_bytes),
            ("sent_bytes_total", &metrics.sent_bytes),
            ("iterations_total", &metrics.iterations),
            ("checkpoints_total", &metrics.checkpoints),
            ("job_failures_total", &metrics.failures),
            ("device_failures_total", &metrics.device_failures),
            ("storage_failures_total", &metrics.storage_failures),
        ];
        for (name, counter) in counters {
            let value = counter.load(Ordering::Relaxed);
            let _ = writeln!(text, "# TYPE hetal_{name} counter\nhetal_{name} {value}");
        }
        let spent = metrics.iteration_micros.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(text, "# TYPE hetal_iteration_seconds_total counter\nhetal_iteration_seconds_total {spent}");
        let _ = writeln!(text, "# TYPE hetal_jobs gauge");
        for (state, count) in self.state.count_jobs().unwrap_or_default() {
            let name = format!("{state:?}").to_lowercase();
            let _ = writeln!(text, "hetal_jobs{{state=\"{name}\"}} {count}");
        }
        text
    }

    /// Whether the database can be read and written. It is written to once in a while only, so that
    /// health checks do not wear the disk.
    fn is_healthy(&self) -> bool {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, healthy)) = *written
            && when.elapsed() < WRITE_CHECK_INTERVAL
        {
            return healthy;
        }
        let checked: Result<()> = self.state.check_writable();
        if let Err(error) = &checked {
            self.metrics.count_fault(error);
            tracing::error!(%error, "the state database cannot be written");
        }
        *written = Some((Instant::now(), checked.is_ok()));
        checked.is_ok()
    }

    /// The status and the body of a response.
    pub fn answer(&self, path: &str) -> (&'static str, String) {
        match path {
            "/metrics" => ("200 OK", self.text()),
            "/healthz" if self.is_healthy() => ("200 OK", "ok\n".to_owned()),
            "/healthz" => ("503 Service Unavailable", "the state database cannot be written\n".to_owned()),
            "/readyz" if self.metrics.draining.load(Ordering::Relaxed) => {
                ("503 Service Unavailable", "draining\n".to_owned())
            }
            "/readyz" => ("200 OK", "ready\n".to_owned()),
            _ => ("404 Not Found", "not found: use /healthz, /readyz or /metrics\n".to_owned()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::state::SqliteState;
    use hetal_testkit::TempDir;

    /// A database that can be read but not written is not healthy.
    #[test]
    fn a_database_that_cannot_be_written_is_not_healthy() {
        let dir = TempDir::new();
        let path = dir.path().join("state.sqlite");
        let source = |state| HealthSource::new(Arc::default(), Arc::new(state), dir.path().to_owned());
        let health = source(SqliteState::open(&path).unwrap());
        assert_eq!(health.answer("/healthz").0, "200 OK");
        // A trigger stands for a disk that refuses writes.
        let refusal = "CREATE TRIGGER refuse BEFORE UPDATE ON identity BEGIN SELECT RAISE(ABORT, 'disk full'); END";
        rusqlite::Connection::open(&path).unwrap().execute_batch(refusal).unwrap();
        let health = source(SqliteState::open(&path).unwrap());
        let (status, body) = health.answer("/healthz");
        assert!(status.starts_with("503") && body.contains("cannot be written"), "{status} {body}");
        let (_, text) = health.answer("/metrics");
        assert!(text.contains("hetal_storage_failures_total 1\n"), "{text}");
        let free = text.lines().find_map(|line| line.strip_prefix("hetal_free_disk_bytes ")).unwrap();
        assert!(free.parse::<u64>().unwrap() > 0);
        // The result stands for a while.
        assert!(health.answer("/healthz").0.starts_with("503"));
        assert!(health.answer("/metrics").1.contains("hetal_storage_failures_total 1\n"));
    }
}
