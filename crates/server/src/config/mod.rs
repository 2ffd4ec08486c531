//! Configuration: a TOML file, overridden by flags and environment variables.

mod hyperparameters;
mod state;

pub use state::StateConfig;

use crate::compute::param_registry::ParamRegistry;
use crate::tenants::{TenantConfig, Tenants};
use crate::{Error, Result};
use hetal_learn::AgreementLimits;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The least value of `stall_seconds`.
const MIN_STALL_SECONDS: u64 = 60;
/// The least value of `audit_bytes`: a log file must hold some lines.
const MIN_AUDIT_BYTES: u64 = 4096;

/// The settings of a server.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What this process does. Several processes that share a database need not all do everything.
    pub role: Role,
    /// The folder for all data of the server.
    pub folder: PathBuf,
    /// The folder of blobs, in place of `folder/blobs`. Servers that share a database share it.
    pub blobs: Option<PathBuf>,
    /// The address on which clients connect.
    pub address: SocketAddr,
    /// The address of health checks and metrics, served over plain HTTP. Do not expose it to the
    /// public.
    pub metrics: Option<SocketAddr>,
    /// The server's certificate chain (PEM). If not set, the server creates an authority and a
    /// certificate in `folder/tls`.
    pub certificate: Option<PathBuf>,
    /// The private key of the certificate (PEM).
    pub key: Option<PathBuf>,
    /// Names and addresses for a certificate that the server creates.
    pub names: Vec<String>,
    /// Authorities of client certificates (PEM). Needed if a tenant authenticates with a
    /// certificate.
    pub client_authorities: Option<PathBuf>,
    /// The tenants.
    pub tenants: Vec<TenantConfig>,
    /// Names of the accepted parameter sets.
    pub sets: Vec<String>,
    /// Whether insecure parameter sets may be accepted.
    pub allow_insecure: bool,
    /// Where the state is.
    pub state: StateConfig,
    /// An S3 bucket for blobs, in place of `folder/blobs`.
    #[cfg(feature = "s3")]
    pub s3: Option<crate::store::blobs::S3Config>,
    /// Whether to take over blobs that another copy of the database used last. Applies to one
    /// start, so it is a flag and not a key of the file.
    #[serde(skip)]
    pub take_over: bool,
    /// The device to compute on.
    pub engine: EngineChoice,
    /// Numbers of the GPUs to use, in the driver's order. Empty: all working GPUs.
    pub cards: Vec<usize>,
    /// Jobs computed at the same time. Default: one for each GPU, or one on the CPU.
    pub workers: Option<usize>,
    /// GiB of memory for prepared batches. Batches that do not fit are prepared each time they are
    /// used.
    pub prepared_gib: f64,
    /// GiB of memory of each worker for rows that were lifted from coefficient form and do not stay
    /// prepared. Rows that do not fit are lifted each time they are used.
    pub lifted_gib: f64,
    /// Seconds of one lift, as clients are told. Default: an estimate for the device.
    pub lift_seconds: Option<f64>,
    /// Iterations between checkpoints. Every check writes one.
    pub checkpoint_every: u64,
    /// Seconds without renewal after which a worker's lease expires.
    pub lease_seconds: u64,
    /// Seconds that a job keeps its worker while it waits for a verdict.
    pub warm_seconds: u64,
    /// Seconds without progress of a GPU job after which the GPU counts as hung and the process
    /// ends.
    pub stall_seconds: u64,
    /// Whether learning rates, momentum and seed are hidden from clients.
    pub hide_hyperparameters: bool,
    /// Defaults and bounds of the hyper-parameters.
    #[serde(deserialize_with = "hyperparameters::deserialize")]
    pub hyperparameters: AgreementLimits,
    /// Limits on what clients may use.
    pub bounds: Bounds,
}

/// Gibibytes as bytes.
pub fn bytes_of_gib(gib: f64) -> u64 {
    (gib * (1u64 << 30) as f64) as u64
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Serves clients and computes.
    All,
    /// Serves clients.
    Gateway,
    /// Computes.
    Worker,
}

impl Role {
    /// Whether the process serves clients.
    pub fn serves(self) -> bool {
        self != Self::Worker
    }

    /// Whether the process computes.
    pub fn computes(self) -> bool {
        self != Self::Gateway
    }
}

impl std::str::FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "gateway" => Ok(Self::Gateway),
            "worker" => Ok(Self::Worker),
            _ => Err(format!("invalid role {text:?}: use all, gateway or worker")),
        }
    }
}

/// The device to compute on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineChoice {
    /// A GPU if one works, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU.
    Cuda,
}

impl std::str::FromStr for EngineChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda),
            _ => Err(format!("invalid engine {text:?}: use auto, cpu or cuda")),
        }
    }
}

