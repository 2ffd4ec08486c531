//! Iterations of the paper's circuit: DiagABT, ASoftmax, DiagATB, weights tiled over many
//! ciphertexts.

use super::arguments::Arguments;
use super::data::BenchRows;
use super::setup::TrainingSetup;
use super::stage_clock::StageClock;
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
use hetal_learn::nesterov::{Momentum, StepSize};
use hetal_learn::paper::trainer::{self, PaperBatch};
use hetal_learn::paper::{Blocks, PaperTrainer};
use hetal_learn::reference::ReferenceModel;
use hetal_learn::softmax;
use serde_json::{Value, json};

/// log2 of the bound of the weights when they are bootstrapped.
const LOG_WEIGHT_BOUND: u32 = 3;

/// Iterations of the paper's circuit on the batches of a training.
struct PaperIterations<'a> {
    setup: &'a TrainingSetup,
    trainer: PaperTrainer,
    top_level: usize,
    iterations: usize,
}

struct PaperResults {
    seconds: f64,
    matrix_share: f64,
    difference: f64,
}

impl PaperIterations<'_> {
    fn features(&self) -> usize {
        self.setup.geometry.features()
    }

    fn encrypted<H: Harness>(
        &self,
        harness: &H,
        blocks: &Blocks<Vec<Complex64>>,
    ) -> Result<Blocks<HarnessCiphertext<H>>> {
        let row = |row: &Vec<Vec<_>>| row.iter().map(|block| harness.encrypt(block, self.top_level)).collect();
        Ok(Blocks::new(self.trainer.unit(), blocks.rows().iter().map(row).collect::<Result<_>>()?)?)
    }

    fn batch<H: Harness>(&self, harness: &H, rows: &BenchRows) -> Result<PaperBatch<HarnessCiphertext<H>>> {
        let (blocks, labels) = self.trainer.pack(&rows.features, &rows.labels)?;
        let labels = harness.encrypt(&labels, self.top_level)?;
        Ok(PaperBatch { features: self.encrypted(harness, &blocks)?, labels, rows: rows.features.rows() })
    }

    fn initial(&self) -> Matrix {
        agreement::initial_weights(self.setup.preset.classes, self.features(), 1)
    }

    /// The weights after the same iterations without encryption.
    fn exact(&self) -> Result<Matrix> {
        let mut reference = ReferenceModel::new(self.initial(), Momentum::Nesterov);
        for k in 0..self.iterations {
            let rows = &self.setup.batches[k % self.setup.batches.len()];
            reference.step(&rows.features, &rows.labels, StepSize::of(self.setup.rate), softmax::exact)?;
        }
        Ok(reference.weights().clone())
    }
}

impl Experiment for PaperIterations<'_> {
    type Output = PaperResults;

    fn required_keys(&self) -> Result<KeyRequirements> {
        Ok(trainer::keys(&self.trainer, self.features(), self.top_level, self.iterations)?)
    }

    fn run<H: Harness>(&self, harness: &H) -> Result<PaperResults> {
        let (engine, trainer) = (harness.engine(), &self.trainer);
        let batches: Vec<_> = self.setup.batches.iter().map(|rows| self.batch(harness, rows)).collect::<Result<_>>()?;
        let first = self.encrypted(harness, &trainer.pack_weights(&self.initial())?)?;
        let mut model = trainer.model(first, Momentum::Nesterov);
        let bar = progress::bar(self.iterations as u64);
        bar.set_message("iterations of the paper's circuit");
        harness.synchronize()?;
        let mut clock = StageClock::start();
        for k in 0..self.iterations {
            let mut end_stage = |stage| clock.end_stage(stage, harness.synchronize());
            model =
                trainer.step_observed(engine, &model, &batches[k % batches.len()], self.setup.rate, &mut end_stage)?;
            bar.inc(1);
        }
        let times = clock.stop()?;
        bar.finish_and_clear();
        let row = |row: &Vec<_>| row.iter().map(|block| harness.decrypt(block)).collect::<Result<_>>();
        let values: Vec<Vec<_>> = model.weights.rows().iter().map(row).collect::<Result<_>>()?;
        let weights = Blocks::new(trainer.unit(), values)?.unpack(self.setup.preset.classes, self.features() + 1);
        let exact = self.exact()?;
        Ok(PaperResults {
            seconds: times.total / self.iterations.max(1) as f64,
            matrix_share: times.matrix_share(),
            difference: weights.max_difference(&exact) / exact.max_magnitude(),
        })
    }
}

/// Runs iterations of the paper's circuit. Returns a flat object.
///
/// Operations are counted on plain numbers, whatever the engine is.
pub(super) fn measure(arguments: &Arguments, kind: EngineKind) -> Result<Value> {
    let params = Params::named(&arguments.set)?;
    let setup = TrainingSetup::new(arguments, params.slots())?;
    let preset = setup.preset;
    let trainer = PaperTrainer::new(params.slots(), preset.batch, preset.classes, LOG_WEIGHT_BOUND)?;
    let (top_level, iterations) = (params.top_level(), arguments.iterations);
    let experiment = PaperIterations { setup: &setup, trainer, top_level, iterations };
    let plain = ClearHarness::new(Clear::new(params.slots(), top_level));
    let clear = experiment.run(&plain)?;
    let counts = plain.engine().op_counts();
    let outcome = if kind == EngineKind::Clear {
        clear
    } else {
        runner::run(&experiment, kind, &arguments.set, arguments.gpu_options())?
    };
    let per_iteration = |count: u64| count as f64 / iterations.max(1) as f64;
    Ok(json!({
        "shape": arguments.shape_name(),
        "engine": kind.name(),
        "circuit": "paper",
        "set": arguments.set,
        "rows": preset.batch,
        "features": experiment.features(),
        "classes": preset.classes,
        "batches": setup.batches.len(),
        "iterations": iterations,
        "bootstraps_per_iteration": per_iteration(counts.count(OpKind::Bootstrap)),
        "refreshes": 0,
        "key_switches_per_iteration": per_iteration(counts.key_switches()),
        "relinearisations_per_iteration": per_iteration(counts.count(OpKind::Relinearisation)),
        "products_per_iteration": per_iteration(counts.count(OpKind::Product)),
        "levels_per_iteration": trainer.levels(),
        "seconds_per_iteration": outcome.seconds,
        "matrix_products_share": outcome.matrix_share,
        "validation_bytes_per_epoch": setup.validation_bytes(&params),
        "weights_relative_difference": outcome.difference,
        "peak_rss_gib": peak_rss_gib(),
    }))
}
