//! Starts and stops a server: storage, sockets and threads.

use crate::change_notifier::ChangeNotifier;
use crate::clock;
use crate::compute::device::Devices;
use crate::compute::param_registry::ParamRegistry;
use crate::config::Config;
use crate::jobs::required_keys::RequiredKeysCache;
use crate::jobs::verdict_timeout::VerdictTimeouts;
use crate::monitor::metrics::{HealthSource, Metrics};
use crate::monitor::usage::TenantSource;
use crate::net::certificates::{self, ServerCertificates};
use crate::net::expiry::DailyWarnings;
use crate::net::{metrics_http, tls};
use crate::rpc::auth::AuthLayer;
use crate::rpc::{Handler, Service};
use crate::server_core::Core;
use crate::store::disk::{Disk, OsDisk};
use crate::store::duties;
use crate::store::ownership;
use crate::store::shared_uploads::SharedUploads;
use crate::store::staging::Staging;
use crate::store::state::{self, Database, State};
use crate::store::uploads::Uploads;
use crate::store::{blobs, folder};
use crate::tenants::audit::AuditLog;
use crate::tenants::erasure;
use crate::tenants::{TenantConfig, Tenants};
use crate::worker::give_way::GiveWay;
use crate::worker::pool::WorkerContext;
use crate::worker::shutdown::{ShutdownReason, ShutdownSignal};
use crate::{Error, Result};
use hetal_wire::v1::hetal_server::HetalServer;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

/// Time limit for streams to end when the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest time between two checks for idle connections.
const CONNECTION_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The least free disk space for a start, in bytes.
const MIN_FREE_BYTES: u64 = 16 << 20;

/// A running server. Its threads belong to this process.
pub struct Server {
    address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    authority: Option<PathBuf>,
    worker: Arc<WorkerContext>,
    pub(crate) service: Arc<Service>,
    threads: Vec<JoinHandle<()>>,
    network: Option<Network>,
    database: Arc<dyn Database>,
    /// Keeps the folder locked.
    _lock: File,
}

/// The network threads of a server.
struct Network {
    runtime: Runtime,
    /// Asks the network service to stop.
    stop: oneshot::Sender<()>,
    /// Completes when it has stopped.
    stopped: oneshot::Receiver<()>,
}

/// Starts a server. The crate documentation has an example.
pub fn start(config: Config) -> Result<Server> {
    let folder = config.folder.clone();
    start_with(config, ownership::RENEWAL_INTERVAL)
        .map_err(|error| explain_full_disk(error, OsDisk.free(&folder).unwrap_or(u64::MAX)))
}

/// Explains a failed start on a full disk.
fn explain_full_disk(error: Error, free: u64) -> Error {
    if free >= MIN_FREE_BYTES || !error.is_transient() || matches!(error, Error::Device { .. }) {
        return error;
    }
    let reason = format!("{error} (only {free} bytes of disk space are left: free some MiB and start again)");
    Error::System { what: "the disk is full".to_owned(), reason }
}

