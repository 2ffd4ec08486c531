//! The RPC service: one function for each request.

pub mod auth;
mod convert;
mod jobs;
mod streams;
mod uploads;

use crate::jobs::lifecycle::{cancel_job, delete_job};
use crate::jobs::validate::{blob_name, job_id};
use crate::limits::admission::{AdmissionQueue, TenantSemaphores};
use crate::limits::concurrency::ConcurrencyLimit;
use crate::limits::rate::RateLimit;
use crate::monitor::metrics::Metrics;
use crate::net::connections::{ActiveRequest, ConnectionLimits, Connections};
use crate::net::tls::Peer;
use crate::server_core::Core;
use crate::store::state::Quota;
use crate::store::uploads::Uploads;
use crate::tenants::audit::{AuditLog, AuditSubject};
use crate::tenants::{AuthenticatedTenant, Tenant, Tenants};
use crate::{Error, Result, clock};
use hetal_learn::Verdict;
use hetal_wire::v1::hetal_server::Hetal;
use hetal_wire::{VERSION_ENTRY, v1};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinError;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::http::HeaderMap;
use tonic::{Request, Response, Status, Streaming};

/// Buffered messages of a stream.
const STREAM_DEPTH: usize = 4;
/// Concurrent requests of a tenant: twice the default number of concurrent uploads, whose last step
/// may take long.
const REQUESTS_PER_TENANT: usize = 16;
/// How long requests may continue on a connection that has reached its greatest age.
const CONNECTION_GRACE: Duration = Duration::from_secs(600);
/// Concurrent `CreateJob` messages of a tenant in memory.
pub const CREATE_JOBS_PER_TENANT: usize = 2;

/// Everything that requests need.
pub struct Service {
    /// What requests and workers share.
    pub core: Arc<Core>,
    /// The tenants, replaced by a reload.
    pub tenants: RwLock<Tenants>,
    /// Uploads in progress.
    pub uploads: Uploads,
    /// The audit log.
    pub audit: Arc<AuditLog>,
    /// All open connections.
    pub connections: Arc<Connections>,
    /// Limits the rate of requests of each tenant.
    pub rate: RateLimit,
    /// Limits the streams of each tenant.
    pub streams: ConcurrencyLimit<Tenant>,
    /// Serialises `CreateJob` requests, which may compute key requirements.
    pub admission: AdmissionQueue,
    /// Limits the concurrent requests of each tenant.
    pub request_slots: TenantSemaphores,
    /// Limits the `CreateJob` messages of each tenant in memory. A small message may decode to a
    /// large one.
    pub create_job_slots: TenantSemaphores,
    /// Set when streams must end.
    pub closing: AtomicBool,
}

/// An admitted request.
pub struct Admitted {
    /// The tenant.
    pub tenant: Tenant,
    /// How long the request must wait, because the tenant makes too many.
    pub delay: Duration,
}

/// The gRPC handler.
#[derive(Clone)]
pub struct Handler(pub Arc<Service>);

/// The authenticated tenant and the audit subject of a request.
fn authenticated<T>(request: &Request<T>) -> Result<(Tenant, AuditSubject)> {
    let extensions = request.extensions();
    let found = extensions.get::<Tenant>().cloned().zip(extensions.get::<AuditSubject>().cloned());
    found.ok_or(Error::Credentials)
}

impl Handler {
    /// Runs blocking work outside the network threads, within the tenant's limit.
    async fn run<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        work: impl FnOnce(&Service, &Tenant) -> Result<T> + Send + 'static,
    ) -> std::result::Result<T, Status> {
        let (service, owner) = (Arc::clone(&self.0), tenant.clone());
        let outcome = self.0.request_slots.run_blocking(tenant, move || work(&service, &owner)).await;
        answer(&self.0.core.metrics, outcome)
    }
}

/// Converts the result of blocking work to a response.
fn answer<T>(metrics: &Metrics, outcome: std::result::Result<Result<T>, JoinError>) -> std::result::Result<T, Status> {
    // The panic message may contain secrets, so it goes to the log only.
    let panicked = |e: JoinError| Error::System { what: "a request panicked".to_owned(), reason: e.to_string() };
    let outcome = outcome.unwrap_or_else(|e| Err(panicked(e)));
    outcome.map_err(|error| {
        metrics.count_fault(&error);
        tracing::debug!(%error, "refused");
        error.into()
    })
}

type Reply<T> = std::result::Result<Response<T>, Status>;

#[tonic::async_trait]
impl Hetal for Handler {
    type WatchStream = ReceiverStream<std::result::Result<v1::Event, Status>>;
    type DownloadStream = ReceiverStream<std::result::Result<v1::DownloadPart, Status>>;

    async fn hello(&self, request: Request<v1::HelloRequest>) -> Reply<v1::Offer> {
        authenticated(&request)?;
        let hello = request.get_ref();
        hetal_wire::negotiate(hello.oldest, hello.newest).map_err(|message| Error::Version { message })?;
        Ok(Response::new(self.0.offer()))
    }

