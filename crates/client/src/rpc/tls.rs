//! The transport: HTTP/2 over TLS 1.3 over TCP.

use super::{Address, Credentials, Error, Result};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

/// Time limit for the TCP and TLS handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval between probes of an idle connection.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// Time limit for the answer to a probe.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Time limit for one of several addresses. The next one may answer.
const NEXT_ADDRESS_TIMEOUT: Duration = Duration::from_secs(5);

/// How a server is reached.
pub(super) struct Transport {
    endpoint: Endpoint,
    connector: TlsConnector,
    gateways: Arc<Gateways>,
}

/// The addresses of a server. All lead to the same jobs.
struct Gateways {
    all: Vec<Gateway>,
    /// The one that answered last.
    current: AtomicUsize,
}

struct Gateway {
    /// As its certificate names it.
    name: ServerName<'static>,
    address: String,
}

impl Gateways {
    /// Reads addresses that are separated by commas.
    fn parse(server: &str) -> Result<Self> {
        let bad_address = || Error::Address { server: server.to_owned() };
        let parse = |address: &str| {
            let (host, _) = address.rsplit_once(':').ok_or_else(bad_address)?;
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            let name = ServerName::try_from(host).map_err(|_| bad_address())?;
            Ok(Gateway { name, address: address.to_owned() })
        };
        let all = server.split(',').map(|address| parse(address.trim())).collect::<Result<_>>()?;
        Ok(Self { all, current: AtomicUsize::new(0) })
    }

    /// Connects to the address that answered last, or else to the next one that answers.
    async fn connect(&self, connector: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
        let (first, count) = (self.current.load(Ordering::Relaxed), self.all.len());
        let mut failed = None;
        for index in (first..first + count).map(|index| index % count) {
            let connecting = self.all[index].connect(connector);
            let connected = match count {
                1 => connecting.await,
                _ => {
                    tokio::time::timeout(NEXT_ADDRESS_TIMEOUT, connecting).await.unwrap_or_else(|late| Err(late.into()))
                }
            };
            match connected {
                Ok(connected) => {
                    self.current.store(index, Ordering::Relaxed);
                    return Ok(connected);
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or_else(|| std::io::ErrorKind::AddrNotAvailable.into()))
    }
}

impl Gateway {
    async fn connect(&self, connector: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(&self.address).await?;
        tcp.set_nodelay(true)?;
        connector.connect(self.name.clone(), tcp).await
    }
}

impl Transport {
    pub(super) fn new(address: &Address) -> Result<Self> {
        let bad_address = || Error::Address { server: address.server.clone() };
        let gateways = Arc::new(Gateways::parse(&address.server)?);
        let connector = TlsConnector::from(Arc::new(config(address)?));
        let first = gateways.all.first().ok_or_else(bad_address)?;
        let endpoint = Endpoint::from_shared(format!("http://{}", first.address)).map_err(|_| bad_address())?;
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT.max(NEXT_ADDRESS_TIMEOUT * (gateways.all.len() as u32 + 1)))
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(8 << 20);
        Ok(Self { endpoint, connector, gateways })
    }

    /// Makes the next address the first choice. Returns whether there are several.
    pub(super) fn advance(&self) -> bool {
        let count = self.gateways.all.len();
        let next = (self.gateways.current.load(Ordering::Relaxed) + 1) % count.max(1);
        self.gateways.current.store(next, Ordering::Relaxed);
        count > 1
    }

    /// Creates a channel that connects at its first use, and again when the connection breaks. This
    /// needs the context of a runtime.
    pub(super) fn channel(&self) -> Channel {
        let (connector, gateways) = (self.connector.clone(), Arc::clone(&self.gateways));
        let connect = tower::service_fn(move |_| {
            let (connector, gateways) = (connector.clone(), Arc::clone(&gateways));
            async move { Ok::<_, std::io::Error>(TokioIo::new(gateways.connect(&connector).await?)) }
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn several_addresses_are_separated_by_commas() {
        let addresses = |server: &str| -> Result<Vec<String>> {
            Ok(Gateways::parse(server)?.all.into_iter().map(|gateway| gateway.address).collect())
        };
        assert_eq!(addresses("a.example:7443").unwrap(), ["a.example:7443"]);
        assert_eq!(
            addresses("a.example:7443, [::1]:7444,127.0.0.1:1").unwrap(),
            ["a.example:7443", "[::1]:7444", "127.0.0.1:1"]
        );
        for bad in ["", "a", "a:1,", "a:1,b", ",a:1", "a b:1"] {
            assert!(matches!(addresses(bad), Err(Error::Address { .. })), "{bad}");
        }
    }
}
