//! The protocol's requests, one function each: who asks, what exactly, then the state and the blobs.

pub mod auth;

use crate::context::Core;
use crate::jobs::key_requirements::{OLD_KEYS_HINT, describe_key_error};
use crate::jobs::lifecycle::{cancel_job, delete_job};
use crate::jobs::spec::JobSpec;
use crate::jobs::validate::{RequestValidator, ValidTraining, blob_name, check_batch_count, job_id};
use crate::limits::admission::{Admission, AdmissionQueue, TenantSemaphores};
use crate::limits::concurrency::{ConcurrencyLimit, Permit};
use crate::metrics::add;
use crate::net::tls::Peer;
use crate::store::blobs::{Key, Namespace};
use crate::store::state::{BlobKind, JobState, JobSummary, NewJob, Quota, Upload};
use crate::store::uploads::{Resumed, UploadProgress, Uploads};
use crate::tenants::audit::{AuditLog, AuditSubject};
use crate::tenants::{Tenant, Tenants};
use crate::{Error, Result, clock};
use hetal_ckks::bytes::{Codec, HEADER_LEN, Header, KeySetFile, ObjectKind};
use hetal_ckks::{KeyId, KeySource, Params};
use hetal_learn::{Agreement, Verdict};
use hetal_wire::v1::hetal_server::Hetal;
use hetal_wire::{BlobName, JobId, LABEL_BYTES, PART_BYTES, VERSION_ENTRY, v1};
use std::collections::BTreeSet;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinError;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::http::HeaderMap;
use tonic::{Code, Request, Response, Status, Streaming};

/// Messages of a stream that wait for a slow client.
const STREAM_DEPTH: usize = 4;
/// How often watchers look for changes made by other machines.
const POLL: Duration = Duration::from_secs(1);
/// Bytes that an upload brings in `idle_seconds`, at the least.
const LEAST_BYTES: usize = 64 << 10;
/// Events that are read at once.
const EVENTS_AT_ONCE: usize = 64;
/// Requests of a tenant that are worked on at once: twice as many as uploads by default, whose ends may take long.
pub const REQUESTS_PER_TENANT: usize = 16;
/// Requests of a tenant for jobs whose messages are in memory at once.
pub const CREATE_JOBS_PER_TENANT: usize = 2;

/// Everything requests work on.
pub struct Service {
    /// What requests and workers share.
    pub core: Arc<Core>,
    /// Who may ask.
    pub tenants: RwLock<Tenants>,
    /// Bytes on their way.
    pub uploads: Uploads,
    /// Where requests are written down.
    pub audit: Arc<AuditLog>,
    /// Connections of each tenant.
    pub connections: ConcurrencyLimit<Tenant>,
    /// Streams to each tenant.
    pub streams: ConcurrencyLimit<Tenant>,
    /// Of requests for jobs, whose needs may take a while to find out.
    pub admission: AdmissionQueue,
    /// Of all requests, while they are worked on.
    pub request_slots: TenantSemaphores,
    /// Of requests for jobs, from before their messages are read: a small message may be large in memory.
    pub create_job_slots: TenantSemaphores,
    /// Set when streams shall end.
    pub closing: AtomicBool,
}

/// What the network layer holds.
#[derive(Clone)]
pub struct Handler(pub Arc<Service>);

/// The tenant whom the door let in, and the note for its log.
fn authenticated<T>(request: &Request<T>) -> Result<(Tenant, AuditSubject)> {
    let extensions = request.extensions();
    let found = extensions.get::<Tenant>().cloned().zip(extensions.get::<AuditSubject>().cloned());
    found.ok_or(Error::Credentials)
}

impl Handler {
    /// Runs what blocks away from the network's threads, when its tenant has a place.
    async fn run<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        work: impl FnOnce(&Service, &Tenant) -> Result<T> + Send + 'static,
    ) -> std::result::Result<T, Status> {
        let (service, asked) = (Arc::clone(&self.0), tenant.clone());
        answer(self.0.request_slots.run_blocking(tenant, move || work(&service, &asked)).await)
    }
}

