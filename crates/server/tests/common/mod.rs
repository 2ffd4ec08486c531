//! A data owner with toy keys, the server, and the expected result of the training.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

pub mod proxy;
pub mod site;
pub mod tap;

use hetal_circuits::bootstrap::lift;
use hetal_circuits::{Bootstrapper, Encrypted, LeveledCiphertext, encrypted};
use hetal_ckks::bytes::{self, ciphertext_len};
use hetal_ckks::{Ciphertext, Complex64, EvaluationKeys, Evaluator, KeyId, RoundedCiphertext, SeededCiphertext};
use hetal_client::rpc::{Address, BlobKind, Credentials, EventKind, Remote, TrainingRequest, Validation};
use hetal_client::rpc::{BlobName, Event, JobId, Output, RowBlob};
use hetal_learn::agreement::initial_weights;
use hetal_learn::driver::{Ended, EngineHost, drive};
use hetal_learn::trainer::{Batch, Trainer};
use hetal_learn::{
    Agreement, AgreementLimits, Circuit, LevelPlan, Matrix, RowForm, RowVector, Session, Verdict, Wishes, packing,
};
use hetal_ring::{Basis, Poly, RnsRing};
use hetal_server::authority_path;
use hetal_server::config::EngineChoice;
use hetal_server::tenants::{Fingerprint, TenantConfig};
use hetal_server::{Config, Server};
use hetal_testkit::{TempDir, TestOwner};
use hetal_wire::v1;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub const BATCH: usize = 64;
pub const FEATURES: usize = 12;
pub const CLASSES: usize = 3;
pub const VALIDATION: usize = 40;
/// One verdict of each kind, and a stop.
pub const VERDICTS: [Verdict; 5] =
    [Verdict::Continue, Verdict::WidenRange, Verdict::LowerRate, Verdict::Continue, Verdict::Stop];

/// A data owner: secret key, keys and encrypted data on disk.
pub struct Owner {
    pub client: TestOwner,
    pub circuit: Circuit,
    folder: TempDir,
    pub rows: [usize; 2],
    /// The strength of L2 that it asks for.
    alpha: Option<f64>,
    /// The form of its rows.
    pub form: RowForm,
    /// The validation rows before their encryption.
    pub validation: Matrix,
    reference: OnceLock<Vec<(usize, BlobName)>>,
}

/// The owner that all tests of a binary share, because keys take a while.
pub fn owner() -> &'static Owner {
    static OWNER: OnceLock<Owner> = OnceLock::new();
    OWNER.get_or_init(|| Owner::new(7))
}

pub fn wishes() -> Wishes {
    // A check at the end of every epoch.
    let (batch, rate, patience, max_epochs, check_every) = (Some(BATCH), Some(1.0), Some(1), Some(6), Some(2));
    Wishes { batch, rate, patience, max_epochs, check_every, ..Wishes::default() }
}

/// The keys of a new key set, and those that a server works with, which earlier versions sent.
fn accepted_keys(client: &TestOwner, circuit: &Circuit) -> [Vec<(KeyId, usize)>; 2] {
    let (needs, plan) = (circuit.keys(client.params.top_level()).unwrap(), circuit.level_plan().key_plan());
    let working = encrypted::keys_with_plan(&client.params, &needs, plan);
    [encrypted::sent_keys(&client.params, &working, plan), working]
}

impl Owner {
    /// Writes all keys that a server works with, like earlier versions.
    #[allow(dead_code)]
    pub fn write_whole_keys(&self) {
        let [_, working] = accepted_keys(&self.client, &self.circuit);
        let mut keys = EvaluationKeys::default();
        self.client.add_keys(&mut keys, working);
        let mut file = std::fs::File::create(self.path("keys")).unwrap();
        bytes::write_key_set(&self.client.codec(), &keys, &mut file).unwrap();
    }

    pub fn new(label: u64) -> Self {
        Self::with(label, LevelPlan::lowest(), None)
    }

    /// An owner who sends rows in coefficient form.
    pub fn in_coefficients(label: u64, level_plan: LevelPlan) -> Self {
        Self::made(label, level_plan, None, RowForm::Coefficients)
    }

    /// An owner whose rows have weights, or not, and who may ask for L2.
    pub fn with(label: u64, level_plan: LevelPlan, alpha: Option<f64>) -> Self {
        Self::made(label, level_plan, alpha, RowForm::Slots)
    }

