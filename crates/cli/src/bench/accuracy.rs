//! `hetal bench accuracy`: trainings of real features to early stopping, exactly and with the errors of encryption.
//!
//! The length features are brought to and the learning rate are chosen by the loss on validation rows. Test rows are looked at once,
//! after that.

use crate::lab::{EngineKind, Lab, Work, run as run_on};
use crate::noise::BootstrapNoise;
use crate::table::{Table, digits};
use crate::{Error, Result, npy, progress};
use hetal_circuits::clear::{self, Clear, Keys, Noise};
use hetal_circuits::{Complex64, Engine};
use hetal_ckks::Params;
use hetal_learn::agreement::{Preset, initial_weights};
use hetal_learn::judge::{NEAR_THE_END, accuracy};
use hetal_learn::nesterov::Momentum;
use hetal_learn::session::{self, Task};
use hetal_learn::softmax::{self, Constants};
use hetal_learn::trainer::{Batch, Trainer};
use hetal_learn::twin::{self, Twin};
use hetal_learn::{
    Agreement, Dataset, Geometry, Judge, Ledger, Limits, Matrix, Normalisation, Session, Verdict, Wishes, packing,
};
use rayon::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// What `hetal bench accuracy` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// A folder with features_{train,val,test}.npy and labels_{train,val,test}.npy.
    #[arg(long)]
    pub data: PathBuf,
    /// The benchmark whose batch and patience are used: facemask, snips, ...
    #[arg(long, default_value = "snips")]
    pub shape: String,
    /// The parameter set whose errors are made.
    #[arg(long, default_value = "full")]
    pub set: String,
    /// Print an array of JSON objects.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let data = Data::load(&arguments.data, &arguments.shape)?;
    let choice = choose(&data)?;
    let errors = OperationErrors::measure(&arguments.set)?;
    let objects = vec![report(&data, &choice, &arguments.set, errors)?];
    super::show(&objects, arguments.json, |_| {
        println!("{}", choice.table());
        table(&objects)
    });
    Ok(())
}

/// Row lengths that are tried.
pub const ROW_NORMS: [f64; 6] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
/// Learning rates that are tried.
pub const RATES: [f64; 3] = [0.5, 1.0, 2.0];

/// Rows as they were brought, with the benchmark they belong to.
pub struct Data {
    /// What it is called.
    pub name: String,
    /// The benchmark.
    pub preset: &'static Preset,
    raw: [Dataset; 3],
}

impl Data {
    /// Reads a folder.
    pub fn load(folder: &Path, shape: &str) -> Result<Self> {
        let preset = Preset::named(shape).ok_or_else(|| Error::Shape {
            name: shape.to_owned(),
            known: hetal_learn::agreement::PRESETS.map(|p| p.name).join(", "),
        })?;
        let set = |name: &str| npy::dataset(folder, name, preset.classes);
        let name = folder.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        Ok(Self { name, preset, raw: [set("train")?, set("val")?, set("test")?] })
    }

    /// Training, validation and test rows with the longest training row brought to `row_norm`.
    fn normalised(&self, row_norm: f64) -> Result<[Dataset; 3]> {
        let normalisation = Normalisation::fit(self.raw[0].features(), row_norm)?;
        let normalised = |set: &Dataset| set.with_features(normalisation.apply(set.features())?);
        Ok([normalised(&self.raw[0])?, normalised(&self.raw[1])?, normalised(&self.raw[2])?])
    }

    /// What a client that wishes for a rate agrees on with a server's defaults.
    fn agreement(&self, rate: f64, momentum: Momentum, max_epochs: usize) -> Result<Agreement> {
        let wishes = Wishes { rate: Some(rate), momentum: Some(momentum), ..self.preset.wishes() };
        Ok(Agreement { max_epochs, ..Limits::default().agree(&wishes)? })
    }
}

/// A training that ended.
#[derive(Clone, Debug)]
pub struct Trained {
    /// The weights of the best epoch.
    pub weights: Matrix,
    /// The best epoch, counted from 1.
    pub best_epoch: usize,
    /// Epochs done.
    pub epochs: usize,
    /// Loss on the validation rows after the best epoch.
    pub loss: f64,
    /// Accuracy there.
    pub validation_accuracy: f64,
    /// Whether logits came too near the end of the softmax's range.
    pub left_range: bool,
    /// Smallest and largest logit of each step.
    pub ranges: Vec<(f64, f64)>,
}

