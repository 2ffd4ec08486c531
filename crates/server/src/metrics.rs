//! Prometheus counters and the answers to health checks.

use crate::store::state::State;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

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
        }
    }
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

impl Metrics {
    /// The metrics in Prometheus' text format.
    fn text(&self, state: &dyn State) -> String {
        let mut text = String::new();
        let seconds = self.started.elapsed().as_secs_f64();
        let _ = writeln!(text, "# TYPE hetal_uptime_seconds gauge\nhetal_uptime_seconds {seconds:.3}");
        let counters = [
            ("requests_total", &self.requests),
            ("refusals_total", &self.refusals),
            ("received_bytes_total", &self.received_bytes),
            ("sent_bytes_total", &self.sent_bytes),
            ("iterations_total", &self.iterations),
            ("checkpoints_total", &self.checkpoints),
            ("job_failures_total", &self.failures),
            ("device_failures_total", &self.device_failures),
        ];
        for (name, counter) in counters {
            let value = counter.load(Ordering::Relaxed);
            let _ = writeln!(text, "# TYPE hetal_{name} counter\nhetal_{name} {value}");
        }
        let spent = self.iteration_micros.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(text, "# TYPE hetal_iteration_seconds_total counter\nhetal_iteration_seconds_total {spent}");
        let _ = writeln!(text, "# TYPE hetal_jobs gauge");
        for (state, count) in state.count_jobs().unwrap_or_default() {
            let name = format!("{state:?}").to_lowercase();
            let _ = writeln!(text, "hetal_jobs{{state=\"{name}\"}} {count}");
        }
        text
    }

    /// The status and the body of a response.
    pub fn answer(&self, path: &str, state: &dyn State) -> (&'static str, String) {
        match path {
            "/metrics" => ("200 OK", self.text(state)),
            "/healthz" => match state.count_jobs() {
                Ok(_) => ("200 OK", "ok\n".to_owned()),
                Err(_) => ("503 Service Unavailable", "the state database cannot be read\n".to_owned()),
            },
            "/readyz" if self.draining.load(Ordering::Relaxed) => ("503 Service Unavailable", "draining\n".to_owned()),
            "/readyz" => ("200 OK", "ready\n".to_owned()),
            _ => ("404 Not Found", "not found: use /healthz, /readyz or /metrics\n".to_owned()),
        }
    }
}
