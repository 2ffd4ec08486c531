//! Prometheus counters and the answers to health checks.

use crate::clock::{self, Clock};
use crate::compute::device::{ComputeDevice, Devices};
use crate::monitor::histograms::{BYTES, Histogram, SECONDS, WAITS};
use crate::monitor::probe::Probe;
use crate::monitor::usage::{LargestTenants, TenantSource, usage};
use crate::net::certificates::ServerCertificates;
use crate::server_core::Core;
use crate::store::disk::{Disk, OsDisk};
use crate::store::state::{JobState, Quota, State};
use crate::{Error, Result};
use hetal_cuda::{CardState, card_state};
use hetal_report::DeviceState;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the result of a write to the database stands for later health checks.
const WRITE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How long the disk may take for a health check or for metrics. A request to the HTTP port may
/// take longer.
const DISK_TIMEOUT: Duration = Duration::from_secs(4);

/// How long what drivers tell of GPUs, and what tenants use, stands for later requests.
const STATE_LIFETIME: Duration = Duration::from_secs(2);

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
    /// Seconds of requests, as the audit log has them, by request.
    pub request_times: Histogram,
    /// Seconds of iterations by device.
    pub iteration_times: Histogram,
    /// Seconds from the creation of a job to its start, by tenant.
    pub queue_times: Histogram,
    /// Bytes of complete uploads by tenant.
    pub upload_sizes: Histogram,
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
    certificates: Arc<ServerCertificates>,
    clock: Clock,
    /// Whether the last write to the database succeeded.
    written: Arc<Probe<bool>>,
    stored: Arc<Probe<StoredTotals>>,
    devices: Devices,
    /// What drivers tell. A driver may hang.
    cards: Arc<Probe<Vec<(usize, CardState)>>>,
    tenants: TenantSource,
    used: Arc<Probe<LargestTenants>>,
}

/// What metrics read from the disk.
#[derive(Clone)]
struct StoredTotals {
    free_bytes: Option<u64>,
    jobs: Option<Vec<(JobState, u64)>>,
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
            request_times: Histogram::new("hetal_request_seconds", "request", SECONDS),
            iteration_times: Histogram::new("hetal_iteration_seconds", "device", SECONDS),
            queue_times: Histogram::new("hetal_queue_seconds", "tenant", WAITS),
            upload_sizes: Histogram::new("hetal_upload_bytes", "tenant", BYTES),
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
    pub fn of(core: &Core, certificates: Arc<ServerCertificates>, devices: &Devices, tenants: TenantSource) -> Self {
        let source = Self::new(Arc::clone(&core.metrics), Arc::clone(&core.state), core.config.folder.clone());
        Self { certificates, clock: Arc::clone(&core.clock), devices: devices.clone(), tenants, ..source }
    }

    /// A source of these parts, without certificates.
    pub fn new(metrics: Arc<Metrics>, state: Arc<dyn State>, folder: PathBuf) -> Self {
        let written = Probe::new(WRITE_CHECK_INTERVAL, DISK_TIMEOUT);
        let stored = Probe::new(Duration::ZERO, DISK_TIMEOUT);
        Self {
            metrics,
            state,
            folder,
            certificates: Arc::default(),
            clock: clock::system(),
            written,
            stored,
            devices: Devices::default(),
            cards: Probe::new(STATE_LIFETIME, DISK_TIMEOUT),
            tenants: Arc::new(|| (Vec::new(), Quota::default())),
            used: Probe::new(STATE_LIFETIME, DISK_TIMEOUT),
        }
    }

