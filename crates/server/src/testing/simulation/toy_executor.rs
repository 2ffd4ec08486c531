//! A toy computation. Every result is a hash of all its inputs.

use super::fault_injector::FaultInjector;
use crate::compute::executor::Executor;
use crate::jobs::spec::{RowBlob, TrainingSpec};
use crate::store::blobs::{Blobs, name_of};
use crate::store::state::Job;
use crate::{Error, Result};
use hetal_learn::driver::{Ended, Host, StepRequest, drive};
use hetal_learn::nesterov::StepSize;
use hetal_learn::session::{Action, CheckRequest};
use hetal_learn::trainer::ModelState;
use hetal_learn::{Session, Verdict};
use hetal_wire::BlobName;
use std::cell::Cell;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

pub type Ct = [u8; 32];

/// Hashes the inputs of a result.
fn of(kind: &str, parts: &[&[u8]]) -> Ct {
    let mut hasher = blake3::Hasher::new();
    hasher.update(kind.as_bytes());
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// The number of ciphertexts of a classifier.
pub const PARTS: usize = 2;
/// Bytes of a ciphertext.
pub const SIZE: usize = 96;
/// The largest blob of a job in bytes.
pub const MOST: u64 = (PARTS * SIZE) as u64;

/// All parts of a vector of ciphertexts.
fn parts_of(kind: &str, from: &[&[u8]]) -> Vec<Ct> {
    (0..PARTS as u8).map(|part| of(kind, &[from, &[&[part]]].concat())).collect()
}

fn first_weights(training: &TrainingSpec) -> Vec<Ct> {
    parts_of("first", &[&training.keys.0])
}

fn step(range: f64, model: &ModelState<Ct>, batch: &Ct, size: StepSize) -> ModelState<Ct> {
    let momentum = model.momentum.as_ref().map(|parts| parts.concat()).unwrap_or_default();
    // A large decay, so that a refresh follows every other step.
    let size = StepSize { alpha: 0.95 / size.rate, ..size };
    let all: [&[u8]; 6] = [
        &model.weights.concat(),
        &momentum,
        &model.recursion.weight_factor().to_le_bytes(),
        batch,
        &range.to_le_bytes(),
        &size.rate.to_le_bytes(),
    ];
    ModelState {
        weights: parts_of("weights", &all),
        momentum: Some(parts_of("momentum", &all)),
        recursion: model.recursion.advance(size).0,
    }
}

fn refresh(model: &ModelState<Ct>) -> ModelState<Ct> {
    let momentum = model.momentum.as_ref().map(|parts| parts_of("refreshed", &[&parts.concat()]));
    ModelState { momentum, recursion: model.recursion.refreshed(), ..model.clone() }
}

fn logits(range: f64, rows: &Ct, weights: &[Ct]) -> Ct {
    of("logits", &[rows, &weights.concat(), &range.to_le_bytes()])
}

fn encode(ct: &Ct) -> Vec<u8> {
    ct.repeat(3)
}

/// The expected result of a training: the names of the logits of every round, and of the weights at
/// the end.
pub struct Expected {
    pub logits: Vec<Vec<BlobName>>,
    pub outputs: Vec<(u32, BlobName)>,
}

/// Runs the training without disk, state or network.
pub fn expected(training: &TrainingSpec, verdict: impl Fn(u32) -> Verdict) -> Expected {
    let first = first_weights(training);
    let mut session = Session::new(training.agreement.clone(), training.batches.len(), first).unwrap();
    let mut host = MemoryHost { training, answer: verdict, logits: Vec::new(), verdict: None };
    assert!(matches!(drive(&mut session, &mut host), Ok(Ended::Complete)));
    let bytes = |parts: &[Ct]| parts.iter().flat_map(encode).collect::<Vec<_>>();
    let outputs = session.kept().map(|(epoch, parts)| (epoch as u32, name_of(&bytes(parts)))).collect();
    Expected { logits: host.logits, outputs }
}

/// A host without disk, state or faults.
struct MemoryHost<'a, F> {
    training: &'a TrainingSpec,
    answer: F,
    logits: Vec<Vec<BlobName>>,
    /// The verdict on the open check. Verdicts are taken at once, so no training runs ahead.
    verdict: Option<Verdict>,
}