/// Trains without encryption or approximation.
pub fn exactly(data: &Data, row_norm: f64, rate: f64, momentum: Momentum, max_epochs: usize) -> Result<Trained> {
    let [train, validation, _] = data.normalised(row_norm)?;
    let agreement = data.agreement(rate, momentum, max_epochs)?;
    let initial = initial_weights(train.classes(), train.features().columns(), agreement.seed);
    let mut twin = Twin::new(initial.clone(), agreement.momentum);
    let mut follow = Follow::new(&agreement, initial);
    for _ in 0..agreement.max_epochs {
        for r in train.batches(agreement.batch)? {
            let (x, labels) = (train.features().slice(r.clone()), &train.labels()[r]);
            follow.trained.ranges.push(twin.step(&x, labels, agreement.rate, softmax::exact)?);
        }
        let logits = twin::logits(validation.features(), twin.weights())?;
        if follow.epoch(&logits, &validation, || Ok(twin.weights().clone()))? == Verdict::Stop {
            break;
        }
    }
    Ok(follow.trained)
}

/// The client's view of a training.
struct Follow {
    judge: Judge,
    range: f64,
    trained: Trained,
}

impl Follow {
    fn new(agreement: &Agreement, weights: Matrix) -> Self {
        let trained = Trained {
            weights,
            best_epoch: 0,
            epochs: 0,
            loss: f64::INFINITY,
            validation_accuracy: 0.0,
            left_range: false,
            ranges: Vec::new(),
        };
        Self { judge: Judge::new(agreement.patience, agreement.range, 0), range: agreement.range, trained }
    }

    fn epoch(&mut self, logits: &Matrix, rows: &Dataset, weights: impl FnOnce() -> Result<Matrix>) -> Result<Verdict> {
        let judgement = self.judge.judge(logits, rows.labels())?;
        let trained = &mut self.trained;
        trained.epochs += 1;
        trained.left_range |= judgement.largest > NEAR_THE_END * self.range;
        if self.judge.best_epoch() == Some(trained.epochs) {
            trained.weights = weights()?;
            trained.best_epoch = trained.epochs;
            (trained.loss, trained.validation_accuracy) = (judgement.loss, judgement.accuracy);
        }
        Ok(judgement.verdict)
    }
}

/// What was tried, and what was best on validation rows.
pub struct Choice {
    /// Row length, rate and what came of them.
    pub tried: Vec<(f64, f64, Trained)>,
    best: usize,
}

impl Choice {
    /// The best row length and rate with its training.
    pub fn best(&self) -> &(f64, f64, Trained) {
        &self.tried[self.best]
    }

    /// All that was tried, as flat objects.
    pub fn objects(&self) -> Vec<Value> {
        let object = |(n, (row_norm, rate, trained)): (usize, &(f64, f64, Trained))| {
            json!({
                "row_norm": row_norm,
                "rate": rate,
                "validation_loss": trained.loss,
                "validation_accuracy": trained.validation_accuracy,
                "best_epoch": trained.best_epoch,
                "epochs": trained.epochs,
                "left_range": trained.left_range,
                "chosen": n == self.best,
            })
        };
        self.tried.iter().enumerate().map(object).collect()
    }

    fn table(&self) -> Table {
        choice_table(&self.objects())
    }
}

/// A table of what was tried.
pub fn choice_table(objects: &[Value]) -> Table {
    Table::of(
        objects,
        &[
            ("row_norm", "row length"),
            ("rate", "rate"),
            ("validation_loss", "validation loss"),
            ("validation_accuracy", "validation accuracy"),
            ("best_epoch", "best epoch"),
            ("epochs", "epochs"),
            ("left_range", "left the range"),
            ("chosen", "chosen"),
        ],
    )
}

/// Trains exactly with every row length and rate; the least loss on validation rows wins.
pub fn choose(data: &Data) -> Result<Choice> {
    let tries: Vec<(f64, f64)> = ROW_NORMS.iter().flat_map(|&norm| RATES.map(|rate| (norm, rate))).collect();
    let bar = progress::bar(tries.len() as u64);
    bar.set_message(format!("{}: choosing", data.name));
    let attempt = |&(norm, rate): &(f64, f64)| -> Result<(f64, f64, Trained)> {
        let trained = exactly(data, norm, rate, Momentum::Nesterov, Limits::default().defaults.max_epochs)?;
        bar.inc(1);
        Ok((norm, rate, trained))
    };
    let tried: Vec<_> = tries.par_iter().map(attempt).collect::<Result<_>>()?;
    bar.finish_and_clear();
    let allowed = (0..tried.len()).filter(|&n| !tried[n].2.left_range);
    let best = allowed.min_by(|&a, &b| tried[a].2.loss.total_cmp(&tried[b].2.loss)).unwrap_or(0);
    Ok(Choice { tried, best })
}