/// What became of work in another thread.
fn answer<T>(outcome: std::result::Result<Result<T>, JoinError>) -> std::result::Result<T, Status> {
    // What it said when it broke off is for the log alone.
    let broken_off = |e: JoinError| Error::System { what: "a request broke off".to_owned(), reason: e.to_string() };
    let outcome = outcome.unwrap_or_else(|e| Err(broken_off(e)));
    outcome.map_err(|error| {
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

    async fn create_job(&self, request: Request<v1::CreateJobRequest>) -> Reply<v1::Job> {
        let (tenant, subject) = authenticated(&request)?;
        let message = request.into_inner();
        // Before it waits, with all it holds.
        self.0.count(&message)?;
        let (service, asked) = (Arc::clone(&self.0), tenant.clone());
        let work = move |admission| service.create_job(&asked, &message, admission);
        let job = answer(self.0.admission.run_blocking(&tenant, work).await)?;
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
            service.core.notifier.notify();
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
        let permit = self.0.stream(&tenant)?;
        // The job must be there before the stream begins.
        self.run(&tenant, move |service, tenant| service.core.state.summary(tenant, id)).await?;
        let (sender, receiver) = mpsc::channel(STREAM_DEPTH);
        let handler = self.clone();
        tokio::spawn(async move {
            if let Err(status) = handler.tell(&tenant, id, after, &sender).await {
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
            v1::Verdict::Unspecified => return Err(Error::invalid("that is no verdict").into()),
        };
        let done = self.run(&tenant, move |service, tenant| {
            service.core.state.judge(tenant, id, message.round, verdict)?;
            service.core.notifier.notify();
            Ok(())
        });
        done.await.map(|()| Response::new(v1::Done {}))
    }

    async fn download(&self, request: Request<v1::DownloadRequest>) -> Reply<Self::DownloadStream> {
        let (tenant, subject) = authenticated(&request)?;
        let message = request.into_inner();
        subject.set(blob_name(&message.blob)?);
        let permit = self.0.stream(&tenant)?;
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

impl Handler {
    /// Takes the parts of an upload. Whatever ends the stream, the bytes that came stay.
    async fn receive(
        &self,
        tenant: Tenant,
        subject: &AuditSubject,
        mut stream: Streaming<v1::UploadPart>,
    ) -> std::result::Result<v1::UploadState, Status> {
        let first = self.part(&mut stream).await?;
        let first = first.ok_or_else(|| Status::invalid_argument("an upload begins with its name"))?;
        let name = blob_name(&first.name)?;
        subject.set(name);
        let begun =
            self.run(&tenant, move |service, tenant| service.uploads.resume(tenant, name, first.offset)).await?;
        let mut writer = match begun {
            Resumed::Complete(upload) => return Ok(v1::UploadState { held: upload.size, complete: true }),
            Resumed::Partial(writer) => writer,
        };
        let (mut since, mut came) = (Instant::now(), 0);
        let mut part = Some(first);
        while let Some(v1::UploadPart { data, .. }) = part {
            if data.len() > PART_BYTES {
                return Err(Error::invalid(format!("a part of more than {PART_BYTES} bytes")).into());
            }
            add(&self.0.core.metrics.received_bytes, data.len() as u64);
            came += data.len();
            let add = move |service: &Service, _: &Tenant| service.uploads.add(&mut writer, &data).map(|()| writer);
            writer = self.run(&tenant, add).await?;
            if came >= LEAST_BYTES {
                (since, came) = (Instant::now(), 0);
            } else if since.elapsed() > self.0.idle() && !writer.is_whole() {
                return Err(Status::deadline_exceeded("the upload is too slow: send the rest in larger parts"));
            }
            part = if writer.is_whole() { None } else { self.part(&mut stream).await? };
        }
        let held = writer.held();
        if !writer.is_whole() {
            return Ok(v1::UploadState { held, complete: false });
        }
        let finish = move |service: &Service, tenant: &Tenant| {
            service.uploads.finish(tenant, writer, |upload, start| service.inspect(upload, start))
        };
        self.run(&tenant, finish).await?;
        Ok(v1::UploadState { held, complete: true })
    }

    /// The next part of an upload, if it comes soon.
    async fn part(
        &self,
        stream: &mut Streaming<v1::UploadPart>,
    ) -> std::result::Result<Option<v1::UploadPart>, Status> {
        match tokio::time::timeout(self.0.idle(), stream.message()).await {
            // What the transport cannot read any more: the client has gone, and hears nothing of this.
            Ok(Err(status)) if status.code() == Code::Unknown => Err(Status::cancelled("the upload broke off")),
            Ok(part) => part,
            Err(_) => Err(Status::deadline_exceeded("no part of the upload came for too long: send the rest")),
        }
    }

    /// Sends a blob part by part, as long as somebody takes them.
    async fn send_parts(
        &self,
        tenant: &Tenant,
        mut reader: Box<dyn Read + Send>,
        out: &mpsc::Sender<std::result::Result<v1::DownloadPart, Status>>,
    ) -> std::result::Result<(), Status> {
        loop {
            let read = self.run(tenant, move |_, _| {
                let mut data = Vec::with_capacity(PART_BYTES);
                let count = reader.by_ref().take(PART_BYTES as u64).read_to_end(&mut data);
                count.map_err(|e| Error::System { what: "a blob".to_owned(), reason: e.to_string() })?;
                Ok((reader, data))
            });
            let data;
            (reader, data) = read.await?;
            if data.is_empty() {
                return Ok(());
            }
            add(&self.0.core.metrics.sent_bytes, data.len() as u64);
            if out.send_timeout(Ok(v1::DownloadPart { data: data.into() }), self.0.idle()).await.is_err() {
                // Nobody takes it, or not soon enough.
                return Ok(());
            }
        }
    }

    /// Sends events after a number, and progress as it changes, until the job has ended or nobody listens.
    async fn tell(
        &self,
        tenant: &Tenant,
        id: JobId,
        mut after: u64,
        out: &mpsc::Sender<std::result::Result<v1::Event, Status>>,
    ) -> std::result::Result<(), Status> {
        let mut notifier = self.0.core.notifier.subscribe();
        let mut told = None;
        loop {
            notifier.mark_unchanged();
            let news = self.run(tenant, move |service, tenant| {
                let events = service.core.state.events(tenant, id, after, EVENTS_AT_ONCE)?;
                Ok((service.core.state.summary(tenant, id)?, events))
            });
            let (job, events) = news.await?;
            let more = events.len() == EVENTS_AT_ONCE;
            for event in events {
                after = event.sequence;
                if out.send_timeout(Ok(event), self.0.idle()).await.is_err() {
                    return Ok(());
                }
            }
            if more {
                continue;
            }
            // Whoever watches a server that closes hears the rest from the next.
            if job.state.has_ended() && after >= job.sequence || self.0.closing.load(Ordering::Relaxed) {
                return Ok(());
            }
            // A job that rests is in the queue; one that runs no longer rests, whatever it said last.
            let speaks = if job.progress.is_some_and(|p| p.resting) { JobState::Queued } else { JobState::Running };
            if job.progress != told && job.state == speaks && after == job.sequence {
                told = job.progress;
                let what = told.map(v1::event::What::Progress);
                if out.send_timeout(Ok(v1::Event { sequence: after, what }), self.0.idle()).await.is_err() {
                    return Ok(());
                }
            }
            tokio::select! {
                _ = tokio::time::timeout(POLL, notifier.changed()) => {}
                () = out.closed() => return Ok(()),
            }
        }
    }
}

impl Service {
    /// The tenant who asks, after the protocol's version: an old client is told so even with old credentials.
    pub fn identify(&self, headers: &HeaderMap, peer: Option<&Peer>) -> Result<Tenant> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let version = text(VERSION_ENTRY).and_then(|v| v.parse::<u32>().ok()).unwrap_or(0);
        hetal_wire::negotiate(version, version).map_err(|message| Error::Version { message })?;
        let certificate = peer.and_then(|peer| peer.certificate);
        let token = text("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        tenants.identify(certificate, token, clock::millis() / 1000)
    }

    /// How long anyone is waited for.
    fn idle(&self) -> Duration {
        Duration::from_secs(self.core.config.bounds.idle_seconds)
    }

    /// A place among the streams of a tenant.
    fn stream(&self, tenant: &Tenant) -> Result<Permit<Tenant>> {
        let most = self.core.config.bounds.streams;
        let message = || format!("{most} jobs watched and blobs downloaded at once are the most allowed");
        self.streams.try_acquire(tenant).ok_or_else(|| Error::Limit { message: message() })
    }

    fn quota(&self) -> Quota {
        let bounds = &self.core.config.bounds;
        Quota { bytes: bounds.tenant_bytes, uploads: bounds.uploads, jobs: bounds.jobs, kept_jobs: bounds.kept_jobs }
    }

    fn offer(&self) -> v1::Offer {
        let (limits, bounds) = (&self.core.config.hyperparameters, &self.core.config.bounds);
        let shown = |value: f64| (!self.core.config.hide_hyperparameters).then_some(value);
        let set = |p: &Arc<Params>| v1::ParameterSet { id: p.id().to_vec().into(), name: p.name().to_owned() };
        v1::Offer {
            version: hetal_wire::VERSION,
            program: format!("hetal-server {}", env!("CARGO_PKG_VERSION")),
            sets: self.core.param_sets.iter().map(set).collect(),
            defaults: Some(self.terms(&limits.defaults)),
            bounds: Some(v1::Bounds {
                batch_least: limits.batch.0 as u32,
                batch_most: limits.batch.1 as u32,
                patience_most: limits.patience as u32,
                epochs_most: limits.max_epochs as u32,
                blob_bytes_most: bounds.blob_bytes,
                tenant_bytes_most: bounds.tenant_bytes,
                part_bytes_most: PART_BYTES as u32,
                batches_most: bounds.batches as u32,
                rate_least: shown(limits.rate.0),
                rate_most: shown(limits.rate.1),
            }),
        }
    }

    /// What a client is told of an agreement.
    fn terms(&self, agreement: &Agreement) -> v1::Terms {
        use hetal_learn::nesterov::Momentum;
        let hide = self.core.config.hide_hyperparameters;
        let momentum = match agreement.momentum {
            _ if hide => v1::Momentum::Unspecified,
            Momentum::None => v1::Momentum::None,
            Momentum::Nesterov => v1::Momentum::Nesterov,
        };
        v1::Terms {
            batch: agreement.batch as u32,
            patience: agreement.patience as u32,
            max_epochs: agreement.max_epochs as u32,
            range: agreement.range,
            rate: (!hide).then_some(agreement.rate),
            lowering: (!hide).then_some(agreement.lowering),
            momentum: momentum.into(),
            seed: (!hide).then_some(agreement.seed),
        }
    }

    fn describe(&self, job: &JobSummary) -> v1::Job {
        let state = v1::JobState::from(job.state);
        let terms = job.agreement.as_ref().map(|agreement| self.terms(agreement));
        v1::Job {
            id: job.id.to_vec().into(),
            label: job.label.clone(),
            state: state.into(),
            terms,
            progress: job.progress,
            created: job.created / 1000,
            updated: job.updated / 1000,
            reason: job.reason.clone(),
            sequence: job.sequence,
        }
    }

    fn begin_upload(&self, tenant: &Tenant, message: &v1::BeginUploadRequest) -> Result<v1::UploadState> {
        let kind = match message.kind() {
            v1::BlobKind::Keys => BlobKind::Keys,
            v1::BlobKind::Batch => BlobKind::Batch,
            v1::BlobKind::Features => BlobKind::Features,
            v1::BlobKind::Unspecified => return Err(Error::invalid("a blob of no kind")),
        };
        let wanted = Upload { name: blob_name(&message.name)?, kind, size: message.size, complete: false };
        let UploadProgress { held, complete } = self.uploads.begin(tenant, &wanted, &self.quota())?;
        Ok(v1::UploadState { held, complete })
    }

    /// Looks at how an upload begins: an object of its kind and of an accepted parameter set.
    fn inspect(&self, upload: &Upload, start: &[u8; HEADER_LEN]) -> Result<()> {
        let kind = match upload.kind {
            BlobKind::Keys => ObjectKind::KeySet,
            BlobKind::Batch | BlobKind::Features => ObjectKind::SeededCiphertext,
        };
        let header = Header::parse(start, kind).map_err(Error::invalid)?;
        self.core.param_sets.by_id(&header.params).map(|_| ())
    }

    /// Refuses more batches than there may be.
    fn count(&self, message: &v1::CreateJobRequest) -> Result<()> {
        use v1::create_job_request::Work::{Classification, Training};
        let batches = match &message.work {
            Some(Training(training)) => training.batches.len() + training.validation.len(),
            Some(Classification(classification)) => classification.queries.len(),
            None => 0,
        };
        check_batch_count(batches, self.core.config.bounds.batches)
    }

    /// `turn`: what finding the needs of a shape waits for. While keys are looked at, which may have to be fetched from a bucket first,
    /// only the tenant's own requests wait.
    fn create_job(&self, tenant: &Tenant, message: &v1::CreateJobRequest, mut admission: Admission) -> Result<v1::Job> {
        let request = (&*message.request_id).try_into();
        let request: [u8; 16] = request.map_err(|_| Error::invalid("a request's id is 16 random bytes"))?;
        if message.label.len() > LABEL_BYTES || message.label.chars().any(char::is_control) {
            return Err(Error::invalid(format!("a label is at most {LABEL_BYTES} bytes of text")));
        }
        let validator = RequestValidator {
            param_sets: &self.core.param_sets,
            limits: &self.core.config.hyperparameters,
            hide: self.core.config.hide_hyperparameters,
            state: &*self.core.state,
            tenant,
            key_requirements: &self.core.key_requirements,
        };
        let spec = match &message.work {
            Some(v1::create_job_request::Work::Training(message)) => {
                let ValidTraining { spec, params, requirements } = validator.training(message)?;
                admission.release_shared();
                self.check_keys(tenant, spec.keys, &params, &requirements.keys)?;
                JobSpec::Training(spec)
            }
            Some(v1::create_job_request::Work::Classification(message)) => {
                JobSpec::Classification(validator.classification(message)?)
            }
            None => return Err(Error::invalid("a job without work")),
        };
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|e| Error::System { what: "randomness".to_owned(), reason: e.to_string() })?;
        let new = NewJob { id: JobId(id), request, label: message.label.clone(), spec };
        let job = self.core.state.create_job(tenant, &new, &self.quota(), clock::millis())?;
        self.core.notifier.notify();
        Ok(self.describe(&job))
    }

    /// The key set has the keys that the shape needs, each once, and no others.
    fn check_keys(
        &self,
        tenant: &Tenant,
        name: BlobName,
        params: &Arc<Params>,
        expected: &[(KeyId, usize)],
    ) -> Result<()> {
        let path = self.core.blobs.local(&Key::new(tenant, Namespace::Uploads, name))?.ok_or(Error::NoBlob { name })?;
        let codec = Codec::new(Arc::clone(params), self.core.param_sets.ring(params)?);
        let file =
            KeySetFile::open(&codec, &path).map_err(|e| Error::invalid(describe_key_error(&e, OLD_KEYS_HINT)))?;
        let found: BTreeSet<_> = file.available().iter().map(|&(id, basis)| (id, basis.q)).collect();
        let expected: BTreeSet<_> = expected.iter().copied().collect();
        if let Some((id, limbs)) = expected.difference(&found).next() {
            return Err(Error::invalid(format!(
                "the key set lacks the {id} for {limbs} limbs: make keys for this shape; {OLD_KEYS_HINT}"
            )));
        }
        match found.difference(&expected).next() {
            Some((id, limbs)) => Err(Error::invalid(format!(
                "the key set has a {id} for {limbs} limbs that nothing needs; {OLD_KEYS_HINT}"
            ))),
            None => Ok(()),
        }
    }

    fn open_output(&self, tenant: &Tenant, message: &v1::DownloadRequest) -> Result<Box<dyn Read + Send>> {
        let (id, name) = (job_id(&message.job)?, blob_name(&message.blob)?);
        self.core.state.summary(tenant, id)?;
        let (key, offset) = (Key::new(tenant, Namespace::Job(id), name), message.offset);
        let size = self.core.blobs.len(&key)?.ok_or_else(|| key.missing())?;
        if offset > size {
            return Err(Error::invalid(format!("output {name} has {size} bytes: none begin at {offset}")));
        }
        self.core.blobs.open(&key, offset)?.ok_or_else(|| key.missing())
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
        let status = runtime.block_on(async { answer(tokio::task::spawn_blocking(broken).await).unwrap_err() });
        assert_eq!(status.code(), Code::Internal);
        assert!(!status.message().contains("secret") && status.message().contains("fault of its own"), "{status}");
    }
}
