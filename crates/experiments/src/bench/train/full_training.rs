//! A training to early stopping: the session of a server and the judge of a client in one process,
//! compared with plain training.

use super::arguments::Arguments;
use super::data::BenchRows;
use super::device_memory::EngineRun;
use super::iterations::compare;
use super::setup::{RowsSent, TrainingSetup, prepare};
use crate::Result;
use crate::process::peak_rss_gib;
use crate::report::progress;
use crate::runner::engine::EngineKind;
use crate::runner::harness::{ClearHarness, Harness, HarnessCiphertext};
use crate::runner::{self, Experiment, GpuOptions};
use crate::tuning::{DataSplits, EarlyStopping, RATES, ROW_NORMS, TrainingResult, Trial, grid_search, preset};
use hetal_circuits::clear::{Clear, KeyRequirements, Noise};
use hetal_ckks::Params;
use hetal_learn::agreement::initial_weights;
use hetal_learn::driver::{EngineHost, drive};
use hetal_learn::nesterov::LOG_WEIGHT_BOUND;
use hetal_learn::session::Action;
use hetal_learn::softmax::Constants;
use hetal_learn::trainer::Trainer;
use hetal_learn::{Agreement, CachedBatch, Geometry, LevelPlan, Matrix, Session, Wishes, packing};
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// A training to early stopping; the versions of the first `resident` pieces stay in memory.
struct FullTraining<'a> {
    setup: &'a TrainingSetup,
    params: &'a Params,
    splits: &'a DataSplits,
    agreement: &'a Agreement,
    resident: usize,
}

/// The result and the times of a training.
struct TimedTraining {
    result: TrainingResult,
    /// Seconds of the whole training.
    seconds: f64,
    /// The number of gradient steps.
    steps: usize,
    /// Seconds of validation.
    validating: f64,
}

/// Encrypted rows of a training.
struct EncryptedRows<C> {
    training: Vec<CachedBatch<C>>,
    validation: Vec<CachedBatch<C>>,
}

impl Experiment for FullTraining<'_> {
    type Output = TimedTraining;

    fn required_keys(&self) -> Result<KeyRequirements> {
        let mut keys = self.setup.required_keys(self.params)?;
        // L2 refreshes the weights, too.
        keys.bounds.full.extend((self.agreement.alpha > 0.0).then_some(LOG_WEIGHT_BOUND));
        Ok(keys)
    }

    fn run<H: Harness>(&self, harness: &H) -> Result<TimedTraining> {
        let (engine, setup, agreement) = (harness.engine(), self.setup, self.agreement);
        let g = &setup.geometry;
        let trainer = setup.trainer(engine)?;
        let rows = self.encrypt_rows(harness, &trainer)?;
        let initial = initial_weights(g.classes(), g.features(), agreement.seed);
        let first = harness.encrypt_all(&packing::weights(g, &initial)?, setup.level_plan.weights())?;
        let mut session = Session::new(agreement.clone(), setup.batches.len(), first)?;
        let (mut stopping, mut steps, mut validating) = (EarlyStopping::new(self.splits, agreement, initial), 0, 0.0);
        harness.synchronize()?;
        let start = Instant::now();
        let bar = progress::bar((agreement.max_epochs * setup.batches.len()) as u64);
        bar.set_message("steps, at most");
        // KeyRequirements and circuit serve one range only.
        let trainer_of = |range: f64| {
            let known = range == agreement.range;
            known.then_some(&trainer).ok_or(hetal_learn::Error::NoConstants { classes: g.classes(), range })
        };
        let judge = |session: &Session<_>, _| -> Result<_> {
            let validation_start = Instant::now();
            let logits = self.validation_logits(harness, &trainer, &rows.validation, session.weights())?;
            let weights = || Ok(packing::unpack_weights(g, &harness.decrypt_all(session.weights())?)?);
            let verdict = stopping.judge(&logits, &self.splits.validation, weights)?;
            validating += validation_start.elapsed().as_secs_f64();
            Ok(ControlFlow::Continue(verdict))
        };
        let count_step = |_: &Session<_>, action| {
            if let Action::Step { .. } = action {
                steps += 1;
                bar.inc(1);
            }
            ControlFlow::Continue(())
        };
        let host = EngineHost::new(engine, &rows.training[..], trainer_of, judge);
        drive(&mut session, &mut host.on_advance(count_step))?;
        let seconds = start.elapsed().as_secs_f64();
        bar.finish_and_clear();
        Ok(TimedTraining { result: stopping.result, seconds, steps, validating })
    }
}

