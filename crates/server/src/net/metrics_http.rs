//! Health checks and Prometheus metrics over plain HTTP.

use crate::monitor::metrics::HealthSource;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

/// Concurrent responses.
const CONCURRENT_RESPONSES: usize = 8;
/// Concurrent connections.
const CONNECTIONS: usize = 64;
/// Time limit for a request and its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The answer to a request for another host.
const OTHER_HOST: &str = "this server has no such name: ask for its address or for localhost, or add the name to \
                          `names` in the configuration\n";

/// Serves health checks and metrics for ever. `names` are those of this machine in the
/// configuration.
pub async fn serve(listener: TcpListener, source: HealthSource, names: Vec<String>) {
    serve_within(REQUEST_TIMEOUT, listener, source, names).await;
}

async fn serve_within(timeout: Duration, listener: TcpListener, source: HealthSource, names: Vec<String>) {
    let is_loopback = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let hosts = Arc::new(HostGuard { is_loopback, names });
    // Monitoring requests must not exhaust threads or file descriptors.
    let permits = Arc::new(Semaphore::new(CONCURRENT_RESPONSES));
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        // The oldest open connection has waited longest without sending a request, which fits one
        // packet.
        if open.len() >= CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let (source, permits, hosts) = (source.clone(), Arc::clone(&permits), Arc::clone(&hosts));
        let respond = async move { tokio::time::timeout(timeout, respond(stream, source, permits, &hosts)).await };
        open.push_back(tokio::spawn(respond).abort_handle());
    }
}

/// The names by which requests call this server.
///
/// A page of another site can have its name resolved to the loopback address, and then read what
/// this server answers to that name: names of tenants, for example. An address as the host cannot
/// be resolved to another one. On other addresses this server does not know its names.
struct HostGuard {
    is_loopback: bool,
    names: Vec<String>,
}

impl HostGuard {
    /// Whether a request is answered. Health checks name no tenant and are always answered.
    fn admits(&self, path: &str, head: &str) -> bool {
        if !self.is_loopback || ["/healthz", "/readyz"].contains(&path) {
            return true;
        }
        let headers = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        let mut hosts = headers.filter(|(name, _)| name.trim().eq_ignore_ascii_case("host"));
        // What follows the part that was read may be another name.
        head.contains("\r\n\r\n") && hosts.all(|(_, host)| self.is_ours(host.trim()))
    }

    /// Whether a host, with or without a port, is an address or a name of this machine.
    fn is_ours(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => host.split_once(':').map_or(host, |(name, _)| name),
        };
        let mut known = self.names.iter().map(String::as_str).chain(["localhost"]);
        name.parse::<IpAddr>().is_ok() || known.any(|known| known.eq_ignore_ascii_case(name))
    }
}

async fn respond(
    mut stream: TcpStream,
    source: HealthSource,
    permits: Arc<Semaphore>,
    hosts: &HostGuard,
) -> std::io::Result<()> {
    let mut head = [0; 4096];
    let mut len = 0;
    while len < head.len() && !head[..len].windows(4).any(|w| w == b"\r\n\r\n") {
        match stream.read(&mut head[len..]).await? {
            0 => return Ok(()),
            count => len += count,
        }
    }
    let head = String::from_utf8_lossy(&head[..len]);
    let mut words = head.split_whitespace();
    let (status, body) = match (words.next(), words.next()) {
        (Some("GET"), Some(path)) if !hosts.admits(path, &head) => ("421 Misdirected Request", OTHER_HOST.to_owned()),
        // Reading the state may block, so it does not run on the network threads.
        (Some("GET"), Some(path)) => {
            let path = path.to_owned();
            // The permit goes with the work: a connection that ends does not end what was begun for
            // it.
            let permit = permits.acquire_owned().await.map_err(std::io::Error::other)?;
            let answer = tokio::task::spawn_blocking(move || {
                let answer = source.answer(&path);
                drop(permit);
                answer
            });
            answer.await.map_err(std::io::Error::other)?
        }
        _ => ("405 Method Not Allowed", String::new()),
    };
    let kind = if body.starts_with("<!DOCTYPE") { "text/html; charset=utf-8" } else { prometheus::TEXT_FORMAT };
    let reply = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nx-content-type-options: nosniff\r\nx-frame-options: DENY\r\n\
         cache-control: no-store\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(reply.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::state::MemoryState;

    async fn ask(address: std::net::SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        let read = tokio::time::timeout(Duration::from_secs(60), stream.read_to_string(&mut answer));
        read.await.expect("nobody answers").unwrap();
        answer
    }

    /// Silent connections do not block health checks.
    #[test]
    fn silent_connections_do_not_hide_the_health() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let source = HealthSource::new(Arc::default(), Arc::new(MemoryState::default()), ".".into());
            tokio::spawn(serve_within(Duration::from_secs(3600), listener, source, Vec::new()));
            let mut silent = Vec::new();
            for _ in 0..CONNECTIONS + CONCURRENT_RESPONSES {
                silent.push(TcpStream::connect(address).await.unwrap());
                if silent.len() == 2 * CONCURRENT_RESPONSES {
                    assert!(ask(address).await.starts_with("HTTP/1.1 200"));
                }
            }
            assert!(ask(address).await.ends_with("ok\n"));
            // Above the limit the oldest connection was closed, and the newest was not.
            assert_eq!(silent[0].read(&mut [0; 1]).await.unwrap(), 0);
            let newest = silent.last().unwrap().try_read(&mut [0; 1]);
            assert!(newest.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock));
        });
    }

    /// A name that another site has resolved to the loopback address reads nothing.
    #[test]
    fn other_names_are_refused_on_the_loopback() {
        let loopback = HostGuard { is_loopback: true, names: vec!["metrics.example".to_owned()] };
        let public = HostGuard { is_loopback: false, names: Vec::new() };
        let head = |host: &str| format!("GET /metrics HTTP/1.1\r\nAccept: */*\r\n{host}\r\n\r\n");
        for host in [
            "Host: 127.0.0.1:9443",
            "host:127.0.0.1",
            "Host: [::1]:9443",
            "Host: localhost:4000",
            "HOST: LocalHost",
            "Host: metrics.example:9443",
            "User-Agent: an old program",
        ] {
            assert!(loopback.admits("/metrics", &head(host)) && public.admits("/metrics", &head(host)), "{host}");
        }
        for host in [
            "Host: evil.example:9443",
            "Host: 127.0.0.1.evil.example",
            "Host: localhost.evil.example:9443",
            "Host: [::1",
            "Host:",
            "Host: 127.0.0.1\r\nHost: evil.example",
        ] {
            for path in ["/", "/metrics", "/metrics?"] {
                assert!(!loopback.admits(path, &head(host)), "{path} of {host}");
            }
            assert!(public.admits("/metrics", &head(host)), "{host}");
            assert!(loopback.admits("/healthz", &head(host)) && loopback.admits("/readyz", &head(host)), "{host}");
        }
        assert!(!loopback.admits("/metrics", "GET /metrics HTTP/1.1\r\nA: the host may follow"));
    }
}