/// Limits on what clients may use.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bounds {
    /// Bytes of one upload.
    pub blob_bytes: u64,
    /// Bytes of a tenant: uploads, results, and checkpoints of unfinished jobs.
    pub tenant_bytes: u64,
    /// Uploads of a tenant.
    pub uploads: u64,
    /// Concurrent uploads of a tenant.
    pub open_uploads: usize,
    /// Jobs of a tenant that have not ended.
    pub jobs: u64,
    /// Jobs of a tenant that are stored, ended ones included.
    pub kept_jobs: u64,
    /// Row blobs of a job.
    pub batches: usize,
    /// Concurrent connections.
    pub connections: usize,
    /// Concurrent connections of a tenant; never more than half of all.
    pub tenant_connections: usize,
    /// Seconds after which a connection is replaced: its requests end, and the client connects
    /// again.
    pub connection_seconds: u64,
    /// Seconds without a request after which a connection is closed.
    pub connection_idle_seconds: u64,
    /// Requests of a tenant a second. Ten times as many may come at once; further ones wait.
    pub request_rate: u32,
    /// Concurrent unauthenticated connections from one IPv4 address or one IPv6 /64 network.
    pub strangers: usize,
    /// Concurrent requests on one connection.
    pub requests: u32,
    /// Concurrent watch and download streams of a tenant.
    pub streams: usize,
    /// Seconds to complete the TLS handshake, to authenticate after it, between two parts of an
    /// upload, and to accept a part of a download.
    pub idle_seconds: u64,
    /// Attempts at a job without a new checkpoint.
    pub attempts: u32,
    /// Hours of work on a job.
    pub job_hours: u64,
    /// Seconds to give a verdict, counted while the server runs.
    pub verdict_seconds: u64,
    /// Bytes of disk space that uploads leave free.
    pub spare_bytes: u64,
    /// Bytes of an audit log file after which the log is rotated.
    pub audit_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            blob_bytes: 16 << 30,
            tenant_bytes: 128 << 30,
            uploads: 10_000,
            open_uploads: 8,
            jobs: 16,
            kept_jobs: 1000,
            batches: 4096,
            connections: 1024,
            tenant_connections: 128,
            connection_seconds: 24 * 3600,
            connection_idle_seconds: 600,
            request_rate: 100,
            strangers: 256,
            requests: 64,
            streams: 256,
            idle_seconds: 60,
            attempts: 25,
            job_hours: 24 * 14,
            verdict_seconds: 3 * 24 * 3600,
            spare_bytes: 1 << 30,
            audit_bytes: 64 << 20,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            role: Role::All,
            folder: PathBuf::from("hetal-server"),
            blobs: None,
            address: SocketAddr::from(([127, 0, 0, 1], 7443)),
            metrics: None,
            certificate: None,
            key: None,
            names: ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into(),
            client_authorities: None,
            tenants: Vec::new(),
            sets: vec!["full".to_owned()],
            allow_insecure: false,
            state: StateConfig::default(),
            #[cfg(feature = "s3")]
            s3: None,
            take_over: false,
            engine: EngineChoice::Auto,
            cards: Vec::new(),
            workers: None,
            prepared_gib: 2.0,
            lifted_gib: 8.0,
            lift_seconds: None,
            checkpoint_every: 4,
            lease_seconds: 60,
            warm_seconds: 600,
            stall_seconds: 900,
            hide_hyperparameters: false,
            hyperparameters: AgreementLimits::default(),
            bounds: Bounds::default(),
        }
    }
}

