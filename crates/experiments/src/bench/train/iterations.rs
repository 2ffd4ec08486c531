//! A fixed number of iterations of our circuit, compared with training on plain numbers.

use super::arguments::Arguments;
use super::data::BenchRows;
use super::setup::{TrainingSetup, prepare};
use super::stage_clock::StageClock;
use crate::Result;
use crate::process::cpu_time;
use crate::report::progress;
use crate::runner::Experiment;
use crate::runner::engine::EngineKind;
use crate::runner::harness::{ClearHarness, Harness, HarnessCiphertext};
use hetal_circuits::clear::{Clear, KeyRequirements, OpKind};
use hetal_ckks::Params;
use hetal_cuda::KernelTime;
use hetal_learn::nesterov::{Momentum, StepSize};
use hetal_learn::reference::{self, ReferenceModel};
use hetal_learn::softmax;
use hetal_learn::trainer::{ModelState, Trainer};
use hetal_learn::{CachedBatch, Matrix, batches, judge, packing};
use indicatif::ProgressBar;
use serde_json::Value;
use std::ops::Range;
use std::time::Instant;

/// Iterations of a training; the versions of the first `resident` pieces stay in memory.
pub(super) struct Iterations<'a> {
    pub(super) setup: &'a TrainingSetup,
    pub(super) params: &'a Params,
    pub(super) arguments: &'a Arguments,
    pub(super) resident: usize,
}

/// The measurements of a run.
pub(super) struct IterationResults {
    pub(super) timing: IterationTiming,
    /// The share of matrix products in the time, if the run waited for each stage.
    pub(super) matrix_share: Option<f64>,
    /// Kernel times of the profiled iteration.
    pub(super) kernels: Vec<KernelTime>,
    /// Seconds to compute the versions of a piece, if any were computed before the first iteration.
    pub(super) versions_seconds: Option<f64>,
    /// The number of refreshes of the momentum.
    pub(super) refreshes: usize,
    /// The largest difference from plain training, relative to the largest weight.
    pub(super) difference: f64,
    /// The comparison on test rows, if there are any.
    pub(super) test: Option<Comparison>,
}

/// Mean seconds of an iteration.
pub(super) struct IterationTiming {
    /// All work.
    pub(super) wall: f64,
    /// Until all work is queued.
    pub(super) queued: f64,
    /// CPU time of the host until all work is queued.
    pub(super) host_cpu: f64,
}

/// The encrypted pieces of all batches.
struct PreparedPieces<C> {
    pieces: Vec<CachedBatch<C>>,
    /// Seconds to prepare all of them.
    seconds: f64,
}

/// A model after some iterations.
struct TrainedModel<C> {
    model: ModelState<C>,
    timing: IterationTiming,
    refreshes: usize,
    matrix_share: Option<f64>,
}

impl Experiment for Iterations<'_> {
    type Output = IterationResults;

    fn required_keys(&self) -> Result<KeyRequirements> {
        self.setup.required_keys(self.params)
    }

    fn run<H: Harness>(&self, harness: &H) -> Result<IterationResults> {
        let setup = self.setup;
        let bar = progress::bar((self.arguments.iterations + setup.pieces() + 1) as u64);
        bar.set_message("circuit");
        let trainer = setup.trainer(harness.engine())?;
        bar.inc(1);
        let prepared = self.prepare(harness, &trainer, &bar)?;
        let trained = self.train(harness, &trainer, &prepared.pieces, &bar)?;
        bar.finish_and_clear();
        let mut matrix_share = trained.matrix_share;
        if self.arguments.profile {
            matrix_share = Some(self.profile(harness, &trainer, &prepared.pieces, &trained.model)?);
        }
        let kernels = harness.profile(false);
        let plain = self.train_plain()?;
        let weights = packing::unpack_weights(&setup.geometry, &harness.decrypt_all(&trained.model.weights)?)?;
        let resident = self.resident.min(prepared.pieces.len());
        Ok(IterationResults {
            timing: trained.timing,
            matrix_share,
            kernels,
            versions_seconds: (resident > 0).then(|| prepared.seconds / resident as f64),
            refreshes: trained.refreshes,
            difference: weights.max_difference(&plain) / plain.max_magnitude(),
            test: setup.test.as_ref().map(|rows| compare(rows, &weights, &plain)).transpose()?,
        })
    }
}