/// Everything that can fail comes before the server takes ownership of the blobs. A failed start
/// leaves the ownership unchanged.
pub(crate) fn start_with(mut config: Config, renewal_interval: Duration) -> Result<Server> {
    config.check()?;
    folder::make_private(&config.folder)?;
    let lock = folder::lock(&config.folder)?;
    let param_sets = Arc::new(ParamRegistry::new(&config.sets, config.allow_insecure)?);
    // A missing or broken GPU is reported now, not during the first job.
    let devices = if config.role.computes() { Devices::detect(&config, &param_sets)? } else { Devices::default() };
    config.lift_seconds.get_or_insert(devices.lift_seconds());
    let database = state::open(&config)?;
    let name = if database.is_shared() { folder::worker_name(&config.folder)? } else { "local".to_owned() };
    let blobs = blobs::open(&config, database.is_shared().then_some(&*name))?;
    let state: Arc<dyn State> = Arc::clone(&database) as Arc<dyn State>;
    let staging = Staging::open(Arc::new(OsDisk), &config.folder.join("staging"), config.bounds.open_uploads)?;
    let audit = Arc::new(AuditLog::open(&config.folder, config.bounds.audit_bytes)?);
    let tenants = RwLock::new(Tenants::new(&config.tenants)?);
    let sockets = Sockets::open(&config)?;
    let core = Arc::new(Core {
        config,
        param_sets,
        state: Arc::clone(&state),
        blobs: Arc::clone(&blobs),
        notifier: ChangeNotifier::default(),
        metrics: Arc::new(Metrics::default()),
        required_keys: RequiredKeysCache::default(),
        give_way: GiveWay::among(&database, &name),
        clock: clock::system(),
    });
    let worker = Arc::new(WorkerContext {
        core: Arc::clone(&core),
        name,
        draining: false.into(),
        shutdown: ShutdownSignal::default(),
        device_fault: Mutex::default(),
    });
    let config = &core.config;
    let waking = Arc::downgrade(&core);
    database.watch(Box::new(move |job| match (waking.upgrade(), job) {
        (Some(core), Some(job)) => core.notifier.notify_of(job),
        (Some(core), None) => core.notifier.notify(),
        (None, _) => {}
    }))?;
    // The folder is locked, so any worker of this name is dead.
    if config.role.computes() {
        state.release_worker(&worker.name)?;
    }
    for tenant in erasure::unfinished_erasures(&config.folder)? {
        tracing::warn!(%tenant, "the erasure of a tenant was interrupted: stop the server and repeat `hetal-server forget`");
    }
    let ownership = ownership::establish(&*blobs, &*database, config.take_over)?;
    duties::collect_at_start(ownership, config.take_over, &*database, &*blobs, &staging);
    let shared = SharedUploads::new(&database, &blobs, &worker.name);
    let uploads = Uploads {
        state,
        blobs,
        staging,
        max_bytes: config.bounds.blob_bytes,
        reserve_bytes: config.bounds.spare_bytes,
        shared,
    };
    duties::tidy(&uploads, &*database);
    let service = Service::new(core, tenants, uploads, audit);
    let mut server = sockets.serve(Arc::new(service), worker, Arc::clone(&database), lock, &devices);
    server.spawn_threads(&devices, database, renewal_interval)?;
    Ok(server)
}

/// Closes idle connections, and those of expired tenants, as long as the service exists.
async fn close_stale_connections(service: Weak<Service>) {
    loop {
        let Some(alive) = service.upgrade() else { return };
        alive.close_stale_connections();
        let idle = Duration::from_secs(alive.core.config.bounds.connection_idle_seconds);
        drop(alive);
        tokio::time::sleep((idle / 4).min(CONNECTION_CHECK_INTERVAL)).await;
    }
}

/// The tenants as they are configured, for as long as the server runs.
fn tenants_of(service: &Arc<Service>) -> TenantSource {
    let service = Arc::downgrade(service);
    Arc::new(move || match service.upgrade() {
        Some(service) => {
            let tenants = service.tenants.read().unwrap_or_else(PoisonError::into_inner);
            (tenants.names().into_iter().collect(), service.quota())
        }
        None => Default::default(),
    })
}

fn thread(name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let failed = |e: std::io::Error| Error::System { what: "a thread".to_owned(), reason: e.to_string() };
    std::thread::Builder::new().name(name).spawn(work).map_err(failed)
}

/// Bound sockets with their TLS settings.
struct Sockets {
    runtime: Runtime,
    /// For clients; `None` if the server only computes.
    clients: Option<(TcpListener, TlsAcceptor)>,
    certificates: Arc<ServerCertificates>,
    address: SocketAddr,
    monitor: Option<TcpListener>,
}

