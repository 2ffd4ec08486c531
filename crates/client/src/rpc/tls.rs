//! The transport: HTTP/2 over TLS 1.3 over TCP.

use super::{Address, Credentials, Error, Result};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

/// Time limit for the TCP and TLS handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval between probes of an idle connection.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// Time limit for the answer to a probe.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// How a server is reached.
pub(super) struct Transport {
    endpoint: Endpoint,
    connector: TlsConnector,
    name: ServerName<'static>,
    server: String,
}

impl Transport {
    pub(super) fn new(address: &Address) -> Result<Self> {
        let bad_address = || Error::Address { server: address.server.clone() };
        let (host, _) = address.server.rsplit_once(':').ok_or_else(bad_address)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(|_| bad_address())?;
        let connector = TlsConnector::from(Arc::new(config(address)?));
        let endpoint = Endpoint::from_shared(format!("http://{}", address.server)).map_err(|_| bad_address())?;
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(8 << 20);
        Ok(Self { endpoint, connector, name, server: address.server.clone() })
    }

    /// Creates a channel that connects at its first use, and again when the connection breaks. This
    /// needs the context of a runtime.
    pub(super) fn channel(&self) -> Channel {
        let (connector, name, server) = (self.connector.clone(), self.name.clone(), self.server.clone());
        let connect = tower::service_fn(move |_| {
            let (connector, name, server) = (connector.clone(), name.clone(), server.clone());
            async move {
                let tcp = TcpStream::connect(&server).await?;
                tcp.set_nodelay(true)?;
                Ok::<_, std::io::Error>(TokioIo::new(connector.connect(name, tcp).await?))
            }
        });
        self.endpoint.connect_with_connector_lazy(connect)
    }
}

fn config(address: &Address) -> Result<ClientConfig> {
    let tls = |what| move |e: rustls::Error| Error::Pem { what, reason: e.to_string() };
    let mut roots = RootCertStore::empty();
    for authority in certificates("certificate authority", &address.authorities)? {
        roots.add(authority).map_err(tls("certificate authority"))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(tls("TLS configuration"))?
        .with_root_certificates(roots);
    let mut config = match &address.credentials {
        Credentials::Token(_) => builder.with_no_client_auth(),
        Credentials::Certificate { chain, key } => {
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|e| Error::Pem { what: "certificate's key", reason: e.to_string() })?;
            builder.with_client_auth_cert(certificates("certificate", chain)?, key).map_err(tls("certificate"))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(Error::Pem { what, reason: "it contains no certificate".to_owned() }),
        Err(e) => Err(Error::Pem { what, reason: e.to_string() }),
    }
}