    async fn begin_upload(&self, request: Request<v1::BeginUploadRequest>) -> Reply<v1::UploadState> {
        let (tenant, subject) = authenticated(&request)?;
        let message = request.into_inner();
        subject.set(blob_name(&message.name)?);
        self.run(&tenant, move |service, tenant| service.begin_upload(tenant, &message)).await.map(Response::new)
    }

    async fn upload(&self, request: Request<Streaming<v1::UploadPart>>) -> Reply<v1::UploadState> {
        let (tenant, subject) = authenticated(&request)?;
        self.receive(tenant, &subject, request.into_inner()).await.map(Response::new)
    }

    async fn delete_upload(&self, request: Request<v1::DeleteUploadRequest>) -> Reply<v1::Done> {
        let (tenant, subject) = authenticated(&request)?;
        let name = blob_name(&request.get_ref().name)?;
        subject.set(name);
        let done = self.run(&tenant, move |service, tenant| service.uploads.delete(tenant, name)).await;
        done.map(|()| Response::new(v1::Done {}))
    }

    async fn list_uploads(&self, request: Request<v1::ListUploadsRequest>) -> Reply<v1::UploadList> {
        let (tenant, _) = authenticated(&request)?;
        self.run(&tenant, |service, tenant| service.list_uploads(tenant)).await.map(Response::new)
    }

    async fn create_job(&self, request: Request<v1::CreateJobRequest>) -> Reply<v1::Job> {
        let (tenant, subject) = authenticated(&request)?;
        let message = request.into_inner();
        // Checked before the request waits in the queue with its message in memory.
        self.0.check_row_blobs(&message)?;
        let (service, owner) = (Arc::clone(&self.0), tenant.clone());
        let work = move |admission| service.create_job(&owner, &message, admission);
        let job = answer(&self.0.core.metrics, self.0.admission.run_blocking(&tenant, work).await)?;
        subject.set(job_id(&job.id)?);
        Ok(Response::new(job))
    }

    async fn list_jobs(&self, request: Request<v1::ListJobsRequest>) -> Reply<v1::JobList> {
        let (tenant, _) = authenticated(&request)?;
        let jobs = self.run(&tenant, |service, tenant| {
            Ok(service.core.state.jobs(tenant)?.iter().map(|job| service.describe(job)).collect())
        });
        Ok(Response::new(v1::JobList { jobs: jobs.await? }))
    }

    async fn get_job(&self, request: Request<v1::JobRequest>) -> Reply<v1::Job> {
        let (tenant, subject) = authenticated(&request)?;
        let id = job_id(&request.get_ref().id)?;
        subject.set(id);
        let job =
            self.run(&tenant, move |service, tenant| Ok(service.describe(&service.core.state.summary(tenant, id)?)));
        job.await.map(Response::new)
    }

    async fn cancel_job(&self, request: Request<v1::JobRequest>) -> Reply<v1::Job> {
        let (tenant, subject) = authenticated(&request)?;
        let id = job_id(&request.get_ref().id)?;
        subject.set(id);
        let job = self.run(&tenant, move |service, tenant| {
            let job = cancel_job(&*service.core.state, &*service.core.blobs, tenant, id, clock::millis())?;
            service.core.notifier.notify_of(id);
            Ok(service.describe(&job))
        });
        job.await.map(Response::new)
    }

