//! Plaintext training to early stopping, and the choice of hyper-parameters by validation rows.

use crate::feature_folder::{self, TrainingAndOther};
use crate::report::progress;
use crate::{Error, Result};
use hetal_learn::agreement::{PRESETS, Preset, initial_weights};
use hetal_learn::judge::NEAR_THE_END;
use hetal_learn::nesterov::StepSize;
use hetal_learn::reference::{self, ReferenceModel};
use hetal_learn::softmax;
use hetal_learn::{Agreement, AgreementLimits, Judge, LabelledMatrix, Matrix, Normalisation, Verdict, Wishes};
use rayon::prelude::*;
use serde_json::{Value, json};
use std::path::Path;

/// Row lengths that the grid search tries.
pub const ROW_NORMS: [f64; 6] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
/// Learning rates that the grid search tries.
pub const RATES: [f64; 3] = [0.5, 1.0, 2.0];

/// The benchmark of a name.
pub fn preset(shape: &str) -> Result<&'static Preset> {
    Preset::named(shape)
        .ok_or_else(|| Error::UnknownShape { name: shape.to_owned(), known: PRESETS.map(|p| p.name).join(", ") })
}

/// Rows of a benchmark, split for training, validation and test.
#[derive(Clone)]
pub struct DataSplits {
    /// The name of the folder they come from.
    pub name: String,
    /// The benchmark they belong to.
    pub preset: Preset,
    /// Training rows.
    pub train: LabelledMatrix,
    /// Validation rows: they choose hyper-parameters and end a training.
    pub validation: LabelledMatrix,
    /// Test rows: they are used once, after all choices.
    pub test: LabelledMatrix,
}

impl DataSplits {
    /// Reads `features_{train,val,test}.npy` and `labels_{train,val,test}.npy` of a folder.
    pub fn load(folder: &Path, preset: &'static Preset) -> Result<Self> {
        let TrainingAndOther { training, other } = feature_folder::training_and(folder, "val", preset.classes)?;
        let test = feature_folder::dataset(folder, "test", preset.classes)?;
        let name = folder.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        Ok(Self { name, preset: *preset, train: training, validation: other, test })
    }

    /// The same rows, scaled so that the longest training row has length `row_norm`.
    pub fn normalised(&self, row_norm: f64) -> Result<Self> {
        let normalisation = Normalisation::fit(self.train.features(), row_norm)?;
        let apply = |set: &LabelledMatrix| Ok::<_, Error>(set.with_features(normalisation.apply(set.features())?)?);
        Ok(Self {
            name: self.name.clone(),
            preset: self.preset,
            train: apply(&self.train)?,
            validation: apply(&self.validation)?,
            test: apply(&self.test)?,
        })
    }

    /// Whether the training rows are the validation rows too.
    pub fn validates_on_training_rows(&self) -> bool {
        self.train == self.validation
    }

    /// The agreement that a client with the benchmark's wishes reaches with a default server.
    pub fn agreement(&self, wishes: &Wishes) -> Result<Agreement> {
        let ours = self.preset.wishes();
        let wishes = Wishes {
            rate: wishes.rate.or(ours.rate),
            patience: wishes.patience.or(ours.patience),
            momentum: wishes.momentum,
            max_epochs: wishes.max_epochs,
            ..ours
        };
        Ok(AgreementLimits::default().agree(&wishes)?)
    }
}

/// The result of a training.
#[derive(Clone, Debug)]
pub struct TrainingResult {
    /// The weights of the best check.
    pub weights: Matrix,
    /// The best check, counted from 1.
    pub best_check: usize,
    /// The number of checks.
    pub checks: usize,
    /// The validation loss of the best check.
    pub loss: f64,
    /// The validation accuracy of the best check.
    pub validation_accuracy: f64,
    /// Whether a logit came too close to the end of the softmax's range.
    pub left_range: bool,
    /// The smallest and the largest logit of each step.
    pub ranges: Vec<(f64, f64)>,
}

