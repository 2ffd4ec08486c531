//! A server that speaks S3, over a folder.
#![allow(clippy::unwrap_used)]

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use std::net::SocketAddr;
use std::path::Path;
use tokio::runtime::Runtime;

/// The only bucket.
pub const BUCKET: &str = "bucket";
/// The credentials that it accepts.
pub const ACCESS_KEY_ID: &str = "someone";
/// See [`ACCESS_KEY_ID`].
pub const SECRET_ACCESS_KEY: &str = "something";

/// Starts the server, which ends with the runtime.
pub fn start(runtime: &Runtime, folder: &Path) -> SocketAddr {
    std::fs::create_dir_all(folder.join(BUCKET)).unwrap();
    let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder).unwrap());
    builder.set_auth(SimpleAuth::from_single(ACCESS_KEY_ID, SECRET_ACCESS_KEY));
    let service = builder.build();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service.clone();
            tokio::spawn(async move {
                let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}