/// Trains the chosen way with the errors of a set, and compares the test accuracies.
pub fn report(data: &Data, choice: &Choice, set: &str, errors: OperationErrors) -> Result<Value> {
    let (row_norm, rate, exact) = choice.best();
    let noise = Noise { operation: errors.deviation(), bootstrap: BootstrapNoise::of(set)?.typical, seed: 1 };
    let noisy = with_noise(data, *row_norm, *rate, noise, set)?;
    let [_, _, test] = data.normalised(*row_norm)?;
    let tested =
        |weights: &Matrix| -> Result<f64> { Ok(accuracy(&twin::logits(test.features(), weights)?, test.labels())?) };
    let (exact_accuracy, noisy_accuracy) = (tested(&exact.weights)?, tested(&noisy.weights)?);
    Ok(json!({
        "data": data.name,
        "rows": data.raw[0].rows(),
        "batch": data.preset.batch,
        "patience": Preset::PATIENCE,
        "row_norm": row_norm,
        "rate": rate,
        "validation_loss": exact.loss,
        "noisy_validation_loss": noisy.loss,
        "best_epoch": exact.best_epoch,
        "noisy_best_epoch": noisy.best_epoch,
        "epochs": exact.epochs,
        "noisy_epochs": noisy.epochs,
        "test_accuracy": exact_accuracy,
        "noisy_test_accuracy": noisy_accuracy,
        "difference_points": 100.0 * (exact_accuracy - noisy_accuracy),
        "weights_relative_difference": noisy.weights.max_difference(&exact.weights) / exact.weights.max_magnitude(),
        "bootstrap_noise": noise.bootstrap,
        "operation_noise": noise.operation,
    }))
}

/// A table of reports.
pub fn table(objects: &[Value]) -> Table {
    let mut table = Table::new(&[
        "data",
        "rows",
        "row length",
        "rate",
        "best epoch / epochs",
        "with noise",
        "test accuracy",
        "with noise",
        "points lost",
        "weights differ by",
    ]);
    for object in objects {
        let number = |name: &str| object[name].as_f64().unwrap_or(f64::NAN);
        let percent = |name: &str| format!("{:.2} %", 100.0 * number(name));
        let epochs = |best: &str, all: &str| format!("{} / {}", object[best], object[all]);
        table.push(vec![
            object["data"].as_str().unwrap_or("").to_owned(),
            object["rows"].to_string(),
            digits(number("row_norm")),
            digits(number("rate")),
            epochs("best_epoch", "epochs"),
            epochs("noisy_best_epoch", "noisy_epochs"),
            percent("test_accuracy"),
            percent("noisy_test_accuracy"),
            format!("{:.2}", number("difference_points")),
            digits(number("weights_relative_difference")),
        ]);
    }
    table
}