impl Sockets {
    /// Loads or creates certificates and binds the sockets. Clients wait until [`Sockets::serve`].
    fn open(config: &Config) -> Result<Self> {
        let failed = |what: String| move |e: std::io::Error| Error::System { what, reason: e.to_string() };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("network").enable_all().build();
        let runtime = runtime.map_err(failed("the network's threads".to_owned()))?;
        let bind =
            |address: SocketAddr| runtime.block_on(TcpListener::bind(address)).map_err(failed(address.to_string()));
        let (mut clients, mut certificates, mut address) = (None, Arc::default(), config.address);
        if config.role.serves() {
            let acceptor = certificates::acceptor(config)?;
            certificates = Arc::new(ServerCertificates::read(config)?);
            let listener = bind(config.address)?;
            address = listener.local_addr().map_err(failed("the address".to_owned()))?;
            clients = Some((listener, acceptor));
        }
        let monitor = config.metrics.map(bind).transpose()?;
        Ok(Self { runtime, clients, certificates, address, monitor })
    }

    fn serve(
        self,
        service: Arc<Service>,
        worker: Arc<WorkerContext>,
        database: Arc<dyn Database>,
        lock: File,
        devices: &Devices,
    ) -> Server {
        let Self { runtime, clients, certificates, address, monitor } = self;
        let config = &service.core.config;
        let metrics_address = monitor.as_ref().and_then(|listener| listener.local_addr().ok());
        if let Some(monitor) = monitor {
            let source = HealthSource::of(&service.core, Arc::clone(&certificates), devices, tenants_of(&service));
            runtime.spawn(metrics_http::serve(monitor, source, config.names.clone()));
        }
        let served = config.role.serves() && config.certificate.is_none();
        let authority = served.then(|| certificates::authority_path(&config.folder));
        let (stop, stopped) = oneshot::channel();
        let (ended, end) = oneshot::channel();
        if let Some((listener, acceptor)) = clients {
            runtime.spawn(DailyWarnings::new(certificates, Arc::clone(&service.core.clock)).run());
            serve_clients(&runtime, &service, (listener, acceptor), stopped, ended);
            tracing::info!(%address, "listening for clients");
        }
        let network = Some(Network { runtime, stop, stopped: end });
        let threads = Vec::new();
        Server { address, metrics_address, authority, worker, service, threads, network, database, _lock: lock }
    }
}

/// Serves clients until `stop`, and then says that it has ended.
fn serve_clients(
    runtime: &Runtime,
    service: &Arc<Service>,
    (listener, acceptor): (TcpListener, TlsAcceptor),
    stop: oneshot::Receiver<()>,
    ended: oneshot::Sender<()>,
) {
    let bounds = service.core.config.bounds.clone();
    let (accepted, incoming) = mpsc::channel(1);
    let handshake_timeout = Duration::from_secs(bounds.idle_seconds);
    let connections = Arc::clone(&service.connections);
    runtime.spawn(tls::accept(listener, acceptor, connections, handshake_timeout, accepted));
    runtime.spawn(close_stale_connections(Arc::downgrade(service)));
    let incoming = ReceiverStream::new(incoming).map(Ok::<_, std::io::Error>);
    let handler = HetalServer::new(Handler(Arc::clone(service)))
        .max_decoding_message_size(hetal_wire::MESSAGE_BYTES)
        .max_encoding_message_size(hetal_wire::MESSAGE_BYTES);
    let handler = AuthLayer::new(handler, Arc::clone(service));
    let server = tonic::transport::Server::builder()
        .max_concurrent_streams(bounds.requests)
        .max_connection_age(Duration::from_secs(bounds.connection_seconds))
        .http2_max_header_list_size(16 << 10)
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .http2_keepalive_timeout(Some(Duration::from_secs(20)))
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(8 << 20);
    runtime.spawn(async move {
        let served = server.serve_with_incoming_shutdown(handler, incoming, async {
            let _ = stop.await;
        });
        if let Err(error) = served.await {
            tracing::error!(%error, "the network service failed");
        }
        let _ = ended.send(());
    });
}

