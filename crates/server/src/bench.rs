//! A job's workbench: keys, circuit and engine on one device, and ciphertexts in and out of blobs.

use crate::blobs::{self, Blobs, Key, Shelf};
use crate::state::Job;
use crate::work::{Part, Training, Work, blocks_len, labels_len};
use crate::{Error, Result};
use hetal_circuits::{Bootstrapper, Encrypted, Engine, Sealed};
use hetal_ckks::bytes::{Codec, KeySetFile, ciphertext_len};
use hetal_ckks::{Backend, Ciphertext, EvaluationKeys, Evaluator, Params, SeededCiphertext};
use hetal_learn::agreement::initial_weights;
use hetal_learn::trainer::{Batch, Trainer};
use hetal_learn::{Circuit, packing};
use hetal_ring::Basis;
use hetal_wire::BlobName;
use std::sync::Arc;

/// The engine of a device.
pub type EngineOf<B> = Encrypted<B>;
/// A ciphertext of a device.
pub type Ct<B> = Sealed<<B as Backend>::Poly>;

/// Everything that computes a job.
pub struct Bench<'a, B: Backend> {
    blobs: &'a dyn Blobs,
    job: &'a Job,
    device: Arc<B>,
    params: Arc<Params>,
    codec: Codec<B>,
    /// The circuit of the job's shape.
    pub circuit: Circuit,
    /// The engine, with the client's keys.
    pub engine: EngineOf<B>,
}

