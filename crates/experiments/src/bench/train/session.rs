//! A whole training to early stopping: the server's session and the client's judge in one process, and the same in the clear.

use super::data::Rows;
use super::{Arguments, Job, compare, hold, on_engine, upload};
use crate::Result;
use crate::process::peak_rss_gib;
use crate::report::progress;
use crate::runner::Experiment;
use crate::runner::harness::{ClearHarness, Harness};
use crate::tuning::{Follow, RATES, ROW_NORMS, Sets, Trained, choose, preset};
use hetal_circuits::clear::{Clear, KeyRequirements, Noise};
use hetal_ckks::Params;
use hetal_learn::agreement::initial_weights;
use hetal_learn::driver::{EngineHost, drive};
use hetal_learn::session::Action;
use hetal_learn::softmax::Constants;
use hetal_learn::{Agreement, CachedBatch, Geometry, LevelPlan, Matrix, Session, Wishes, packing};
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// What the encrypted training did beside its result.
struct Run {
    trained: Trained,
    seconds: f64,
    steps: usize,
    validating: f64,
}

/// Trains under encryption to early stopping.
fn train<H: Harness>(harness: &H, job: &Job, sets: &Sets, agreement: &Agreement, resident: usize) -> Result<Run> {
    let (engine, g, level_plan) = (harness.engine(), &job.geometry, job.level_plan);
    let trainer = job.trainer(engine)?;
    let bar = progress::bar((job.pieces() + 1) as u64);
    bar.set_message("batches");
    let held = |(k, rows): (usize, Rows)| {
        bar.inc(1);
        hold(engine, &trainer, upload(harness, g, level_plan, &rows)?, k < resident)
    };
    let pieces = job.batches.iter().flat_map(|batch| batch.pieces(g.rows()));
    let batches: Vec<CachedBatch<_>> = pieces.enumerate().map(held).collect::<Result<_>>()?;
    let ranges = sets.validation.batches(g.rows().min(sets.validation.rows()))?;
    let validation = ranges.into_iter().map(|r| upload(harness, g, level_plan, &Rows::of(&sets.validation, r)));
    let validation: Vec<CachedBatch<_>> =
        validation.map(|upload| Ok(CachedBatch::Raw(upload?))).collect::<Result<_>>()?;
    bar.finish_and_clear();
    let initial = initial_weights(g.classes(), g.features(), agreement.seed);
    let first = harness.encrypt_all(&packing::weights(g, &initial)?, level_plan.weights())?;
    let mut session = Session::new(agreement.clone(), job.batches.len(), first)?;
    let (mut follow, mut steps, mut validating) = (Follow::new(agreement, initial), 0, 0.0);
    harness.synchronize()?;
    let start = Instant::now();
    let bar = progress::bar((agreement.max_epochs * job.batches.len()) as u64);
    bar.set_message("steps, at most");
    // Keys and circuit are those of one range.
    let trainer_of = |range: f64| {
        let known = range == agreement.range;
        known.then_some(&trainer).ok_or(hetal_learn::Error::NoConstants { classes: g.classes(), range })
    };
    let ask = |session: &Session<_>, _| -> Result<_> {
        let asked = Instant::now();
        let mut logits = Vec::new();
        for held in &validation {
            let batch = held.ready(engine, &trainer)?;
            let packed = trainer.logits(engine, &batch.versions, session.weights())?;
            let rows = packing::unpack_logits(g, &harness.decrypt(&packed)?, batch.rows)?;
            logits.extend(rows.values().iter().map(|v| v * job.constants.scale));
        }
        let logits = Matrix::new(sets.validation.rows(), g.classes(), logits)?;
        let weights = || Ok(packing::unpack_weights(g, &harness.decrypt_all(session.weights())?)?);
        let verdict = follow.epoch(&logits, &sets.validation, weights)?;
        validating += asked.elapsed().as_secs_f64();
        Ok(ControlFlow::Continue(verdict))
    };
    let advanced = |_: &Session<_>, action| {
        if let Action::Step { .. } = action {
            steps += 1;
            bar.inc(1);
        }
        ControlFlow::Continue(())
    };
    let host = EngineHost::new(engine, &batches[..], trainer_of, ask);
    drive(&mut session, &mut host.on_advance(advanced))?;
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    Ok(Run { trained: follow.trained, seconds, steps, validating })
}

