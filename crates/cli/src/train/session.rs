//! A whole training to early stopping: the server's session and the client's judge in one process, and the same in the clear.

use super::data::{Rows, set};
use super::setting::{Plain, Sealing, Setting};
use super::{Arguments, GIB, Job, RANGE, compare, fit, hold, preset, upload};
use crate::engine::{EngineKind, gpu};
use crate::machine::peak_rss_gib;
use crate::owner::Owner;
use crate::{Result, progress};
use hetal_circuits::Clear;
use hetal_ckks::Params;
use hetal_learn::agreement::{Preset, initial_weights};
use hetal_learn::session::{self, Task};
use hetal_learn::softmax::{self, Constants};
use hetal_learn::twin::{self, Twin};
use hetal_learn::{
    Agreement, Dataset, Geometry, Held, Judge, Ledger, Limits, Matrix, Normalisation, Session, Verdict, packing,
};
use rayon::prelude::*;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Lengths of the longest row that are tried where none is given.
const ROW_NORMS: [f64; 5] = [1.0, 2.0, 3.0, 5.0, 8.0];
/// Multiples of the paper's learning rate that are tried where none is given.
const RATE_FACTORS: [f64; 3] = [0.5, 1.0, 2.0];

/// Rows to train on, to judge by, and to test on at the very end.
struct Sets {
    train: Dataset,
    validation: Dataset,
    test: Dataset,
}

impl Sets {
    fn load(path: &Path, preset: &Preset) -> Result<Self> {
        let set = |name| set(path, name, preset.classes);
        Ok(Self { train: set("train")?, validation: set("val")?, test: set("test")? })
    }

    fn normalised(&self, row_norm: f64) -> Result<Self> {
        let normalisation = Normalisation::fit(self.train.features(), row_norm)?;
        let apply = |set: &Dataset| Ok::<_, crate::Error>(set.with_features(normalisation.apply(set.features())?)?);
        Ok(Self { train: apply(&self.train)?, validation: apply(&self.validation)?, test: apply(&self.test)? })
    }
}

/// A finished training.
struct Trained {
    weights: Matrix,
    best_epoch: usize,
    epochs: usize,
    /// The lowest loss on the validation rows, and the accuracy there.
    loss: f64,
    accuracy: f64,
}

/// Keeps the best of the epochs judged so far.
struct Best {
    judge: Judge,
    kept: Option<(f64, f64)>,
    epochs: usize,
}

impl Best {
    fn new(agreement: &Agreement) -> Self {
        Self { judge: Judge::new(agreement.patience, agreement.range, 3), kept: None, epochs: 0 }
    }

    /// The verdict on an epoch, and whether it is the best so far.
    fn judge(&mut self, logits: &Matrix, labels: &[usize]) -> Result<(Verdict, bool)> {
        let before = self.judge.best_epoch();
        let judgement = self.judge.judge(logits, labels)?;
        self.epochs += 1;
        let better = self.judge.best_epoch() != before;
        if better {
            self.kept = Some((judgement.loss, judgement.accuracy));
        }
        Ok((judgement.verdict, better))
    }

    fn trained(self, weights: Matrix) -> Trained {
        let (loss, accuracy) = self.kept.unwrap_or((f64::NAN, 0.0));
        Trained { weights, best_epoch: self.judge.best_epoch().unwrap_or(0), epochs: self.epochs, loss, accuracy }
    }
}

/// Trains exactly, with the same rules.
fn train_exactly(sets: &Sets, agreement: &Agreement) -> Result<Trained> {
    let (train, validation) = (&sets.train, &sets.validation);
    let first = initial_weights(train.classes(), train.features().columns(), agreement.seed);
    let (mut twin, mut best) = (Twin::new(first.clone(), agreement.momentum), Best::new(agreement));
    let mut weights = first;
    for _ in 0..agreement.max_epochs {
        for r in train.batches(agreement.batch)? {
            twin.step(&train.features().slice(r.clone()), &train.labels()[r], agreement.rate, softmax::exact)?;
        }
        let (verdict, better) =
            best.judge(&twin::logits(validation.features(), twin.weights())?, validation.labels())?;
        if better {
            weights = twin.weights().clone();
        }
        if verdict != Verdict::Continue {
            break;
        }
    }
    Ok(best.trained(weights))
}

