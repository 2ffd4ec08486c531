//! Who is answered. Everybody on this machine can connect to the loopback, and every page that a
//! browser shows can send requests there. So each request must name a random token, which only the
//! terminal showed, and must not come from a page of another origin.

use super::http::PageRequest;
use std::net::SocketAddr;

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It reads nothing: not GET.
    Method,
    /// It names another host: some name was bound to this address.
    Host,
    /// A page of another origin sent it.
    Origin,
    /// It does not know the token.
    Token,
}

/// The token and the names of this server.
pub struct Guard {
    token: String,
    hosts: [String; 2],
}

impl Guard {
    /// A guard of a port.
    pub fn new(token: String, port: u16) -> Self {
        Self { token, hosts: [format!("127.0.0.1:{port}"), format!("localhost:{port}")] }
    }

    /// Where every path begins.
    pub fn base(&self) -> String {
        format!("/{}", self.token)
    }

    /// The address of the first page.
    pub fn url(&self) -> String {
        format!("http://{}{}/", self.hosts[0], self.base())
    }

    /// The path behind the token of a request that is answered.
    pub fn admit<'a>(&self, request: &'a PageRequest, from: SocketAddr) -> Result<&'a str, Refusal> {
        if request.method != "GET" {
            return Err(Refusal::Method);
        }
        if !from.ip().is_loopback() || !request.host.as_ref().is_some_and(|host| self.hosts.contains(host)) {
            return Err(Refusal::Host);
        }
        let is_ours = |origin: &String| self.hosts.iter().any(|host| *origin == format!("http://{host}"));
        let same_site = |site: &String| ["same-origin", "none"].contains(&&**site);
        if !request.origin.iter().all(is_ours) || !request.site.iter().all(same_site) {
            return Err(Refusal::Origin);
        }
        let (token, path) =
            request.path.strip_prefix('/').and_then(|path| path.split_once('/')).ok_or(Refusal::Token)?;
        if same(token.as_bytes(), self.token.as_bytes()) { Ok(path) } else { Err(Refusal::Token) }
    }
}

/// Compares without stopping at the first difference.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str) -> PageRequest {
        let host = Some("127.0.0.1:7000".to_owned());
        PageRequest { method: "GET".to_owned(), path: path.to_owned(), host, ..PageRequest::default() }
    }

    #[test]
    fn strangers_are_refused() {
        let guard = Guard::new("secret".to_owned(), 7000);
        let here: SocketAddr = "127.0.0.1:40000".parse().unwrap();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(guard.admit(&request("/secret/0/birds"), here), Ok("0/birds"));
        assert_eq!(guard.admit(&request("/secret/"), here), Ok(""));
        for path in ["/", "/secret", "/Secret/", "/secre/", "/secrets/", "//secret/", "secret/", "/x/../secret/"] {
            assert_eq!(guard.admit(&request(path), here), Err(Refusal::Token), "{path}");
        }
        // A name that was bound to the loopback, another port, no name at all.
        for host in [some("evil.example:7000"), some("127.0.0.1:7001"), some("127.0.0.1"), some("localhost"), None] {
            let request = PageRequest { host, ..request("/secret/") };
            assert_eq!(guard.admit(&request, here), Err(Refusal::Host), "{:?}", request.host);
        }
        for origin in ["http://evil.example", "null", "http://127.0.0.1:7001", "https://127.0.0.1:7000"] {
            let request = PageRequest { origin: some(origin), ..request("/secret/") };
            assert_eq!(guard.admit(&request, here), Err(Refusal::Origin), "{origin}");
        }
        for site in ["cross-site", "same-site", ""] {
            let request = PageRequest { site: some(site), ..request("/secret/") };
            assert_eq!(guard.admit(&request, here), Err(Refusal::Origin), "{site}");
        }
        let ours =
            PageRequest { origin: some("http://localhost:7000"), site: some("same-origin"), ..request("/secret/") };
        assert!(guard.admit(&ours, here).is_ok());
        let post = PageRequest { method: "POST".to_owned(), ..request("/secret/") };
        assert_eq!(guard.admit(&post, here), Err(Refusal::Method));
        assert_eq!(guard.admit(&request("/secret/"), "192.0.2.1:9".parse().unwrap()), Err(Refusal::Host));
    }
}