impl Iterations<'_> {
    /// Encrypts all pieces and computes the versions of the resident ones.
    fn prepare<H: Harness>(
        &self,
        harness: &H,
        trainer: &Trainer<H::Engine>,
        bar: &ProgressBar,
    ) -> Result<PreparedPieces<HarnessCiphertext<H>>> {
        bar.set_message("batches");
        let mut prepared = PreparedPieces { pieces: Vec::new(), seconds: 0.0 };
        let rows = self.setup.batches.iter().flat_map(|batch| batch.pieces(self.setup.geometry.rows()));
        for (k, rows) in rows.enumerate() {
            let blob = self.setup.encrypt_rows(harness, &rows)?;
            harness.synchronize()?;
            let start = Instant::now();
            prepared.pieces.push(prepare(harness.engine(), trainer, blob, k < self.resident)?);
            harness.synchronize()?;
            prepared.seconds += start.elapsed().as_secs_f64();
            bar.inc(1);
        }
        Ok(prepared)
    }

    /// The pieces of the batch of iteration `k`.
    fn pieces_of(&self, k: usize, pieces: usize) -> Range<usize> {
        let (setup, batch) = (self.setup, k % self.setup.batches.len());
        batches::pieces_of(&setup.geometry, setup.preset.batch, batch, pieces)
    }

    fn train<H: Harness>(
        &self,
        harness: &H,
        trainer: &Trainer<H::Engine>,
        pieces: &[CachedBatch<HarnessCiphertext<H>>],
        bar: &ProgressBar,
    ) -> Result<TrainedModel<HarnessCiphertext<H>>> {
        bar.set_message("iterations");
        let (engine, rate) = (harness.engine(), self.setup.rate);
        let mut model = self.setup.initial_model(harness)?;
        let mut refreshes = 0;
        harness.synchronize()?;
        let (start, cpu) = (Instant::now(), cpu_time());
        let mut clock = StageClock::start();
        for k in 0..self.arguments.iterations {
            let mut end_stage = |stage| clock.end_stage(stage, Ok(()));
            let range = self.pieces_of(k, pieces.len());
            model = batches::step(engine, trainer, &model, pieces, range, StepSize::of(rate), &mut end_stage)?;
            if model.needs_refresh() {
                model = trainer.refresh(engine, &model)?;
                refreshes += 1;
            }
            bar.inc(1);
        }
        let mean = |seconds: f64| seconds / self.arguments.iterations.max(1) as f64;
        let queued = mean(start.elapsed().as_secs_f64());
        let host_cpu = mean((cpu_time() - cpu).as_secs_f64());
        harness.synchronize()?;
        let timing = IterationTiming { wall: mean(start.elapsed().as_secs_f64()), queued, host_cpu };
        // Work on a GPU is queued, and waiting for each stage would slow it down. The shares of a
        // GPU are those of the profiled iteration.
        let waits = self.arguments.engine != EngineKind::Cuda;
        let matrix_share = if waits { Some(clock.stop()?.matrix_share()) } else { None };
        Ok(TrainedModel { model, timing, refreshes, matrix_share })
    }

    /// Runs one more iteration with kernel times. Returns the share of matrix products.
    fn profile<H: Harness>(
        &self,
        harness: &H,
        trainer: &Trainer<H::Engine>,
        pieces: &[CachedBatch<HarnessCiphertext<H>>],
        model: &ModelState<HarnessCiphertext<H>>,
    ) -> Result<f64> {
        harness.profile(true);
        let mut clock = StageClock::start();
        let mut end_stage = |stage| clock.end_stage(stage, harness.synchronize());
        let (range, rate) = (self.pieces_of(0, pieces.len()), self.setup.rate);
        batches::step(harness.engine(), trainer, model, pieces, range, StepSize::of(rate), &mut end_stage)?;
        Ok(clock.stop()?.matrix_share())
    }

    /// The weights after the same iterations on plain numbers.
    fn train_plain(&self) -> Result<Matrix> {
        let mut reference = ReferenceModel::new(self.setup.initial_weights(), Momentum::Nesterov);
        for k in 0..self.arguments.iterations {
            let rows = &self.setup.batches[k % self.setup.batches.len()];
            reference.step(&rows.features, &rows.labels, StepSize::of(self.setup.rate), softmax::exact)?;
        }
        Ok(reference.weights().clone())
    }
}

/// Predictions of the encrypted training and of the plain one on test rows.
pub(super) struct Comparison {
    pub(super) accuracy: f64,
    pub(super) plain_accuracy: f64,
    /// The share of rows that the two classify differently.
    pub(super) disagreement: f64,
}

/// Compares two classifiers on test rows.
pub(super) fn compare(rows: &BenchRows, weights: &Matrix, plain: &Matrix) -> Result<Comparison> {
    let (ours, theirs) = (reference::logits(&rows.features, weights)?, reference::logits(&rows.features, plain)?);
    let count = rows.features.rows();
    let different = (0..count).filter(|&i| judge::predicted(ours.row(i)) != judge::predicted(theirs.row(i))).count();
    Ok(Comparison {
        accuracy: judge::accuracy(&ours, &rows.labels)?,
        plain_accuracy: judge::accuracy(&theirs, &rows.labels)?,
        disagreement: different as f64 / count.max(1) as f64,
    })
}

/// Adds the operations of an iteration after the first to `report`, counted on plain numbers.
pub(super) fn count_operations(setup: &TrainingSetup, params: &Params, report: &mut Value) -> Result<()> {
    let harness = ClearHarness::new(Clear::new(params.slots(), params.top_level()));
    let engine = harness.engine();
    let trainer = setup.trainer(engine)?;
    let piece = |rows: BenchRows| prepare(engine, &trainer, setup.encrypt_rows(&harness, &rows)?, true);
    let pieces: Vec<_> = setup.batches[0].pieces(setup.geometry.rows()).map(piece).collect::<Result<_>>()?;
    let step = |model: &ModelState<_>| {
        batches::step(engine, &trainer, model, &pieces[..], 0..pieces.len(), StepSize::of(setup.rate), &mut |_| {})
    };
    let model = step(&setup.initial_model(&harness)?)?;
    engine.take_op_counts();
    step(&model)?;
    let counts = engine.take_op_counts();
    report["bootstraps_per_iteration"] = counts.count(OpKind::Bootstrap).into();
    report["key_switches_per_iteration"] = counts.key_switches().into();
    report["relinearisations_per_iteration"] = counts.count(OpKind::Relinearisation).into();
    report["products_per_iteration"] = counts.count(OpKind::Product).into();
    Ok(())
}