    async fn delete_job(&self, request: Request<v1::JobRequest>) -> Reply<v1::Done> {
        let (tenant, subject) = authenticated(&request)?;
        let id = job_id(&request.get_ref().id)?;
        subject.set(id);
        let done = self
            .run(&tenant, move |service, tenant| delete_job(&*service.core.state, &*service.core.blobs, tenant, id));
        done.await.map(|()| Response::new(v1::Done {}))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Reply<Self::WatchStream> {
        let (tenant, subject) = authenticated(&request)?;
        let (id, after) = (job_id(&request.get_ref().job)?, request.get_ref().after);
        subject.set(id);
        let permit = (self.0.stream(&tenant)?, request.extensions().get::<ActiveRequest>().cloned());
        // An unknown job is refused before the stream begins.
        let job = self.run(&tenant, move |service, tenant| service.core.state.summary(tenant, id)).await?;
        if after > job.sequence {
            let last = job.sequence;
            let message = format!("job {id} has no event {after} yet: its last event has the number {last}");
            return Err(Error::invalid(message).into());
        }
        // One event may be large, so only one is buffered.
        let (sender, receiver) = mpsc::channel(1);
        let handler = self.clone();
        tokio::spawn(async move {
            if let Err(status) = handler.send_events(&tenant, id, after, &sender).await {
                let _ = sender.send_timeout(Err(status), handler.0.idle()).await;
            }
            drop(permit);
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn judge(&self, request: Request<v1::JudgeRequest>) -> Reply<v1::Done> {
        let (tenant, subject) = authenticated(&request)?;
        let message = request.into_inner();
        let id = job_id(&message.job)?;
        subject.set(id);
        let verdict = match message.verdict() {
            v1::Verdict::Continue => Verdict::Continue,
            v1::Verdict::Stop => Verdict::Stop,
            v1::Verdict::LowerRate => Verdict::LowerRate,
            v1::Verdict::WidenRange => Verdict::WidenRange,
            v1::Verdict::Unspecified => return Err(Error::invalid("the request has no verdict").into()),
        };
        let done = self.run(&tenant, move |service, tenant| {
            if service.core.state.judge(tenant, id, message.round, verdict)? {
                service.core.notifier.notify_of(id);
            }
            Ok(())
        });
        done.await.map(|()| Response::new(v1::Done {}))
    }

    async fn download(&self, request: Request<v1::DownloadRequest>) -> Reply<Self::DownloadStream> {
        let (tenant, subject) = authenticated(&request)?;
        let active = request.extensions().get::<ActiveRequest>().cloned();
        let message = request.into_inner();
        subject.set(blob_name(&message.blob)?);
        let permit = (self.0.stream(&tenant)?, active);
        let reader = self.run(&tenant, move |service, tenant| service.open_output(tenant, &message)).await?;
        let (sender, receiver) = mpsc::channel(STREAM_DEPTH);
        let handler = self.clone();
        tokio::spawn(async move {
            if let Err(status) = handler.send_parts(&tenant, reader, &sender).await {
                let _ = sender.send_timeout(Err(status), handler.0.idle()).await;
            }
            drop(permit);
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

impl Service {
    /// Creates the service with the limits of the configuration.
    pub fn new(core: Arc<Core>, tenants: RwLock<Tenants>, uploads: Uploads, audit: Arc<AuditLog>) -> Self {
        let bounds = &core.config.bounds;
        Self {
            tenants,
            uploads,
            audit,
            connections: Arc::new(Connections::new(ConnectionLimits {
                total: bounds.connections,
                per_tenant: bounds.tenant_connections,
                preauth_per_address: bounds.strangers,
            })),
            rate: RateLimit::new(bounds.request_rate, Duration::from_secs(bounds.idle_seconds)),
            streams: ConcurrencyLimit::new(bounds.streams),
            admission: AdmissionQueue::default(),
            request_slots: TenantSemaphores::new(REQUESTS_PER_TENANT),
            create_job_slots: TenantSemaphores::new(CREATE_JOBS_PER_TENANT),
            closing: false.into(),
            core,
        }
    }

    /// Identifies the tenant. The protocol version is checked first, so that an old client is told
    /// to update even with old credentials.
    pub fn identify(&self, headers: &HeaderMap, peer: Option<&Peer>) -> Result<AuthenticatedTenant> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let version = text(VERSION_ENTRY).and_then(|v| v.parse::<u32>().ok()).unwrap_or(0);
        hetal_wire::negotiate(version, version).map_err(|message| Error::Version { message })?;
        let certificate = peer.and_then(|peer| peer.certificate);
        let token = text("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        tenants.identify(certificate, token, clock::millis() / 1000)
    }

    /// Admits a request within the tenant's limits.
    pub fn admit(&self, identity: AuthenticatedTenant, peer: Option<&Peer>) -> Result<Admitted> {
        let AuthenticatedTenant { tenant, credential } = identity;
        if peer.is_some_and(|peer| !peer.admit(&tenant, credential)) {
            let most = self.connections.per_tenant();
            let message = format!("a tenant may have {most} connections: close some, or use the open ones");
            return Err(Error::Limit { message });
        }
        let rate = self.core.config.bounds.request_rate;
        let message = || format!("too many requests: at most {rate} a second are served, try again later");
        let delay = self.rate.reserve(&tenant, Instant::now()).ok_or_else(|| Error::Limit { message: message() })?;
        Ok(Admitted { tenant, delay })
    }

    /// Closes connections that are idle or too old, and those of tenants who are no longer
    /// configured.
    pub fn close_stale_connections(&self) {
        let (bounds, now) = (&self.core.config.bounds, clock::millis() / 1000);
        let idle = self.connections.close_idle(Duration::from_secs(bounds.connection_idle_seconds));
        // The network service asks clients to leave earlier, and lets their requests end.
        self.connections.close_old(Duration::from_secs(bounds.connection_seconds) + CONNECTION_GRACE);
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        let revoked = self.connections.close_revoked(|tenant, credential| tenants.is_valid(tenant, credential, now));
        if revoked > 0 {
            tracing::info!(revoked, "closed connections of removed or expired tenants");
        }
        if idle > 0 {
            tracing::debug!(idle, "closed idle connections");
        }
    }

    /// Time limit for waiting on a client.
    fn idle(&self) -> Duration {
        Duration::from_secs(self.core.config.bounds.idle_seconds)
    }

    /// The limits of each tenant.
    pub fn quota(&self) -> Quota {
        let bounds = &self.core.config.bounds;
        Quota { bytes: bounds.tenant_bytes, uploads: bounds.uploads, jobs: bounds.jobs, kept_jobs: bounds.kept_jobs }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_broke_off_is_for_the_log_alone() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let broken = || -> Result<()> { panic!("a secret") };
        let status = runtime
            .block_on(async { answer(&Metrics::default(), tokio::task::spawn_blocking(broken).await).unwrap_err() });
        assert_eq!(status.code(), tonic::Code::Internal);
        assert!(!status.message().contains("secret") && status.message().contains("internal server error"), "{status}");
    }
}