impl Server {
    /// Starts the threads that expire verdicts, renew the ownership of blobs, and run jobs.
    fn spawn_threads(
        &mut self,
        devices: &Devices,
        database: Arc<dyn Database>,
        renewal_interval: Duration,
    ) -> Result<()> {
        let role = self.worker.core.config.role;
        if role.serves() {
            let (worker, shared) = (Arc::clone(&self.worker), Arc::clone(&database));
            let timeouts = VerdictTimeouts::new(worker.core.config.bounds.verdict_seconds, Some(shared));
            self.threads.push(thread("verdict-timeout".to_owned(), move || timeouts.watch(&worker))?);
        }
        let (worker, service, shared) = (Arc::clone(&self.worker), Arc::clone(&self.service), Arc::clone(&database));
        let collect = move || duties::run_garbage_duty(&worker, &service.uploads, &*shared);
        self.threads.push(thread("garbage".to_owned(), collect)?);
        let worker = Arc::clone(&self.worker);
        let renew = move || duties::renew_ownership(&worker, &*database, renewal_interval);
        self.threads.push(thread("ownership".to_owned(), renew)?);
        let workers = self.worker.core.config.workers.unwrap_or(devices.workers());
        for number in 0..if role.computes() { workers } else { 0 } {
            let (worker, device) = (Arc::clone(&self.worker), devices.of_worker(number));
            self.threads.push(thread(format!("worker {number}"), move || worker.run(device))?);
        }
        Ok(())
    }

    /// The name by which other servers of a shared database know this one.
    pub fn name(&self) -> &str {
        &self.worker.name
    }

    /// The address on which clients connect; the configured one if the server only computes.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of health checks and metrics.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// The certificate authority (PEM) that clients must trust, if the server created it.
    pub fn authority(&self) -> Option<&Path> {
        self.authority.as_deref()
    }

    /// Replaces the tenants. Connections of removed tenants, and of tenants with other credentials
    /// than before, are closed.
    pub fn reload(&self, tenants: &[TenantConfig]) -> Result<()> {
        let fresh = Tenants::new(tenants)?;
        *self.service.tenants.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        self.service.close_stale_connections();
        Ok(())
    }

    /// Waits for a fatal condition and returns it.
    pub async fn fatal_condition(&self) -> ShutdownReason {
        self.worker.shutdown.wait().await
    }