impl<'a, B: Backend> Bench<'a, B> {
    /// Reads the keys and encodes the bootstrap. A training needs all keys: `progress` is told how many it has of how many. A
    /// classification needs few, which are read when they are first used.
    pub fn new(
        blobs: &'a dyn Blobs,
        job: &'a Job,
        params: Arc<Params>,
        device: Arc<B>,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<Self> {
        let training = job.work.training();
        let circuit = training.circuit(&params)?;
        let codec = Codec::new(Arc::clone(&params), Arc::clone(&device));
        let key = Key::new(&job.tenant, Shelf::Uploads, training.keys);
        let path = blobs.local(&key)?.ok_or(Error::NoBlob { name: training.keys })?;
        let keys = EvaluationKeys::with_source(Box::new(KeySetFile::open(&codec, &path).map_err(Error::work)?));
        if let Work::Training(_) = job.work {
            let all: Vec<_> = keys.available().collect();
            for (done, &(id, basis)) in all.iter().enumerate() {
                progress(done, all.len())?;
                keys.find(id, basis).map_err(Error::work)?;
            }
        }
        let evaluator = Evaluator::new(Arc::clone(&params), Arc::clone(&device));
        let bounds = circuit.keys(params.top_level()).map_err(Error::work)?.bounds;
        let bootstrapper = Bootstrapper::new(&evaluator, &bounds).map_err(Error::work)?;
        let engine = Encrypted::new(evaluator, keys, bootstrapper);
        Ok(Self { blobs, job, device, params, codec, circuit, engine })
    }

    /// A result of the engine. Where the device failed the fault is the machine's, and the job can be taken up again.
    pub fn sound<T>(&self, result: std::result::Result<T, impl ToString>) -> Result<T> {
        let health = self.device.health();
        health.map_err(|e| Error::System { what: "the device".to_owned(), reason: e.to_string() })?;
        result.map_err(Error::work)
    }

    /// The circuit of one range.
    pub fn trainer(&self, range: f64) -> Result<Trainer<EngineOf<B>>> {
        self.sound(self.circuit.trainer(&self.engine, range))
    }

    /// The public first weights, as ciphertexts that hide nothing.
    pub fn first_weights(&self, training: &Training) -> Result<Vec<Ct<B>>> {
        let geometry = self.circuit.geometry();
        let weights = initial_weights(training.classes, training.features, training.agreement.seed);
        let parts = packing::weights(geometry, &weights).map_err(Error::work)?;
        let level = self.circuit.ledger().weights();
        let (limbs, scale) = (self.params.limbs(level), self.params.scale(level));
        let basis = Basis { q: limbs, p: 0 };
        let part = |slots: &Vec<_>| {
            let c0 = self.engine.evaluator().encode(slots, scale, basis).map_err(Error::work)?.poly;
            let trivial = Ciphertext { c0, c1: self.device.zero(basis), limbs, scale, set: self.params.tag() };
            self.engine.admit(trivial).map_err(Error::work)
        };
        parts.iter().map(part).collect()
    }

    /// Feature blocks and labels of a batch, with all row-shifted versions.
    pub fn batch(&self, trainer: &Trainer<EngineOf<B>>, part: &Part) -> Result<Batch<Ct<B>>> {
        let size = blocks_len(&self.params, &self.circuit) + labels_len(&self.params, &self.circuit);
        let ledger = self.circuit.ledger();
        let mut levels = vec![ledger.fresh_features(); self.circuit.geometry().blocks()];
        levels.push(ledger.probabilities());
        let mut blocks = self.upload(part.blob, size, &levels)?;
        let labels = blocks.pop().ok_or_else(|| Error::work("a batch without labels"))?;
        self.sound(trainer.batch(&self.engine, &blocks, labels, part.rows))
    }

    /// Feature blocks alone, with all row-shifted versions.
    pub fn features(&self, trainer: &Trainer<EngineOf<B>>, part: &Part) -> Result<Vec<Vec<Ct<B>>>> {
        let size = blocks_len(&self.params, &self.circuit);
        let levels = vec![self.circuit.ledger().fresh_features(); self.circuit.geometry().blocks()];
        let blocks = self.upload(part.blob, size, &levels)?;
        self.sound(trainer.products().versions(&self.engine, &blocks))
    }

    /// The seeded ciphertexts of an upload: exactly those of these levels.
    fn upload(&self, name: BlobName, size: u64, levels: &[usize]) -> Result<Vec<Ct<B>>> {
        let bytes = blobs::read(self.blobs, &Key::new(&self.job.tenant, Shelf::Uploads, name), size)?;
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

    /// Stores ciphertexts, one after the other in one blob, among what a job made; gives its name and size.
    pub fn put(&self, ciphertexts: &[Ct<B>]) -> Result<(BlobName, u64)> {
        let mut bytes = Vec::new();
        for ciphertext in ciphertexts {
            bytes.extend(self.sound(self.codec.encode(ciphertext.inner()))?);
        }
        let name = blobs::name_of(&bytes);
        self.blobs.put(&Key::new(&self.job.tenant, Shelf::Job(self.job.id), name), &bytes)?;
        Ok((name, bytes.len() as u64))
    }

    /// A ciphertext on a shelf, of any usable level.
    pub fn get(&self, shelf: Shelf, name: BlobName) -> Result<Ct<B>> {
        let most = ciphertext_len(&self.params, self.params.limbs(self.params.top_level()));
        let bytes = blobs::read(self.blobs, &Key::new(&self.job.tenant, shelf, name), most)?;
        let ciphertext = self.codec.decode(&bytes).map_err(|e| Error::work(format!("blob {name}: {e}")))?;
        self.engine.admit(ciphertext).map_err(|e| Error::work(format!("blob {name}: {e}")))
    }

    /// The ciphertexts of a classifier that a job left in a blob.
    pub fn get_weights(&self, shelf: Shelf, name: BlobName) -> Result<Vec<Ct<B>>> {
        let (parts, level) = (self.circuit.geometry().parts(), self.circuit.ledger().weights());
        let size = parts as u64 * ciphertext_len(&self.params, self.params.limbs(level));
        let bytes = blobs::read(self.blobs, &Key::new(&self.job.tenant, shelf, name), size)?;
        let mut rest = &bytes[..];
        let bad = |reason: String| Error::work(format!("blob {name}: {reason}"));
        let read = |_| {
            let ciphertext = self.codec.read(&mut rest).map_err(|e| bad(e.to_string()))?;
            self.engine.admit(ciphertext).map_err(|e| bad(e.to_string()))
        };
        let weights = (0..parts).map(read).collect::<Result<Vec<_>>>()?;
        if rest.is_empty() { Ok(weights) } else { Err(bad(format!("{} bytes too many", rest.len()))) }
    }

    /// Removes a ciphertext from what the job made.
    pub fn forget(&self, name: BlobName) -> Result<()> {
        self.blobs.delete(&Key::new(&self.job.tenant, Shelf::Job(self.job.id), name))
    }

    /// Bytes of a batch with all its versions, in memory.
    pub fn prepared_bytes(&self) -> u64 {
        let geometry = self.circuit.geometry();
        let versions = (geometry.blocks() * geometry.padded_classes()) as u64;
        let limbs = self.params.limbs(self.circuit.ledger().features()) as u64;
        versions * 2 * limbs * self.params.degree() as u64 * 8
    }
}