    fn made(label: u64, level_plan: LevelPlan, alpha: Option<f64>, form: RowForm) -> Self {
        let client = TestOwner::new("insecure-toy11", label);
        let slots = client.params.slots();
        let circuit = Circuit::with_plan(slots, BATCH, FEATURES, CLASSES, 32.0, level_plan).unwrap();
        let mut keys = EvaluationKeys::default();
        let [sent, _] = accepted_keys(&client, &circuit);
        client.add_keys(&mut keys, sent);
        let (folder, reference) = (TempDir::new(), OnceLock::new());
        let validation = Matrix::zeros(0, 0);
        let mut owner = Self { client, circuit, folder, rows: [64, 50], alpha, form, validation, reference };
        let mut file = std::fs::File::create(owner.path("keys")).unwrap();
        bytes::write_key_set(&owner.client.codec(), &keys, &mut file).unwrap();
        let mut state = label;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        };
        for (name, rows, labelled) in
            [("batch0", owner.rows[0], true), ("batch1", owner.rows[1], true), ("validation", VALIDATION, false)]
        {
            let labels: Vec<usize> = (0..rows).map(|i| (i * 5 + i / 7) % CLASSES).collect();
            let x =
                Matrix::from_fn(rows, FEATURES, |i, h| 0.3 * next() + if h % CLASSES == labels[i] { 0.3 } else { 0.0 });
            owner.write_batch(name, &x, labelled.then_some(&labels[..]));
            // The last ones.
            owner.validation = x;
        }
        owner
    }

    pub fn is_weighted(&self) -> bool {
        self.circuit.level_plan().is_weighted()
    }

    pub fn wishes(&self) -> Wishes {
        Wishes { alpha: self.alpha, ..wishes() }
    }

    fn agreement(&self) -> Agreement {
        let agreement = AgreementLimits::default().agree(&self.wishes()).unwrap();
        Agreement { weighted: self.is_weighted(), ..agreement }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write_batch(&self, name: &str, x: &Matrix, labels: Option<&[usize]>) {
        let g = self.circuit.geometry();
        let mut vectors = packing::features(g, x).unwrap();
        if let Some(labels) = labels {
            let weights: Vec<f64> = (0..labels.len()).map(|i| 0.25 * (i % 9) as f64).collect();
            let weights = self.is_weighted().then_some(&weights[..]);
            vectors.push(packing::weighted_labels(g, labels, weights).unwrap());
            vectors.extend(weights.map(|weights| packing::row_weights(g, weights).unwrap()));
        }
        let kinds = self.row_vectors(labels.is_some());
        let bytes = kinds.into_iter().zip(&vectors).flat_map(|(kind, values)| self.encrypted(kind, values));
        std::fs::write(self.path(name), bytes.collect::<Vec<u8>>()).unwrap();
    }

    fn row_vectors(&self, with_labels: bool) -> Vec<RowVector> {
        RowVector::of_blob(self.circuit.geometry().blocks(), self.circuit.level_plan(), with_labels)
    }

    /// The bytes of one vector in the owner's form. Rows are shorter than 10.
    fn encrypted(&self, vector: RowVector, values: &[Complex64]) -> Vec<u8> {
        let (params, plan, codec) = (&self.client.params, self.circuit.level_plan(), self.client.codec());
        let encoded = match self.form {
            RowForm::Slots => codec.encode(&self.client.encrypt_seeded(values, vector.level(plan))),
            RowForm::Coefficients => {
                let (log_bound, form) = (vector.log_bound(plan, 10.0), vector.lift_form());
                let coefficients = lift::coefficients(params, values, log_bound, form).unwrap();
                codec.encode(&self.client.encrypt_rounded(&coefficients, log_bound, form))
            }
        };
        encoded.unwrap()
    }

    /// Uploads everything and describes the training.
    pub fn upload(&self, remote: &Remote) -> TrainingRequest {
        let send = |kind, name: &str| remote.upload(kind, &self.path(name), &mut |_, _| {}).unwrap().name;
        let batch = |kind, name, rows| RowBlob { blob: send(kind, name), rows };
        let kind = if self.is_weighted() { BlobKind::WeightedBatch } else { BlobKind::Batch };
        TrainingRequest {
            set: *self.client.params.id(),
            features: FEATURES,
            classes: CLASSES,
            keys: send(BlobKind::Keys, "keys"),
            batches: vec![batch(kind, "batch0", self.rows[0]), batch(kind, "batch1", self.rows[1])],
            validation: vec![batch(BlobKind::Features, "validation", VALIDATION)],
            wishes: self.wishes(),
            weighted: self.is_weighted(),
            form: self.form,
            key_plan: self.circuit.level_plan().key_plan(),
        }
    }

    pub fn logits_len(&self) -> u64 {
        // Logits are returned with one prime.
        ciphertext_len(&self.client.params, 1)
    }

    pub fn weights_len(&self) -> u64 {
        let params = &self.client.params;
        ciphertext_len(params, params.limbs(self.circuit.level_plan().weights()))
    }

    /// Decrypted logits in a downloaded file.
    pub fn open_logits(&self, path: &Path, rows: usize, range: f64) -> Matrix {
        let ciphertext: Ciphertext<Poly> = self.client.codec().decode(&std::fs::read(path).unwrap()).unwrap();
        let opened = packing::unpack_logits(self.circuit.geometry(), &self.client.decrypt(&ciphertext), rows).unwrap();
        let scale = self.circuit.scale(range).unwrap();
        Matrix::from_fn(rows, CLASSES, |i, k| scale * opened[(i, k)])
    }

    /// What the server would compute, in this process and without blobs, state or network: epochs
    /// and names of the weights.
    pub fn reference(&self) -> &[(usize, BlobName)] {
        self.reference.get_or_init(|| self.train_here())
    }

    fn train_here(&self) -> Vec<(usize, BlobName)> {
        let (params, codec) = (&self.client.params, self.client.codec());
        let mut keys = bytes::read_key_set(&codec, &mut &std::fs::read(self.path("keys")).unwrap()[..]).unwrap();
        self.client.derive_keys(&mut keys, &accepted_keys(&self.client, &self.circuit)[1]);
        let evaluator = Evaluator::new(params.clone(), self.client.ring.clone());
        let agreement = self.agreement();
        let bounds = Circuit::bounds(&self.circuit.keys(params.top_level()).unwrap(), agreement.alpha);
        let key_plan = self.circuit.level_plan().key_plan();
        let bootstrapper = Bootstrapper::with_plan(&evaluator, &bounds, key_plan).unwrap();
        let engine = Encrypted::new(evaluator, keys, bootstrapper);
        let trainers: Vec<(f64, Trainer<Encrypted<RnsRing>>)> =
            self.circuit.ranges().iter().map(|&r| (r, self.circuit.trainer(&engine, r).unwrap())).collect();
        let load = |name: &str, vector: RowVector, rest: &mut &[u8]| match self.form {
            RowForm::Slots => {
                let seeded: SeededCiphertext<Poly> = codec.read(rest).unwrap();
                engine.import(seeded.expand(params, &*self.client.ring)).unwrap()
            }
            RowForm::Coefficients => {
                let rounded: RoundedCiphertext = codec.read(rest).unwrap();
                let unlifted = engine.import_unlifted(&rounded).unwrap();
                vector.lifted(&engine, self.circuit.level_plan(), &unlifted).unwrap_or_else(|e| panic!("{name}: {e}"))
            }
        };
        let batch = |name: &str, rows: usize| {
            let bytes = std::fs::read(self.path(name)).unwrap();
            let mut rest = &bytes[..];
            let mut blocks: Vec<LeveledCiphertext<Poly>> =
                self.row_vectors(true).into_iter().map(|vector| load(name, vector, &mut rest)).collect();
            let row_weights = self.is_weighted().then(|| blocks.pop().unwrap());
            let labels = blocks.pop().unwrap();
            Batch { row_weights, ..trainers[0].1.batch(&engine, &blocks, labels, rows).unwrap() }
        };
        let batches = [batch("batch0", self.rows[0]), batch("batch1", self.rows[1])];
        let weights =
            packing::weights(self.circuit.geometry(), &initial_weights(CLASSES, FEATURES, agreement.seed)).unwrap();
        let first = weights.iter().map(|part| self.trivial(&engine, part)).collect();
        let mut session = Session::new(agreement, 2, first).unwrap();
        let mut verdicts = VERDICTS.into_iter();
        let trainer = |range: f64| Ok(&trainers.iter().find(|(r, _)| *r == range).unwrap().1);
        let ask = |_: &Session<_>, _| -> Result<_, hetal_learn::Error> {
            Ok(ControlFlow::Continue(verdicts.next().unwrap()))
        };
        let mut host = EngineHost::new(&engine, &batches[..], trainer, ask);
        assert_eq!(drive(&mut session, &mut host).unwrap(), Ended::Complete);
        // A classifier is a blob of its ciphertexts, one after the other.
        let name = |parts: &[LeveledCiphertext<Poly>]| {
            let bytes: Vec<u8> = parts.iter().flat_map(|ct| codec.encode(ct.inner()).unwrap()).collect();
            BlobName(*blake3::hash(&bytes).as_bytes())
        };
        session.kept().map(|(epoch, weights)| (epoch, name(weights))).collect()
    }

    fn trivial(&self, engine: &Encrypted<RnsRing>, slots: &[Complex64]) -> LeveledCiphertext<Poly> {
        let (params, level) = (&self.client.params, self.circuit.level_plan().weights());
        let basis = Basis { q: params.limbs(level), p: 0 };
        let c0 = engine.evaluator().encode(slots, params.scale(level), basis).unwrap().poly;
        let c1 = self.client.ring.zero(basis);
        engine.import(Ciphertext { c0, c1, limbs: basis.q, scale: params.scale(level), set: params.tag() }).unwrap()
    }
}

