//! `hetal bench train`: iterations of encrypted training beside exact training, on random features of a benchmark's shape or
//! on real ones.

use crate::owner::Owner;
use crate::{Error, Result, npy, progress};
use hetal_circuits::clear::{Clear, Keys};
use hetal_circuits::{Bootstrapper, Complex64, Encrypted, Engine, Sealed, encrypted};
use hetal_ckks::{Backend, Ciphertext, Evaluator, Params};
use hetal_cuda::{CudaBackend, CudaPoly};
use hetal_learn::agreement::{self, PRESETS, Preset};
use hetal_learn::nesterov::Momentum;
use hetal_learn::softmax::{self, Constants};
use hetal_learn::trainer::{self, Model, Trainer};
use hetal_learn::twin::{self, Twin};
use hetal_learn::{Dataset, Geometry, Ledger, Matrix, judge, packing};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Where iterations run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// On plain numbers, with books.
    Clear,
    /// On ciphertexts, on this machine's CPU.
    Cpu,
    /// On ciphertexts, on its first NVIDIA GPU.
    Cuda,
}

/// Logits are bounded by this in both directions.
const RANGE: f64 = 128.0;
/// The momentum is bounded by 1 where it is refreshed.
const LOG_MOMENTUM_BOUND: u32 = 0;

/// Where rows come from.
pub enum Data {
    /// One batch around random centres.
    Random,
    /// `features_{train,test}.npy` and `labels_{train,test}.npy` of a folder, the first `rows` of the former.
    Folder {
        /// The folder.
        path: PathBuf,
        /// Training rows used.
        rows: usize,
    },
}

/// Features and their labels.
struct Rows {
    features: Matrix,
    labels: Vec<usize>,
}

/// The circuit of one shape and its batches, which iterations take in turn.
struct Job {
    preset: &'static Preset,
    geometry: Geometry,
    ledger: Ledger,
    constants: Constants,
    batches: Vec<Rows>,
    test: Option<Rows>,
}

impl Job {
    fn new(shape: &str, data: &Data, slots: usize) -> Result<Self> {
        let preset = Preset::named(shape)
            .ok_or_else(|| Error::Shape { name: shape.to_owned(), known: PRESETS.map(|p| p.name).join(", ") })?;
        let (batches, test) = match data {
            Data::Random => (vec![clusters(preset)], None),
            Data::Folder { path, rows } => load(path, *rows, preset)?,
        };
        let features = batches.first().map_or(preset.features, |b| b.features.columns());
        Ok(Self {
            preset,
            geometry: Geometry::new(slots, preset.batch, features, preset.classes)?,
            ledger: Ledger::lowest(),
            constants: Constants::built_in(preset.classes, RANGE)?,
            batches,
            test,
        })
    }

    /// Trains on one engine; `seal` encrypts at a level, `open` decrypts, `settle` waits for work that is still queued.
    fn run<E: Engine>(
        &self,
        engine: &E,
        iterations: usize,
        settle: impl Fn() -> Result<()>,
        seal: impl Fn(&[Complex64], usize) -> Result<E::Ciphertext>,
        open: impl Fn(&E::Ciphertext) -> Result<Vec<Complex64>>,
    ) -> Result<Outcome> {
        let (g, ledger) = (&self.geometry, self.ledger);
        let bar = progress::bar(iterations as u64 + 2);
        bar.set_message("circuit");
        let trainer = Trainer::new(engine, *g, ledger, self.constants.clone(), LOG_MOMENTUM_BOUND)?;
        bar.inc(1);
        bar.set_message("batches");
        let seal_batch = |rows: &Rows| -> Result<_> {
            let blocks: Vec<E::Ciphertext> = packing::features(g, &rows.features)?
                .iter()
                .map(|block| seal(block, ledger.fresh_features()))
                .collect::<Result<_>>()?;
            let labels = seal(&packing::labels(g, &rows.labels)?, ledger.probabilities())?;
            Ok(trainer.batch(engine, &blocks, labels, rows.features.rows())?)
        };
        let batches: Vec<_> = self.batches.iter().map(seal_batch).collect::<Result<_>>()?;
        bar.inc(1);
        bar.set_message("iterations");
        let initial = agreement::initial_weights(g.classes(), g.features(), 1);
        let mut model = Model::new(seal(&packing::weights(g, &initial)?, ledger.weights())?, Momentum::Nesterov);
        let mut twin = Twin::new(initial, Momentum::Nesterov);
        settle()?;
        let start = Instant::now();
        let mut refreshes = 0;
        for k in 0..iterations {
            model = trainer.step(engine, &model, &batches[k % batches.len()], self.preset.rate)?;
            if trainer.needs_refresh(&model) {
                model = trainer.refresh(engine, &model)?;
                refreshes += 1;
            }
            bar.inc(1);
        }
        settle()?;
        let seconds = start.elapsed().as_secs_f64() / iterations.max(1) as f64;
        bar.finish_and_clear();
        for k in 0..iterations {
            let rows = &self.batches[k % self.batches.len()];
            twin.step(&rows.features, &rows.labels, self.preset.rate, softmax::exact)?;
        }
        let weights = packing::unpack_weights(g, &open(&model.weights)?)?;
        let difference = weights.max_difference(twin.weights()) / twin.weights().max_magnitude();
        let test = self.test.as_ref().map(|rows| compare(rows, &weights, twin.weights())).transpose()?;
        Ok(Outcome { seconds, refreshes, difference, test })
    }
}

