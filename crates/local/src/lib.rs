#![doc = include_str!("../README.md")]

pub mod machine;
mod resources;

pub use resources::{MEMORY_GIB, Needs};

use hetal_client::rpc::{Address, Credentials};
use hetal_server::config::EngineChoice;
use hetal_server::tenants::{Fingerprint, Tenant, TenantConfig};
use hetal_server::{Config, Server};
use std::path::{Path, PathBuf};
use std::time::Duration;
use zeroize::Zeroizing;

/// A server in this process.
pub struct LocalServer {
    server: Server,
    address: Address,
}

/// How to start a server in this process.
pub struct LocalServerOptions<'a> {
    /// The folder of the server.
    pub folder: PathBuf,
    /// The parameter set.
    pub set: &'a str,
    /// What it computes on.
    pub engine: EngineChoice,
    /// GiB of prepared batches that it may keep.
    pub prepared_gib: f64,
}

/// An error of a server in this process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system returns no random bytes.
    #[error("the operating system returns no random bytes: {reason}")]
    Randomness {
        /// The problem.
        reason: String,
    },
    /// The server did not start.
    #[error(transparent)]
    Server(#[from] hetal_server::Error),
    /// A file cannot be read.
    #[error("{}: {reason}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The size of a training cannot be computed.
    #[error(transparent)]
    Client(#[from] hetal_client::Error),
    /// The disk has too little free space.
    #[error("{} needs {needs} of disk space, and {free} are free: free some space or choose another --dir", .folder.display())]
    Disk {
        /// The folder.
        folder: PathBuf,
        /// The space that is needed.
        needs: String,
        /// The space that is free.
        free: String,
    },
    /// The machine has too little memory.
    #[error(
        "a server on this machine needs about {needs:.1} GiB of memory for this training, and {available:.1} GiB are \
         available: close other programs, train with fewer features or classes, use a machine with more memory, \
         or name the server of someone else with --server"
    )]
    Memory {
        /// GiB that are needed.
        needs: f64,
        /// GiB that are available.
        available: f64,
    },
}

/// The name of the only tenant.
const TENANT: &str = "demo";
/// How long a broken connection is retried.
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);

impl LocalServer {
    /// Starts a server.
    pub fn start(options: LocalServerOptions<'_>) -> Result<Self, Error> {
        let mut token = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *token).map_err(|e| Error::Randomness { reason: e.to_string() })?;
        let token = Zeroizing::new(token.iter().map(|b| format!("{b:02x}")).collect::<String>());
        let tenant = TenantConfig {
            name: Tenant::try_from(TENANT.to_owned())?,
            token: Some(Fingerprint::of(token.as_bytes())),
            certificate: None,
            expires: None,
        };
        let server = hetal_server::start(Config {
            folder: options.folder,
            address: ([127, 0, 0, 1], 0).into(),
            tenants: vec![tenant],
            sets: vec![options.set.to_owned()],
            allow_insecure: options.set.starts_with("insecure-"),
            engine: options.engine,
            prepared_gib: options.prepared_gib,
            ..Config::default()
        })?;
        let authority = server.authority().map(Path::to_owned).unwrap_or_default();
        let authorities =
            std::fs::read(&authority).map_err(|e| Error::File { path: authority.clone(), reason: e.to_string() })?;
        let address = Address {
            server: format!("127.0.0.1:{}", server.address().port()),
            authorities,
            credentials: Credentials::Token(token),
            retry_timeout: RETRY_TIMEOUT,
        };
        Ok(Self { server, address })
    }

    /// Its address and the credentials for it.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What it knows about a failed GPU.
    pub fn device_fault(&self) -> String {
        self.server.device_fault()
    }

    /// Stops the server. Running jobs continue when it is started again.
    pub fn stop(self) {
        self.server.stop();
    }
}