pub const TOKEN: &str = "a token that only tests know";

pub fn tenant(name: &str, token: &str) -> TenantConfig {
    TenantConfig {
        name: name.to_owned().try_into().unwrap(),
        token: Some(Fingerprint::of(token.as_bytes())),
        certificate: None,
        expires: None,
    }
}

/// A server configuration for toy sets, in a folder.
pub fn config(folder: &Path) -> Config {
    Config {
        folder: folder.to_owned(),
        address: "127.0.0.1:0".parse().unwrap(),
        tenants: vec![tenant("ann", TOKEN), tenant("bob", "another token")],
        sets: vec!["insecure-toy11".to_owned()],
        allow_insecure: true,
        engine: EngineChoice::Cpu,
        checkpoint_every: 1,
        ..Config::default()
    }
}

pub fn address(running: &Server, token: &str) -> Address {
    Address {
        server: running.address().to_string(),
        authorities: std::fs::read(running.authority().unwrap()).unwrap(),
        credentials: Credentials::Token(token.to_owned().into()),
        retry_timeout: Duration::from_secs(20),
    }
}

/// Follows a training to its end with the fixed verdicts. `seen` gets every event first.
pub fn follow(remote: &Remote, job: JobId, mut seen: impl FnMut(&Event)) -> Vec<Output> {
    let mut watch = remote.watch(job, 0);
    while let Some(event) = watch.next_event().unwrap() {
        seen(&event);
        match event.kind {
            EventKind::Validation(validation) => judge(remote, job, &validation),
            EventKind::Finished(outputs) => return outputs,
            EventKind::Failed { reason } => panic!("{reason}"),
            _ => {}
        }
    }
    panic!("the job was cancelled");
}

