//! Authentication and audit of requests, before any message is read.

use crate::clock;
use crate::monitor::metrics::Metrics;
use crate::net::tls::Peer;
use crate::rpc::{Admitted, Service};
use crate::tenants::Tenant;
use crate::tenants::audit::{AuditEntry, AuditLog, AuditSubject, outcome_name};
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::{Code, Status};

/// Middleware that authenticates requests. It passes them to `inner` with their tenant and their
/// audit subject, or refuses them.
#[derive(Clone)]
pub struct AuthLayer<S> {
    inner: S,
    service: Arc<Service>,
}

impl<S> AuthLayer<S> {
    /// Wraps `inner`.
    pub fn new(inner: S, service: Arc<Service>) -> Self {
        Self { inner, service }
    }
}

impl<S> tonic::codegen::Service<Request<Body>> for AuthLayer<S>
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
        let service = Arc::clone(&self.service);
        let peer = request.extensions().get::<Peer>().cloned();
        let recorder = Recorder { audit: Arc::clone(&service.audit), metrics: Arc::clone(&service.core.metrics) };
        let mut audited = AuditedRequest::begin(recorder, request.uri().path(), peer.as_ref());
        service.core.metrics.requests.inc();
        let admitted = service.identify(request.headers(), peer.as_ref()).and_then(|identity| {
            audited.tenant = Some(identity.tenant.clone());
            service.admit(identity, peer.as_ref())
        });
        let Admitted { tenant, delay } = match admitted {
            Ok(admitted) => admitted,
            Err(error) => {
                if let (None, Some(peer)) = (&audited.tenant, &peer) {
                    peer.count_refusal();
                }
                let status = Status::from(error);
                audited.end(status.code());
                return Box::pin(async move { Ok(status.into_http()) });
            }
        };
        let active = peer.map(|peer| peer.begin_request());
        if let Some(active) = &active {
            request.extensions_mut().insert(active.clone());
        }
        request.extensions_mut().insert(tenant.clone());
        request.extensions_mut().insert(audited.subject.clone());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let _active = active;
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            // The message is read when the response future is polled.
            let _permit =
                if audited.request == "CreateJob" { service.create_job_slots.acquire(&tenant).await } else { None };
            let answer = answer.await;
            audited.end(match &answer {
                // A call that fails before its stream begins reports the status in the headers.
                Ok(response) => Status::from_header_map(response.headers()).map_or(Code::Ok, |status| status.code()),
                Err(never) => match *never {},
            });
            answer
        })
    }
}

/// The requests of the protocol.
const METHODS: [&str; 13] = [
    "Hello",
    "BeginUpload",
    "Upload",
    "DeleteUpload",
    "ListUploads",
    "CreateJob",
    "ListJobs",
    "GetJob",
    "CancelJob",
    "DeleteJob",
    "Watch",
    "Judge",
    "Download",
];

/// Where requests are recorded.
#[derive(Clone)]
struct Recorder {
    audit: Arc<AuditLog>,
    metrics: Arc<Metrics>,
}

/// An entry of the audit log. It is written on drop, so a request whose client resets the stream is
/// logged too.
struct AuditedRequest {
    recorder: Recorder,
    started: Instant,
    request: String,
    peer: Option<SocketAddr>,
    tenant: Option<Tenant>,
    subject: AuditSubject,
    code: Code,
}

impl AuditedRequest {
    fn begin(recorder: Recorder, path: &str, peer: Option<&Peer>) -> Self {
        Self {
            recorder,
            started: Instant::now(),
            // No method of the protocol has a longer name.
            request: path.rsplit('/').next().unwrap_or(path).chars().take(32).collect(),
            peer: peer.map(|peer| peer.address),
            tenant: None,
            subject: AuditSubject::default(),
            code: Code::Cancelled,
        }
    }