struct Outcome {
    seconds: f64,
    refreshes: usize,
    difference: f64,
    test: Option<Comparison>,
}

/// Predictions of the trained classifier beside its twin's.
struct Comparison {
    accuracy: f64,
    twin_accuracy: f64,
    /// Share of rows that the two classify differently.
    disagreement: f64,
}

fn compare(rows: &Rows, weights: &Matrix, twin: &Matrix) -> Result<Comparison> {
    let (ours, theirs) = (twin::logits(&rows.features, weights)?, twin::logits(&rows.features, twin)?);
    let count = rows.features.rows();
    let different = (0..count).filter(|&i| judge::predicted(ours.row(i)) != judge::predicted(theirs.row(i))).count();
    Ok(Comparison {
        accuracy: judge::accuracy(&ours, &rows.labels)?,
        twin_accuracy: judge::accuracy(&theirs, &rows.labels)?,
        disagreement: different as f64 / count.max(1) as f64,
    })
}

/// The first `rows` training rows in batches, and the test rows.
fn load(path: &Path, rows: usize, preset: &Preset) -> Result<(Vec<Rows>, Option<Rows>)> {
    let set = |name: &str| -> Result<Dataset> {
        let features = npy::matrix(&path.join(format!("features_{name}.npy")))?;
        Ok(Dataset::new(features, npy::labels(&path.join(format!("labels_{name}.npy")))?, preset.classes)?)
    };
    let (train, test) = (set("train")?, set("test")?);
    let rows = rows.min(train.rows());
    let part = |start: usize| {
        let range = start..rows.min(start + preset.batch);
        Rows { features: train.features().slice(range.clone()), labels: train.labels()[range].to_vec() }
    };
    let batches = (0..rows).step_by(preset.batch).map(part).collect();
    Ok((batches, Some(Rows { features: test.features().clone(), labels: test.labels().to_vec() })))
}