/// Gives the fixed verdict on a round, unless an earlier verdict threw its check away.
pub fn judge(remote: &Remote, job: JobId, validation: &Validation) {
    if let Some(verdict) = verdict_on(validation) {
        remote.judge(job, validation.round, verdict).unwrap();
    }
}

/// The fixed verdict on a round; `None` if an earlier verdict threw its check away.
pub fn verdict_on(validation: &Validation) -> Option<Verdict> {
    let verdict = VERDICTS.get(validation.round as usize - 1).copied();
    let before = &VERDICTS[..(validation.round as usize - 1).min(VERDICTS.len())];
    let goes_back = |verdict: &&Verdict| matches!(verdict, Verdict::LowerRate | Verdict::WidenRange);
    verdict.filter(|_| before.iter().filter(goes_back).count() == validation.repeats)
}

pub fn names(outputs: &[Output]) -> Vec<(usize, BlobName)> {
    outputs.iter().map(|output| (output.check, output.blob)).collect()
}

/// The program in a process of its own.
pub struct Process {
    pub child: Child,
    pub address: String,
}

impl Process {
    /// Starts it in a folder, with more configuration before its tables.
    pub fn start(folder: &Path, address: &str, words: &str, tables: &str) -> Self {
        Self::logging(folder, address, words, tables, ("warn", Stdio::inherit()))
    }

