//! The server of `hetal ui`: read-only pages about projects, for one person on this machine.
//!
//! ```text
//! http      requests and answers, a few lines of HTTP
//! guard     who is answered: whoever knows the token, from a page of this server
//! pages     what is answered
//! ```

pub mod guard;
mod http;
mod pages;

use guard::Guard;
use http::{PageRequest, PageResponse};
pub use pages::Pages;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Connections at a time. A browser opens a few.
const CONNECTIONS: usize = 32;

/// A server that has not started.
pub struct PageServer {
    listener: TcpListener,
    guard: Guard,
    pages: Pages,
}

impl PageServer {
    /// Listens on the loopback, on this port or, for 0, on a free one.
    pub fn new(port: u16, token: String, pages: Pages) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let guard = Guard::new(token, listener.local_addr()?.port());
        Ok(Self { listener, guard, pages })
    }

    /// The address of the first page, with the token.
    pub fn url(&self) -> String {
        self.guard.url()
    }

    /// Answers for ever.
    pub fn serve(self) -> ! {
        let Self { listener, guard, pages } = self;
        serve_within(http::IO_TIMEOUT, &listener, move |request, from| answer(&guard, &pages, request, from))
    }
}

/// Answers for ever. A request, and its answer, each take at most `timeout`.
fn serve_within(
    timeout: Duration,
    listener: &TcpListener,
    answer: impl Fn(&PageRequest, SocketAddr) -> PageResponse + Send + Sync + 'static,
) -> ! {
    let (answer, open) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
    loop {
        let Ok((stream, from)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let Some(place) = Place::take(&open) else { continue };
        let answer = answer.clone();
        // A thread that cannot be started gives its place back like one that ended.
        let _ = std::thread::Builder::new().spawn(move || {
            let _place = place;
            // Whoever closes a connection early has no use for an answer.
            let _ = http::exchange(stream, timeout, |request| answer(request, from));
        });
    }
}

/// One of the [`CONNECTIONS`], until it is dropped: also by a thread that panics.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(open: &Arc<AtomicUsize>) -> Option<Self> {
        let place = Self(open.clone());
        (open.fetch_add(1, Ordering::AcqRel) < CONNECTIONS).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn answer(guard: &Guard, pages: &Pages, request: &PageRequest, from: SocketAddr) -> PageResponse {
    match guard.admit(request, from) {
        Ok(path) => pages.answer(&guard.base(), path, &request.query),
        Err(refusal) => PageResponse::refusal(refusal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Instant;

    const TIMEOUT: Duration = Duration::from_millis(500);

    /// A server that panics when it is asked for `/panic`.
    fn start(timeout: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            serve_within(timeout, &listener, |request, _| {
                assert_ne!(request.path, "/panic");
                PageResponse::ok("text/plain", "here")
            })
        });
        address
    }

    /// The answer to a request; empty if the connection ends without one.
    fn ask(address: SocketAddr, path: &str) -> String {
        let (mut stream, mut answer) = (TcpStream::connect(address).unwrap(), Vec::new());
        let _ = stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes());
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    /// Clients that send byte after byte lose their places after the time for a whole request.
    #[test]
    fn slow_clients_do_not_keep_their_places() {
        let address = start(TIMEOUT);
        let mut slow: Vec<TcpStream> = (0..CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
        let begin = Instant::now();
        while !ask(address, "/").ends_with("here") {
            // It keeps its place as long as each read gets a byte, unless the whole is limited.
            slow.iter_mut().for_each(|stream| drop(stream.write_all(b"G")));
            std::thread::sleep(TIMEOUT / 10);
            assert!(begin.elapsed() < 20 * TIMEOUT, "slow clients hold all places");
        }
        assert!(begin.elapsed() >= TIMEOUT / 2, "they had no places");
    }

    /// A thread that panics gives its place back.
    #[test]
    fn a_panic_keeps_no_place() {
        let address = start(Duration::from_secs(60));
        for _ in 0..2 * CONNECTIONS {
            assert_eq!(ask(address, "/panic"), "");
        }
        assert!(ask(address, "/").ends_with("here"));
    }
}