impl<F: Fn(u32) -> Verdict> Host for MemoryHost<'_, F> {
    type Ciphertext = Ct;
    type Error = Error;
    type Interruption = std::convert::Infallible;

    fn interruption(&mut self) -> Result<Option<Self::Interruption>> {
        Ok(None)
    }
    fn step(&mut self, session: &Session<Ct>, request: StepRequest) -> Result<ModelState<Ct>> {
        let batch = &self.training.batches[request.batch].blob.0;
        Ok(step(request.range, session.model(), batch, request.size))
    }
    fn refresh(&mut self, session: &Session<Ct>, _: f64) -> Result<ModelState<Ct>> {
        Ok(refresh(session.model()))
    }
    fn advanced(&mut self, _: &Session<Ct>, _: Action) -> Result<()> {
        Ok(())
    }
    fn validate(&mut self, session: &Session<Ct>, check: CheckRequest) -> Result<ControlFlow<Self::Interruption>> {
        let of = |rows: &RowBlob| name_of(&encode(&logits(check.range, &rows.blob.0, session.weights())));
        self.logits.push(self.training.validation.iter().map(of).collect());
        assert_eq!(check.round, self.logits.len());
        Ok(ControlFlow::Continue(()))
    }
    fn opened(&mut self, _: &Session<Ct>, check: CheckRequest) -> Result<()> {
        self.verdict = Some((self.answer)(check.round as u32));
        Ok(())
    }
    fn verdict(&mut self, _: &Session<Ct>) -> Result<Option<Verdict>> {
        Ok(self.verdict.take())
    }
    fn await_verdict(&mut self, _: &Session<Ct>) -> Result<ControlFlow<Self::Interruption, Verdict>> {
        Err(Error::failed("no check is open"))
    }
    fn judged(&mut self, _: &Session<Ct>) -> Result<()> {
        Ok(())
    }
}

/// The toy as an executor.
pub struct ToyExecutor<'a> {
    pub faults: &'a FaultInjector,
    pub blobs: &'a dyn Blobs,
    pub job: &'a Job,
    /// The number of encoded ciphertexts.
    pub encoded: &'a Cell<usize>,
}

impl Executor for ToyExecutor<'_> {
    type Ct = Ct;
    type Circuit = f64;
    type Batch = Ct;
    type Rows = Ct;
    type Expanded = Vec<Ct>;

    fn blobs(&self) -> &dyn Blobs {
        self.blobs
    }
    fn job(&self) -> &Job {
        self.job
    }
    fn circuit(&self, range: f64) -> Result<f64> {
        Ok(range)
    }
    fn parts(&self) -> usize {
        PARTS
    }
    fn first_weights(&self, training: &TrainingSpec) -> Result<Vec<Ct>> {
        Ok(first_weights(training))
    }
    fn batches(&self, sent: usize) -> usize {
        sent
    }
    fn pieces_of(&self, batch: usize, _sent: usize) -> Range<usize> {
        batch..batch + 1
    }
    fn batch(&self, _: &f64, part: &RowBlob, _again: bool) -> Result<Ct> {
        Ok(name_of(&self.upload(part.blob, 1 << 20)?).0)
    }
    fn rows(&self, circuit: &f64, part: &RowBlob, again: bool) -> Result<Ct> {
        self.batch(circuit, part, again)
    }
    fn batch_capacity(&self, bytes: u64) -> usize {
        (bytes >> 30) as usize
    }
    fn step(
        &self,
        range: &f64,
        model: &ModelState<Ct>,
        _rows: usize,
        pieces: &mut dyn Iterator<Item = Result<Arc<Ct>>>,
        size: StepSize,
    ) -> Result<ModelState<Ct>> {
        self.faults.pause();
        let batch = pieces.next().ok_or_else(|| Error::failed("a batch without pieces"))??;
        Ok(step(*range, model, &batch, size))
    }
    fn refresh(&self, _: &f64, model: &ModelState<Ct>) -> Result<ModelState<Ct>> {
        Ok(refresh(model))
    }
    fn expand(&self, _: &f64, weights: &[Ct]) -> Result<Vec<Ct>> {
        Ok(weights.to_vec())
    }
    fn logits(&self, range: &f64, rows: &Ct, weights: &Vec<Ct>) -> Result<Ct> {
        Ok(logits(*range, rows, weights))
    }
    fn encode_logits(&self, logits: &Ct) -> Result<Vec<u8>> {
        Ok(encode(logits))
    }
    fn encode(&self, ct: &Ct) -> Result<Vec<u8>> {
        self.encoded.set(self.encoded.get() + 1);
        Ok(encode(ct))
    }
    fn decode(&self, bytes: &mut &[u8]) -> Result<Ct> {
        let (one, rest) = bytes.split_at_checked(SIZE).ok_or_else(|| Error::failed("too short"))?;
        *bytes = rest;
        let ct: Ct = one.get(..32).and_then(|b| b.try_into().ok()).ok_or_else(|| Error::failed("too short"))?;
        if one == encode(&ct) { Ok(ct) } else { Err(Error::failed("no ciphertext")) }
    }
    fn max_ciphertext_bytes(&self) -> u64 {
        SIZE as u64
    }
}
