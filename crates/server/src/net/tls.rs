//! TLS connections: TLS 1.3 only, with limits on their number and on the time to authenticate.

use crate::net::connections::{ActiveRequest, ConnectionSlot, Connections};
use crate::tenants::{Fingerprint, Tenant};
use std::future::Future;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

/// Accepts connections until the receiver is closed. `handshake_timeout` limits the TLS handshake,
/// and then the time to authenticate.
pub async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    connections: Arc<Connections>,
    handshake_timeout: Duration,
    out: mpsc::Sender<TlsConnection>,
) {
    while !out.is_closed() {
        let (tcp, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely out of file descriptors: other connections must close first.
                tracing::warn!(
                    %error,
                    "could not accept a connection: if too many files are open, raise the limit of the process or lower \
                     bounds.connections"
                );
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (acceptor, out) = (acceptor.clone(), out.clone());
        let Some((slot, mut closed)) = connections.register(network_of(peer.ip())) else {
            tracing::debug!(%peer, "refused a connection: all places are taken by connections with running requests");
            continue;
        };
        tokio::spawn(async move {
            let _ = tcp.set_nodelay(true);
            let accepted = tokio::select! {
                accepted = tokio::time::timeout(handshake_timeout, acceptor.accept(tcp)) => accepted,
                _ = &mut closed => return tracing::debug!(%peer, "closed a connection without credentials: a limit of such connections is reached"),
            };
            match accepted {
                Ok(Ok(stream)) => {
                    let _ = out.send(TlsConnection::new(stream, peer, handshake_timeout, closed, slot)).await;
                }
                Ok(Err(error)) => tracing::debug!(%peer, %error, "the TLS handshake failed"),
                Err(_) => tracing::debug!(%peer, ?handshake_timeout, "the TLS handshake took too long"),
            }
        });
    }
}

/// The network that counts as one client: an IPv4 address, or an IPv6 /64 network.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

/// A client connection.
pub struct TlsConnection {
    stream: TlsStream<TcpStream>,
    peer: Peer,
    /// When the connection is closed, unless it has shown valid credentials by then.
    deadline: Pin<Box<Sleep>>,
    /// Completes when the connection must close; `None` afterwards.
    closed: Option<oneshot::Receiver<()>>,
}

/// The remote end of a connection.
#[derive(Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// The fingerprint of its certificate, which a configured authority signed.
    pub certificate: Option<Fingerprint>,
    authenticated: Arc<AtomicBool>,
    slot: Arc<ConnectionSlot>,
}

impl Peer {
    /// Counts the connection as one of the tenant's. Returns false if the tenant has too many.
    pub fn admit(&self, tenant: &Tenant, credential: Fingerprint) -> bool {
        let admitted = self.slot.admit(tenant, credential);
        self.authenticated.fetch_or(admitted, Ordering::Relaxed);
        admitted
    }

    /// Counts a request with unknown credentials. Too many of them close the connection.
    pub fn count_refusal(&self) {
        self.slot.count_refusal();
    }

    /// Counts a running request, until the result and all its clones are dropped.
    pub fn begin_request(&self) -> ActiveRequest {
        self.slot.begin_request()
    }
}

impl TlsConnection {
    fn new(
        stream: TlsStream<TcpStream>,
        address: SocketAddr,
        handshake_timeout: Duration,
        closed: oneshot::Receiver<()>,
        slot: ConnectionSlot,
    ) -> Self {
        let certificates = stream.get_ref().1.peer_certificates();
        let certificate = certificates.and_then(|all| all.first()).map(|first| Fingerprint::of(first));
        let peer = Peer { address, certificate, authenticated: Arc::default(), slot: Arc::new(slot) };
        let deadline = Box::pin(tokio::time::sleep(handshake_timeout));
        Self { stream, peer, deadline, closed: Some(closed) }
    }

    /// Whether the connection must close.
    fn is_closed(&mut self, cx: &mut Context<'_>) -> bool {
        let closed = self.closed.as_mut().is_none_or(|closed| Pin::new(closed).poll(cx).is_ready());
        if closed {
            self.closed = None;
        }
        closed
    }
}

impl Connected for TlsConnection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for TlsConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        if self.is_closed(cx) {
            let reason = "the server closed the connection because of a limit or revoked credentials";
            return Poll::Ready(Err(std::io::Error::new(ErrorKind::ConnectionAborted, reason)));
        }
        if !self.peer.authenticated.load(Ordering::Relaxed) && self.deadline.as_mut().poll(cx).is_ready() {
            let reason = "the connection showed no valid credentials in time";
            return Poll::Ready(Err(std::io::Error::new(ErrorKind::TimedOut, reason)));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_ipv6_network_count_as_one_client() {
        let of = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), of("2001:db8:1:2:ffff::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }
}