/// The length of rows and the rate whose exact training has the lowest loss on the validation rows: the client's choice, on its own
/// plain data, before anything is encrypted. The test rows are not looked at.
fn choose(sets: &Sets, arguments: &Arguments, agreement: &Agreement) -> Result<(f64, f64)> {
    let norms = arguments.row_norm.map_or(ROW_NORMS.to_vec(), |norm| vec![norm]);
    let rates = arguments.rate.map_or(RATE_FACTORS.map(|f| f * agreement.rate).to_vec(), |rate| vec![rate]);
    let all: Vec<(f64, f64)> = norms.iter().flat_map(|&norm| rates.iter().map(move |&rate| (norm, rate))).collect();
    if let [only] = all[..] {
        return Ok(only);
    }
    let bar = progress::bar(all.len() as u64);
    bar.set_message("choosing by validation");
    let judged = all.par_iter().map(|&(norm, rate)| {
        let trained = train_exactly(&sets.normalised(norm)?, &Agreement { rate, ..agreement.clone() })?;
        bar.inc(1);
        Ok((trained.loss, (norm, rate)))
    });
    let judged: Vec<(f64, (f64, f64))> = judged.collect::<Result<_>>()?;
    bar.finish_and_clear();
    let best = judged.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
    Ok(best.map_or((1.0, agreement.rate), |(_, chosen)| chosen))
}

/// What the encrypted training did beside its result.
struct Run {
    trained: Trained,
    seconds: f64,
    steps: usize,
    validating: f64,
}

/// Trains under encryption to early stopping.
fn train<S: Setting>(setting: &S, job: &Job, sets: &Sets, agreement: &Agreement, resident: usize) -> Result<Run> {
    let (engine, g, ledger) = (setting.engine(), &job.geometry, job.ledger);
    let trainer = job.trainer(engine)?;
    let bar = progress::bar((job.batches.len() + 1) as u64);
    bar.set_message("batches");
    let held = |(k, rows): (usize, &Rows)| {
        bar.inc(1);
        hold(engine, &trainer, upload(setting, g, ledger, rows)?, k < resident)
    };
    let batches: Vec<Held<_>> = job.batches.iter().enumerate().map(held).collect::<Result<_>>()?;
    let ranges = sets.validation.batches(g.rows().min(sets.validation.rows()))?;
    let validation = ranges.into_iter().map(|r| upload(setting, g, ledger, &Rows::of(&sets.validation, r)));
    let validation: Vec<Held<_>> = validation.map(|upload| Ok(Held::AsSent(upload?))).collect::<Result<_>>()?;
    bar.finish_and_clear();
    let first = initial_weights(g.classes(), g.features(), agreement.seed);
    let first = setting.seal(&packing::weights(g, &first)?, ledger.weights())?;
    let mut session = Session::new(agreement.clone(), batches.len(), first)?;
    let (mut best, mut steps, mut validating) = (Best::new(agreement), 0, 0.0);
    setting.settle()?;
    let start = Instant::now();
    let bar = progress::bar((agreement.max_epochs * batches.len()) as u64);
    bar.set_message("steps, at most");
    // Keys and circuit are those of one range.
    let trainer_of = |range: f64| {
        let known = range == agreement.range;
        known.then_some(&trainer).ok_or(hetal_learn::Error::NoConstants { classes: g.classes(), range })
    };
    let mut rest = |_: &Session<_>| {
        steps += 1;
        bar.inc(1);
        true
    };
    while let Task::Validate { .. } = session::advance(engine, &mut session, &batches[..], trainer_of, &mut rest)? {
        let asked = Instant::now();
        let mut logits = Vec::new();
        for held in &validation {
            let batch = held.ready(engine, &trainer)?;
            let packed = trainer.logits(engine, &batch.versions, session.weights())?;
            let rows = packing::unpack_logits(g, &setting.open(&packed)?, batch.rows)?;
            logits.extend(rows.values().iter().map(|v| v * job.constants.scale));
        }
        let logits = Matrix::new(sets.validation.rows(), g.classes(), logits)?;
        let (verdict, _) = best.judge(&logits, sets.validation.labels())?;
        session.judged(verdict)?;
        validating += asked.elapsed().as_secs_f64();
    }
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let epoch = best.judge.best_epoch();
    let kept = session.kept().find(|(kept, _)| Some(*kept) == epoch).map_or(session.weights(), |(_, weights)| weights);
    let weights = packing::unpack_weights(g, &setting.open(kept)?)?;
    Ok(Run { trained: best.trained(weights), seconds, steps, validating })
}

