#![doc = include_str!("../README.md")]

pub mod bell;
mod bench;
pub mod blobs;
mod clock;
pub mod config;
mod device;
mod error;
mod metrics;
mod service;
mod sets;
mod staging;
pub mod state;
pub mod tenants;
pub mod tls;
mod training;
pub mod work;
mod worker;

pub use config::Config;
pub use error::{Error, Result};

use bell::Bell;
use blobs::{Blobs, LocalBlobs};
use hetal_wire::v1::hetal_server::HetalServer;
use metrics::Metrics;
use service::{Handler, Service};
use sets::Sets;
use staging::Staging;
use state::{SqliteState, State};
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;
use tenants::Tenants;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use worker::Shop;

/// How long streams may take to end when the server stops.
const DRAIN: Duration = Duration::from_secs(10);

/// A server that runs in threads of this process.
pub struct Running {
    address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    authority: Option<PathBuf>,
    shop: Arc<Shop>,
    workers: Vec<JoinHandle<()>>,
    network: Option<(Runtime, oneshot::Sender<()>, oneshot::Receiver<()>)>,
    /// Held while this process has the folder.
    _lock: File,
}

/// Starts a server.
///
/// ```no_run
/// let config = hetal_server::Config::read("server.toml".as_ref())?;
/// let running = hetal_server::start(config)?;
/// println!("clients are served at {}", running.address());
/// running.stop();
/// # Ok::<(), hetal_server::Error>(())
/// ```
pub fn start(config: Config) -> Result<Running> {
    config.check()?;
    std::fs::create_dir_all(&config.folder).map_err(|e| Error::file(&config.folder, e))?;
    let lock = lock(&config.folder)?;
    let sets = Arc::new(Sets::new(&config.sets, config.allow_insecure)?);
    let state: Arc<dyn State> = Arc::new(SqliteState::open(&config.folder.join("state.sqlite"))?);
    let blobs = open_blobs(&config)?;
    let staging = Staging::open(&config.folder.join("staging"), config.bounds.open_uploads)?;
    let (bell, metrics) = (Arc::new(Bell::default()), Arc::new(Metrics::default()));
    let shop = Arc::new(Shop {
        config: config.clone(),
        sets: Arc::clone(&sets),
        state: Arc::clone(&state),
        blobs: Arc::clone(&blobs),
        bell: Arc::clone(&bell),
        metrics: Arc::clone(&metrics),
        name: "local".to_owned(),
        draining: false.into(),
    });
    // The folder is locked: whoever held jobs in it under this name is dead.
    state.release_worker(&shop.name)?;
    let service =
        Service { tenants: Tenants::new(&config.tenants)?, config, sets, state, blobs, staging, bell, metrics };
    let mut running = listen(service, shop, lock)?;
    for number in 0..running.shop.config.workers {
        let shop = Arc::clone(&running.shop);
        let thread = std::thread::Builder::new().name(format!("worker {number}")).spawn(move || shop.work());
        running.workers.push(thread.map_err(|e| Error::System { what: "a worker".to_owned(), reason: e.to_string() })?);
    }
    Ok(running)
}

/// The store that a configuration asks for.
fn open_blobs(config: &Config) -> Result<Arc<dyn Blobs>> {
    let folder = config.folder.join("blobs");
    #[cfg(feature = "s3")]
    if let Some(s3) = &config.s3 {
        return Ok(Arc::new(blobs::S3Blobs::open(s3, &folder)?));
    }
    Ok(Arc::new(LocalBlobs::open(&folder)?))
}

/// Makes sure that no other process uses the folder.
fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let file =
        File::options().create(true).truncate(false).write(true).open(&path).map_err(|e| Error::file(&path, e))?;
    file.try_lock().map_err(|_| Error::Config {
        reason: format!("{} is used by another server: stop it, or take another folder", folder.display()),
    })?;
    Ok(file)
}

/// Opens the sockets and serves them.
fn listen(service: Service, shop: Arc<Shop>, lock: File) -> Result<Running> {
    let config = service.config.clone();
    let failed = |what: String| move |e: std::io::Error| Error::System { what, reason: e.to_string() };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("network").enable_all().build();
    let runtime = runtime.map_err(failed("the network's threads".to_owned()))?;
    let bind = |address: SocketAddr| runtime.block_on(TcpListener::bind(address)).map_err(failed(address.to_string()));
    let acceptor = tls::acceptor(&config)?;
    let listener = bind(config.address)?;
    let address = listener.local_addr().map_err(failed("the address".to_owned()))?;
    let monitor = config.metrics.map(bind).transpose()?;
    let metrics_address = monitor.as_ref().and_then(|listener| listener.local_addr().ok());
    if let Some(monitor) = monitor {
        runtime.spawn(metrics::serve(monitor, Arc::clone(&service.metrics), Arc::clone(&service.state)));
    }
    let (connections, incoming) = mpsc::channel(1);
    let patience = Duration::from_secs(config.bounds.idle_seconds);
    runtime.spawn(tls::accept(listener, acceptor, config.bounds.connections, patience, connections));
    let incoming = ReceiverStream::new(incoming).map(Ok::<_, std::io::Error>);
    let (stop, stopped) = oneshot::channel();
    let (ended, end) = oneshot::channel();
    let handler = HetalServer::new(Handler(Arc::new(service)))
        .max_decoding_message_size(hetal_wire::MESSAGE_BYTES)
        .max_encoding_message_size(hetal_wire::MESSAGE_BYTES);
    let server = tonic::transport::Server::builder()
        .max_concurrent_streams(config.bounds.requests)
        .http2_max_header_list_size(16 << 10)
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .http2_keepalive_timeout(Some(Duration::from_secs(20)))
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(8 << 20);
    runtime.spawn(async move {
        let served = server.serve_with_incoming_shutdown(handler, incoming, async {
            let _ = stopped.await;
        });
        if let Err(error) = served.await {
            tracing::error!(%error, "the network failed");
        }
        let _ = ended.send(());
    });
    let authority = config.certificate.is_none().then(|| tls::authority_path(&config.folder));
    tracing::info!(%address, "clients are served");
    let network = Some((runtime, stop, end));
    Ok(Running { address, metrics_address, authority, shop, workers: Vec::new(), network, _lock: lock })
}

impl Running {
    /// Where clients are served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where health and metrics are served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// The authority (PEM) that clients must trust, if the server made its certificate itself.
    pub fn authority(&self) -> Option<&Path> {
        self.authority.as_deref()
    }

    /// Stops: no new connections, jobs go to their next checkpoint and back to the queue, streams end.
    pub fn stop(mut self) {
        self.drain();
    }

    fn drain(&mut self) {
        self.shop.metrics.draining.store(true, Ordering::Relaxed);
        self.shop.draining.store(true, Ordering::Relaxed);
        self.shop.bell.ring();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
        if let Some((runtime, stop, end)) = self.network.take() {
            let _ = stop.send(());
            let _ = runtime.block_on(async { tokio::time::timeout(DRAIN, end).await });
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.drain();
    }
}
