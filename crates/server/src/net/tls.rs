//! TLS connections: TLS 1.3 only, with limits on their number and on the time to authenticate.

use crate::limits::concurrency::{ConcurrencyLimit, Permit};
use crate::net::preauth::{PreauthConnection, PreauthConnections};
use crate::tenants::{Fingerprint, Tenant};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

/// Refused requests after which an unauthenticated connection is closed.
const REFUSALS: u32 = 8;

/// Limits on connections.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Concurrent connections.
    pub max_connections: usize,
    /// Concurrent unauthenticated connections from one address. From all addresses together, a
    /// quarter of `max_connections` is allowed, so that authenticated tenants always find room.
    pub preauth_per_address: usize,
    /// Time limit for the TLS handshake, and then for authentication.
    pub handshake_timeout: Duration,
}

/// Accepts connections until the receiver is closed.
pub async fn accept(listener: TcpListener, acceptor: TlsAcceptor, limits: Limits, out: mpsc::Sender<Connection>) {
    let permits = Arc::new(Semaphore::new(limits.max_connections));
    let (per_address, preauth) = (
        ConcurrencyLimit::new(limits.preauth_per_address),
        PreauthConnections::new((limits.max_connections / 4).max(1)),
    );
    while !out.is_closed() {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let (tcp, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely out of file descriptors: other connections must close first.
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(address_permit) = per_address.try_acquire(&network_of(peer.ip())) else {
            tracing::debug!(%peer, "refused: too many unauthenticated connections");
            continue;
        };
        let (acceptor, out) = (acceptor.clone(), out.clone());
        let (slot, mut evicted) = preauth.register(network_of(peer.ip()));
        tokio::spawn(async move {
            let _ = tcp.set_nodelay(true);
            let accepted = tokio::select! {
                accepted = tokio::time::timeout(limits.handshake_timeout, acceptor.accept(tcp)) => accepted,
                _ = &mut evicted => return tracing::debug!(%peer, "evicted: too many unauthenticated connections"),
            };
            match accepted {
                Ok(Ok(stream)) => {
                    let standing = Standing::Unauthenticated { _address: address_permit, _slot: slot, refusals: 0 };
                    let _ = out
                        .send(Connection::new(stream, peer, limits.handshake_timeout, evicted, permit, standing))
                        .await;
                }
                Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
                Err(_) => tracing::debug!(%peer, "TLS handshake timed out"),
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
pub struct Connection {
    stream: TlsStream<TcpStream>,
    peer: Peer,
    /// Closes the connection unless it authenticates before.
    deadline: Pin<Box<Sleep>>,
    /// Completes when the connection is evicted; `None` afterwards.
    evicted: Option<oneshot::Receiver<()>>,
    _permit: OwnedSemaphorePermit,
}

/// The remote end of a connection.
#[derive(Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// The fingerprint of its certificate, which a configured authority signed.
    pub certificate: Option<Fingerprint>,
    standing: Arc<Mutex<Standing>>,
}

/// How a connection is counted.
enum Standing {
    /// Not authenticated, with permits for its address and in total, and the number of refused
    /// requests.
    Unauthenticated { _address: Permit<IpAddr>, _slot: PreauthConnection, refusals: u32 },
    /// Authenticated, with a permit for each tenant that used it.
    Authenticated(BTreeMap<Tenant, Permit<Tenant>>),
}

impl Peer {
    /// Counts the connection as one of the tenant's. Returns false if he has too many.
    pub fn admit(&self, tenant: &Tenant, connections: &ConcurrencyLimit<Tenant>) -> bool {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Standing::Authenticated(tenants) = &*standing
            && tenants.contains_key(tenant)
        {
            return true;
        }
        let Some(permit) = connections.try_acquire(tenant) else { return false };
        match &mut *standing {
            Standing::Authenticated(tenants) => drop(tenants.insert(tenant.clone(), permit)),
            unauthenticated => *unauthenticated = Standing::Authenticated(BTreeMap::from([(tenant.clone(), permit)])),
        }
        true
    }

    /// Counts a refused request.
    pub fn refused(&self) {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Standing::Unauthenticated { refusals, .. } = &mut *standing {
            *refusals = refusals.saturating_add(1);
        }
    }

    /// The number of refused requests; `None` after authentication.
    fn preauth_refusals(&self) -> Option<u32> {
        match *self.standing.lock().unwrap_or_else(PoisonError::into_inner) {
            Standing::Unauthenticated { refusals, .. } => Some(refusals),
            Standing::Authenticated(_) => None,
        }
    }
}

impl Connection {
    fn new(
        stream: TlsStream<TcpStream>,
        address: SocketAddr,
        handshake_timeout: Duration,
        evicted: oneshot::Receiver<()>,
        permit: OwnedSemaphorePermit,
        standing: Standing,
    ) -> Self {
        let certificates = stream.get_ref().1.peer_certificates();
        let certificate = certificates.and_then(|all| all.first()).map(|first| Fingerprint::of(first));
        let peer = Peer { address, certificate, standing: Arc::new(Mutex::new(standing)) };
        let deadline = Box::pin(tokio::time::sleep(handshake_timeout));
        Self { stream, peer, deadline, evicted: Some(evicted), _permit: permit }
    }

    /// Whether the connection was evicted.
    fn is_evicted(&mut self, cx: &mut Context<'_>) -> bool {
        let evicted = self.evicted.as_mut().is_none_or(|evicted| Pin::new(evicted).poll(cx).is_ready());
        if evicted {
            self.evicted = None;
        }
        evicted
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        if let Some(refusals) = self.peer.preauth_refusals() {
            if refusals >= REFUSALS || self.is_evicted(cx) {
                return Poll::Ready(Err(std::io::ErrorKind::ConnectionAborted.into()));
            }
            if self.deadline.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(std::io::ErrorKind::TimedOut.into()));
            }
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
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
    fn a_network_of_one_person_is_one_neighbourhood() {
        let of = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), of("2001:db8:1:2:ffff::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }
}