/// Trains by the circuit, on plain numbers with errors, in a session.
fn with_noise(data: &Data, row_norm: f64, rate: f64, noise: Noise, set: &str) -> Result<Trained> {
    let [train, validation, _] = data.normalised(row_norm)?;
    let agreement = data.agreement(rate, Momentum::Nesterov, Limits::default().defaults.max_epochs)?;
    let (params, ledger) = (Params::named(set)?, Ledger::lowest());
    let engine = Clear::with_noise(params.slots(), params.top_level(), noise);
    let (features, classes) = (train.features().columns(), train.classes());
    let g = Geometry::new(params.slots(), agreement.batch, features, classes)?;
    let constants = Constants::built_in(classes, agreement.range)?;
    let scale = constants.scale;
    let trainer = Trainer::new(&engine, g, ledger, constants, LOG_MOMENTUM_BOUND)?;
    let bar = progress::bar((agreement.max_epochs * train.rows().div_ceil(agreement.batch)) as u64);
    bar.set_message(format!("{}: training with noise", data.name));
    let batches = upload(&engine, &trainer, &train, agreement.batch)?;
    let validation_batches = upload(&engine, &trainer, &validation, g.rows().min(validation.rows()))?;
    let initial = initial_weights(classes, features, agreement.seed);
    let first = engine.fresh(&packing::weights(&g, &initial)?, ledger.weights())?;
    let mut session = Session::new(agreement.clone(), batches.len(), first)?;
    let mut follow = Follow::new(&agreement, initial);
    let stepped = |_: &Session<clear::Ciphertext>| {
        bar.inc(1);
        true
    };
    while let Task::Validate { .. } = session::advance(&engine, &mut session, &batches, |_| Ok(&trainer), stepped)? {
        let mut logits = Vec::new();
        for batch in &validation_batches {
            let packed = trainer.logits(&engine, &batch.versions, session.weights())?;
            let rows = packing::unpack_logits(&g, engine.values(&packed), batch.rows)?;
            logits.extend(rows.values().iter().map(|v| v * scale));
        }
        let logits = Matrix::new(validation.rows(), classes, logits)?;
        let weights = || Ok(packing::unpack_weights(&g, engine.values(session.weights()))?);
        let verdict = follow.epoch(&logits, &validation, weights)?;
        session.judged(verdict)?;
    }
    bar.finish_and_clear();
    Ok(follow.trained)
}

/// The momentum is at most 4 where it is refreshed; `Clear` checks it.
const LOG_MOMENTUM_BOUND: u32 = 2;

fn upload(
    engine: &Clear,
    trainer: &Trainer<Clear>,
    set: &Dataset,
    size: usize,
) -> Result<Vec<Batch<clear::Ciphertext>>> {
    let (g, ledger) = (trainer.products().geometry(), trainer.products().ledger());
    let mut batches = Vec::new();
    for r in set.batches(size)? {
        let blocks = packing::features(g, &set.features().slice(r.clone()))?;
        let blocks: Vec<_> =
            blocks.iter().map(|b| Ok(engine.fresh(b, ledger.fresh_features())?)).collect::<Result<_>>()?;
        let labels = engine.fresh(&packing::labels(g, &set.labels()[r.clone()])?, ledger.probabilities())?;
        batches.push(trainer.batch(engine, &blocks, labels, r.len())?);
    }
    Ok(batches)
}

/// Mean `|error|` over the slots of one rotation and of one multiplication, each of a fresh ciphertext, whose own error is included.
#[derive(Clone, Copy, Debug)]
pub struct OperationErrors {
    /// Of a rotation.
    pub rotation: f64,
    /// Of a multiplication with relinearisation and rescale.
    pub multiplication: f64,
}

impl OperationErrors {
    /// Measures them under encryption, on this machine's CPU.
    pub fn measure(set: &str) -> Result<Self> {
        run_on(&OneOfEach, EngineKind::Cpu, set)
    }

    /// The deviation per real coordinate of the worse of the two, by the mean of a Rayleigh distribution.
    pub fn deviation(&self) -> f64 {
        self.rotation.max(self.multiplication) / (std::f64::consts::PI / 2.0).sqrt()
    }
}

struct OneOfEach;

impl Work for OneOfEach {
    type Output = OperationErrors;

    fn needs(&self) -> Result<Keys> {
        let level = Ledger::lowest().probabilities();
        Ok(Keys { rotations: vec![(1, level)], relinearisation: Some(level), ..Keys::default() })
    }

    fn run<L: Lab>(&self, lab: &L) -> Result<OperationErrors> {
        let engine = lab.engine();
        let slots = engine.slots();
        let values: Vec<Complex64> = (0..slots).map(|i| Complex64::from_polar(1.0, (i * i) as f64)).collect();
        let ct = lab.seal(&values, Ledger::lowest().probabilities())?;
        let mean = |got: Vec<Complex64>, expected: &dyn Fn(usize) -> Complex64| {
            got.iter().enumerate().map(|(i, v)| (v - expected(i)).norm()).sum::<f64>() / slots as f64
        };
        let rotated = lab.open(&engine.rotate(&ct, 1)?)?;
        let squared = lab.open(&engine.square(&ct)?)?;
        Ok(OperationErrors {
            rotation: mean(rotated, &|i| values[(i + 1) % slots]),
            multiplication: mean(squared, &|i| values[i] * values[i]),
        })
    }
}