impl FullTraining<'_> {
    /// Encrypts the training rows and the validation rows, with a progress bar.
    fn encrypt_rows<H: Harness>(
        &self,
        harness: &H,
        trainer: &Trainer<H::Engine>,
    ) -> Result<EncryptedRows<HarnessCiphertext<H>>> {
        let (setup, validation) = (self.setup, &self.splits.validation);
        let piece_rows = setup.geometry.rows();
        let bar = progress::bar((setup.pieces() + 1) as u64);
        bar.set_message("batches");
        let mut rows = EncryptedRows { training: Vec::new(), validation: Vec::new() };
        for (k, piece) in setup.batches.iter().flat_map(|batch| batch.pieces(piece_rows)).enumerate() {
            bar.inc(1);
            let blob = setup.encrypt_rows(harness, &piece)?;
            rows.training.push(prepare(harness.engine(), trainer, blob, k < self.resident)?);
        }
        for range in validation.batches(piece_rows.min(validation.rows()))? {
            rows.validation.push(CachedBatch::Raw(setup.encrypt_rows(harness, &BenchRows::of(validation, range))?));
        }
        bar.finish_and_clear();
        Ok(rows)
    }

    /// Computes and decrypts the logits of the validation rows.
    fn validation_logits<H: Harness>(
        &self,
        harness: &H,
        trainer: &Trainer<H::Engine>,
        validation: &[CachedBatch<HarnessCiphertext<H>>],
        weights: &[HarnessCiphertext<H>],
    ) -> Result<Matrix> {
        let g = &self.setup.geometry;
        let mut logits = Vec::new();
        for held in validation {
            let batch = held.ready(harness.engine(), trainer)?;
            let packed = trainer.logits(harness.engine(), &batch.versions, weights)?;
            let rows = packing::unpack_logits(g, &harness.decrypt(&packed)?, batch.rows)?;
            logits.extend(rows.values().iter().map(|v| v * self.setup.constants.scale));
        }
        Ok(Matrix::new(self.splits.validation.rows(), g.classes(), logits)?)
    }
}

/// The circuit and batches of a training on normalised rows.
fn training_setup(
    splits: &DataSplits,
    agreement: &Agreement,
    slots: usize,
    rows_sent: RowsSent,
) -> Result<TrainingSetup> {
    let (classes, features) = (splits.train.classes(), splits.train.features().columns());
    let ranges = splits.train.batches(agreement.batch)?;
    Ok(TrainingSetup {
        preset: splits.preset,
        geometry: Geometry::new(slots, agreement.batch, features, classes)?,
        level_plan: LevelPlan::lowest(),
        constants: Constants::built_in(classes, agreement.range)?,
        rate: agreement.rate,
        rows_sent,
        batches: ranges.into_iter().map(|r| BenchRows::of(&splits.train, r)).collect(),
        test: Some(BenchRows::of(&splits.test, 0..splits.test.rows())),
    })
}

/// Trains our circuit on plain numbers, with simulated errors of encryption.
pub fn train_with_noise(splits: &DataSplits, agreement: &Agreement, noise: Noise, set: &str) -> Result<TrainingResult> {
    let params = Params::named(set)?;
    let setup = training_setup(splits, agreement, params.slots(), RowsSent::default())?;
    let harness = ClearHarness::new(Clear::with_noise(params.slots(), params.top_level(), noise));
    let training = FullTraining { setup: &setup, params: &params, splits, agreement, resident: setup.pieces() };
    Ok(training.run(&harness)?.result)
}

