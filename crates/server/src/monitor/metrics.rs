//! Prometheus counters and the answers to health checks.

use crate::clock::{self, Clock};
use crate::compute::device::{ComputeDevice, Devices};
use crate::monitor::gauges::Gauges;
use crate::monitor::histograms::{BYTES, BoundedHistogram, SECONDS, WAITS};
use crate::monitor::probe::Probe;
use crate::monitor::usage::{LargestTenants, TenantSource, usage};
use crate::net::certificates::ServerCertificates;
use crate::server_core::Core;
use crate::store::disk::{Disk, OsDisk};
use crate::store::state::{JobState, Quota, State};
use crate::{Error, Result};
use hetal_cuda::{CardState, card_state};
use hetal_report::DeviceState;
use prometheus::core::Collector;
use prometheus::{Counter, IntCounter, Registry, TextEncoder};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the result of a write to the database stands for later health checks.
const WRITE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How long the disk may take for a health check or for metrics. A request to the HTTP port may
/// take longer.
const DISK_TIMEOUT: Duration = Duration::from_secs(4);

/// How long what drivers tell of GPUs, and what tenants use, stands for later requests.
const STATE_LIFETIME: Duration = Duration::from_secs(2);

/// Prometheus counters and histograms since the start of the server.
pub struct Metrics {
    started: Instant,
    /// What the answer to `/metrics` is made from.
    registry: Registry,
    /// Set while the server stops.
    pub draining: AtomicBool,
    /// Requests.
    pub requests: IntCounter,
    /// Requests that were refused or failed.
    pub refusals: IntCounter,
    /// Bytes of blobs received.
    pub received_bytes: IntCounter,
    /// Bytes of blobs sent.
    pub sent_bytes: IntCounter,
    /// Training iterations.
    pub iterations: IntCounter,
    /// Seconds spent in training iterations.
    pub iteration_seconds: Counter,
    /// Checkpoints written.
    pub checkpoints: IntCounter,
    /// Failed jobs.
    pub failures: IntCounter,
    /// Attempts that ended because of a GPU.
    pub device_failures: IntCounter,
    /// Operations that failed because of the disk, the database or the bucket.
    pub storage_failures: IntCounter,
    /// Seconds of requests, as the audit log has them, by request.
    pub request_times: BoundedHistogram,
    /// Seconds of iterations by device.
    pub iteration_times: BoundedHistogram,
    /// Seconds from the creation of a job to its start, by tenant.
    pub queue_times: BoundedHistogram,
    /// Bytes of complete uploads by tenant.
    pub upload_sizes: BoundedHistogram,
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
        // A name or a label that is wrong fails every test of this crate.
        Self::new().expect("the names of metrics are constants, and differ")
    }
}

/// Makes a counter one of a registry's metrics.
fn registered<C: Collector + Clone + 'static>(registry: &Registry, counter: C) -> prometheus::Result<C> {
    registry.register(Box::new(counter.clone()))?;
    Ok(counter)
}

impl Metrics {
    fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let counter = |name, help| registered(&registry, IntCounter::new(name, help)?);
        let histogram = |name, label, bounds, help| BoundedHistogram::register(&registry, name, label, bounds, help);
        let iteration_seconds = Counter::new("hetal_iteration_seconds_total", "Time of all gradient steps.")?;
        Ok(Self {
            started: Instant::now(),
            draining: AtomicBool::new(false),
            requests: counter("hetal_requests_total", "Requests.")?,
            refusals: counter("hetal_refusals_total", "Requests that were refused or failed.")?,
            received_bytes: counter("hetal_received_bytes_total", "Bytes of blobs received.")?,
            sent_bytes: counter("hetal_sent_bytes_total", "Bytes of blobs sent.")?,
            iterations: counter("hetal_iterations_total", "Gradient steps.")?,
            iteration_seconds: registered(&registry, iteration_seconds)?,
            checkpoints: counter("hetal_checkpoints_total", "Checkpoints written.")?,
            failures: counter("hetal_job_failures_total", "Jobs that failed.")?,
            device_failures: counter("hetal_device_failures_total", "Attempts at jobs that ended with a GPU fault.")?,
            storage_failures: counter(
                "hetal_storage_failures_total",
                "Operations that failed because of the disk, the database or the bucket.",
            )?,
            request_times: histogram("hetal_request_seconds", "request", SECONDS, "Time of requests of tenants.")?,
            iteration_times: histogram("hetal_iteration_seconds", "device", SECONDS, "Time of gradient steps.")?,
            queue_times: histogram("hetal_queue_seconds", "tenant", WAITS, "Time of jobs until their first start.")?,
            upload_sizes: histogram("hetal_upload_bytes", "tenant", BYTES, "Bytes of complete uploads.")?,
            registry,
        })
    }

    /// Counts an error if the disk, the database or the bucket caused it.
    pub fn count_fault(&self, error: &Error) {
        if error.is_storage_fault() {
            self.storage_failures.inc();
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

    /// The metrics in Prometheus' text format.
    fn text(&self) -> prometheus::Result<String> {
        let mut families = self.metrics.registry.gather();
        families.extend(self.gauges()?.gather());
        TextEncoder::new().encode_to_string(&families)
    }

    /// What the server's state is now. Gauges that need the disk are left out while it hangs.
    fn gauges(&self) -> prometheus::Result<Gauges> {
        let gauges = Gauges::default();
        let uptime = self.metrics.started.elapsed().as_millis() as f64 / 1e3;
        gauges.add("hetal_uptime_seconds", "Time since the start.", Some(uptime))?;
        let left = self.certificates.seconds_left((self.clock)() / 1000);
        let help = "Time until the first of the loaded certificates ends.";
        gauges.add("hetal_certificate_seconds_left", help, left.map(|seconds| seconds as f64))?;
        let stored = self.stored_totals();
        let free = stored.as_ref().and_then(|stored| stored.free_bytes);
        gauges.add("hetal_free_disk_bytes", "Free disk space.", free.map(|bytes| bytes as f64))?;
        let jobs = stored.and_then(|stored| stored.jobs).unwrap_or_default();
        gauges.add_each("hetal_jobs", "Jobs by state.", "state", jobs.into_iter().map(named_state))?;
        gauges.add_cards(&self.card_states())?;
        Ok(gauges)
    }

    /// The page of the operator.
    fn page(&self) -> String {
        let (metrics, stored, used) = (&self.metrics, self.stored_totals(), self.used());
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
            jobs: stored.and_then(|stored| Some(stored.jobs?.into_iter().map(named_state).collect())),
            errors: errors.map(|(name, counter)| (name.to_owned(), counter.get())).to_vec(),
            transferred: [metrics.received_bytes.get(), metrics.sent_bytes.get()],
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
            "/metrics" => match self.text() {
                Ok(text) => ("200 OK", text),
                Err(error) => {
                    ("500 Internal Server Error", format!("no metrics, because of a bug; report it: {error}\n"))
                }
            },
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

/// A state of jobs by its name, and how many jobs have it.
fn named_state((state, count): (JobState, u64)) -> (String, u64) {
    (format!("{state:?}").to_lowercase(), count)
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
