//! How a server is set up: a file in TOML, and what flags and environment say over it.

use crate::compute::param_registry::ParamRegistry;
use crate::tenants::{TenantConfig, Tenants};
use crate::{Error, Result};
use hetal_learn::Limits;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Seconds that a GPU may be silent, at the least.
const LEAST_STALL: u64 = 60;
/// A file of the audit log holds at least some lines.
const LEAST_AUDIT: u64 = 4096;

/// Everything an operator can choose.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where everything is kept.
    pub folder: PathBuf,
    /// Where clients are served.
    pub address: SocketAddr,
    /// Where health and metrics are served, in plain HTTP: not for the public.
    pub metrics: Option<SocketAddr>,
    /// The server's certificate chain (PEM). Without one, an authority and a certificate are made in `folder/tls`.
    pub certificate: Option<PathBuf>,
    /// The certificate's key (PEM).
    pub key: Option<PathBuf>,
    /// Names and addresses in a certificate that is made.
    pub names: Vec<String>,
    /// Authorities of client certificates (PEM), for tenants that are known by one.
    pub client_authorities: Option<PathBuf>,
    /// Who may use it.
    pub tenants: Vec<TenantConfig>,
    /// Names of the parameter sets it accepts.
    pub sets: Vec<String>,
    /// Whether sets that protect nothing may be among them.
    pub allow_insecure: bool,
    /// A bucket that blobs are kept in instead of `folder/blobs`.
    #[cfg(feature = "s3")]
    pub s3: Option<crate::store::blobs::S3Config>,
    /// Whether to take blobs that another copy of the database used last: for one start, so no file says it.
    #[serde(skip)]
    pub take_over: bool,
    /// What computes.
    pub engine: Engine,
    /// Numbers of the GPUs to use, as the driver counts them; all that work, if none are named.
    pub cards: Vec<usize>,
    /// Jobs that are computed at the same time; one for each GPU that is used, or one on the CPU, if not said.
    pub workers: Option<usize>,
    /// GiB of prepared batches that are kept; others are prepared each time they are needed.
    pub prepared_gib: f64,
    /// Iterations between checkpoints; the end of an epoch always is one.
    pub checkpoint_every: u64,
    /// Seconds after which a worker that does not report is taken for dead.
    pub lease_seconds: u64,
    /// Seconds a job keeps its worker while it waits for a verdict.
    pub warm_seconds: u64,
    /// Seconds without a sign of life of a job on a GPU, after which the GPU is taken to hang and the process ends.
    pub stall_seconds: u64,
    /// Whether learning rates, momentum and seed are kept from clients.
    pub hide_hyperparameters: bool,
    /// Hyper-parameters: defaults and bounds.
    pub hyperparameters: Limits,
    /// The most of everything.
    pub bounds: Bounds,
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// A GPU if there is one.
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU.
    Cuda,
}

impl std::str::FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda),
            _ => Err(format!("{text:?} is none of auto, cpu and cuda")),
        }
    }
}

