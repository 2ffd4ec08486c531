//! The connection to a server.
//!
//! Calls block. They share one TLS connection, which is made again when it breaks. Uploads and
//! downloads continue where they stopped, and events are numbered, so that none is lost or seen
//! twice.
//!
//! ```text
//! Remote ──> auth      credentials and protocol version of every request
//!   │   ├──> tls       TCP, TLS 1.3, HTTP/2
//!   │   └──> retry     timeouts and repeated attempts
//!   ├──> transfer      blobs to and from the server
//!   └──> watch         events of a job
//! messages             typed values of what the server sends
//! ```

mod auth;
mod choices;
mod error;
mod messages;
mod retry;
mod tls;
mod transfer;
mod watch;

pub use error::{Error, Result};
pub use hetal_wire::{BlobName, JobId, JobState};
pub use messages::{
    BlobKind, ClassificationRequest, Event, EventKind, HyperParameters, JobInfo, JobProgress, Offer, Output,
    ParameterSetInfo, Phase, RowBlob, ServerLimits, TrainingRequest, UploadInfo, UploadList, Validation,
};
pub(crate) use transfer::digest_file;
pub use transfer::{BlobDigest, Uploaded};
pub use watch::Watch;

use crate::Cancellation;
use auth::AuthInterceptor;
use hetal_learn::Verdict;
use hetal_wire::v1::hetal_client::HetalClient;
use hetal_wire::{VERSION, v1};
use retry::{Backoff, LONG_PAUSE, is_passing, with_timeout};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tls::Transport;
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use zeroize::Zeroizing;

/// The address of a server and the credentials for it.
#[derive(Clone)]
pub struct Address {
    /// `host:port`, or several of them with commas, which all lead to the same jobs. If one breaks,
    /// the next one is used.
    pub server: String,
    /// The certificate authorities (PEM) that may have issued the server's certificate.
    pub authorities: Vec<u8>,
    /// The credentials of this client.
    pub credentials: Credentials,
    /// How long a call is retried after its connection broke, and how long a call or a stream may
    /// be silent before it counts as broken. With a minute or more, an upload continues although
    /// the server still holds its old connection.
    pub retry_timeout: Duration,
}

/// The credentials of a client.
#[derive(Clone)]
pub enum Credentials {
    /// A bearer token.
    Token(Zeroizing<String>),
    /// A certificate and its key (PEM).
    Certificate {
        /// The certificate, followed by its intermediate certificates.
        chain: Vec<u8>,
        /// The private key of the certificate.
        key: Zeroizing<Vec<u8>>,
    },
}

/// Limits the retries of the first call, because the address, the port or the authority may be
/// wrong.
const FIRST_RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// A verdict is sent this long after its validation arrived, so that its time reveals nothing about
/// the logits.
pub const VERDICT_DELAY: Duration = Duration::from_secs(2);

type Rpc = HetalClient<InterceptedService<Channel, AuthInterceptor>>;

/// A connection to a server.
pub struct Remote {
    runtime: Arc<Runtime>,
    transport: Transport,
    auth: AuthInterceptor,
    rpc: Mutex<Rpc>,
    server: String,
    retry_timeout: Duration,
    cancellation: Cancellation,
    offer: Offer,
    /// Called when the connection broke or the server failed, and the call is being retried.
    on_break: Box<dyn Fn(&str) + Send + Sync>,
}

impl Remote {
    /// Connects, agrees on a protocol version and reads the server's offer.
    pub fn connect(address: &Address) -> Result<Self> {
        Self::connect_until(address, Cancellation::default())
    }

