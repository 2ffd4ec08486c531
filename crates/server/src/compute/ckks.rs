//! The executor of real jobs: keys, circuit and engine on one device. It reads and writes
//! ciphertexts as blobs.

use crate::compute::executor::Executor;
use crate::compute::lifted_rows::LiftedRows;
use crate::jobs::required_keys::{OLD_KEYS_HINT, OLD_MODEL_HINT, RequiredKeysCache, describe_key_error};
use crate::jobs::spec::{JobSpec, RowBlob, TrainingSpec, row_blob_len, row_vectors};
use crate::store::blobs::Blobs;
use crate::store::state::Job;
use crate::{Error, Result};
use hetal_circuits::{Bootstrapper, Encrypted, Engine, LeveledCiphertext};
use hetal_ckks::bytes::{Codec, KeySetFile, ciphertext_len};
use hetal_ckks::{
    Backend, Ciphertext, EvaluationKeys, Evaluator, KeyId, Params, ROUNDED_BITS, RoundedCiphertext, SeededCiphertext,
    derivation,
};
use hetal_learn::agreement::initial_weights;
use hetal_learn::nesterov::StepSize;
use hetal_learn::products::{Expanded, Versions};
use hetal_learn::trainer::{Batch, ModelState, Trainer};
use hetal_learn::{Circuit, RowForm, RowVector, packing};
use hetal_ring::{Basis, Isa};
use hetal_wire::BlobName;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The engine on a device.
pub type EngineOf<B> = Encrypted<B>;
/// A ciphertext on a device.
pub type Ct<B> = LeveledCiphertext<<B as Backend>::Poly>;

/// The job to execute, and where its data is.
pub struct JobInput<'a> {
    /// The blob store.
    pub blobs: &'a dyn Blobs,
    /// The job.
    pub job: &'a Job,
    /// The file of its key set.
    pub key_file: &'a Path,
}

/// A device, and what a job may keep on it.
pub struct DevicePlan<B> {
    /// The device.
    pub device: Arc<B>,
    /// The number of prepared batches that may stay on a GPU; `None` on the CPU.
    pub resident_batches: Option<usize>,
    /// Bytes of host memory for lifted rows.
    pub lifted_bytes: u64,
}

/// Loads the keys of an upload and derives the others.
struct KeyLoader<'a, B> {
    params: &'a Params,
    device: &'a B,
    /// The keys that the job works with.
    wanted: &'a [(KeyId, usize)],
}

