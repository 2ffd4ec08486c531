//! A computation that takes no time and whose every result depends on everything that went into it.

use super::world::World;
use crate::blobs::{Blobs, name_of};
use crate::state::Job;
use crate::work::{Part, Training};
use crate::workshop::Workshop;
use crate::{Error, Result};
use hetal_learn::session::Action;
use hetal_learn::trainer::Model;
use hetal_learn::{Session, Verdict};
use hetal_wire::BlobName;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

pub type Ct = [u8; 32];

/// The hash of what a result came from.
fn of(kind: &str, parts: &[&[u8]]) -> Ct {
    let mut hasher = blake3::Hasher::new();
    hasher.update(kind.as_bytes());
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// Ciphertexts of a classifier.
pub const PARTS: usize = 2;
/// Bytes of a ciphertext.
pub const SIZE: usize = 96;
/// The most bytes of a blob that a job makes.
pub const MOST: u64 = (PARTS * SIZE) as u64;

/// Every part of a vector of ciphertexts.
fn parts_of(kind: &str, from: &[&[u8]]) -> Vec<Ct> {
    (0..PARTS as u8).map(|part| of(kind, &[from, &[&[part]]].concat())).collect()
}

fn first_weights(training: &Training) -> Vec<Ct> {
    parts_of("first", &[&training.keys.0])
}

fn step(range: f64, model: &Model<Ct>, batch: &Ct, rate: f64) -> Model<Ct> {
    let lookahead = model.lookahead.as_ref().map(|parts| parts.concat()).unwrap_or_default();
    let momentum = model.momentum.as_ref().map(|parts| parts.concat()).unwrap_or_default();
    let all: [&[u8]; 7] = [
        &model.weights.concat(),
        &lookahead,
        &momentum,
        &model.scale.to_le_bytes(),
        batch,
        &range.to_le_bytes(),
        &rate.to_le_bytes(),
    ];
    Model {
        weights: parts_of("weights", &all),
        lookahead: Some(parts_of("lookahead", &all)),
        momentum: Some(parts_of("momentum", &all)),
        // A refresh after every other step.
        scale: model.scale / 100.0,
        schedule: model.schedule,
    }
}

fn refresh(model: &Model<Ct>) -> Model<Ct> {
    let momentum = model.momentum.as_ref().map(|parts| parts_of("refreshed", &[&parts.concat()]));
    Model { momentum, scale: 1.0, ..model.clone() }
}

fn logits(range: f64, rows: &Ct, weights: &[Ct]) -> Ct {
    of("logits", &[rows, &weights.concat(), &range.to_le_bytes()])
}

fn encode(ct: &Ct) -> Vec<u8> {
    ct.repeat(3)
}

/// What a training must come to: the names of the logits of every round, and of the weights at its end.
pub struct Expected {
    pub logits: Vec<Vec<BlobName>>,
    pub outputs: Vec<(u32, BlobName)>,
}

/// The training, without disk, state or network.
pub fn expected(training: &Training, verdict: impl Fn(u32) -> Verdict) -> Expected {
    let first = first_weights(training);
    let mut session = Session::new(training.agreement.clone(), training.batches.len(), first).unwrap();
    let mut rounds = Vec::new();
    loop {
        match session.next_action() {
            Action::Step { batch, rate, range } => {
                let model = step(range, session.model(), &training.batches[batch].blob.0, rate);
                session.stepped(model).unwrap();
            }
            Action::Refresh => {
                let model = refresh(session.model());
                session.stepped(model).unwrap();
            }
            Action::Validate { range, .. } => {
                let of = |part: &Part| name_of(&encode(&logits(range, &part.blob.0, session.weights())));
                rounds.push(training.validation.iter().map(of).collect());
                session.judged(verdict(rounds.len() as u32)).unwrap();
                if rounds.len() >= training.agreement.max_epochs {
                    session.abort();
                }
            }
            Action::Return => break,
        }
    }
    let bytes = |parts: &[Ct]| parts.iter().flat_map(encode).collect::<Vec<_>>();
    let outputs = session.kept().map(|(epoch, parts)| (epoch as u32, name_of(&bytes(parts)))).collect();
    Expected { logits: rounds, outputs }
}

/// The toy at work for a server.
pub struct Toy<'a> {
    pub world: &'a World,
    pub blobs: &'a dyn Blobs,
    pub job: &'a Job,
    /// Ciphertexts that were encoded.
    pub encoded: &'a Cell<usize>,
}

impl Workshop for Toy<'_> {
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
    fn first_weights(&self, training: &Training) -> Result<Vec<Ct>> {
        Ok(first_weights(training))
    }
    fn batches(&self, sent: usize) -> usize {
        sent
    }
    fn pieces_of(&self, batch: usize, _sent: usize) -> Range<usize> {
        batch..batch + 1
    }
    fn batch(&self, _: &f64, part: &Part) -> Result<Ct> {
        Ok(name_of(&self.upload(part.blob, 1 << 20)?).0)
    }
    fn rows(&self, circuit: &f64, part: &Part) -> Result<Ct> {
        self.batch(circuit, part)
    }
    fn room(&self, bytes: u64) -> usize {
        (bytes >> 30) as usize
    }
    fn step(
        &self,
        range: &f64,
        model: &Model<Ct>,
        (_, pieces): (usize, &mut dyn Iterator<Item = Result<Arc<Ct>>>),
        rate: f64,
    ) -> Result<Model<Ct>> {
        self.world.pause();
        let batch = pieces.next().ok_or_else(|| Error::work("a batch without pieces"))??;
        Ok(step(*range, model, &batch, rate))
    }
    fn refresh(&self, _: &f64, model: &Model<Ct>) -> Result<Model<Ct>> {
        Ok(refresh(model))
    }
    fn expand(&self, _: &f64, weights: &[Ct]) -> Result<Vec<Ct>> {
        Ok(weights.to_vec())
    }
    fn logits(&self, range: &f64, rows: &Ct, weights: &Vec<Ct>) -> Result<Ct> {
        Ok(logits(*range, rows, weights))
    }
    fn encode(&self, ct: &Ct) -> Result<Vec<u8>> {
        self.encoded.set(self.encoded.get() + 1);
        Ok(encode(ct))
    }
    fn decode(&self, bytes: &mut &[u8]) -> Result<Ct> {
        let (one, rest) = bytes.split_at_checked(SIZE).ok_or_else(|| Error::work("too short"))?;
        *bytes = rest;
        let ct: Ct = one.get(..32).and_then(|b| b.try_into().ok()).ok_or_else(|| Error::work("too short"))?;
        if one == encode(&ct) { Ok(ct) } else { Err(Error::work("no ciphertext")) }
    }
    fn largest(&self) -> u64 {
        SIZE as u64
    }
}
