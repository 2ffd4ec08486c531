//! The door: who asks is known, and written down, before anything of a request's message is read.

use crate::audit::{Entry, Note, word};
use crate::metrics::add;
use crate::service::Service;
use crate::tls::Peer;
use crate::{Error, clock};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::{Code, Status};

/// Lets requests through to `inner` with their tenant and a note for the audit log, or refuses them.
#[derive(Clone)]
pub struct Door<S> {
    inner: S,
    service: Arc<Service>,
}

impl<S> Door<S> {
    /// The door of a service.
    pub fn new(inner: S, service: Arc<Service>) -> Self {
        Self { inner, service }
    }
}

impl<S> tonic::codegen::Service<Request<Body>> for Door<S>
where
    S: tonic::codegen::Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let (begun, service) = (Instant::now(), Arc::clone(&self.service));
        let path = request.uri().path();
        // Longer names than ours are not worth their room in the log.
        let name: String = path.rsplit('/').next().unwrap_or(path).chars().take(32).collect();
        let peer = request.extensions().get::<Peer>().cloned();
        let address = peer.as_ref().map(|peer| peer.address);
        let write = move |service: &Service, tenant: Option<&str>, object, code: Code| {
            if code != Code::Ok {
                add(&service.metrics.refusals, 1);
            }
            let (time, millis) = (clock::millis(), begun.elapsed().as_millis() as u64);
            let (request, outcome) = (name.as_str(), word(code));
            service.audit.write(&Entry { time, tenant, peer: address, request, object, outcome, millis });
        };
        add(&service.metrics.requests, 1);
        let tenant = service.identify(request.headers(), peer.as_ref()).and_then(|tenant| match &peer {
            Some(peer) if !peer.admit(&tenant, &service.connections) => {
                Err(Error::Limit { sentence: "too many connections: use the ones you have".to_owned() })
            }
            _ => Ok(tenant),
        });
        let tenant = match tenant {
            Ok(tenant) => tenant,
            Err(error) => {
                let status = Status::from(error);
                write(&service, None, None, status.code());
                return Box::pin(async move { Ok(status.into_http()) });
            }
        };
        let note = Note::default();
        request.extensions_mut().insert(tenant.clone());
        request.extensions_mut().insert(note.clone());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = match &answer {
                // What ends before its stream begins says so in the headers.
                Ok(response) => Status::from_header_map(response.headers()).map_or(Code::Ok, |status| status.code()),
                Err(never) => match *never {},
            };
            write(&service, Some(tenant.as_str()), note.take(), code);
            answer
        })
    }
}
