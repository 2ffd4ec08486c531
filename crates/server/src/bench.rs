//! A job's workbench: keys, circuit and engine on one device, and ciphertexts in and out of blobs.

use crate::blobs::Blobs;
use crate::state::Job;
use crate::work::{KeyLists, OLD_KEYS, Part, Training, Work, bad_keys, blocks_len, labels_len};
use crate::workshop::Workshop;
use crate::{Error, Result};
use hetal_circuits::{Bootstrapper, Encrypted, Engine, LeveledCiphertext};
use hetal_ckks::bytes::{Codec, KeySetFile, ciphertext_len};
use hetal_ckks::{Backend, Ciphertext, EvaluationKeys, Evaluator, Params, SeededCiphertext};
use hetal_learn::agreement::initial_weights;
use hetal_learn::products::{Expanded, Versions};
use hetal_learn::trainer::{Batch, Model, Trainer};
use hetal_learn::{Circuit, packing};
use hetal_ring::Basis;
use hetal_wire::BlobName;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The engine of a device.
pub type EngineOf<B> = Encrypted<B>;
/// A ciphertext of a device.
pub type Ct<B> = LeveledCiphertext<<B as Backend>::Poly>;

/// Everything that computes a job.
pub struct Bench<'a, B: Backend> {
    blobs: &'a dyn Blobs,
    job: &'a Job,
    device: Arc<B>,
    params: Arc<Params>,
    codec: Codec<B>,
    /// Prepared batches that may be kept on a card, if it is one.
    room: Option<usize>,
    /// The circuit of the job's shape.
    pub circuit: Circuit,
    /// The engine, with the client's keys.
    pub engine: EngineOf<B>,
}

impl<'a, B: Backend> Bench<'a, B> {
    /// Reads the keys from their file and encodes the bootstrap. `device` comes with what a plan found: how many prepared batches may be
    /// kept on it. A training needs all keys: `progress` is told how many it has of how many. A classification needs few, which are read
    /// when they are first used.
    pub fn new(
        (blobs, job, keys): (&'a dyn Blobs, &'a Job, &Path),
        params: Arc<Params>,
        (device, room): (Arc<B>, Option<usize>),
        key_lists: &KeyLists,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<Self> {
        let training = job.work.training();
        let circuit = training.circuit(&params)?;
        let codec = Codec::new(Arc::clone(&params), Arc::clone(&device));
        let bad = |e: &dyn std::fmt::Display| Error::work(format!("upload {}: {e}", training.keys));
        let helps = match job.work {
            Work::Training(_) => OLD_KEYS,
            // Its keys are those of its training, whatever its owner has now.
            Work::Classification(_) => "a model of an earlier version is trained again, or classifies without --remote",
        };
        let file = KeySetFile::open(&codec, keys).map_err(|e| bad(&bad_keys(&e, helps)))?;
        let keys = EvaluationKeys::with_source(Box::new(file));
        if let Work::Training(_) = job.work {
            let all: Vec<_> = keys.available().collect();
            for (done, &(id, basis)) in all.iter().enumerate() {
                progress(done, all.len())?;
                keys.find(id, basis).map_err(|e| bad(&e))?;
                // The others would be read for nothing.
                device.health().map_err(Error::work)?;
            }
        }
        let evaluator = Evaluator::new(Arc::clone(&params), Arc::clone(&device));
        let needs = key_lists.find(&params, (&job.tenant, training), &circuit)?;
        let bootstrapper = Bootstrapper::new(&evaluator, &needs.bounds).map_err(Error::work)?;
        let engine = Encrypted::new(evaluator, keys, bootstrapper);
        Ok(Self { blobs, job, device, params, codec, room, circuit, engine })
    }

    /// A result of the engine. Where the device failed the fault is the machine's, and the job can be taken up again.
    pub fn sound<T>(&self, result: std::result::Result<T, impl ToString>) -> Result<T> {
        let health = self.device.health();
        health.map_err(|e| Error::System { what: "the device".to_owned(), reason: e.to_string() })?;
        result.map_err(Error::work)
    }

    /// The seeded ciphertexts of an upload: exactly those of these levels.
    fn ciphertexts(&self, name: BlobName, size: u64, levels: &[usize]) -> Result<Vec<Ct<B>>> {
        let bytes = self.upload(name, size)?;
        let mut rest = &bytes[..];
        let bad = |reason: String| Error::work(format!("upload {name}: {reason}"));
        let mut ciphertexts = Vec::with_capacity(levels.len());
        for &level in levels {
            let seeded: SeededCiphertext<B::Poly> = self.codec.read(&mut rest).map_err(|e| bad(e.to_string()))?;
            let whole = seeded.expand(&self.params, &*self.device);
            let sealed = self.engine.admit(whole).map_err(|e| bad(e.to_string()))?;
            if self.engine.level(&sealed) != level {
                return Err(bad(format!("a ciphertext of level {}, not {level}", self.engine.level(&sealed))));
            }
            ciphertexts.push(sealed);
        }
        if rest.is_empty() { Ok(ciphertexts) } else { Err(bad(format!("{} bytes too many", rest.len()))) }
    }
}

impl<B: Backend> Workshop for Bench<'_, B> {
    type Ct = Ct<B>;
    type Circuit = Trainer<EngineOf<B>>;
    type Batch = Batch<Ct<B>>;
    type Rows = Versions<Ct<B>>;
    type Expanded = Expanded<Ct<B>>;