/// Trains our circuit on an engine.
pub fn train_on(
    engine: EngineKind,
    set: &str,
    gpu: GpuOptions,
    splits: &DataSplits,
    agreement: &Agreement,
) -> Result<TrainingResult> {
    let params = Params::named(set)?;
    let setup = training_setup(splits, agreement, params.slots(), RowsSent::default())?;
    let training = FullTraining { setup: &setup, params: &params, splits, agreement, resident: setup.pieces() };
    Ok(runner::run(&training, engine, set, gpu)?.result)
}

/// Trains to early stopping. Returns a flat object.
pub(super) fn measure(arguments: &Arguments, patience: usize) -> Result<Value> {
    let params = Arc::new(Params::named(&arguments.set)?);
    let raw = DataSplits::load(arguments.data.as_deref().unwrap_or(Path::new(".")), preset(&arguments.shape)?)?;
    let agreement = raw.agreement(&Wishes { patience: Some(patience), ..Wishes::default() })?;
    let row_norms = arguments.row_norm.map_or(ROW_NORMS.to_vec(), |norm| vec![norm]);
    let rates = arguments.rate.map_or(RATES.to_vec(), |rate| vec![rate]);
    let search = grid_search(&raw, &agreement, &row_norms, &rates)?;
    let &Trial { row_norm, rate, result: ref plain } = search.best();
    let (splits, agreement) = (raw.normalised(row_norm)?, Agreement { rate, ..agreement });
    let rows_sent = RowsSent::new(arguments.rows_form.into(), row_norm);
    let mut setup = training_setup(&splits, &agreement, params.slots(), rows_sent)?;
    setup.level_plan = setup.level_plan.with_keys(arguments.key_plan());
    let mut report = json!({
        "shape": arguments.shape,
        "engine": arguments.engine.name(),
        "set": arguments.set,
        "rows": splits.train.rows(),
        "batch": agreement.batch,
        "batches": setup.batches.len(),
        "patience": patience,
        "row_norm": row_norm,
        "rate": rate,
    });
    let validation_pieces = splits.validation.rows().div_ceil(setup.geometry.rows());
    let engine_run = EngineRun { arguments, params: &params, setup: &setup, validation_pieces };
    let experiment =
        |resident| FullTraining { setup: &setup, params: &params, splits: &splits, agreement: &agreement, resident };
    let training = engine_run.run(experiment, &mut report)?;
    setup.rows_sent.add_to(&mut report);
    let results = results(&training, plain, &splits)?;
    if let (Some(report), Value::Object(results)) = (report.as_object_mut(), results) {
        report.extend(results);
    }
    Ok(report)
}

/// The fields of a report that compare a training with the plain one.
fn results(training: &TimedTraining, plain: &TrainingResult, splits: &DataSplits) -> Result<Value> {
    let TimedTraining { result, seconds, steps, validating } = training;
    let test = BenchRows::of(&splits.test, 0..splits.test.rows());
    let compared = compare(&test, &result.weights, &plain.weights)?;
    Ok(json!({
        "iterations": steps,
        "epochs": result.checks,
        "best_epoch": result.best_check,
        "twin_epochs": plain.checks,
        "twin_best_epoch": plain.best_check,
        "training_s": seconds,
        "validating_s": validating,
        "validation_loss": result.loss,
        "twin_validation_loss": plain.loss,
        "validation_accuracy": result.validation_accuracy,
        "test_accuracy": compared.accuracy,
        "twin_accuracy": compared.plain_accuracy,
        "prediction_disagreement": compared.disagreement,
        "weights_relative_difference": result.weights.max_difference(&plain.weights) / plain.weights.max_magnitude(),
        "peak_rss_gib": peak_rss_gib(),
    }))
}
