//! As much of HTTP as pages that are only read need: a request without a body, one answer, the end
//! of the connection.

use super::guard::Refusal;
use std::io::{ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The longest request.
const MOST: usize = 8 << 10;
/// The time for a whole request, and for its answer.
pub const IO_TIMEOUT: Duration = Duration::from_secs(5);
/// Pages take scripts and styles from here and nothing from elsewhere; nobody frames them.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A request.
#[derive(Debug, Default)]
pub struct PageRequest {
    /// The method.
    pub method: String,
    /// The path, as it was sent.
    pub path: String,
    /// What follows the question mark.
    pub query: String,
    /// The header `Host`.
    pub host: Option<String>,
    /// The header `Origin`.
    pub origin: Option<String>,
    /// The header `Sec-Fetch-Site`.
    pub site: Option<String>,
}

impl PageRequest {
    /// Parses the head of a request. A header that is given twice is no header of ours.
    fn parse(head: &str) -> Option<Self> {
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() || !version.starts_with("HTTP/1.") {
            return None;
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request = Self { method: method.into(), path: path.into(), query: query.into(), ..Self::default() };
        for line in lines.take_while(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':')?;
            let place = match name.to_ascii_lowercase().as_str() {
                "host" => &mut request.host,
                "origin" => &mut request.origin,
                "sec-fetch-site" => &mut request.site,
                _ => continue,
            };
            if place.replace(value.trim().to_owned()).is_some() {
                return None;
            }
        }
        Some(request)
    }
}

/// An answer.
pub struct PageResponse {
    status: &'static str,
    kind: &'static str,
    body: Vec<u8>,
}

impl PageResponse {
    /// What was asked for.
    pub fn ok(kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status: "200 OK", kind, body: body.into() }
    }

    /// What is not there.
    pub fn missing(why: &str) -> Self {
        Self { status: "404 Not Found", kind: "text/plain; charset=utf-8", body: format!("{why}\n").into() }
    }

    /// A request that is not answered.
    pub fn refusal(refusal: Refusal) -> Self {
        let (status, why) = match refusal {
            Refusal::Method => ("405 Method Not Allowed", "these pages are only read"),
            Refusal::Host => ("421 Misdirected Request", "this server has no such name"),
            Refusal::Origin => ("403 Forbidden", "another site asked for this page"),
            Refusal::Token => ("403 Forbidden", "open the address that hetal ui printed: it ends with a token"),
        };
        Self { status, kind: "text/plain; charset=utf-8", body: format!("{why}\n").into() }
    }

    fn head(&self) -> String {
        format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
             Content-Security-Policy: {POLICY}\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n\
             Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
             Cross-Origin-Opener-Policy: same-origin\r\n\r\n",
            self.status,
            self.kind,
            self.body.len()
        )
    }
}

/// A connection until a deadline, however many bytes come or go one by one.
struct TimedStream {
    stream: TcpStream,
    deadline: Instant,
}

impl TimedStream {
    /// The time that is left.
    fn left(&self) -> Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for TimedStream {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for TimedStream {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> Result<()> {
        self.stream.flush()
    }
}

/// Reads a request, and writes its answer. Each of them takes at most `timeout`.
pub fn exchange(stream: TcpStream, timeout: Duration, answer: impl FnOnce(&PageRequest) -> PageResponse) -> Result<()> {
    let mut stream = TimedStream { stream, deadline: Instant::now() + timeout };
    let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut buffer)?;
        if count == 0 || head.len() + count > MOST {
            return Ok(());
        }
        head.extend(&buffer[..count]);
    }
    let request = std::str::from_utf8(&head).ok().and_then(PageRequest::parse);
    let answer = match &request {
        Some(request) => answer(request),
        None => PageResponse { status: "400 Bad Request", kind: "text/plain", body: b"not a request\n".to_vec() },
    };
    stream.deadline = Instant::now() + timeout;
    stream.write_all(answer.head().as_bytes())?;
    stream.write_all(&answer.body)?;
    stream.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_or_refused() {
        let head = "GET /t/a?part HTTP/1.1\r\nhost: x:1\r\nOrigin:  null \r\nOther: y\r\n\r\n";
        let request = PageRequest::parse(head).unwrap();
        assert_eq!((&*request.path, &*request.query, request.host.as_deref()), ("/t/a", "part", Some("x:1")));
        assert_eq!((request.origin.as_deref(), request.site), (Some("null"), None));
        for bad in [
            "",
            "GET /",
            "GET / HTTP/2\r\n\r\n",
            "GET / x HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "GET / HTTP/1.1\r\nno header\r\n\r\n",
        ] {
            assert!(PageRequest::parse(bad).is_none(), "{bad}");
        }
    }
}
