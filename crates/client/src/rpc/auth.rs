//! Credentials and protocol version of every request.

use super::{Credentials, Error, Result};
use hetal_wire::{VERSION, VERSION_ENTRY};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};
use zeroize::Zeroizing;

/// Adds the protocol version and the token, if there is one, to every request.
#[derive(Clone)]
pub(super) struct AuthInterceptor {
    version: MetadataValue<Ascii>,
    token: Option<MetadataValue<Ascii>>,
}

impl AuthInterceptor {
    pub(super) fn new(credentials: &Credentials) -> Result<Self> {
        let token = match credentials {
            Credentials::Token(token) => {
                let text = Zeroizing::new(format!("Bearer {}", token.trim()));
                let mut value: MetadataValue<Ascii> = text.parse().map_err(|_| Error::Token)?;
                value.set_sensitive(true);
                Some(value)
            }
            Credentials::Certificate { .. } => None,
        };
        Ok(Self { version: MetadataValue::from(VERSION), token })
    }
}

impl Interceptor for AuthInterceptor {
    fn call(&mut self, mut request: Request<()>) -> std::result::Result<Request<()>, Status> {
        request.metadata_mut().insert(VERSION_ENTRY, self.version.clone());
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}