    /// The last failure of a GPU; empty if there was none.
    pub fn device_fault(&self) -> String {
        self.worker.device_fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stops the server. Jobs write a checkpoint and return to the queue, then connections and
    /// streams end.
    ///
    /// Returns false if a thread is still waiting for a hung GPU. Such a thread ends only with the
    /// process, and the driver's exit handlers may hang too.
    pub fn stop(mut self) -> bool {
        self.drain();
        !self.worker.shutdown.gpu_hung()
    }

    fn drain(&mut self) {
        self.worker.core.metrics.draining.store(true, Ordering::Relaxed);
        self.worker.draining.store(true, Ordering::Relaxed);
        self.worker.core.notifier.notify();
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && !self.worker.shutdown.gpu_hung() {
                std::thread::sleep(Duration::from_millis(20));
            }
            // A thread that waits for a hung GPU ends with the process.
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
        if let Some(Network { runtime, stop, stopped }) = self.network.take() {
            self.service.closing.store(true, Ordering::Relaxed);
            self.worker.core.notifier.notify();
            let _ = stop.send(());
            let _ = runtime.block_on(async { tokio::time::timeout(DRAIN_TIMEOUT, stopped).await });
            runtime.shutdown_timeout(Duration::from_secs(1));
            // After this last mark, no copy of the database made while the server ran is accepted.
            if let Err(error) = ownership::renew(&*self.worker.core.blobs, &*self.database) {
                tracing::warn!(%error, "could not renew the ownership of the blobs while stopping");
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.drain();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;
    use hetal_testkit::TempDir;
    use hetal_testkit::postgres::Postgres;
    use std::time::Instant;

    pub(crate) fn config(folder: &Path) -> Config {
        let token = crate::tenants::Fingerprint::of(b"a token");
        let ann = TenantConfig {
            name: "ann".to_owned().try_into().unwrap(),
            token: Some(token),
            certificate: None,
            expires: None,
        };
        Config {
            folder: folder.to_owned(),
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            tenants: vec![ann],
            sets: vec!["insecure-toy11".to_owned()],
            allow_insecure: true,
            engine: crate::config::EngineChoice::Cpu,
            ..Config::default()
        }
    }

    /// A copy of the database, made while the server runs, stops matching the blobs after the next
    /// renewal.
    #[test]
    fn a_running_server_marks_its_blobs() {
        let dir = TempDir::new();
        let running = start_with(config(dir.path()), Duration::from_millis(20)).unwrap();
        let copied = ownership::tests::copy(dir.path(), "state.sqlite", "copy.sqlite");
        let until = Instant::now() + Duration::from_secs(60);
        while ownership::is_ours(&copied, &running.worker.core.blobs.owner().unwrap().unwrap()).unwrap() {
            assert!(Instant::now() < until, "the mark stays");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Servers that share a database share its blobs, or else the later one does not start. Each
    /// hears of the changes of the others.
    #[test]
    fn a_shared_database_has_one_place_of_blobs() {
        let Some(postgres) = Postgres::shared() else { return };
        let url = postgres.database();
        let [first, second] = [TempDir::new(), TempDir::new()];
        let shared = |dir: &TempDir| {
            let mut shared = config(dir.path());
            shared.state.url = Some(url.clone());
            shared
        };
        let running = start_with(shared(&first), Duration::from_millis(20)).unwrap();
        let refused = start_with(shared(&second), Duration::from_millis(20)).err().unwrap().to_string();
        assert!(refused.contains("elsewhere") && refused.contains("database test_"), "{refused}");
        // Another server's change wakes this one.
        let other = state::open(&shared(&second)).unwrap();
        let ann = "ann".to_owned().try_into().unwrap();
        crate::testing::suites::state::complete(&*other, &ann, [1, 2, 3]);
        let job = crate::testing::suites::state::new_job(1);
        let ended = |postgres: &Postgres| postgres.query(&url, "SELECT state > 2 FROM jobs") == "t";
        other.create_job(&ann, &job, &crate::testing::suites::state::QUOTA, 0).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !ended(postgres) {
            assert!(Instant::now() < until, "nobody claims the job");
            std::thread::sleep(Duration::from_millis(10));
        }
        // Restarted in its folder, it confirms what it owns, under the same name.
        let name = running.worker.name.clone();
        assert!(running.stop());
        let again = start_with(shared(&first), Duration::from_millis(20)).unwrap();
        assert!(again.worker.name == name && name.len() == 32);
    }

    /// The caller must know whether a thread still waits for a hung GPU.
    #[test]
    fn a_stop_says_whether_a_card_hangs() {
        for hangs in [false, true] {
            let dir = TempDir::new();
            let running = start_with(config(dir.path()), ownership::RENEWAL_INTERVAL).unwrap();
            if hangs {
                running.worker.shutdown.trigger(ShutdownReason::GpuHung { seconds: 1 });
            }
            assert_eq!(running.stop(), !hangs);
        }
    }

    #[test]
    fn a_full_disk_is_named() {
        let full = || Error::State { reason: "database or disk is full".to_owned() };
        let message = explain_full_disk(full(), 4096).to_string();
        assert!(message.contains("database or disk is full") && message.contains("free some MiB"), "{message}");
        assert_eq!(explain_full_disk(full(), MIN_FREE_BYTES), full(), "there is room: the fault is another");
        let refused = Error::Config { reason: "there are no tenants".to_owned() };
        assert_eq!(explain_full_disk(refused.clone(), 0), refused);
        let card = Error::Device { reason: "no GPU".to_owned(), is_full: false };
        assert_eq!(explain_full_disk(card.clone(), 0), card);
    }
}
