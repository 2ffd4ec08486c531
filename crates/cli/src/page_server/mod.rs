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
        let (shared, open) = (Arc::new((guard, pages)), Arc::new(AtomicUsize::new(0)));
        loop {
            let Ok((stream, from)) = listener.accept() else {
                std::thread::sleep(std::time::Duration::from_millis(50));
                continue;
            };
            let (shared, open) = (shared.clone(), open.clone());
            if open.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS {
                open.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            std::thread::spawn(move || {
                // Whoever closes a connection early has no use for an answer.
                let _ = http::exchange(stream, |request| answer(&shared.0, &shared.1, request, from));
                open.fetch_sub(1, Ordering::AcqRel);
            });
        }
    }
}

fn answer(guard: &Guard, pages: &Pages, request: &PageRequest, from: SocketAddr) -> PageResponse {
    match guard.admit(request, from) {
        Ok(path) => pages.answer(&guard.base(), path, &request.query),
        Err(refusal) => PageResponse::refusal(refusal),
    }
}
