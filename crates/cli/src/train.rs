//! `hetal bench train`: iterations of encrypted training on random features of a benchmark's shape.

use crate::owner::Owner;
use crate::{Error, Result, progress};
use hetal_circuits::clear::Clear;
use hetal_circuits::{Complex64, Engine};
use hetal_learn::agreement::{self, PRESETS, Preset};
use hetal_learn::nesterov::Momentum;
use hetal_learn::softmax::{self, Constants};
use hetal_learn::trainer::{self, Model, Trainer};
use hetal_learn::twin::Twin;
use hetal_learn::{Geometry, Ledger, Matrix, packing};
use serde_json::{Value, json};
use std::time::Instant;

/// Where iterations run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// On plain numbers, with books.
    Clear,
    /// On ciphertexts, on this machine's CPU.
    Cpu,
}

/// Logits are bounded by this in both directions.
const RANGE: f64 = 128.0;
/// The momentum is bounded by 1 where it is refreshed.
const LOG_MOMENTUM_BOUND: u32 = 0;

/// The circuit of one shape and a batch for it.
struct Job {
    preset: &'static Preset,
    geometry: Geometry,
    ledger: Ledger,
    constants: Constants,
    features: Matrix,
    labels: Vec<usize>,
}

impl Job {
    fn new(shape: &str, slots: usize) -> Result<Self> {
        let preset = Preset::named(shape)
            .ok_or_else(|| Error::Shape { name: shape.to_owned(), known: PRESETS.map(|p| p.name).join(", ") })?;
        let (features, labels) = clusters(preset);
        Ok(Self {
            preset,
            geometry: Geometry::new(slots, preset.batch, preset.features, preset.classes)?,
            ledger: Ledger::lowest(),
            constants: Constants::built_in(preset.classes, RANGE)?,
            features,
            labels,
        })
    }

    /// Trains on one engine; `seal` encrypts at a level, `open` decrypts.
    fn run<E: Engine>(
        &self,
        engine: &E,
        iterations: usize,
        seal: impl Fn(&[Complex64], usize) -> Result<E::Ciphertext>,
        open: impl Fn(&E::Ciphertext) -> Result<Vec<Complex64>>,
    ) -> Result<Outcome> {
        let (g, ledger) = (&self.geometry, self.ledger);
        let bar = progress::bar(iterations as u64 + 2);
        bar.set_message("circuit");
        let trainer = Trainer::new(engine, *g, ledger, self.constants.clone(), LOG_MOMENTUM_BOUND)?;
        bar.inc(1);
        bar.set_message("batch");
        let blocks: Vec<E::Ciphertext> = packing::features(g, &self.features)?
            .iter()
            .map(|block| seal(block, ledger.fresh_features()))
            .collect::<Result<_>>()?;
        let labels = seal(&packing::labels(g, &self.labels)?, ledger.probabilities())?;
        let batch = trainer.batch(engine, &blocks, labels, self.features.rows())?;
        bar.inc(1);
        bar.set_message("iterations");
        let initial = agreement::initial_weights(self.preset.classes, self.preset.features, 1);
        let mut model = Model::new(seal(&packing::weights(g, &initial)?, ledger.weights())?, Momentum::Nesterov);
        let mut twin = Twin::new(initial, Momentum::Nesterov);
        let start = Instant::now();
        let mut refreshes = 0;
        for _ in 0..iterations {
            model = trainer.step(engine, &model, &batch, self.preset.rate)?;
            if trainer.needs_refresh(&model) {
                model = trainer.refresh(engine, &model)?;
                refreshes += 1;
            }
            bar.inc(1);
        }
        let seconds = start.elapsed().as_secs_f64() / iterations.max(1) as f64;
        bar.finish_and_clear();
        for _ in 0..iterations {
            twin.step(&self.features, &self.labels, self.preset.rate, softmax::exact)?;
        }
        let weights = packing::unpack_weights(g, &open(&model.weights)?)?;
        let difference = weights.max_difference(twin.weights()) / twin.weights().max_magnitude();
        Ok(Outcome { seconds, refreshes, difference })
    }
}

struct Outcome {
    seconds: f64,
    refreshes: usize,
    difference: f64,
}

/// Runs iterations of one shape and describes them as a flat object.
pub fn report(shape: &str, kind: EngineKind, set: &str, iterations: usize) -> Result<Value> {
    let params = hetal_ckks::Params::named(set)?;
    let job = Job::new(shape, params.slots())?;
    let clear = Clear::new(params.slots(), params.top_level());
    let seal = |v: &[Complex64], level| Ok(clear.fresh(v, level)?);
    let outcome = job.run(&clear, iterations, seal, |ct| Ok(clear.values(ct).to_vec()))?;
    let books = clear.books();
    let (outcome, engine) = match kind {
        EngineKind::Clear => (outcome, "clear"),
        EngineKind::Cpu => {
            let owner = Owner::new(set)?;
            let constants = job.constants.clone();
            let needs = trainer::keys(job.geometry, job.ledger, constants, LOG_MOMENTUM_BOUND, params.top_level())?;
            let engine = owner.engine(&needs)?;
            let seal = |v: &[Complex64], level| owner.seal(&engine, v, level);
            (job.run(&engine, iterations, seal, |ct| owner.open(ct.inner()))?, "cpu")
        }
    };
    use hetal_circuits::clear::Kind;
    // The row-shifted versions of the batch are made once, outside the iterations: counted apart.
    let versions = (2 * job.geometry.blocks() * (job.geometry.padded_classes() - 1)) as u64;
    let per_iteration = |count: u64| count as f64 / iterations.max(1) as f64;
    Ok(json!({
        "shape": shape,
        "engine": engine,
        "circuit": "ours",
        "set": set,
        "rows": job.preset.batch,
        "features": job.preset.features,
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
    }))
}

/// Rows of norm about 1 around one centre per class.
fn clusters(preset: &Preset) -> (Matrix, Vec<usize>) {
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
    (x, labels)
}