/// The circuit and batches of a training.
fn job(sets: &Sets, agreement: &Agreement, slots: usize) -> Result<Job> {
    let (classes, features) = (sets.train.classes(), sets.train.features().columns());
    let ranges = sets.train.batches(agreement.batch)?;
    Ok(Job {
        preset: *sets.preset,
        geometry: Geometry::new(slots, agreement.batch, features, classes)?,
        level_plan: LevelPlan::lowest(),
        constants: Constants::built_in(classes, agreement.range)?,
        rate: agreement.rate,
        batches: ranges.into_iter().map(|r| Rows::of(&sets.train, r)).collect(),
        test: Some(Rows::of(&sets.test, 0..sets.test.rows())),
    })
}

/// Trains by our circuit on plain numbers that get the errors of a set's operations.
pub fn with_noise(sets: &Sets, agreement: &Agreement, noise: Noise, set: &str) -> Result<Trained> {
    let params = Params::named(set)?;
    let job = job(sets, agreement, params.slots())?;
    let engine = Clear::with_noise(params.slots(), params.top_level(), noise);
    Ok(train(&ClearHarness::new(engine), &job, sets, agreement, job.pieces())?.trained)
}

/// Trains and describes it as a flat object.
pub(super) fn report(arguments: &Arguments, patience: usize) -> Result<Value> {
    let params = Arc::new(Params::named(&arguments.set)?);
    let raw = Sets::load(arguments.data.as_deref().unwrap_or(Path::new(".")), preset(&arguments.shape)?)?;
    let wished = raw.agreement(&Wishes { patience: Some(patience), ..Wishes::default() })?;
    let row_norms = arguments.row_norm.map_or(ROW_NORMS.to_vec(), |norm| vec![norm]);
    let rates = arguments.rate.map_or(RATES.to_vec(), |rate| vec![rate]);
    let choice = choose(&raw, &wished, &row_norms, &rates)?;
    let &(row_norm, rate, ref exact) = choice.best();
    let (sets, agreement) = (raw.normalised(row_norm)?, Agreement { rate, ..wished });
    let job = job(&sets, &agreement, params.slots())?;
    let mut report = json!({
        "shape": arguments.shape,
        "engine": arguments.engine.name(),
        "set": arguments.set,
        "rows": sets.train.rows(),
        "batch": agreement.batch,
        "batches": job.batches.len(),
        "patience": patience,
        "row_norm": row_norm,
        "rate": rate,
    });
    // What is validated on is on a card as well.
    let validation = sets.validation.rows().div_ceil(job.geometry.rows());
    let work = |kept| Whole { job: &job, params: &params, sets: &sets, agreement: &agreement, kept };
    let run = on_engine(arguments, &params, &job, validation, work, &mut report)?;
    let test = Rows::of(&sets.test, 0..sets.test.rows());
    let compared = compare(&test, &run.trained.weights, &exact.weights)?;
    let difference = run.trained.weights.max_difference(&exact.weights) / exact.weights.max_magnitude();
    let results = json!({
        "iterations": run.steps,
        "epochs": run.trained.epochs,
        "best_epoch": run.trained.best_epoch,
        "twin_epochs": exact.epochs,
        "twin_best_epoch": exact.best_epoch,
        "training_s": run.seconds,
        "validating_s": run.validating,
        "validation_loss": run.trained.loss,
        "twin_validation_loss": exact.loss,
        "validation_accuracy": run.trained.validation_accuracy,
        "test_accuracy": compared.accuracy,
        "twin_accuracy": compared.twin_accuracy,
        "prediction_disagreement": compared.disagreement,
        "weights_relative_difference": difference,
        "peak_rss_gib": peak_rss_gib(),
    });
    if let (Some(report), Value::Object(results)) = (report.as_object_mut(), results) {
        report.extend(results);
    }
    Ok(report)
}

/// A training to early stopping, with the versions of so many pieces kept.
struct Whole<'a> {
    job: &'a Job,
    params: &'a Params,
    sets: &'a Sets,
    agreement: &'a Agreement,
    kept: usize,
}

impl Experiment for Whole<'_> {
    type Output = Run;

    fn required_keys(&self) -> Result<KeyRequirements> {
        self.job.needs(self.params)
    }

    fn run<H: Harness>(&self, harness: &H) -> Result<Run> {
        train(harness, self.job, self.sets, self.agreement, self.kept)
    }
}