/// Trains and describes it as a flat object.
pub(super) fn report(arguments: &Arguments, patience: usize) -> Result<Value> {
    let preset = preset(&arguments.shape)?;
    let params = Arc::new(Params::named(&arguments.set)?);
    let raw = Sets::load(arguments.data.as_deref().unwrap_or(Path::new(".")), preset)?;
    let wished =
        Agreement { batch: preset.batch, rate: preset.rate, patience, range: RANGE, ..Limits::default().defaults };
    let (row_norm, rate) = choose(&raw, arguments, &wished)?;
    let (sets, agreement) = (raw.normalised(row_norm)?, Agreement { rate, ..wished });
    let ranges = sets.train.batches(agreement.batch)?;
    let job = Job {
        preset,
        geometry: Geometry::new(params.slots(), preset.batch, sets.train.features().columns(), preset.classes)?,
        ledger: Ledger::lowest(),
        constants: Constants::built_in(preset.classes, RANGE)?,
        rate,
        batches: ranges.into_iter().map(|r| Rows::of(&sets.train, r)).collect(),
        test: Some(Rows::of(&sets.test, 0..sets.test.rows())),
    };
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
    let run = run(arguments, &params, &job, &sets, &agreement, &mut report)?;
    let exact = train_exactly(&sets, &agreement)?;
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
        "validation_accuracy": run.trained.accuracy,
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

/// Trains on the engine that is asked for.
fn run(
    arguments: &Arguments,
    params: &Arc<Params>,
    job: &Job,
    sets: &Sets,
    agreement: &Agreement,
    report: &mut Value,
) -> Result<Run> {
    let kept = if arguments.versions == super::VersionsKept::Remade { 0 } else { job.batches.len() };
    match arguments.engine {
        EngineKind::Clear => train(&Plain(Clear::new(params.slots(), params.top_level())), job, sets, agreement, kept),
        EngineKind::Cpu => {
            let owner = Owner::new(&arguments.set)?;
            let engine = owner.engine(&job.needs(params)?)?;
            train(&Sealing::new(&owner, &engine), job, sets, agreement, kept)
        }
        EngineKind::Cuda => {
            let (needs, gpu) = (job.needs(params)?, gpu(params, arguments.device)?);
            // What is validated on is on the card as well.
            let validation = sets.validation.rows().div_ceil(job.geometry.rows());
            let batches = job.batches.len();
            let resident = fit(arguments, &gpu, params, &needs, job, batches + validation, report)?.min(batches);
            report["batches_resident"] = resident.into();
            let owner = Owner::new(&arguments.set)?;
            let start = Instant::now();
            let engine = owner.engine_on(Arc::clone(&gpu), &needs)?;
            report["keys_and_matrices_s"] = start.elapsed().as_secs_f64().into();
            let run = train(&Sealing::new(&owner, &engine), job, sets, agreement, resident)?;
            report["device_peak_gib"] = (gpu.peak_bytes() as f64 / GIB).into();
            Ok(run)
        }
    }
}