    /// Sets the final status. Without it the request counts as cancelled.
    fn end(mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for AuditedRequest {
    fn drop(&mut self) {
        let Recorder { audit, metrics } = &self.recorder;
        if self.code != Code::Ok {
            metrics.refusals.inc();
        }
        let elapsed = self.started.elapsed();
        // Whoever has no credentials names requests as he likes.
        let known = self.tenant.is_some() && METHODS.contains(&&*self.request);
        metrics.request_times.observe_time(if known { &self.request } else { "other" }, elapsed);
        audit.write(&AuditEntry {
            time: clock::millis(),
            tenant: self.tenant.as_ref().map(Tenant::as_str),
            peer: self.peer,
            request: &self.request,
            object: self.subject.take(),
            outcome: outcome_name(self.code),
            millis: elapsed.as_millis() as u64,
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hetal_testkit::TempDir;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Semaphore;
    use tonic::codegen::Service as _;

    /// The time of every request of the protocol is counted under its name.
    #[test]
    fn every_request_has_a_histogram() {
        let protocol = include_str!("../../../wire/proto/hetal.proto");
        let names = protocol.lines().filter_map(|line| line.trim_start().strip_prefix("rpc ")?.split('(').next());
        assert_eq!(names.collect::<Vec<_>>(), METHODS);
    }

    /// Few `CreateJob` messages of a tenant are read at the same time. Other requests do not wait.
    #[test]
    fn few_orders_are_read_at_once() {
        let dir = TempDir::new();
        let running = crate::server::start_with(
            crate::server::tests::config(dir.path()),
            crate::store::ownership::RENEWAL_INTERVAL,
        )
        .unwrap();
        let (read, go_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let (counter, gate) = (Arc::clone(&read), Arc::clone(&go_on));
        let inner = tower::service_fn(move |_: Request<Body>| {
            let (read, go_on) = (Arc::clone(&counter), Arc::clone(&gate));
            async move {
                read.fetch_add(1, Ordering::Relaxed);
                let _ = go_on.acquire().await;
                Ok::<_, Infallible>(Response::new(Body::empty()))
            }
        });
        let mut layer = AuthLayer::new(inner, Arc::clone(&running.service));
        let mut ask = |request: &str| {
            let request = Request::builder()
                .uri(format!("/hetal.v1.Hetal/{request}"))
                .header(hetal_wire::VERSION_ENTRY, hetal_wire::VERSION)
                .header("authorization", "Bearer a token")
                .body(Body::empty());
            layer.call(request.unwrap())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let orders: Vec<_> = (0..5).map(|_| tokio::spawn(ask("CreateJob"))).collect();
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(read.load(Ordering::Relaxed), crate::rpc::CREATE_JOBS_PER_TENANT);
            let other = tokio::spawn(ask("GetJob"));
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(read.load(Ordering::Relaxed), crate::rpc::CREATE_JOBS_PER_TENANT + 1);
            go_on.close();
            for task in orders.into_iter().chain([other]) {
                task.await.unwrap().unwrap();
            }
            assert_eq!(read.load(Ordering::Relaxed), 6);
        });
    }

    #[test]
    fn a_request_that_nobody_waits_for_is_written_down() {
        let dir = TempDir::new();
        let recorder = Recorder { audit: Arc::new(AuditLog::open(dir.path(), 4096).unwrap()), metrics: Arc::default() };
        let begin = || {
            let mut audited = AuditedRequest::begin(recorder.clone(), "/hetal.v1.Hetal/CreateJob", None);
            audited.tenant = Some("ann".to_owned().try_into().unwrap());
            audited
        };
        begin().end(Code::Ok);
        // The client resets the stream.
        drop(begin());
        let text = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
        let outcomes: Vec<_> = text.lines().map(|line| line.contains("broken off")).collect();
        assert_eq!(outcomes, [false, true], "{text}");
        assert!(text.lines().all(|line| line.contains("CreateJob") && line.contains("ann")), "{text}");
    }
}
