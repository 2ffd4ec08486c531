//! Health and metrics in plain HTTP, for the operator's monitoring.

use crate::store::state::State;
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

/// Counters of a server since it started.
pub struct Metrics {
    started: Instant,
    /// Set while it no longer takes work.
    pub draining: AtomicBool,
    /// Requests.
    pub requests: AtomicU64,
    /// Requests that were refused or failed.
    pub refusals: AtomicU64,
    /// Bytes of blobs received.
    pub received_bytes: AtomicU64,
    /// Bytes of blobs sent.
    pub sent_bytes: AtomicU64,
    /// Training iterations.
    pub iterations: AtomicU64,
    /// Microseconds in training iterations.
    pub iteration_micros: AtomicU64,
    /// Checkpoints.
    pub checkpoints: AtomicU64,
    /// Jobs that failed.
    pub failures: AtomicU64,
    /// Attempts at jobs that a GPU ended.
    pub device_failures: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            started: Instant::now(),
            draining: AtomicBool::new(false),
            requests: zero(),
            refusals: zero(),
            received_bytes: zero(),
            sent_bytes: zero(),
            iterations: zero(),
            iteration_micros: zero(),
            checkpoints: zero(),
            failures: zero(),
            device_failures: zero(),
        }
    }
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

impl Metrics {
    /// The text that Prometheus reads.
    fn text(&self, state: &dyn State) -> String {
        let mut text = String::new();
        let seconds = self.started.elapsed().as_secs_f64();
        let _ = writeln!(text, "# TYPE hetal_uptime_seconds gauge\nhetal_uptime_seconds {seconds:.3}");
        let counters = [
            ("requests_total", &self.requests),
            ("refusals_total", &self.refusals),
            ("received_bytes_total", &self.received_bytes),
            ("sent_bytes_total", &self.sent_bytes),
            ("iterations_total", &self.iterations),
            ("checkpoints_total", &self.checkpoints),
            ("job_failures_total", &self.failures),
            ("device_failures_total", &self.device_failures),
        ];
        for (name, counter) in counters {
            let value = counter.load(Ordering::Relaxed);
            let _ = writeln!(text, "# TYPE hetal_{name} counter\nhetal_{name} {value}");
        }
        let spent = self.iteration_micros.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(text, "# TYPE hetal_iteration_seconds_total counter\nhetal_iteration_seconds_total {spent}");
        let _ = writeln!(text, "# TYPE hetal_jobs gauge");
        for (state, count) in state.count_jobs().unwrap_or_default() {
            let name = format!("{state:?}").to_lowercase();
            let _ = writeln!(text, "hetal_jobs{{state=\"{name}\"}} {count}");
        }
        text
    }

    /// The status line's code and the body for a path.
    fn answer(&self, path: &str, state: &dyn State) -> (&'static str, String) {
        match path {
            "/metrics" => ("200 OK", self.text(state)),
            "/healthz" => match state.count_jobs() {
                Ok(_) => ("200 OK", "ok\n".to_owned()),
                Err(_) => ("503 Service Unavailable", "the state cannot be read\n".to_owned()),
            },
            "/readyz" if self.draining.load(Ordering::Relaxed) => ("503 Service Unavailable", "draining\n".to_owned()),
            "/readyz" => ("200 OK", "ready\n".to_owned()),
            _ => ("404 Not Found", "there are /healthz, /readyz and /metrics\n".to_owned()),
        }
    }
}

/// Answers that are made at the same time.
const AT_ONCE: usize = 8;
/// Connections at the same time.
const CONNECTIONS: usize = 64;
/// For a question to come and its answer to be taken.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves health and metrics for ever.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>, state: Arc<dyn State>) {
    serve_within(PATIENCE, listener, metrics, state).await;
}

async fn serve_within(patience: Duration, listener: TcpListener, metrics: Arc<Metrics>, state: Arc<dyn State>) {
    // However many ask, those who train are not kept waiting for threads or files.
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        // Whoever has been here longest without being served is not in a hurry: a question comes in one packet.
        if open.len() >= CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let (metrics, state, places) = (Arc::clone(&metrics), Arc::clone(&state), Arc::clone(&places));
        let respond = async move { tokio::time::timeout(patience, respond(stream, metrics, state, places)).await };
        open.push_back(tokio::spawn(respond).abort_handle());
    }
}

async fn respond(
    mut stream: TcpStream,
    metrics: Arc<Metrics>,
    state: Arc<dyn State>,
    places: Arc<Semaphore>,
) -> std::io::Result<()> {
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
        // The state may be busy: never on the network's threads.
        (Some("GET"), Some(path)) => {
            let path = path.to_owned();
            // The place goes with the work: a connection that ends does not end what was begun for it.
            let place = places.acquire_owned().await.map_err(std::io::Error::other)?;
            let answer = tokio::task::spawn_blocking(move || {
                let answer = metrics.answer(&path, &*state);
                drop(place);
                answer
            });
            answer.await.map_err(std::io::Error::other)?
        }
        _ => ("405 Method Not Allowed", String::new()),
    };
    let reply = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
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

    /// Those who connect and ask nothing keep nobody from an answer, however patient the server is.
    #[test]
    fn silent_connections_do_not_hide_the_health() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (metrics, state) = (Arc::new(Metrics::default()), Arc::new(MemoryState::default()));
            tokio::spawn(serve_within(Duration::from_secs(3600), listener, metrics, state));
            let mut silent = Vec::new();
            for _ in 0..CONNECTIONS + AT_ONCE {
                silent.push(TcpStream::connect(address).await.unwrap());
                if silent.len() == 2 * AT_ONCE {
                    assert!(ask(address).await.starts_with("HTTP/1.1 200"));
                }
            }
            assert!(ask(address).await.ends_with("ok\n"));
            // There were too many: the oldest had to go, the newest did not.
            assert_eq!(silent[0].read(&mut [0; 1]).await.unwrap(), 0);
            let newest = silent.last().unwrap().try_read(&mut [0; 1]);
            assert!(newest.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock));
        });
    }
}