    /// Connects like [`Remote::connect`]. All calls end with [`Error::Cancelled`] when the caller
    /// asks for it.
    pub fn connect_until(address: &Address, cancellation: Cancellation) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = Arc::new(runtime.map_err(|e| Error::System { what: "a network thread", reason: e.to_string() })?);
        let auth = AuthInterceptor::new(&address.credentials)?;
        let transport = Transport::new(address)?;
        let rpc = Mutex::new(new_rpc(&runtime, &transport, &auth));
        let mut remote = Self {
            runtime,
            transport,
            auth,
            rpc,
            server: address.server.clone(),
            retry_timeout: FIRST_RETRY_TIMEOUT.min(address.retry_timeout),
            cancellation,
            offer: Offer::default(),
            on_break: Box::new(|_| ()),
        };
        let program = format!("hetal {}", env!("CARGO_PKG_VERSION"));
        let hello = v1::HelloRequest { oldest: VERSION, newest: VERSION, program };
        let offer = remote.call(|mut rpc| {
            let hello = hello.clone();
            async move { rpc.hello(hello).await }
        })?;
        remote.offer = Offer::parse(offer)?;
        remote.retry_timeout = address.retry_timeout;
        Ok(remote)
    }

    /// Closes the connection. The next call makes a new one.
    pub fn disconnect(&self) {
        let rpc = new_rpc(&self.runtime, &self.transport, &self.auth);
        *self.rpc.lock().unwrap_or_else(PoisonError::into_inner) = rpc;
    }

    fn rpc(&self) -> Rpc {
        self.rpc.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the function that is called once for each interruption of more than a few seconds.
    pub fn on_break(&mut self, callback: impl Fn(&str) + Send + Sync + 'static) {
        self.on_break = Box::new(callback);
    }

    /// The address of the server.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The parameter sets, defaults and limits of the server.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Queues a training. Repeating a call with the same `request` (16 random bytes that the caller
    /// keeps) returns the same job.
    pub fn train(&self, request: [u8; 16], label: &str, training: &TrainingRequest) -> Result<JobInfo> {
        self.create(request, label, v1::create_job_request::Work::Training(training.to_message()))
    }

    /// Queues a classification with weights that a training left on the server.
    pub fn classify(&self, request: [u8; 16], label: &str, classification: &ClassificationRequest) -> Result<JobInfo> {
        self.create(request, label, v1::create_job_request::Work::Classification(classification.to_message()))
    }

    fn create(&self, request: [u8; 16], label: &str, work: v1::create_job_request::Work) -> Result<JobInfo> {
        let request_id = request.to_vec().into();
        let message = v1::CreateJobRequest { request_id, label: label.to_owned(), work: Some(work) };
        JobInfo::parse(self.call(|mut rpc| {
            let message = message.clone();
            async move { rpc.create_job(message).await }
        })?)
    }

    /// Lists all jobs of this tenant, newest first.
    pub fn jobs(&self) -> Result<Vec<JobInfo>> {
        let list = self.call(|mut rpc| async move { rpc.list_jobs(v1::ListJobsRequest {}).await })?;
        list.jobs.into_iter().map(JobInfo::parse).collect()
    }

    /// Describes one job.
    pub fn job(&self, id: JobId) -> Result<JobInfo> {
        JobInfo::parse(self.call(|mut rpc| async move { rpc.get_job(job_request(id)).await })?)
    }

    /// Cancels a job. Its outputs stay until it is deleted.
    pub fn cancel(&self, id: JobId) -> Result<JobInfo> {
        JobInfo::parse(self.call(|mut rpc| async move { rpc.cancel_job(job_request(id)).await })?)
    }

    /// Deletes a job that has ended, with its outputs.
    pub fn delete(&self, id: JobId) -> Result<()> {
        self.call(|mut rpc| async move { rpc.delete_job(job_request(id)).await }).map(|_| ())
    }

    /// Lists the uploads of this tenant and what is used of his quota.
    pub fn uploads(&self) -> Result<UploadList> {
        let list = self.call(|mut rpc| async move { rpc.list_uploads(v1::ListUploadsRequest {}).await })?;
        UploadList::parse(list)
    }

    /// Deletes an uploaded blob that no job uses.
    pub fn delete_upload(&self, name: BlobName) -> Result<()> {
        let message = || v1::DeleteUploadRequest { name: name.to_vec().into() };
        self.call(|mut rpc| async move { rpc.delete_upload(message()).await }).map(|_| ())
    }

    /// Streams the events of a job that follow event number `after`.
    pub fn watch(&self, job: JobId, after: u64) -> Watch<'_> {
        Watch::new(self, job, after)
    }

    /// Sends a verdict, in a message of fixed size. Outside of tests, it leaves [`VERDICT_DELAY`]
    /// after the validation arrived, or a whole multiple of it if judging took longer.
    pub fn judge(&self, job: JobId, round: u32, verdict: Verdict) -> Result<()> {
        self.require_wanted()?;
        let verdict = match verdict {
            Verdict::Continue => v1::Verdict::Continue,
            Verdict::Stop => v1::Verdict::Stop,
            Verdict::LowerRate => v1::Verdict::LowerRate,
            Verdict::WidenRange => v1::Verdict::WidenRange,
        };
        let message = v1::JudgeRequest { job: job.to_vec().into(), round, verdict: verdict.into() };
        self.call(|mut rpc| {
            let message = message.clone();
            async move { rpc.judge(message).await }
        })
        .map(|_| ())
    }

    /// Makes a call and retries it while the connection is broken or the server has a passing
    /// fault, for at most the retry timeout.
    fn call<T, F: Future<Output = std::result::Result<tonic::Response<T>, Status>>>(
        &self,
        call: impl Fn(Rpc) -> F,
    ) -> Result<T> {
        let mut backoff = Backoff::new(self.retry_timeout);
        loop {
            match self.attempt(call(self.rpc())) {
                Ok(response) => return Ok(response.into_inner()),
                Err(status) => self.wait(&mut backoff, status)?,
            }
        }
    }

    /// An error if the caller asked for the end of the work.
    fn require_wanted(&self) -> Result<()> {
        if self.cancellation.is_requested() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Waits before the next attempt, or returns the error that ends the attempts.
    fn wait(&self, backoff: &mut Backoff, status: Status) -> Result<()> {
        self.require_wanted()?;
        if backoff.pause == LONG_PAUSE && is_passing(&status) {
            (self.on_break)(&Error::of(&self.server, status.clone()).reason());
        }
        // Another gateway may reach what this one does not.
        if backoff.pause >= LONG_PAUSE && is_passing(&status) && self.transport.advance() {
            self.disconnect();
        }
        backoff.wait(&self.server, status, &self.cancellation)
    }

    /// Waits for an answer, for at most the retry timeout.
    fn attempt<T>(&self, call: impl Future<Output = std::result::Result<T, Status>>) -> std::result::Result<T, Status> {
        self.runtime.block_on(async { self.unless_cancelled(with_timeout(self.retry_timeout, call)).await?? })
    }

    /// Awaits a future. If the caller asks for the end meanwhile, [`Remote::wait`] returns it.
    async fn unless_cancelled<T>(&self, awaited: impl Future<Output = T>) -> std::result::Result<T, Status> {
        let awaited = self.cancellation.unless_requested(awaited).await;
        awaited.ok_or_else(|| Status::cancelled("the caller asked for the end"))
    }
}