    /// The metrics in Prometheus' text format. Those that need the disk are left out while it
    /// hangs.
    fn text(&self) -> String {
        let (mut text, metrics) = (String::new(), &self.metrics);
        let seconds = metrics.started.elapsed().as_secs_f64();
        let _ = writeln!(text, "# TYPE hetal_uptime_seconds gauge\nhetal_uptime_seconds {seconds:.3}");
        if let Some(left) = self.certificates.seconds_left((self.clock)() / 1000) {
            let name = "hetal_certificate_seconds_left";
            let _ = writeln!(text, "# TYPE {name} gauge\n{name} {left}");
        }
        let stored = self.stored_totals();
        if let Some(free) = stored.as_ref().and_then(|stored| stored.free_bytes) {
            let _ = writeln!(text, "# TYPE hetal_free_disk_bytes gauge\nhetal_free_disk_bytes {free}");
        }
        write_cards(&mut text, &self.card_states());
        for histogram in [&metrics.request_times, &metrics.iteration_times, &metrics.queue_times, &metrics.upload_sizes]
        {
            histogram.write(&mut text);
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
        for (state, count) in stored.and_then(|stored| stored.jobs).unwrap_or_default() {
            let name = format!("{state:?}").to_lowercase();
            let _ = writeln!(text, "hetal_jobs{{state=\"{name}\"}} {count}");
        }
        text
    }

    /// The page of the operator.
    fn page(&self) -> String {
        let (metrics, stored, used) = (&self.metrics, self.stored_totals(), self.used());
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let state = |(state, count): &(JobState, u64)| (format!("{state:?}").to_lowercase(), *count);
        let errors = [
            ("failed jobs", &metrics.failures),
            ("attempts that a GPU ended", &metrics.device_failures),
            ("operations that the disk, the database or the bucket ended", &metrics.storage_failures),
            ("requests that were refused or failed", &metrics.refusals),
        ];
        hetal_report::operation(&hetal_report::Operation {
            program: concat!("hetal-server ", env!("CARGO_PKG_VERSION")).to_owned(),
            fault: self.fault(),
            draining: metrics.draining.load(Ordering::Relaxed),
            uptime: metrics.started.elapsed().as_secs_f64(),
            free_bytes: stored.as_ref().and_then(|stored| stored.free_bytes),
            certificate_seconds: self.certificates.seconds_left((self.clock)() / 1000),
            jobs: stored.and_then(|stored| Some(stored.jobs?.iter().map(state).collect())),
            errors: errors.map(|(name, counter)| (name.to_owned(), read(counter))).to_vec(),
            transferred: [read(&metrics.received_bytes), read(&metrics.sent_bytes)],
            devices: self.device_states(),
            more_tenants: used.as_ref().map_or(0, |used| used.more),
            tenants: used.map(|used| used.listed),
            waits: metrics.queue_times.means(),
            uploads: metrics.upload_sizes.means(),
            requests: metrics.request_times.means(),
        })
    }

    fn used(&self) -> Option<LargestTenants> {
        let (state, tenants) = (Arc::clone(&self.state), Arc::clone(&self.tenants));
        self.used.result(move || usage(&*state, &tenants))
    }

    /// What drivers tell of GPUs; nothing while they hang.
    fn card_states(&self) -> Vec<(usize, CardState)> {
        let cards = self.devices.cards().to_vec();
        if cards.is_empty() {
            return Vec::new();
        }
        let ask = move || cards.into_iter().map(|card| (card, card_state(card))).collect();
        self.cards.result(ask).unwrap_or_default()
    }

    /// What computes, as the operator sees it.
    fn device_states(&self) -> Vec<DeviceState> {
        let (means, cards) = (self.metrics.iteration_times.means(), self.card_states());
        let state = |device: ComputeDevice| {
            let name = device.label();
            let mean = means.iter().find(|(label, ..)| *label == name);
            let told = cards.iter().find(|(card, _)| device == ComputeDevice::Gpu(*card));
            let told = told.map(|(_, card)| card.clone()).unwrap_or_default();
            DeviceState {
                name,
                model: told.model,
                iterations: mean.map_or(0, |(_, count, _)| *count),
                iteration_seconds: mean.map(|(.., seconds)| *seconds),
                used_bytes: told.used_bytes,
                total_bytes: told.total_bytes,
                celsius: told.celsius,
            }
        };
        self.devices.all().into_iter().map(state).collect()
    }

    fn stored_totals(&self) -> Option<StoredTotals> {
        let (state, folder) = (Arc::clone(&self.state), self.folder.clone());
        self.stored
            .result(move || StoredTotals { free_bytes: OsDisk.free(&folder).ok(), jobs: state.count_jobs().ok() })
    }

    /// Why the server is not healthy; `None` if the database can be written. It is written to once
    /// in a while only, so that health checks do not wear the disk.
    fn fault(&self) -> Option<String> {
        let (state, metrics) = (Arc::clone(&self.state), Arc::clone(&self.metrics));
        let written = self.written.result(move || {
            let checked: Result<()> = state.check_writable();
            if let Err(error) = &checked {
                metrics.count_fault(error);
                tracing::error!(%error, "the state database cannot be written");
            }
            checked.is_ok()
        });
        match written {
            Some(true) => None,
            Some(false) => Some("the state database cannot be written\n".to_owned()),
            None => {
                let seconds = DISK_TIMEOUT.as_secs();
                Some(format!("a write to the state database has taken longer than {seconds} seconds\n"))
            }
        }
    }

    /// The status and the body of a response.
    pub fn answer(&self, path: &str) -> (&'static str, String) {
        match path {
            "/" => ("200 OK", self.page()),
            "/metrics" => ("200 OK", self.text()),
            "/healthz" => match self.fault() {
                None => ("200 OK", "ok\n".to_owned()),
                Some(fault) => ("503 Service Unavailable", fault),
            },
            "/readyz" if self.metrics.draining.load(Ordering::Relaxed) => {
                ("503 Service Unavailable", "draining\n".to_owned())
            }
            "/readyz" => ("200 OK", "ready\n".to_owned()),
            _ => ("404 Not Found", "not found: use /, /healthz, /readyz or /metrics\n".to_owned()),
        }
    }
}

/// Gauges of GPUs. What a driver does not tell is left out.
fn write_cards(text: &mut String, cards: &[(usize, CardState)]) {
    type Value = fn(&CardState) -> Option<u64>;
    let gauges: [(&str, Value); 3] = [
        ("hetal_gpu_memory_used_bytes", |card| card.used_bytes),
        ("hetal_gpu_memory_bytes", |card| card.total_bytes),
        ("hetal_gpu_temperature_celsius", |card| card.celsius.map(u64::from)),
    ];
    for (name, value) in gauges {
        let _ = writeln!(text, "# TYPE {name} gauge");
        for (card, value) in cards.iter().filter_map(|(card, state)| Some((card, value(state)?))) {
            let _ = writeln!(text, "{name}{{device=\"{}\"}} {value}", ComputeDevice::Gpu(*card).label());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::state::{MemoryState, SqliteState};
    use hetal_testkit::{TempDir, exposition};
    use std::path::Path;

    /// Every metric with its type and its labels, and the bounds of histograms. Dashboards and
    /// alerts of operators depend on all of these.
    const METRICS: &[&str] = &[
        "hetal_certificate_seconds_left gauge",
        "hetal_checkpoints_total counter",
        "hetal_device_failures_total counter",
        "hetal_free_disk_bytes gauge",
        "hetal_gpu_memory_bytes gauge device",
        "hetal_gpu_memory_used_bytes gauge device",
        "hetal_gpu_temperature_celsius gauge device",
        "hetal_iteration_seconds histogram device le 0.005 0.02 0.05 0.1 0.25 0.5 1 2.5 5 15 60 300 +Inf",
        "hetal_iteration_seconds_total counter",
        "hetal_iterations_total counter",
        "hetal_job_failures_total counter",
        "hetal_jobs gauge state",
        "hetal_queue_seconds histogram le tenant 1 5 15 60 300 900 3600 14400 86400 +Inf",
        "hetal_received_bytes_total counter",
        "hetal_refusals_total counter",
        "hetal_request_seconds histogram le request 0.005 0.02 0.05 0.1 0.25 0.5 1 2.5 5 15 60 300 +Inf",
        "hetal_requests_total counter",
        "hetal_sent_bytes_total counter",
        "hetal_storage_failures_total counter",
        "hetal_upload_bytes histogram le tenant 100000 1000000 10000000 100000000 1000000000 2000000000 4000000000 \
         8000000000 +Inf",
        "hetal_uptime_seconds gauge",
    ];

    /// A probe that has this result for an hour.
    fn known<T: Clone + Send + 'static>(result: T) -> Arc<Probe<T>> {
        let hour = Duration::from_secs(3600);
        let probe = Probe::new(hour, hour);
        probe.result(move || result).unwrap();
        probe
    }

    /// A source in which every metric has values.
    fn complete_source(folder: &Path) -> HealthSource {
        let config = crate::Config { folder: folder.to_owned(), ..crate::Config::default() };
        crate::net::certificates::acceptor(&config).unwrap();
        let card = CardState { used_bytes: Some(7), total_bytes: Some(9), celsius: Some(61), ..CardState::default() };
        let jobs = Some(vec![(JobState::Queued, 2), (JobState::Finished, 1)]);
        let source = HealthSource::new(Arc::default(), Arc::new(MemoryState::default()), folder.to_owned());
        for value in [0.3, 0.5, 1e12] {
            source.metrics.request_times.observe("Hello", value);
            source.metrics.iteration_times.observe("gpu 0", value);
            source.metrics.queue_times.observe("ann", value);
            source.metrics.upload_sizes.observe("ann", value);
        }
        source.metrics.queue_times.observe("bob", 1.5);
        HealthSource {
            certificates: Arc::new(ServerCertificates::read(&config).unwrap()),
            devices: Devices::of_cards(vec![0, 3]),
            cards: known(vec![(0, card), (3, CardState { celsius: Some(60), ..CardState::default() })]),
            stored: known(StoredTotals { free_bytes: Some(1 << 40), jobs }),
            ..source
        }
    }

    #[test]
    fn names_types_labels_and_bounds_of_metrics_do_not_change() {
        let dir = TempDir::new();
        let (_, text) = complete_source(dir.path()).answer("/metrics");
        let families = exposition::parse(&text).unwrap();
        let describe = |(name, family): (&String, &exposition::MetricFamily)| {
            assert!(!family.samples.is_empty(), "{name} has no value");
            let words = [name.as_str(), &family.kind].into_iter().chain(family.labels()).chain(family.bounds());
            words.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(families.iter().map(describe).collect::<Vec<_>>(), METRICS);
    }

    #[test]
    fn every_metric_of_the_dashboard_exists() {
        let dashboard = include_str!("../../../../packaging/grafana/hetal-server.json");
        let is_part = |c: char| c == '_' || c.is_ascii_lowercase();
        let names = dashboard.split("hetal_").skip(1).map(|rest| rest.split(|c| !is_part(c)).next().unwrap());
        let metrics: Vec<_> = METRICS.iter().map(|metric| metric.split(' ').collect::<Vec<_>>()).collect();
        let mut found = 0;
        for name in names.map(|name| format!("hetal_{name}")) {
            let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let is = |metric: &Vec<&str>| match metric[1] {
                "histogram" => of_histogram == Some(metric[0]),
                _ => name == metric[0],
            };
            assert!(metrics.iter().any(is), "{name}");
            found += 1;
        }
        assert!(found > 15, "the dashboard has {found} metrics");
    }

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
    /// A disk that hangs keeps neither health checks nor metrics waiting, and counts as a fault.
    #[test]
    fn a_hanging_disk_is_not_healthy_and_hides_no_metrics() {
        let dir = TempDir::new();
        let path = dir.path().join("state.sqlite");
        let state = Arc::new(SqliteState::open(&path).unwrap());
        let source = HealthSource::new(Arc::default(), state, dir.path().to_owned());
        let source = HealthSource { written: Probe::new(WRITE_CHECK_INTERVAL, Duration::ZERO), ..source };
        // Another writer stands for a disk that does not answer.
        let mut other = rusqlite::Connection::open(&path).unwrap();
        let hangs = other.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
        for _ in 0..2 {
            let (status, body) = source.answer("/healthz");
            assert!(status.starts_with("503") && body.contains("longer than"), "{status} {body}");
            assert!(source.answer("/metrics").1.contains("hetal_free_disk_bytes"));
        }
        hangs.commit().unwrap();
        while source.answer("/healthz").0 != "200 OK" {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What the driver does not tell is absent, and never zero.
    #[test]
    fn gauges_of_cards_are_those_that_drivers_tell() {
        let full = CardState { used_bytes: Some(7), total_bytes: Some(9), celsius: Some(61), ..CardState::default() };
        let mut text = String::new();
        write_cards(
            &mut text,
            &[(0, full.clone()), (3, CardState { celsius: None, ..full }), (4, CardState::default())],
        );
        let expected = "# TYPE hetal_gpu_memory_used_bytes gauge\n\
                        hetal_gpu_memory_used_bytes{device=\"gpu 0\"} 7\n\
                        hetal_gpu_memory_used_bytes{device=\"gpu 3\"} 7\n\
                        # TYPE hetal_gpu_memory_bytes gauge\n\
                        hetal_gpu_memory_bytes{device=\"gpu 0\"} 9\n\
                        hetal_gpu_memory_bytes{device=\"gpu 3\"} 9\n\
                        # TYPE hetal_gpu_temperature_celsius gauge\n\
                        hetal_gpu_temperature_celsius{device=\"gpu 0\"} 61\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn metrics_say_when_the_certificate_ends() {
        let dir = TempDir::new();
        let config = crate::Config { folder: dir.path().to_owned(), ..crate::Config::default() };
        let source = HealthSource::new(Arc::default(), Arc::new(MemoryState::default()), dir.path().to_owned());
        assert!(!source.answer("/metrics").1.contains("certificate"), "there is none");
        crate::net::certificates::acceptor(&config).unwrap();
        let certificates = Arc::new(ServerCertificates::read(&config).unwrap());
        let expected = certificates.seconds_left(1_000_000).unwrap();
        let source = HealthSource { certificates, clock: Arc::new(|| 1_000_000_000), ..source };
        let text = source.answer("/metrics").1;
        assert!(text.contains(&format!("\nhetal_certificate_seconds_left {expected}\n")), "{text}");
    }
}
