//! The paper's own circuit: DiagABT, ASoftmax, DiagATB, weights tiled over many ciphertexts.

use super::data::Rows;
use super::{Arguments, Clock, Job};
use crate::Result;
use crate::process::peak_rss_gib;
use crate::report::progress;
use crate::runner::engine::EngineKind;
use crate::runner::harness::{ClearHarness, Harness, HarnessCiphertext};
use crate::runner::{self, Experiment};
use hetal_circuits::clear::{Clear, KeyRequirements, OpKind};
use hetal_ckks::{Complex64, Params};
use hetal_learn::Matrix;
use hetal_learn::agreement;
use hetal_learn::nesterov::Momentum;
use hetal_learn::paper::trainer::{self, PaperBatch};
use hetal_learn::paper::{Blocks, PaperTrainer};
use hetal_learn::reference::ReferenceModel;
use hetal_learn::softmax;
use serde_json::{Value, json};

/// Weights are bounded by 8 where they are bootstrapped.
const LOG_WEIGHT_BOUND: u32 = 3;

/// Iterations of the paper's circuit on a job's batches.
struct PaperJob<'a> {
    job: &'a Job,
    trainer: PaperTrainer,
    top_level: usize,
    iterations: usize,
}

struct Outcome {
    seconds: f64,
    matrix_share: f64,
    difference: f64,
}

impl PaperJob<'_> {
    fn features(&self) -> usize {
        self.job.geometry.features()
    }

    fn sealed<H: Harness>(&self, harness: &H, blocks: &Blocks<Vec<Complex64>>) -> Result<Blocks<HarnessCiphertext<H>>> {
        let row = |row: &Vec<Vec<_>>| row.iter().map(|block| harness.encrypt(block, self.top_level)).collect();
        Ok(Blocks::new(self.trainer.unit(), blocks.rows().iter().map(row).collect::<Result<_>>()?)?)
    }

    fn batch<H: Harness>(&self, harness: &H, rows: &Rows) -> Result<PaperBatch<HarnessCiphertext<H>>> {
        let (blocks, labels) = self.trainer.pack(&rows.features, &rows.labels)?;
        let labels = harness.encrypt(&labels, self.top_level)?;
        Ok(PaperBatch { features: self.sealed(harness, &blocks)?, labels, rows: rows.features.rows() })
    }

    fn initial(&self) -> Matrix {
        agreement::initial_weights(self.job.preset.classes, self.features(), 1)
    }

    fn exact(&self) -> Result<Matrix> {
        let mut twin = ReferenceModel::new(self.initial(), Momentum::Nesterov);
        for k in 0..self.iterations {
            let rows = &self.job.batches[k % self.job.batches.len()];
            twin.step(&rows.features, &rows.labels, self.job.rate, softmax::exact)?;
        }
        Ok(twin.weights().clone())
    }
}

impl Experiment for PaperJob<'_> {
    type Output = Outcome;

    fn required_keys(&self) -> Result<KeyRequirements> {
        Ok(trainer::keys(&self.trainer, self.features(), self.top_level, self.iterations)?)
    }

    fn run<H: Harness>(&self, harness: &H) -> Result<Outcome> {
        let (engine, trainer) = (harness.engine(), &self.trainer);
        let batches: Vec<_> = self.job.batches.iter().map(|rows| self.batch(harness, rows)).collect::<Result<_>>()?;
        let first = self.sealed(harness, &trainer.pack_weights(&self.initial())?)?;
        let mut model = trainer.model(first, Momentum::Nesterov);
        let bar = progress::bar(self.iterations as u64);
        bar.set_message("iterations of the paper's circuit");
        harness.synchronize()?;
        let mut clock = Clock::start();
        for k in 0..self.iterations {
            let mut ended = |stage| clock.ended(stage, harness.synchronize());
            model = trainer.step_observed(engine, &model, &batches[k % batches.len()], self.job.rate, &mut ended)?;
            bar.inc(1);
        }
        let (total, matrices) = clock.stop()?;
        bar.finish_and_clear();
        let row = |row: &Vec<_>| row.iter().map(|block| harness.decrypt(block)).collect::<Result<_>>();
        let opened: Vec<Vec<_>> = model.weights.rows().iter().map(row).collect::<Result<_>>()?;
        let weights = Blocks::new(trainer.unit(), opened)?.unpack(self.job.preset.classes, self.features() + 1);
        let exact = self.exact()?;
        Ok(Outcome {
            seconds: total / self.iterations.max(1) as f64,
            matrix_share: matrices / total,
            difference: weights.max_difference(&exact) / exact.max_magnitude(),
        })
    }
}

/// Runs iterations of the paper's circuit and describes them as a flat object; counted in the clear in any case.
pub(super) fn report(arguments: &Arguments, kind: EngineKind) -> Result<Value> {
    let params = Params::named(&arguments.set)?;
    let job = Job::new(arguments, params.slots())?;
    let preset = job.preset;
    let trainer = PaperTrainer::new(params.slots(), preset.batch, preset.classes, LOG_WEIGHT_BOUND)?;
    let (top_level, iterations) = (params.top_level(), arguments.iterations);
    let work = PaperJob { job: &job, trainer, top_level, iterations };
    let plain = ClearHarness::new(Clear::new(params.slots(), top_level));
    let clear = work.run(&plain)?;
    let counts = plain.engine().op_counts();
    let outcome =
        if kind == EngineKind::Clear { clear } else { runner::run(&work, kind, &arguments.set, arguments.card())? };
    let per_iteration = |count: u64| count as f64 / iterations.max(1) as f64;
    Ok(json!({
        "shape": if arguments.is_custom() { "custom" } else { &arguments.shape },
        "engine": kind.name(),
        "circuit": "paper",
        "set": arguments.set,
        "rows": preset.batch,
        "features": work.features(),
        "classes": preset.classes,
        "batches": job.batches.len(),
        "iterations": iterations,
        "bootstraps_per_iteration": per_iteration(counts.count(OpKind::Bootstrap)),
        "refreshes": 0,
        "key_switches_per_iteration": per_iteration(counts.key_switches()),
        "relinearisations_per_iteration": per_iteration(counts.count(OpKind::Relinearisation)),
        "products_per_iteration": per_iteration(counts.count(OpKind::Product)),
        "levels_per_iteration": trainer.levels(),
        "seconds_per_iteration": outcome.seconds,
        "matrix_products_share": outcome.matrix_share,
        "validation_bytes_per_epoch": super::validation_bytes(&job, &params),
        "weights_relative_difference": outcome.difference,
        "peak_rss_gib": peak_rss_gib(),
    }))
}