/// A client on a connection of its own.
fn new_rpc(runtime: &Runtime, transport: &Transport, auth: &AuthInterceptor) -> Rpc {
    let _context = runtime.enter();
    HetalClient::with_interceptor(transport.channel(), auth.clone())
        .max_decoding_message_size(hetal_wire::MESSAGE_BYTES)
        .max_encoding_message_size(hetal_wire::MESSAGE_BYTES)
}

/// The time until the next whole multiple of `delay`, when `waited` has passed already.
pub(crate) fn rest_of_period(waited: Duration, delay: Duration) -> Duration {
    let into = waited.as_nanos().checked_rem(delay.as_nanos()).unwrap_or(0);
    let rest = if delay.is_zero() { 0 } else { delay.as_nanos() - into };
    Duration::from_nanos(u64::try_from(rest).unwrap_or(u64::MAX))
}

fn job_request(id: JobId) -> v1::JobRequest {
    v1::JobRequest { id: id.to_vec().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A verdict leaves a whole number of periods after the logits arrived, so that its time does
    /// not reveal how long they took to judge.
    #[test]
    fn verdicts_leave_at_whole_periods() {
        let (ms, delay) = (Duration::from_millis, Duration::from_secs(2));
        for (waited, rest) in [(0, 2000), (1, 1999), (1999, 1), (2000, 2000), (2001, 1999), (7300, 700)] {
            assert_eq!(rest_of_period(ms(waited), delay), ms(rest), "{waited}");
        }
        assert_eq!(rest_of_period(ms(7), Duration::ZERO), Duration::ZERO);
    }
}