    fn blobs(&self) -> &dyn Blobs {
        self.blobs
    }

    fn job(&self) -> &Job {
        self.job
    }

    fn circuit(&self, range: f64) -> Result<Self::Circuit> {
        self.sound(self.circuit.trainer(&self.engine, range))
    }

    fn parts(&self) -> usize {
        self.circuit.geometry().parts()
    }

    /// Ciphertexts that hide nothing.
    fn first_weights(&self, training: &Training) -> Result<Vec<Ct<B>>> {
        let geometry = self.circuit.geometry();
        let weights = initial_weights(training.classes, training.features, training.agreement.seed);
        let parts = packing::weights(geometry, &weights).map_err(Error::work)?;
        let level = self.circuit.level_plan().weights();
        let (limbs, scale) = (self.params.limbs(level), self.params.scale(level));
        let basis = Basis { q: limbs, p: 0 };
        let part = |slots: &Vec<_>| {
            let c0 = self.engine.evaluator().encode(slots, scale, basis).map_err(Error::work)?.poly;
            let trivial = Ciphertext { c0, c1: self.device.zero(basis), limbs, scale, set: self.params.tag() };
            self.engine.admit(trivial).map_err(Error::work)
        };
        parts.iter().map(part).collect()
    }

    fn batches(&self, sent: usize) -> usize {
        self.circuit.batches(sent)
    }

    fn pieces_of(&self, batch: usize, sent: usize) -> Range<usize> {
        self.circuit.pieces_of(batch, sent)
    }

    /// Feature blocks and labels, with all row-shifted versions.
    fn batch(&self, trainer: &Self::Circuit, part: &Part) -> Result<Self::Batch> {
        let size = blocks_len(&self.params, &self.circuit) + labels_len(&self.params, &self.circuit);
        let level_plan = self.circuit.level_plan();
        let mut levels = vec![level_plan.fresh_features(); self.circuit.geometry().blocks()];
        levels.push(level_plan.probabilities());
        let mut blocks = self.ciphertexts(part.blob, size, &levels)?;
        let labels = blocks.pop().ok_or_else(|| Error::work("a batch without labels"))?;
        self.sound(trainer.batch(&self.engine, &blocks, labels, part.rows))
    }

    /// Feature blocks alone, with all row-shifted versions.
    fn rows(&self, trainer: &Self::Circuit, part: &Part) -> Result<Self::Rows> {
        let size = blocks_len(&self.params, &self.circuit);
        let levels = vec![self.circuit.level_plan().fresh_features(); self.circuit.geometry().blocks()];
        let blocks = self.ciphertexts(part.blob, size, &levels)?;
        self.sound(trainer.products().versions(&self.engine, &blocks))
    }

    /// On a card, what was planned.
    fn room(&self, bytes: u64) -> usize {
        let geometry = self.circuit.geometry();
        let versions = (geometry.blocks() * geometry.padded_classes()) as u64;
        let limbs = self.params.limbs(self.circuit.level_plan().features()) as u64;
        let batch = versions * 2 * limbs * self.params.degree() as u64 * 8;
        self.room.unwrap_or_else(|| usize::try_from(bytes / batch.max(1)).unwrap_or(usize::MAX))
    }

    fn step(
        &self,
        trainer: &Self::Circuit,
        model: &Model<Ct<B>>,
        (rows, pieces): (usize, &mut dyn Iterator<Item = Result<Arc<Self::Batch>>>),
        rate: f64,
    ) -> Result<Model<Ct<B>>> {
        let mut step = trainer.begin(model, rows, rate);
        for piece in pieces {
            self.sound(step.add(&self.engine, &*piece?, &mut |_| {}))?;
        }
        self.sound(step.finish(&self.engine, &mut |_| {}))
    }

    fn refresh(&self, trainer: &Self::Circuit, model: &Model<Ct<B>>) -> Result<Model<Ct<B>>> {
        self.sound(trainer.refresh(&self.engine, model))
    }

    fn expand(&self, trainer: &Self::Circuit, weights: &[Ct<B>]) -> Result<Self::Expanded> {
        self.sound(trainer.products().expand(&self.engine, weights))
    }

    fn logits(&self, trainer: &Self::Circuit, rows: &Self::Rows, weights: &Self::Expanded) -> Result<Ct<B>> {
        self.sound(trainer.products().logits(&self.engine, rows, weights))
    }

    fn encode(&self, ciphertext: &Ct<B>) -> Result<Vec<u8>> {
        self.sound(self.codec.encode(ciphertext.inner()))
    }

    fn decode(&self, bytes: &mut &[u8]) -> Result<Ct<B>> {
        let ciphertext = self.codec.read(bytes).map_err(Error::work)?;
        self.engine.admit(ciphertext).map_err(Error::work)
    }

    /// Any usable level.
    fn largest(&self) -> u64 {
        ciphertext_len(&self.params, self.params.limbs(self.params.top_level()))
    }
}