    /// Starts it in a folder, with all its output in a file.
    pub fn talking(folder: &Path, log: &Path) -> Self {
        let log = std::fs::File::create(log).unwrap();
        Self::logging(folder, "127.0.0.1:0", "checkpoint_every = 1", "", ("trace", log.into()))
    }

    fn logging(folder: &Path, address: &str, words: &str, tables: &str, (level, log): (&str, Stdio)) -> Self {
        let config = folder.join("server.toml");
        let token = Fingerprint::of(TOKEN.as_bytes());
        let text = format!("{words}\n[[tenants]]\nname = \"ann\"\ntoken = \"{token}\"\n{tables}");
        std::fs::write(&config, text).unwrap();
        // Another build, for comparisons.
        let program = std::env::var_os("HETAL_SERVER_PROGRAM");
        let mut child = Command::new(program.unwrap_or_else(|| env!("CARGO_BIN_EXE_hetal-server").into()))
            .args(["--engine", "cpu", "--sets", "insecure-toy11", "--allow-insecure", "--log", level, "--log-json"])
            .arg("--config")
            .arg(&config)
            .args(["--address", address])
            .env("HETAL_FOLDER", folder.join("server"))
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { child, address: address.trim().to_owned() }
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The address for a tenant.
    pub fn reached_by(&self, folder: &Path, token: &str) -> Address {
        Address {
            server: self.address.clone(),
            authorities: std::fs::read(authority_path(&folder.join("server"))).unwrap(),
            credentials: Credentials::Token(token.to_owned().into()),
            retry_timeout: Duration::from_secs(120),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client of another program, with any version, token and certificate.
#[derive(Clone, Default)]
pub struct TestClient {
    pub version: Option<String>,
    pub authorization: Option<String>,
    /// Chain and key (PEM).
    pub certificate: Option<(Vec<u8>, Vec<u8>)>,
}

pub type AddMetadata = Box<dyn FnMut(tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> + Send>;
pub type RawClient = v1::hetal_client::HetalClient<
    tonic::service::interceptor::InterceptedService<tonic::transport::Channel, AddMetadata>,
>;

impl TestClient {
    /// A client that speaks the protocol and has a token.
    pub fn with_token(token: &str) -> Self {
        let version = Some(hetal_wire::VERSION.to_string());
        Self { version, authorization: Some(format!("Bearer {token}")), certificate: None }
    }

    fn tls(&self, authority: &[u8]) -> rustls::ClientConfig {
        use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).unwrap().with_root_certificates(roots);
        let mut tls = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = CertificateDer::pem_slice_iter(chain).map(|c| c.unwrap()).collect();
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key).unwrap()).unwrap()
            }
        };
        tls.alpn_protocols = vec![b"h2".to_vec()];
        tls
    }

    /// A connection, opened on first use.
    pub fn connect(&self, server: std::net::SocketAddr, authority: &[u8]) -> RawClient {
        let connector = tokio_rustls::TlsConnector::from(Arc::new(self.tls(authority)));
        let connect = tower::service_fn(move |_| {
            let connector = connector.clone();
            async move {
                let tcp = tokio::net::TcpStream::connect(server).await?;
                tcp.set_nodelay(true)?;
                let tls = connector.connect("localhost".try_into().unwrap(), tcp).await?;
                Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(tls))
            }
        });
        let channel = tonic::transport::Endpoint::from_static("http://localhost").connect_with_connector_lazy(connect);
        let shown = self.clone();
        let add_metadata = move |mut request: tonic::Request<()>| {
            if let Some(version) = &shown.version {
                request.metadata_mut().insert("hetal-protocol", version.parse().unwrap());
            }
            if let Some(authorization) = &shown.authorization {
                request.metadata_mut().insert("authorization", authorization.parse().unwrap());
            }
            Ok(request)
        };
        v1::hetal_client::HetalClient::with_interceptor(channel, Box::new(add_metadata))
    }

    /// Connects to a server and runs a call.
    pub fn talk<T>(&self, running: &Server, call: impl AsyncFnOnce(RawClient) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let authority = std::fs::read(running.authority().unwrap()).unwrap();
        runtime.block_on(async { call(self.connect(running.address(), &authority)).await })
    }
}