impl<B: Backend> KeyLoader<'_, B> {
    /// Makes the keys of a job ready.
    fn run(
        &self,
        keys: &mut EvaluationKeys<B::Packed>,
        job: &Job,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> std::result::Result<(), KeyLoading> {
        let since = Instant::now();
        let seconds = || since.elapsed().as_secs_f64();
        let is_training = matches!(job.spec, JobSpec::Training(_));
        if is_training {
            self.load(keys, progress)?;
            tracing::info!(job = %job.id, seconds = seconds(), "loaded the keys");
        }
        if is_training || job.spec.form() == RowForm::Coefficients {
            self.derive(keys, progress)?;
            tracing::info!(job = %job.id, seconds = seconds(), "the keys are ready");
        }
        Ok(())
    }

    fn load(
        &self,
        keys: &EvaluationKeys<B::Packed>,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> std::result::Result<(), KeyLoading> {
        let all = self.wanted.len();
        keys.load_all(|done, sent| self.report(done, all.max(sent), progress))
    }

    /// Derives keys one after the other, each with all threads.
    fn derive(
        &self,
        keys: &mut EvaluationKeys<B::Packed>,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> std::result::Result<(), KeyLoading> {
        let all = self.wanted.len();
        let target = (self.device, Isa::detect());
        derivation::derive(self.params, target, keys, self.wanted, |done, derived| {
            self.report(all - derived + done, all, progress)
        })
    }

    fn report(
        &self,
        done: usize,
        all: usize,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> std::result::Result<(), KeyLoading> {
        // A failed device makes the remaining keys pointless.
        self.device.health().map_err(|e| KeyLoading::Stopped(Error::failed(e)))?;
        progress(done, all).map_err(KeyLoading::Stopped)
    }
}

/// Why keys were not loaded.
enum KeyLoading {
    /// A key of the upload cannot be loaded.
    Bad(hetal_ckks::Error),
    /// The attempt ends, or the device failed.
    Stopped(Error),
}

impl From<hetal_ckks::Error> for KeyLoading {
    fn from(error: hetal_ckks::Error) -> Self {
        Self::Bad(error)
    }
}

/// Executes one job with CKKS on one device.
pub struct CkksExecutor<'a, B: Backend> {
    blobs: &'a dyn Blobs,
    job: &'a Job,
    device: Arc<B>,
    params: Arc<Params>,
    codec: Codec<B>,
    /// The number of prepared batches that may stay on the GPU. `None` on the CPU.
    resident_batches: Option<usize>,
    /// Rows in coefficient form that were lifted and are read again.
    lifted: LiftedRows,
    /// The circuit for the job's shape.
    pub circuit: Circuit,
    /// The engine with the client's keys.
    pub engine: EngineOf<B>,
}

impl<'a, B: Backend> CkksExecutor<'a, B> {
    /// Opens the key file and encodes the bootstrap matrices.
    ///
    /// A training loads all keys meanwhile and derives those that were not sent. It reports to
    /// `progress` how many keys there are. A classification needs few keys and loads each on first
    /// use. It derives keys if its rows are lifted.
    pub fn new(
        input: JobInput<'a>,
        params: Arc<Params>,
        DevicePlan { device, resident_batches, lifted_bytes }: DevicePlan<B>,
        required_keys: &RequiredKeysCache,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<Self> {
        let JobInput { blobs, job, key_file } = input;
        let training = job.spec.training();
        let circuit = training.circuit(&params)?;
        let codec = Codec::new(Arc::clone(&params), Arc::clone(&device));
        let bad = |e: &dyn std::fmt::Display| Error::failed(format!("upload {}: {e}", training.keys));
        let hint = match job.spec {
            JobSpec::Training(_) => OLD_KEYS_HINT,
            // A classification uses the keys of its training, even if the owner has newer keys.
            JobSpec::Classification(_) => OLD_MODEL_HINT,
        };
        let file = KeySetFile::open(&codec, key_file).map_err(|e| bad(&describe_key_error(&e, hint)))?;
        let mut keys = EvaluationKeys::with_source(Box::new(file));
        let evaluator = Evaluator::new(Arc::clone(&params), Arc::clone(&device));
        let needs = required_keys.find(&params, &job.tenant, training, &circuit)?;
        let since = Instant::now();
        let bootstrapper = std::thread::scope(|scope| {
            let matrices = scope.spawn(|| Bootstrapper::with_plan(&evaluator, &needs.bounds, training.key_plan));
            let loading = KeyLoader { params: &params, device: &*device, wanted: &needs.keys };
            loading.run(&mut keys, job, progress).map_err(|failure| match failure {
                KeyLoading::Bad(e) => bad(&e),
                KeyLoading::Stopped(e) => e,
            })?;
            matrices.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map_err(Error::failed)
        })?;
        tracing::info!(job = %job.id, seconds = since.elapsed().as_secs_f64(), "encoded the bootstrap's matrices");
        let engine = Encrypted::new(evaluator, keys, bootstrapper);
        let lifted = LiftedRows::new(lifted_bytes);
        Ok(Self { blobs, job, device, params, codec, resident_batches, lifted, circuit, engine })
    }

    /// Returns a result of the engine. If the device failed, the error is transient and the job can
    /// be retried.
    pub fn check_device<T>(&self, result: std::result::Result<T, impl ToString>) -> Result<T> {
        let health = self.device.health();
        health.map_err(|e| Error::System { what: "the device".to_owned(), reason: e.to_string() })?;
        result.map_err(Error::failed)
    }

    /// The ciphertexts of an uploaded row blob, at the levels of their first use.
    ///
    /// Rows in coefficient form are lifted. If they will be read again, the lifted ciphertexts are
    /// kept in memory as bytes, because a lift takes longer than reading them.
    fn ciphertexts(&self, row_blob: &RowBlob, with_labels: bool, again: bool) -> Result<Vec<Ct<B>>> {
        let name = row_blob.blob;
        if let Some(bytes) = self.lifted.get(name) {
            return self.decode_all(&bytes);
        }
        let size = row_blob_len(&self.params, &self.circuit, self.form(), with_labels);
        let bytes = self.upload(name, size)?;
        let mut rest = &bytes[..];
        let bad = |reason: String| Error::failed(format!("upload {name}: {reason}"));
        let mut ciphertexts = Vec::new();
        for vector in row_vectors(&self.circuit, with_labels) {
            ciphertexts.push(match self.form() {
                RowForm::Slots => self.read_slots(&mut rest, vector, &bad)?,
                RowForm::Coefficients => self.read_coefficients(&mut rest, vector, &bad)?,
            });
        }
        if !rest.is_empty() {
            return Err(bad(format!("{} bytes are left over", rest.len())));
        }
        if again && self.form() == RowForm::Coefficients {
            self.keep_lifted(name, &ciphertexts)?;
        }
        Ok(ciphertexts)
    }

    /// The form of the rows that the job reads.
    fn form(&self) -> RowForm {
        self.job.spec.form()
    }

    fn read_slots(&self, rest: &mut &[u8], vector: RowVector, bad: &dyn Fn(String) -> Error) -> Result<Ct<B>> {
        let level = vector.level(self.circuit.level_plan());
        let seeded: SeededCiphertext<B::Poly> = self.codec.read(rest).map_err(|e| bad(e.to_string()))?;
        let whole = seeded.expand(&self.params, &*self.device);
        let sealed = self.engine.import(whole).map_err(|e| bad(e.to_string()))?;
        if self.engine.level(&sealed) != level {
            return Err(bad(format!("a ciphertext has level {} instead of {level}", self.engine.level(&sealed))));
        }
        Ok(sealed)
    }

    fn read_coefficients(&self, rest: &mut &[u8], vector: RowVector, bad: &dyn Fn(String) -> Error) -> Result<Ct<B>> {
        let rounded: RoundedCiphertext = self.codec.read(rest).map_err(|e| bad(e.to_string()))?;
        if (rounded.form, rounded.bits) != (vector.lift_form(), ROUNDED_BITS) {
            return Err(bad(format!(
                "a ciphertext of {:?} numbers in {} bits instead of {:?} ones in {ROUNDED_BITS}",
                rounded.form,
                rounded.bits,
                vector.lift_form()
            )));
        }
        let unlifted = self.engine.import_unlifted(&rounded).map_err(|e| bad(e.to_string()))?;
        self.check_device(vector.lifted(&self.engine, self.circuit.level_plan(), &unlifted))
    }

    fn keep_lifted(&self, name: BlobName, ciphertexts: &[Ct<B>]) -> Result<()> {
        let level = |ct: &Ct<B>| self.params.limbs(self.engine.level(ct));
        let size: u64 = ciphertexts.iter().map(|ct| ciphertext_len(&self.params, level(ct))).sum();
        if !self.lifted.has_room(size) {
            return Ok(());
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
        for ciphertext in ciphertexts {
            bytes.extend(self.encode(ciphertext)?);
        }
        self.lifted.insert(name, bytes);
        Ok(())
    }

    fn decode_all(&self, mut bytes: &[u8]) -> Result<Vec<Ct<B>>> {
        let mut ciphertexts = Vec::new();
        while !bytes.is_empty() {
            ciphertexts.push(self.decode(&mut bytes)?);
        }
        Ok(ciphertexts)
    }
}

impl<B: Backend> Executor for CkksExecutor<'_, B> {
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
        self.check_device(self.circuit.trainer(&self.engine, range))
    }

    fn parts(&self) -> usize {
        self.circuit.geometry().parts()
    }

    /// Trivial ciphertexts: the initial weights are public.
    fn first_weights(&self, training: &TrainingSpec) -> Result<Vec<Ct<B>>> {
        let geometry = self.circuit.geometry();
        let weights = initial_weights(training.classes, training.features, training.agreement.seed);
        let parts = packing::weights(geometry, &weights).map_err(Error::failed)?;
        let level = self.circuit.level_plan().weights();
        let (limbs, scale) = (self.params.limbs(level), self.params.scale(level));
        let basis = Basis { q: limbs, p: 0 };
        let part = |slots: &Vec<_>| {
            let c0 = self.engine.evaluator().encode(slots, scale, basis).map_err(Error::failed)?.poly;
            let trivial = Ciphertext { c0, c1: self.device.zero(basis), limbs, scale, set: self.params.tag() };
            self.engine.import(trivial).map_err(Error::failed)
        };
        parts.iter().map(part).collect()
    }

    fn batches(&self, sent: usize) -> usize {
        self.circuit.batches(sent)
    }

    fn pieces_of(&self, batch: usize, sent: usize) -> Range<usize> {
        self.circuit.pieces_of(batch, sent)
    }

    /// Reads feature blocks, labels and weights of rows, and computes all row-shifted versions.
    fn batch(&self, trainer: &Self::Circuit, row_blob: &RowBlob, again: bool) -> Result<Self::Batch> {
        let mut blocks = self.ciphertexts(row_blob, true, again)?;
        let row_weights = if self.circuit.level_plan().is_weighted() { blocks.pop() } else { None };
        let labels = blocks.pop().ok_or_else(|| Error::failed("the batch has no labels"))?;
        let batch = self.check_device(trainer.batch(&self.engine, &blocks, labels, row_blob.rows))?;
        Ok(Batch { row_weights, ..batch })
    }

    /// Reads feature blocks, and computes all row-shifted versions.
    fn rows(&self, trainer: &Self::Circuit, row_blob: &RowBlob, again: bool) -> Result<Self::Rows> {
        let blocks = self.ciphertexts(row_blob, false, again)?;
        self.check_device(trainer.products().versions(&self.engine, &blocks))
    }

    /// On a GPU the memory plan decides.
    fn batch_capacity(&self, bytes: u64) -> usize {
        let geometry = self.circuit.geometry();
        let versions = (geometry.blocks() * geometry.padded_classes()) as u64;
        let limbs = self.params.limbs(self.circuit.level_plan().features()) as u64;
        let batch = versions * 2 * limbs * self.params.degree() as u64 * 8;
        self.resident_batches.unwrap_or_else(|| usize::try_from(bytes / batch.max(1)).unwrap_or(usize::MAX))
    }

    fn step(
        &self,
        trainer: &Self::Circuit,
        model: &ModelState<Ct<B>>,
        rows: usize,
        pieces: &mut dyn Iterator<Item = Result<Arc<Self::Batch>>>,
        size: StepSize,
    ) -> Result<ModelState<Ct<B>>> {
        let mut step = trainer.begin(model, rows, size);
        for piece in pieces {
            self.check_device(step.add(&self.engine, &*piece?, &mut |_| {}))?;
        }
        self.check_device(step.finish(&self.engine, &mut |_| {}))
    }

    fn refresh(&self, trainer: &Self::Circuit, model: &ModelState<Ct<B>>) -> Result<ModelState<Ct<B>>> {
        self.check_device(trainer.refresh(&self.engine, model))
    }

    fn expand(&self, trainer: &Self::Circuit, weights: &[Ct<B>]) -> Result<Self::Expanded> {
        self.check_device(trainer.products().expand(&self.engine, weights, 1.0))
    }

    fn logits(&self, trainer: &Self::Circuit, rows: &Self::Rows, weights: &Self::Expanded) -> Result<Ct<B>> {
        self.check_device(trainer.products().logits(&self.engine, rows, weights))
    }

    fn encode(&self, ciphertext: &Ct<B>) -> Result<Vec<u8>> {
        self.check_device(self.codec.encode(ciphertext.inner()))
    }

    /// The values are far below the first prime, so the others are dropped without loss.
    fn encode_logits(&self, logits: &Ct<B>) -> Result<Vec<u8>> {
        let last = self.check_device(self.engine.evaluator().truncated(logits.inner(), 1))?;
        self.check_device(self.codec.encode(&last))
    }

    fn decode(&self, bytes: &mut &[u8]) -> Result<Ct<B>> {
        let ciphertext = self.codec.read(bytes).map_err(Error::failed)?;
        self.engine.import(ciphertext).map_err(Error::failed)
    }

    /// The size at the highest usable level.
    fn max_ciphertext_bytes(&self) -> u64 {
        ciphertext_len(&self.params, self.params.limbs(self.params.top_level()))
    }
}
