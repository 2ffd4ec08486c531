//! A server that has the secret key and can lie about everything: it encrypts its "results" itself.

use hetal_ckks::Complex64;
use hetal_client::rpc::{Address, Credentials};
use hetal_client::training::Round;
use hetal_client::training::reference_check::{self, ReferenceConfig};
use hetal_client::{Layout, Owner, TrainingData};
use hetal_learn::nesterov::{LOG_WEIGHT_SCALE, Momentum};
use hetal_learn::reference::logits;
use hetal_learn::{Matrix, Verdict, packing};
use hetal_wire::v1::hetal_server::{Hetal, HetalServer};
use hetal_wire::v1::{self, event::What};
use prost::Message;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::Stream;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// What the server does that an honest server does not do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lie {
    None,
    FewerLogits,
    MoreLogits,
    OtherLevel,
    OtherScale,
    OtherSet,
    FlippedBit,
    OtherBytes,
    EndlessDownload,
    StalledDownload,
    AbsurdLogits,
    OtherKey,
    OtherRange,
    SkippedRound,
    OneRoundMore,
    OtherWeights,
    MoreWeights,
    WeightsOfAnotherEpoch,
    /// The right weights, and something in a slot that holds none.
    FilledSlot,
    NoWeights,
    StalledEvents,
    /// Sends no events and does not answer requests about the job.
    StalledJob,
    /// Reports a timeout of its own instead of events.
    LateEvents,
    /// Not a lie: its GPU fails.
    Rests,
    MoreEpochs,
    LessPatience,
    OtherRate,
    OtherMomentum,
    OtherSeed,
    NoTerms,
    KeepsQueries,
    FewerAnswers,
    /// Not a lie: from round 2 on the classifier becomes worse, and the client stops.
    WorseLater,
    /// Absurd logits from round 2 on.
    AbsurdLater,
    /// Not a lie: the first two calls of each kind fail, like those to a server with a full disk.
    PassingFaults,
    /// Not a lie: a batch was lost, and the job fails.
    LosesBatch,
    /// Not a lie: the job that was requested before has failed.
    FailedMeanwhile,
    /// Like `WorseLater`, and the verdict `stop` is refused.
    WorseRefused,
    /// Like `AbsurdLater`, and the verdict `stop` is refused.
    AbsurdRefused,
    /// Not a lie: it has no job of this id.
    UnknownJob,
    /// Not a lie: it cannot cancel jobs now.
    KeepsJobs,
    /// Not a lie: it announces all rounds before their verdicts.
    Ahead,
    /// It announces the first round twice.
    RepeatedRound,
    /// It goes back although no verdict asked for it.
    UnaskedRepeat,
}

/// What the server received and did.
#[derive(Default)]
pub struct Seen {
    pub lie: Option<Lie>,
    /// Complete uploads.
    pub uploads: HashMap<Vec<u8>, Vec<u8>>,
    /// All other requests, encoded as on the wire.
    pub requests: Vec<Vec<u8>>,
    /// What the server sees of the client in order: every request with what it can compare in two
    /// trainings, and every closed connection.
    pub calls: Vec<String>,
    /// Open connections.
    pub connections: usize,
    /// Round, verdict and size of every message that depends on decrypted values.
    pub verdicts: Vec<(u32, v1::Verdict, usize)>,
    pub jobs: u8,
    pub cancelled: usize,
    pub deleted_jobs: usize,
    pub deleted_uploads: usize,
    request: Vec<u8>,
    work: Option<v1::create_job_request::Work>,
    terms: v1::Terms,
    events: Vec<v1::Event>,
    outputs: HashMap<Vec<u8>, Vec<u8>>,
    /// The names of the outputs, in the order in which they were made.
    order: Vec<Vec<u8>>,
    faults: HashMap<&'static str, usize>,
    failed: bool,
}

struct Server {
    owner: Owner,
    layout: Layout,
    task: TrainingData,
    seen: Mutex<Seen>,
}

/// A running liar.
pub struct Liar {
    server: Arc<Server>,
    authority: Vec<u8>,
    port: u16,
    _runtime: tokio::runtime::Runtime,
}

pub const BATCH: usize = 32;
const RANGE: f64 = 128.0;
/// Epochs that the tests ask for.
pub const EPOCHS: usize = 3;

