//! How to reach PostgreSQL.

use super::tls::Tls;
use crate::{Error, Result};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::config::{Host, SslMode};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How long sent bytes may stay unacknowledged before a connection counts as lost.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);
/// Silence after which a connection is probed.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Where the database is and how to log in. The password is not shown.
#[derive(Clone)]
pub struct PgSettings {
    pub(super) config: tokio_postgres::Config,
    pub(super) tls: Option<Tls>,
}

fn refused(reason: impl Into<String>) -> Error {
    Error::Config { reason: reason.into() }
}

fn parse(url: &str) -> Result<tokio_postgres::Config> {
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err(refused("the URL of the state must begin with postgres://"));
    }
    // The driver's message names a key or a character, never a value.
    tokio_postgres::Config::from_str(url).map_err(|e| refused(format!("the URL of the state cannot be read: {e}")))
}

impl PgSettings {
    /// Reads a URL. A password beside it replaces the URL's own. `authorities` is a file (PEM) with
    /// the authorities of the database's certificate.
    ///
    /// Without authorities the database must be on this machine, because the connection is not
    /// encrypted.
    pub fn new(url: &str, password: Option<&str>, authorities: Option<&Path>) -> Result<Self> {
        let mut config = parse(url)?;
        if let Some(password) = password {
            config.password(password);
        }
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(refused("the URL of the state names no host: add one, or `?host=/run/postgresql`"));
        }
        let tls = authorities.map(Tls::trusting).transpose()?;
        if tls.is_none() && !is_local(&config) {
            return Err(refused(
                "the database of the state is on another machine: set `state.authorities` to the file of its \
                 certificate authority, so that the connection is encrypted",
            ));
        }
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        config.application_name("hetal-server").keepalives_idle(KEEPALIVE).keepalives_interval(KEEPALIVE);
        config.keepalives_retries(3).tcp_user_timeout(UNACKNOWLEDGED);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT);
        }
        Ok(Self { config, tls })
    }

    /// Whether a URL contains a password.
    pub(crate) fn names_password(url: &str) -> Result<bool> {
        Ok(parse(url)?.get_password().is_some())
    }

    /// The database's hosts and name, without user and password.
    pub fn location(&self) -> String {
        let host = |host: &Host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(folder) => folder.display().to_string(),
        };
        let hosts = self.config.get_hosts().iter().map(host);
        let addresses = self.config.get_hostaddrs().iter().map(ToString::to_string);
        let hosts: Vec<_> = hosts.chain(addresses).collect();
        format!("database {} on {}", self.config.get_dbname().unwrap_or("of the user"), hosts.join(", "))
    }
}

/// Whether no byte leaves this machine.
fn is_local(config: &tokio_postgres::Config) -> bool {
    let is_loopback = |address: &std::net::IpAddr| address.is_loopback();
    // Addresses replace the names of hosts.
    if !config.get_hostaddrs().is_empty() {
        return config.get_hostaddrs().iter().all(is_loopback);
    }
    config.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => name == "localhost" || name.parse().is_ok_and(|address| is_loopback(&address)),
    })
}

impl Tls {
    /// TLS 1.3 to a server whose certificate these authorities signed for its name.
    fn trusting(path: &Path) -> Result<Self> {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject;
        let mut roots = rustls::RootCertStore::empty();
        let failed = |e: String| Error::file(path, e);
        for certificate in CertificateDer::pem_file_iter(path).map_err(|e| failed(e.to_string()))? {
            let certificate = certificate.map_err(|e| failed(e.to_string()))?;
            roots.add(certificate).map_err(|e| failed(e.to_string()))?;
        }
        if roots.is_empty() {
            return Err(failed("no certificate in this file".to_owned()));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| failed(e.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self::new(Arc::new(config)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn message(url: &str) -> String {
        PgSettings::new(url, None, None).err().unwrap().to_string()
    }

    #[test]
    fn an_unencrypted_connection_stays_on_this_machine() {
        for url in [
            "postgres://hetal@localhost/hetal",
            "postgres://127.0.0.1:5433,[::1]/hetal",
            "postgresql:///hetal?host=/run/postgresql",
        ] {
            PgSettings::new(url, None, None).map(|_| ()).unwrap();
        }
        for url in [
            "postgres://db.example/hetal",
            "postgres://localhost,db.example/hetal",
            "postgres://localhost/hetal?hostaddr=192.0.2.1",
        ] {
            assert!(message(url).contains("state.authorities"), "{url}");
        }
    }

    #[test]
    fn no_message_names_the_password() {
        for url in [
            "mysql://ann:hunter2@localhost/hetal",
            "postgres://ann:hunter2@db.example/hetal",
            "postgres://ann:hunter2@localhost:port/hetal",
            "postgres://ann:hunter2@localhost/hetal?sslmode=hunter2",
            "postgres://ann:hunter2@localhost/hetal?hunter=2&x",
            "postgres://ann:hunter2@",
        ] {
            let message = message(url);
            assert!(!message.contains("hunter2") && message.starts_with("configuration: the "), "{message}");
        }
        let settings = PgSettings::new("postgres://ann@localhost/hetal", Some("hunter2"), None).unwrap();
        assert_eq!(settings.config.get_password(), Some(&b"hunter2"[..]));
        assert_eq!(settings.location(), "database hetal on localhost");
        assert!(!format!("{:?}", settings.config).contains("hunter2"));
    }
}