/// The most of everything that comes from outside.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bounds {
    /// Bytes of one upload.
    pub blob_bytes: u64,
    /// Bytes of all uploads of a tenant.
    pub tenant_bytes: u64,
    /// Uploads of a tenant.
    pub uploads: u64,
    /// Uploads of a tenant at the same time.
    pub open_uploads: usize,
    /// Jobs of a tenant that have not ended.
    pub jobs: u64,
    /// Jobs of a tenant that are kept.
    pub kept_jobs: u64,
    /// Batches of a job.
    pub batches: usize,
    /// Connections at the same time.
    pub connections: usize,
    /// Connections of a tenant at the same time.
    pub tenant_connections: usize,
    /// Connections from one address (of version 6: one network of 64 bits) at the same time on which nobody has shown credentials.
    pub strangers: usize,
    /// Requests of one connection at the same time.
    pub requests: u32,
    /// Jobs watched and blobs downloaded by a tenant at the same time.
    pub streams: usize,
    /// Seconds for a connection to come up, for credentials to be shown on it, between the parts of an upload, and for a part of a
    /// download to be taken.
    pub idle_seconds: u64,
    /// Attempts at a job without a checkpoint in between.
    pub attempts: u32,
    /// Hours in which a job is worked on.
    pub job_hours: u64,
    /// Seconds in which a verdict has to come, from the time that the server begins to wait for it.
    pub verdict_seconds: u64,
    /// Bytes of the disk that uploads leave free.
    pub spare_bytes: u64,
    /// Bytes of the audit log after which a new file is begun.
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
            tenant_connections: 256,
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
            folder: PathBuf::from("hetal-server"),
            address: SocketAddr::from(([127, 0, 0, 1], 7443)),
            metrics: None,
            certificate: None,
            key: None,
            names: ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into(),
            client_authorities: None,
            tenants: Vec::new(),
            sets: vec!["full".to_owned()],
            allow_insecure: false,
            #[cfg(feature = "s3")]
            s3: None,
            take_over: false,
            engine: Engine::Auto,
            cards: Vec::new(),
            workers: None,
            prepared_gib: 2.0,
            checkpoint_every: 4,
            lease_seconds: 60,
            warm_seconds: 600,
            stall_seconds: 900,
            hide_hyperparameters: false,
            hyperparameters: Limits::default(),
            bounds: Bounds::default(),
        }
    }
}

impl Config {
    /// The configuration in a file; what it does not say is left at its default.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::file(path, e))?;
        Self::parse(&text).map_err(|e| Error::Config { reason: format!("{}: {}", path.display(), e.trim_end()) })
    }

    /// The configuration in a text.
    pub(crate) fn parse(text: &str) -> std::result::Result<Self, String> {
        toml::from_str(text).map_err(|e| e.to_string())
    }

    /// Refuses what cannot work.
    pub fn check(&self) -> Result<()> {
        let refuse = |reason: &str| Err(Error::Config { reason: reason.to_owned() });
        if self.tenants.is_empty() {
            return refuse("there are no tenants: `hetal-server token NAME` makes one");
        }
        if self.tenants.iter().any(|t| t.certificate.is_some()) && self.client_authorities.is_none() {
            return refuse("a tenant is known by a certificate, but client_authorities is not set");
        }
        if self.certificate.is_some() != self.key.is_some() {
            return refuse("certificate and key belong together");
        }
        if self.workers == Some(0)
            || self.checkpoint_every == 0
            || self.lease_seconds < 3
            || self.bounds.connections == 0
        {
            return refuse("workers, checkpoint_every and connections are at least 1, lease_seconds at least 3");
        }
        let Bounds { tenant_connections, strangers, streams, open_uploads, .. } = self.bounds;
        if [tenant_connections, strangers, streams, open_uploads].contains(&0) {
            return refuse("tenant_connections, strangers, streams and open_uploads are at least 1");
        }
        if self.stall_seconds < LEAST_STALL {
            return refuse("stall_seconds is at least 60: a GPU that works is silent for some seconds now and then");
        }
        if self.bounds.idle_seconds == 0 || self.bounds.verdict_seconds == 0 {
            return refuse("idle_seconds and verdict_seconds are at least 1");
        }
        if self.bounds.audit_bytes < LEAST_AUDIT {
            return refuse("bounds.audit_bytes is at least 4096: a file of the audit log holds some lines");
        }
        // A list of jobs is one message.
        if self.bounds.kept_jobs > 2000 {
            return refuse("bounds.kept_jobs is at most 2000");
        }
        if !(self.prepared_gib >= 0.0 && self.prepared_gib.is_finite()) {
            return refuse("prepared_gib is not a number of GiB");
        }
        Tenants::new(&self.tenants)?;
        ParamRegistry::new(&self.sets, self.allow_insecure)?;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

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
        ] {
            let refused = Config { bounds: change, ..config.clone() }.check().unwrap_err().to_string();
            assert!(refused.contains(word), "{refused}");
        }
    }
}
