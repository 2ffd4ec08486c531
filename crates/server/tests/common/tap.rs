//! A trusted man in the middle: records the traffic as sent, and decrypted.

use super::TestClient;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// One for each direction of each connection.
type Recording = Arc<Mutex<Vec<Vec<u8>>>>;

/// Two relays in a row: encrypted from the client to the second, and decrypted and encrypted again
/// from there to the server.
pub struct Tap {
    /// The address for the client.
    pub address: SocketAddr,
    /// The authority for the client (PEM).
    pub authority: String,
    wire: Recording,
    inside: Recording,
    _runtime: Runtime,
}

impl Tap {
    /// In front of a server.
    pub fn start(server: SocketAddr, authority: &[u8]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let bind = || runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let (outer, inner) = (bind(), bind());
        let (address, middle) = (outer.local_addr().unwrap(), inner.local_addr().unwrap());
        let (wire, inside) = (Recording::default(), Recording::default());
        let key = KeyPair::generate().unwrap();
        let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
        let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider);
        let tls = tls.with_protocol_versions(&[&rustls::version::TLS13]).unwrap().with_no_client_auth();
        let mut tls = tls.with_single_cert(vec![certificate.der().clone()], private).unwrap();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let connector = TlsConnector::from(Arc::new(TestClient::default().tls(authority)));
        let (as_sent, as_said) = (Arc::clone(&wire), Arc::clone(&inside));
        runtime.spawn(async move {
            while let Ok((client, _)) = outer.accept().await {
                tokio::spawn(relay(client, TcpStream::connect(middle).await.unwrap(), Arc::clone(&as_sent)));
            }
        });
        runtime.spawn(async move {
            while let Ok((client, _)) = inner.accept().await {
                let client = acceptor.accept(client).await.unwrap();
                let server = TcpStream::connect(server).await.unwrap();
                let server = connector.connect("localhost".try_into().unwrap(), server).await.unwrap();
                tokio::spawn(relay(client, server, Arc::clone(&as_said)));
            }
        });
        Self { address, authority: certificate.pem(), wire, inside, _runtime: runtime }
    }

    /// The recorded traffic.
    pub fn wire(&self) -> Vec<Vec<u8>> {
        self.wire.lock().unwrap().clone()
    }

    /// Takes the subject.
    pub fn inside(&self) -> Vec<Vec<u8>> {
        self.inside.lock().unwrap().clone()
    }
}

async fn relay<A, B>(client: A, server: B, recording: Recording)
where
    A: AsyncRead + AsyncWrite + Send,
    B: AsyncRead + AsyncWrite + Send,
{
    let ((from_client, to_client), (from_server, to_server)) = (tokio::io::split(client), tokio::io::split(server));
    tokio::join!(forward(from_client, to_server, &recording), forward(from_server, to_client, &recording));
}

async fn forward(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, recording: &Recording) {
    let mine = {
        let mut all = recording.lock().unwrap();
        all.push(Vec::new());
        all.len() - 1
    };
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        recording.lock().unwrap()[mine].extend(&buffer[..count]);
        if to.write_all(&buffer[..count]).await.is_err() || to.flush().await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}