/// Trains on normalised rows without encryption and with the exact softmax.
pub fn train_plain(splits: &DataSplits, agreement: &Agreement) -> Result<TrainingResult> {
    let (train, validation) = (&splits.train, &splits.validation);
    let initial = initial_weights(train.classes(), train.features().columns(), agreement.seed);
    let mut reference = ReferenceModel::new(initial.clone(), agreement.momentum);
    let mut stopping = EarlyStopping::new(splits, agreement, initial);
    let batches = train.batches(agreement.batch)?;
    let iterations_until = |check| agreement.iterations_until(check, batches.len());
    for check in 1..=agreement.checks(batches.len()) {
        for iteration in iterations_until(check - 1)..iterations_until(check) {
            let r = batches[iteration % batches.len()].clone();
            let (x, labels) = (train.features().slice(r.clone()), &train.labels()[r]);
            let size = StepSize { rate: agreement.rate, alpha: agreement.alpha };
            stopping.result.ranges.push(reference.step(&x, labels, size, softmax::exact)?);
        }
        reference.prepare_for_judgement();
        let logits = reference::logits(validation.features(), reference.weights())?;
        if stopping.judge(&logits, validation, || Ok(reference.weights().clone()))? == Verdict::Stop {
            break;
        }
    }
    Ok(stopping.result)
}

/// The client's side of a training: judges each check and keeps the best weights.
pub struct EarlyStopping {
    judge: Judge,
    range: f64,
    /// The result so far.
    pub result: TrainingResult,
}

impl EarlyStopping {
    /// The state before the first check.
    pub fn new(splits: &DataSplits, agreement: &Agreement, weights: Matrix) -> Self {
        let result = TrainingResult {
            weights,
            best_check: 0,
            checks: 0,
            loss: f64::INFINITY,
            validation_accuracy: 0.0,
            left_range: false,
            ranges: Vec::new(),
        };
        let judge = Judge::new(agreement.patience, agreement.range, 0);
        let judge = if splits.validates_on_training_rows() { judge.until_settled() } else { judge };
        Self { judge, range: agreement.range, result }
    }

    /// Judges a check by its validation logits. Calls `weights` if the check is the best so far.
    pub fn judge(
        &mut self,
        logits: &Matrix,
        rows: &LabelledMatrix,
        weights: impl FnOnce() -> Result<Matrix>,
    ) -> Result<Verdict> {
        let judgement = self.judge.judge(logits, rows.labels())?;
        let result = &mut self.result;
        result.checks += 1;
        result.left_range |= judgement.largest > NEAR_THE_END * self.range;
        if self.judge.best_check() == Some(result.checks) {
            result.weights = weights()?;
            result.best_check = result.checks;
            (result.loss, result.validation_accuracy) = (judgement.loss, judgement.accuracy);
        }
        Ok(judgement.verdict)
    }
}

/// One training of a grid search.
pub struct Trial {
    /// The length of the longest row.
    pub row_norm: f64,
    /// The learning rate.
    pub rate: f64,
    /// The result of the training.
    pub result: TrainingResult,
}

/// All trials of a grid search.
pub struct GridSearch {
    trials: Vec<Trial>,
    best: usize,
}

impl GridSearch {
    /// The trial with the smallest validation loss.
    pub fn best(&self) -> &Trial {
        &self.trials[self.best]
    }

    /// All trials as flat JSON objects.
    pub fn objects(&self) -> Vec<Value> {
        let object = |(n, trial): (usize, &Trial)| {
            json!({
                "row_norm": trial.row_norm,
                "rate": trial.rate,
                "validation_loss": trial.result.loss,
                "validation_accuracy": trial.result.validation_accuracy,
                "best_epoch": trial.result.best_check,
                "epochs": trial.result.checks,
                "left_range": trial.result.left_range,
                "chosen": n == self.best,
            })
        };
        self.trials.iter().enumerate().map(object).collect()
    }
}

/// Trains without encryption with every row length and rate.
///
/// The smallest validation loss wins among trials that stay within the range. The client makes
/// this choice on its own plain data before it encrypts anything. Test rows are not used.
pub fn grid_search(raw: &DataSplits, agreement: &Agreement, row_norms: &[f64], rates: &[f64]) -> Result<GridSearch> {
    let pairs: Vec<(f64, f64)> =
        row_norms.iter().flat_map(|&norm| rates.iter().map(move |&rate| (norm, rate))).collect();
    let bar = progress::bar(pairs.len() as u64);
    bar.set_message(format!("{}: grid search", raw.name));
    let trial = |&(row_norm, rate): &(f64, f64)| -> Result<Trial> {
        let result = train_plain(&raw.normalised(row_norm)?, &Agreement { rate, ..agreement.clone() })?;
        bar.inc(1);
        Ok(Trial { row_norm, rate, result })
    };
    let trials: Vec<_> = pairs.par_iter().map(trial).collect::<Result<_>>()?;
    bar.finish_and_clear();
    let allowed = (0..trials.len()).filter(|&n| !trials[n].result.left_range);
    let best = allowed.min_by(|&a, &b| trials[a].result.loss.total_cmp(&trials[b].result.loss)).unwrap_or(0);
    Ok(GridSearch { trials, best })
}
