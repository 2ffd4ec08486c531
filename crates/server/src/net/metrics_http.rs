//! Health checks and Prometheus metrics over plain HTTP.

use crate::monitor::metrics::HealthSource;
use std::collections::VecDeque;
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

/// Serves health checks and metrics for ever.
pub async fn serve(listener: TcpListener, source: HealthSource) {
    serve_within(REQUEST_TIMEOUT, listener, source).await;
}

async fn serve_within(timeout: Duration, listener: TcpListener, source: HealthSource) {
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
        let (source, permits) = (source.clone(), Arc::clone(&permits));
        let respond = async move { tokio::time::timeout(timeout, respond(stream, source, permits)).await };
        open.push_back(tokio::spawn(respond).abort_handle());
    }
}

async fn respond(mut stream: TcpStream, source: HealthSource, permits: Arc<Semaphore>) -> std::io::Result<()> {
    let mut head = [0; 4096];
    let mut len = 0;
    while len < head.len() && !head[..len].windows(4).any(|w| w == b"\r\n\r\n") {
        match stream.read(&mut head[len..]).await? {
            0 => return Ok(()),
            count => len += count,
        }
    }
    let line = String::from_utf8_lossy(&head[..len]);
    let mut words = line.split_whitespace();
    let (status, body) = match (words.next(), words.next()) {
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
    let kind = if body.starts_with("<!DOCTYPE") { "text/html; charset=utf-8" } else { "text/plain; version=0.0.4" };
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
            tokio::spawn(serve_within(Duration::from_secs(3600), listener, source));
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
}