/// A check after each epoch of so many batches.
fn defaults(batches: usize) -> v1::Terms {
    v1::Terms {
        check_every: batches as u32,
        batch: 1024,
        patience: 3,
        max_epochs: 50,
        range: RANGE,
        rate: Some(1.0),
        lowering: Some(0.5),
        momentum: v1::Momentum::Nesterov.into(),
        seed: Some(0),
        alpha: Some(0.0),
    }
}

impl Liar {
    pub fn start(owner: Owner, layout: Layout, task: TrainingData) -> Self {
        let (acceptor, authority) = certificate();
        let server = Arc::new(Server { owner, layout, task, seen: Mutex::default() });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (send, receive) = tokio::sync::mpsc::channel(1);
        let of_connections = Arc::clone(&server);
        runtime.spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, send, server) = (acceptor.clone(), send.clone(), Arc::clone(&of_connections));
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(tcp).await {
                        server.seen().connections += 1;
                        let _ = send.send(Ok::<_, std::io::Error>(Connection(stream, server))).await;
                    }
                });
            }
        });
        let handler = HetalServer::new(Handler(Arc::clone(&server)));
        runtime.spawn(async move {
            let server = tonic::transport::Server::builder();
            let _ = server
                .serve_with_incoming_shutdown(handler, ReceiverStream::new(receive), std::future::pending())
                .await;
        });
        Self { server, authority, port, _runtime: runtime }
    }

    pub fn address(&self, retry_timeout: Duration) -> Address {
        Address {
            server: format!("127.0.0.1:{}", self.port),
            authorities: self.authority.clone(),
            credentials: Credentials::Token("any".to_owned().into()),
            retry_timeout,
        }
    }

    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.server.seen()
    }

    /// Forgets everything but the uploads, and lies in another way.
    pub fn lie(&self, lie: Lie) {
        let mut seen = self.seen();
        let (uploads, jobs, connections) = (std::mem::take(&mut seen.uploads), seen.jobs, seen.connections);
        *seen = Seen { lie: Some(lie), uploads, jobs, connections, ..Seen::default() };
    }

    /// Waits until every connection is closed.
    pub fn wait_until_left(&self) {
        let start = std::time::Instant::now();
        while self.seen().connections > 0 {
            assert!(start.elapsed() < Duration::from_secs(30), "a connection stays open");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Server {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exact weights after an epoch.
    fn weights(&self, epoch: usize) -> Matrix {
        let round = Round { verdict: Verdict::Continue, accepted: true, loss: 0.0, accuracy: 0.0, largest: 0.0 };
        let (momentum, seed, alpha) = (Momentum::Nesterov, 0, 0.0);
        let (max_epochs, check_every) = (epoch, 0);
        let terms =
            ReferenceConfig { batch: BATCH, rate: 1.0, lowering: 0.5, momentum, seed, alpha, max_epochs, check_every };
        reference_check::train(&self.task, &terms, &vec![round; epoch], epoch).unwrap().unwrap()
    }

    /// The bytes of encrypted logits of some rows, and what a lie makes of them.
    fn logits(&self, features: &Matrix, weights: &Matrix, lie: Lie) -> Vec<u8> {
        let (g, level) = (self.layout.geometry(), self.layout.level_plan().logits());
        let mut exact = logits(features, weights).unwrap();
        if lie == Lie::AbsurdLogits {
            // As large as one prime allows.
            exact = Matrix::from_fn(exact.rows(), exact.columns(), |_, k| if k == 0 { 110.0 * RANGE } else { 0.0 });
        }
        let factor = 1.0 / self.layout.scale(RANGE).unwrap();
        let mut slots = vec![Complex64::ZERO; g.slots()];
        let c = g.padded_classes();
        for i in 0..exact.rows() {
            for k in 0..exact.columns() {
                slots[(k + c - i % c) % c * g.rows() + i] = Complex64::new(factor * exact[(i, k)], 0.0);
            }
        }
        let limbs = if lie == Lie::OtherLevel { 2 } else { 1 };
        let factor = if lie == Lie::OtherScale { 0.5 } else { 1.0 };
        let scale = factor * self.owner.params.scale(level);
        if lie == Lie::OtherKey {
            return sealed(&Owner::fresh(Arc::clone(&self.owner.params)).unwrap(), &slots, limbs, scale);
        }
        sealed(&self.owner, &slots, limbs, scale)
    }

    fn validation(&self, seen: &mut Seen, round: u32) -> What {
        let lie = seen.lie.unwrap_or(Lie::None);
        let features = self.task.validation.features();
        let weights = match lie {
            Lie::WorseLater | Lie::WorseRefused if round > 1 => {
                let best = self.weights(1);
                Matrix::from_fn(best.rows(), best.columns(), |k, h| -best[(k, h)])
            }
            _ => self.weights(round as usize),
        };
        let as_said =
            if matches!(lie, Lie::AbsurdLater | Lie::AbsurdRefused) && round > 1 { Lie::AbsurdLogits } else { lie };
        let mut bytes = self.logits(features, &weights, as_said);
        let honest_len = bytes.len();
        match lie {
            Lie::FlippedBit => bytes[honest_len / 2] ^= 1,
            Lie::OtherSet => {
                // The parameter set's id lies in the envelope before the body.
                let id = self.owner.params.id();
                let at = bytes.windows(32).position(|window| window == id).unwrap();
                bytes[at] ^= 1;
            }
            _ => {}
        }
        let output = put(seen, bytes, |output| output.rows = features.rows() as u32);
        if lie == Lie::OtherBytes {
            seen.outputs.values_mut().for_each(|bytes| bytes[honest_len / 2] ^= 1);
        }
        let logits = match lie {
            Lie::FewerLogits => vec![],
            Lie::MoreLogits => vec![output.clone(), output],
            _ => vec![output],
        };
        let range = if lie == Lie::OtherRange { 512.0 } else { RANGE };
        let round = if lie == Lie::SkippedRound { round + 1 } else { round };
        What::Validation(v1::Validation { round, check: round, range, logits, repeats: 0 })
    }

    /// The rounds that are announced before the first verdict.
    fn first_rounds(&self, seen: &mut Seen) -> Vec<What> {
        let last = match seen.lie {
            Some(Lie::StalledEvents | Lie::StalledJob) => 0,
            Some(Lie::Ahead) => seen.terms.max_epochs,
            Some(Lie::RepeatedRound | Lie::UnaskedRepeat) => 2,
            _ => 1,
        };
        let mut rounds: Vec<_> = (1..=last).map(|round| self.validation(seen, round)).collect();
        if let [_, What::Validation(second)] = &mut rounds[..] {
            match seen.lie {
                Some(Lie::RepeatedRound) => second.round = 1,
                Some(Lie::UnaskedRepeat) => second.repeats = 1,
                _ => {}
            }
        }
        rounds
    }

    fn batches(&self) -> usize {
        self.task.training.rows().div_ceil(BATCH)
    }

    fn finished(&self, seen: &mut Seen, last: usize) -> What {
        let (g, level) = (self.layout.geometry(), self.layout.level_plan().weights());
        let lie = seen.lie.unwrap_or(Lie::None);
        let first = last.saturating_sub(seen.terms.patience as usize).max(1);
        let epochs = if lie == Lie::NoWeights { 0..0 } else { first..last + 1 };
        let outputs = epochs.map(|epoch| {
            let weights = match lie {
                Lie::OtherWeights => Matrix::zeros(g.classes(), g.features() + 1),
                Lie::WeightsOfAnotherEpoch => self.weights(epoch % last + 1),
                _ => self.weights(epoch),
            };
            let mut parts = packing::weights(g, &weights).unwrap();
            if lie == Lie::FilledSlot {
                // A hundredth of a weight, in the bias of the class that pads three to four.
                let slot = (0..g.rows()).rev().find(|&i| parts[0][i] == Complex64::ZERO).unwrap();
                parts[0][slot] = Complex64::new(0.01 * (1 << LOG_WEIGHT_SCALE) as f64, 0.0);
            }
            let (limbs, scale) = (self.owner.params.limbs(level), self.owner.params.scale(level));
            let bytes = parts.iter().flat_map(|part| sealed(&self.owner, part, limbs, scale)).collect();
            put(seen, bytes, |output| output.check = epoch as u32)
        });
        let mut outputs: Vec<_> = outputs.collect();
        if lie == Lie::MoreWeights {
            outputs.extend(outputs.clone());
        }
        What::Finished(v1::Finished { outputs })
    }

    fn answers(&self, seen: &mut Seen, classification: &v1::Classification) -> What {
        let lie = seen.lie.unwrap_or(Lie::None);
        let mut outputs: Vec<_> = (classification.queries.iter())
            .map(|query| {
                // It knows the key: it reads the rows.
                let rows = self.task.validation.features().slice(0..query.rows as usize);
                let bytes = self.logits(&rows, &self.weights(1), lie);
                put(seen, bytes, |output| output.rows = query.rows)
            })
            .collect();
        if lie == Lie::FewerAnswers {
            outputs.pop();
        }
        What::Finished(v1::Finished { outputs })
    }
}

fn sealed(owner: &Owner, slots: &[Complex64], limbs: usize, scale: f64) -> Vec<u8> {
    let ct = owner.encrypt(&owner.evaluator(), slots, limbs, scale).unwrap();
    owner.codec().encode(&ct).unwrap()
}

fn put(seen: &mut Seen, bytes: Vec<u8>, describe: impl Fn(&mut v1::Output)) -> v1::Output {
    let name = blake3::hash(&bytes).as_bytes().to_vec();
    let mut output = v1::Output { blob: name.clone().into(), size: bytes.len() as u64, ..v1::Output::default() };
    describe(&mut output);
    seen.order.push(name.clone());
    seen.outputs.insert(name, bytes);
    output
}

fn tell(seen: &mut Seen, what: What) {
    let counts = |what: &What| !matches!(what, What::Progress(_));
    let before = seen.events.iter().filter(|event| event.what.as_ref().is_some_and(counts)).count();
    let sequence = before as u64 + u64::from(counts(&what));
    seen.events.push(v1::Event { sequence, what: Some(what) });
}

impl Seen {
    fn call(&mut self, call: impl Into<String>) {
        self.calls.push(call.into());
    }

    /// Fails the first two calls of a kind.
    fn passing_fault(&mut self, kind: &'static str) -> Result<(), Status> {
        let before = self.faults.entry(kind).or_default();
        *before += 1;
        if self.lie == Some(Lie::PassingFaults) && *before <= 2 {
            return Err(Status::internal("internal server error: the disk is full"));
        }
        Ok(())
    }

    fn note(&mut self, message: &impl Message) {
        self.requests.push(message.encode_to_vec());
    }

    fn job(&self) -> v1::Job {
        let lie = self.lie.unwrap_or(Lie::None);
        let mut terms = self.terms;
        match lie {
            Lie::MoreEpochs => terms.max_epochs += 1,
            Lie::LessPatience => terms.patience -= 1,
            Lie::OtherRate => terms.rate = Some(0.5),
            Lie::OtherMomentum => terms.momentum = v1::Momentum::None.into(),
            Lie::OtherSeed => terms.seed = Some(1),
            _ => {}
        }
        let training = matches!(self.work, Some(v1::create_job_request::Work::Training(_)));
        v1::Job {
            id: vec![self.jobs; 16].into(),
            state: v1::JobState::Running.into(),
            terms: (training && lie != Lie::NoTerms).then_some(terms),
            ..v1::Job::default()
        }
    }
}

#[derive(Clone)]
struct Handler(Arc<Server>);

type Reply<T> = Result<Response<T>, Status>;
type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Hetal for Handler {
    type WatchStream = Replies<v1::Event>;
    type DownloadStream = Replies<v1::DownloadPart>;

    async fn hello(&self, request: Request<v1::HelloRequest>) -> Reply<v1::Offer> {
        self.0.seen().note(request.get_ref());
        self.0.seen().call("Hello");
        let params = &self.0.owner.params;
        Ok(Response::new(v1::Offer {
            version: hetal_wire::VERSION,
            program: "liar".to_owned(),
            sets: vec![v1::ParameterSet { id: params.id().to_vec().into(), name: params.name().to_owned() }],
            defaults: Some(defaults(self.0.batches())),
            bounds: Some(v1::Bounds::default()),
            row_forms: vec![v1::RowForm::Slots.into(), v1::RowForm::Coefficients.into()],
            lift_seconds: 3.0,
            key_plans: vec![v1::KeyPlan::Fast.into(), v1::KeyPlan::Balanced.into()],
        }))
    }

    async fn begin_upload(&self, request: Request<v1::BeginUploadRequest>) -> Reply<v1::UploadState> {
        let mut seen = self.0.seen();
        seen.note(request.get_ref());
        seen.call(format!("BeginUpload {:?} {}", request.get_ref().kind(), request.get_ref().size));
        seen.passing_fault("BeginUpload")?;
        let held = seen.uploads.get(&request.get_ref().name[..]).map(|bytes| bytes.len() as u64);
        Ok(Response::new(v1::UploadState { held: held.unwrap_or(0), complete: held.is_some() }))
    }

    async fn upload(&self, request: Request<Streaming<v1::UploadPart>>) -> Reply<v1::UploadState> {
        let mut parts = request.into_inner();
        let (mut name, mut bytes) = (Vec::new(), Vec::new());
        while let Some(part) = parts.message().await? {
            name.extend(&part.name);
            bytes.extend(&part.data);
        }
        let held = bytes.len() as u64;
        let mut seen = self.0.seen();
        seen.call(format!("Upload {held}"));
        seen.passing_fault("Upload")?;
        seen.uploads.insert(name, bytes);
        Ok(Response::new(v1::UploadState { held, complete: true }))
    }

    async fn delete_upload(&self, request: Request<v1::DeleteUploadRequest>) -> Reply<v1::Done> {
        let mut seen = self.0.seen();
        seen.call("DeleteUpload");
        if seen.lie == Some(Lie::KeepsQueries) {
            return Err(Status::internal("no"));
        }
        let removed = seen.uploads.remove(&request.get_ref().name[..]);
        seen.deleted_uploads += usize::from(removed.is_some());
        Ok(Response::new(v1::Done {}))
    }

    async fn create_job(&self, request: Request<v1::CreateJobRequest>) -> Reply<v1::Job> {
        let mut guard = self.0.seen();
        let seen = &mut *guard;
        let message = request.into_inner();
        seen.note(&message);
        seen.call("CreateJob");
        if seen.request == message.request_id[..] {
            return Ok(Response::new(seen.job()));
        }
        seen.request = message.request_id.to_vec();
        seen.jobs += 1;
        seen.work = message.work.clone();
        seen.events.clear();
        tell(seen, What::Queued(v1::Queued {}));
        tell(seen, What::Started(v1::Started { attempt: 1, engine: "lies".to_owned() }));
        match message.work {
            Some(v1::create_job_request::Work::Training(training)) => {
                let (wishes, defaults) = (training.wishes.unwrap_or_default(), defaults(self.0.batches()));
                seen.terms = v1::Terms {
                    batch: wishes.batch.unwrap_or(defaults.batch),
                    patience: wishes.patience.unwrap_or(defaults.patience),
                    max_epochs: wishes.max_epochs.unwrap_or(defaults.max_epochs),
                    ..defaults
                };
                if seen.lie == Some(Lie::FailedMeanwhile) && !std::mem::replace(&mut seen.failed, true) {
                    let state = v1::JobState::Failed.into();
                    return Ok(Response::new(v1::Job { state, reason: "a batch is damaged".to_owned(), ..seen.job() }));
                }
                if seen.lie == Some(Lie::LosesBatch) {
                    seen.uploads.remove(&training.batches[0].blob[..]);
                    tell(seen, What::Failed(v1::Failed { reason: "a batch is damaged".to_owned() }));
                    return Ok(Response::new(seen.job()));
                }
                if seen.lie == Some(Lie::Rests) {
                    for resting in [false, true] {
                        let phase = v1::Phase::Training.into();
                        tell(seen, What::Progress(v1::Progress { phase, resting, ..v1::Progress::default() }));
                    }
                }
                for what in self.0.first_rounds(seen) {
                    tell(seen, what);
                }
            }
            Some(v1::create_job_request::Work::Classification(classification)) => {
                let what = self.0.answers(seen, &classification);
                tell(seen, what);
            }
            None => return Err(Status::invalid_argument("no work")),
        }
        Ok(Response::new(seen.job()))
    }

    async fn list_jobs(&self, _: Request<v1::ListJobsRequest>) -> Reply<v1::JobList> {
        self.0.seen().call("ListJobs");
        Ok(Response::new(v1::JobList { jobs: vec![self.0.seen().job()] }))
    }

    async fn list_uploads(&self, _: Request<v1::ListUploadsRequest>) -> Reply<v1::UploadList> {
        self.0.seen().call("ListUploads");
        Ok(Response::new(v1::UploadList::default()))
    }

    async fn get_job(&self, _: Request<v1::JobRequest>) -> Reply<v1::Job> {
        self.0.seen().call("GetJob");
        let lie = self.0.seen().lie;
        if lie == Some(Lie::UnknownJob) {
            return Err(Status::not_found("no such job"));
        }
        if lie == Some(Lie::StalledJob) {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(self.0.seen().job()))
    }

    async fn cancel_job(&self, _: Request<v1::JobRequest>) -> Reply<v1::Job> {
        let mut seen = self.0.seen();
        seen.call("CancelJob");
        match seen.lie {
            Some(Lie::UnknownJob) => return Err(Status::not_found("no such job")),
            Some(Lie::KeepsJobs) => return Err(Status::failed_precondition("not now")),
            _ => seen.cancelled += 1,
        }
        Ok(Response::new(seen.job()))
    }

    async fn delete_job(&self, _: Request<v1::JobRequest>) -> Reply<v1::Done> {
        let mut seen = self.0.seen();
        seen.call("DeleteJob");
        if seen.lie == Some(Lie::KeepsQueries) {
            return Err(Status::internal("no"));
        }
        seen.deleted_jobs += 1;
        Ok(Response::new(v1::Done {}))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Reply<Self::WatchStream> {
        let (server, mut after) = (Arc::clone(&self.0), request.get_ref().after as usize);
        server.seen().call(format!("Watch {after}"));
        if server.seen().lie == Some(Lie::LateEvents) {
            return Err(Status::deadline_exceeded("too slow today"));
        }
        let (send, receive) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let next = server.seen().events.get(after).cloned();
                match next {
                    Some(event) => {
                        after += 1;
                        if send.send(Ok(event)).await.is_err() {
                            return;
                        }
                    }
                    None if send.is_closed() => return,
                    None => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receive))))
    }

    async fn judge(&self, request: Request<v1::JudgeRequest>) -> Reply<v1::Done> {
        let message = request.into_inner();
        let mut guard = self.0.seen();
        let seen = &mut *guard;
        let (round, verdict) = (message.round, message.verdict());
        seen.call(format!("Judge {round} {verdict:?} {}", message.encoded_len()));
        seen.passing_fault("Judge")?;
        if matches!(seen.lie, Some(Lie::WorseRefused | Lie::AbsurdRefused)) && verdict == v1::Verdict::Stop {
            return Err(Status::failed_precondition("not now"));
        }
        seen.verdicts.push((round, verdict, message.encoded_len()));
        seen.note(&message);
        tell(seen, What::Judged(v1::Judged { round }));
        let lie = seen.lie.unwrap_or(Lie::None);
        let ended = lie != Lie::OneRoundMore && (verdict == v1::Verdict::Stop || round >= seen.terms.max_epochs);
        let announced = matches!(lie, Lie::Ahead | Lie::RepeatedRound | Lie::UnaskedRepeat);
        if ended {
            let what = self.0.finished(seen, round as usize);
            tell(seen, what);
        } else if !announced {
            let what = self.0.validation(seen, round + 1);
            tell(seen, what);
        }
        Ok(Response::new(v1::Done {}))
    }

    async fn download(&self, request: Request<v1::DownloadRequest>) -> Reply<Self::DownloadStream> {
        let mut seen = self.0.seen();
        let lie = seen.lie.unwrap_or(Lie::None);
        let number = seen.order.iter().position(|name| *name == request.get_ref().blob[..]);
        seen.call(format!("Download {number:?} {}", request.get_ref().offset));
        let bytes = seen.outputs.get(&request.get_ref().blob[..]).cloned().unwrap_or_default();
        let rest = bytes.get(request.get_ref().offset as usize..).unwrap_or_default().to_vec();
        let mut parts: Vec<_> =
            rest.chunks(64 << 10).map(|part| v1::DownloadPart { data: part.to_vec().into() }).collect();
        if lie == Lie::EndlessDownload {
            parts.extend((0..64).map(|_| v1::DownloadPart { data: vec![0; 64 << 10].into() }));
        }
        if lie == Lie::StalledDownload {
            return Ok(Response::new(Box::pin(tokio_stream::pending())));
        }
        Ok(Response::new(Box::pin(tokio_stream::iter(parts).map(Ok))))
    }
}

fn certificate() -> (TlsAcceptor, Vec<u8>) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider);
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let mut config = builder.with_no_client_auth().with_single_cert(vec![leaf.der().clone()], key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    (TlsAcceptor::from(Arc::new(config)), authority.pem().into_bytes())
}

struct Connection(TlsStream<TcpStream>, Arc<Server>);

impl Drop for Connection {
    fn drop(&mut self) {
        let mut seen = self.1.seen();
        seen.connections -= 1;
        seen.call("Close");
    }
}

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