impl Config {
    /// Reads a configuration file. Missing keys keep their defaults.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::file(path, e))?;
        let config = Self::parse(&text)
            .map_err(|e| Error::Config { reason: format!("{}: {}", path.display(), e.trim_end()) })?;
        config.state.check_file()?;
        Ok(config)
    }

    /// Parses a configuration.
    pub(crate) fn parse(text: &str) -> std::result::Result<Self, String> {
        // The message repeats the line in question.
        toml::from_str(text).map_err(|e| state::without_password(&e.to_string()))
    }

    /// Checks where blobs are.
    fn check_blobs(&self) -> Result<()> {
        #[cfg(feature = "s3")]
        let elsewhere = self.s3.is_some();
        #[cfg(not(feature = "s3"))]
        let elsewhere = false;
        let reason = if elsewhere && self.blobs.is_some() {
            "`blobs` and `[s3]` name two places for blobs: remove one of them"
        } else if self.role != Role::All && !elsewhere && self.blobs.is_none() {
            "gateways and workers share their blobs: name a shared folder in `blobs`, or a bucket in `[s3]`"
        } else {
            return Ok(());
        };
        Err(Error::Config { reason: reason.to_owned() })
    }

    /// Checks that the settings are valid together.
    pub fn check(&self) -> Result<()> {
        let refuse = |reason: &str| Err(Error::Config { reason: reason.to_owned() });
        if self.role != Role::All && self.state.url.is_none() {
            return refuse(
                "gateways and workers meet in a PostgreSQL database: set `state.url`, or leave out `role` to serve and \
                 compute in one process",
            );
        }
        self.check_blobs()?;
        // A worker serves nobody.
        if self.tenants.is_empty() && self.role.serves() {
            return refuse("there are no tenants: create one with `hetal-server token NAME`");
        }
        if self.tenants.iter().any(|t| t.certificate.is_some()) && self.client_authorities.is_none() {
            return refuse("a tenant has a certificate, but `client_authorities` is not set");
        }
        if self.certificate.is_some() != self.key.is_some() {
            return refuse("`certificate` and `key` must be set together");
        }
        if self.workers == Some(0)
            || self.checkpoint_every == 0
            || self.lease_seconds < 3
            || self.bounds.connections == 0
        {
            return refuse(
                "`workers`, `checkpoint_every` and `bounds.connections` must be at least 1, `lease_seconds` at least 3",
            );
        }
        let Bounds { tenant_connections, strangers, streams, open_uploads, .. } = self.bounds;
        if [tenant_connections, strangers, streams, open_uploads].contains(&0) {
            return refuse("`tenant_connections`, `strangers`, `streams` and `open_uploads` must be at least 1");
        }
        if self.stall_seconds < MIN_STALL_SECONDS {
            return refuse("`stall_seconds` must be at least 60: a working GPU may be silent for some seconds");
        }
        let Bounds { idle_seconds, verdict_seconds, connection_seconds, connection_idle_seconds, .. } = self.bounds;
        if [idle_seconds, verdict_seconds, connection_seconds, connection_idle_seconds].contains(&0) {
            return refuse(
                "`idle_seconds`, `verdict_seconds`, `connection_seconds` and `connection_idle_seconds` must be at \
                 least 1",
            );
        }
        if self.bounds.request_rate == 0 {
            return refuse("`bounds.request_rate` must be at least 1");
        }
        if self.bounds.audit_bytes < MIN_AUDIT_BYTES {
            return refuse("`bounds.audit_bytes` must be at least 4096");
        }
        // The list of jobs must fit into one message.
        if self.bounds.kept_jobs > 2000 {
            return refuse("`bounds.kept_jobs` must be at most 2000");
        }
        let sizes = [Some(self.prepared_gib), Some(self.lifted_gib), self.lift_seconds];
        if !sizes.into_iter().flatten().all(|size| size >= 0.0 && size.is_finite()) {
            return refuse("`prepared_gib`, `lifted_gib` and `lift_seconds` must be numbers that are not negative");
        }
        self.state.settings()?;
        hyperparameters::check(&self.hyperparameters)?;
        Tenants::new(&self.tenants)?;
        ParamRegistry::new(&self.sets, self.allow_insecure)?;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A gateway and several workers of one machine have an address of metrics each.
    #[test]
    fn units_of_one_machine_serve_metrics_side_by_side() {
        let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
        let common = Config::parse(&std::fs::read_to_string(packaging.join("server.toml")).unwrap()).unwrap().metrics;
        let mut taken = BTreeSet::new();
        for (unit, instances) in [("hetal-gateway", 1), ("hetal-worker", 1), ("hetal-worker@", 10)] {
            let text = std::fs::read_to_string(packaging.join(format!("systemd/{unit}.service"))).unwrap();
            let own = text.lines().find_map(|line| line.strip_prefix("Environment=HETAL_METRICS="));
            for gpu in 0..instances {
                let own = own.map(|address| address.replace("%i", &gpu.to_string()).parse::<SocketAddr>().unwrap());
                assert!(taken.insert(own.or(common)), "{unit} {gpu}: {own:?} is taken");
            }
        }
    }

    #[test]
    fn a_file_says_what_differs_from_the_defaults() {
        let text = format!(
            "address = \"0.0.0.0:443\"\nsets = [\"full\"]\n[bounds]\njobs = 3\n[[tenants]]\nname = \"ann\"\ntoken = \"{}\"\n",
            "ab".repeat(32)
        );
        let config: Config = toml::from_str(&text).unwrap();
        config.check().unwrap();
        assert_eq!((config.bounds.jobs, config.bounds.uploads), (3, 10_000));
        for bad in [
            "addres = 1",
            "[bounds]\njob = 1",
            "[[tenants]]\nname = \"A\"",
            "[[tenants]]\nname = \"a\"\ntoken = \"12\"",
        ] {
            assert!(toml::from_str::<Config>(bad).is_err(), "{bad}");
        }
        assert!(Config::default().check().unwrap_err().to_string().contains("no tenants"));
        let misspelt = Config { sets: vec!["ful".to_owned()], ..config.clone() };
        assert!(misspelt.check().unwrap_err().to_string().contains("ful"));
        for (change, word) in [
            (Bounds { audit_bytes: 0, ..Bounds::default() }, "audit_bytes"),
            (Bounds { open_uploads: 0, ..Bounds::default() }, "open_uploads"),
            (Bounds { strangers: 0, ..Bounds::default() }, "strangers"),
            (Bounds { idle_seconds: 0, ..Bounds::default() }, "idle_seconds"),
            (Bounds { connection_seconds: 0, ..Bounds::default() }, "connection_seconds"),
            (Bounds { connection_idle_seconds: 0, ..Bounds::default() }, "connection_idle_seconds"),
            (Bounds { request_rate: 0, ..Bounds::default() }, "request_rate"),
        ] {
            let refused = Config { bounds: change, ..config.clone() }.check().unwrap_err().to_string();
            assert!(refused.contains(word), "{refused}");
        }
    }
}