/// Runs iterations of one shape and describes them as a flat object.
pub fn report(shape: &str, data: &Data, kind: EngineKind, set: &str, iterations: usize) -> Result<Value> {
    let params = Params::named(set)?;
    let job = Job::new(shape, data, params.slots())?;
    let clear = Clear::new(params.slots(), params.top_level());
    let seal = |v: &[Complex64], level| Ok(clear.fresh(v, level)?);
    let outcome = job.run(&clear, iterations, || Ok(()), seal, |ct| Ok(clear.values(ct).to_vec()))?;
    let books = clear.books();
    let (outcome, engine) = match kind {
        EngineKind::Clear => (outcome, "clear"),
        EngineKind::Cpu => (on_cpu(&job, set, iterations)?, "cpu"),
        EngineKind::Cuda => (on_gpu(&job, set, iterations)?, "cuda"),
    };
    use hetal_circuits::clear::Kind;
    // The row-shifted versions of each batch are made once, outside the iterations: counted apart.
    let versions = (2 * job.batches.len() * job.geometry.blocks() * (job.geometry.padded_classes() - 1)) as u64;
    let per_iteration = |count: u64| count as f64 / iterations.max(1) as f64;
    let mut report = json!({
        "shape": shape,
        "engine": engine,
        "circuit": "ours",
        "set": set,
        "rows": job.preset.batch,
        "features": job.geometry.features(),
        "classes": job.preset.classes,
        "iterations": iterations,
        "bootstraps_per_iteration": per_iteration(books.count(Kind::Bootstrap) - outcome.refreshes as u64),
        "refreshes": outcome.refreshes,
        "key_switches_per_iteration": per_iteration(books.key_switches() - versions),
        "relinearisations_per_iteration": per_iteration(books.count(Kind::Relinearisation)),
        "products_per_iteration": per_iteration(books.count(Kind::Product)),
        "seconds_per_iteration": outcome.seconds,
        "weights_relative_difference": outcome.difference,
        "peak_rss_gib": crate::machine::peak_rss_gib(),
    });
    if let Some(test) = outcome.test {
        report["test_accuracy"] = test.accuracy.into();
        report["twin_accuracy"] = test.twin_accuracy.into();
        report["prediction_disagreement"] = test.disagreement.into();
    }
    Ok(report)
}

/// What the circuit of a job needs prepared.
fn needs(job: &Job, params: &Params) -> Result<Keys> {
    let constants = job.constants.clone();
    Ok(trainer::keys(job.geometry, job.ledger, constants, LOG_MOMENTUM_BOUND, params.top_level())?)
}

fn on_cpu(job: &Job, set: &str, iterations: usize) -> Result<Outcome> {
    let owner = Owner::new(set)?;
    let engine = owner.engine(&needs(job, &owner.params)?)?;
    let seal = |v: &[Complex64], level| owner.seal(&engine, v, level);
    job.run(&engine, iterations, || Ok(()), seal, |ct| owner.open(ct.inner()))
}

fn on_gpu(job: &Job, set: &str, iterations: usize) -> Result<Outcome> {
    let owner = Owner::new(set)?;
    let params = &owner.params;
    let gpu = Arc::new(CudaBackend::open(0, params.log_n(), params.chain(), params.special())?);
    let needs = needs(job, params)?;
    let keys = gpu.upload_keys(&owner.keys(&encrypted::keys(params, &needs))?);
    let evaluator = Evaluator::new(Arc::clone(params), Arc::clone(&gpu));
    let bootstrapper = Bootstrapper::new(&evaluator, &needs.bounds)?;
    let engine = Encrypted::new(evaluator, keys, bootstrapper);
    let seal = |v: &[Complex64], level| {
        let ct = owner.encrypt(v, params.limbs(level), params.scale(level))?;
        Ok(engine.admit(gpu.upload_ciphertext(&ct))?)
    };
    let open = |ct: &Sealed<CudaPoly>| {
        let bring = |poly: &CudaPoly| {
            let limbs = gpu.download(poly);
            Backend::upload(
                &*owner.ring,
                CudaBackend::basis(poly),
                &limbs.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            )
        };
        let ct = ct.inner();
        owner.open(&Ciphertext { c0: bring(&ct.c0), c1: bring(&ct.c1), limbs: ct.limbs, scale: ct.scale })
    };
    let outcome = job.run(&engine, iterations, || Ok(gpu.synchronize()?), seal, open)?;
    gpu.health()?;
    Ok(outcome)
}

/// Rows of norm about 1 around one centre per class.
fn clusters(preset: &Preset) -> Rows {
    let mut state = 5u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 11
    };
    let size = 1.0 / (preset.features as f64).sqrt();
    let mut signed = || next() as f64 / (1u64 << 52) as f64 - 1.0;
    let centres = Matrix::from_fn(preset.classes, preset.features, |_, _| size * signed());
    let labels: Vec<usize> = (0..preset.batch).map(|i| (i * 7 + i / 3) % preset.classes).collect();
    let x = Matrix::from_fn(preset.batch, preset.features, |i, h| centres[(labels[i], h)] + size * signed());
    Rows { features: x, labels }
}
