//! Trainings of real features to early stopping without encryption, and the choice of how by validation rows.

use crate::report::progress;
use crate::{Error, Result, feature_folder};
use hetal_learn::agreement::{PRESETS, Preset, initial_weights};
use hetal_learn::judge::NEAR_THE_END;
use hetal_learn::reference::{self, ReferenceModel};
use hetal_learn::softmax;
use hetal_learn::{Agreement, Dataset, Judge, Limits, Matrix, Normalisation, Verdict, Wishes};
use rayon::prelude::*;
use serde_json::{Value, json};
use std::path::Path;

/// Row lengths that are tried.
pub const ROW_NORMS: [f64; 6] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
/// Learning rates that are tried.
pub const RATES: [f64; 3] = [0.5, 1.0, 2.0];

/// The benchmark of a name.
pub fn preset(shape: &str) -> Result<&'static Preset> {
    Preset::named(shape)
        .ok_or_else(|| Error::Shape { name: shape.to_owned(), known: PRESETS.map(|p| p.name).join(", ") })
}

/// Rows to train on, to judge by, and to test on at the very end.
#[derive(Clone)]
pub struct Sets {
    /// What they are called.
    pub name: String,
    /// The benchmark they belong to.
    pub preset: &'static Preset,
    /// To train on.
    pub train: Dataset,
    /// To judge by.
    pub validation: Dataset,
    /// To test on.
    pub test: Dataset,
}

impl Sets {
    /// Reads `features_{train,val,test}.npy` and `labels_{train,val,test}.npy` of a folder.
    pub fn load(folder: &Path, preset: &'static Preset) -> Result<Self> {
        let (train, validation) = feature_folder::training_sets(folder, "val", preset.classes)?;
        let test = feature_folder::dataset(folder, "test", preset.classes)?;
        let name = folder.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        Ok(Self { name, preset, train, validation, test })
    }

    /// The same with the longest training row brought to `row_norm`.
    pub fn normalised(&self, row_norm: f64) -> Result<Self> {
        let normalisation = Normalisation::fit(self.train.features(), row_norm)?;
        let apply = |set: &Dataset| Ok::<_, Error>(set.with_features(normalisation.apply(set.features())?)?);
        Ok(Self {
            name: self.name.clone(),
            preset: self.preset,
            train: apply(&self.train)?,
            validation: apply(&self.validation)?,
            test: apply(&self.test)?,
        })
    }

    /// What a client with the benchmark's wishes agrees on with a server's defaults.
    pub fn agreement(&self, wishes: &Wishes) -> Result<Agreement> {
        let ours = self.preset.wishes();
        let wishes = Wishes {
            rate: wishes.rate.or(ours.rate),
            patience: wishes.patience.or(ours.patience),
            momentum: wishes.momentum,
            max_epochs: wishes.max_epochs,
            ..ours
        };
        Ok(Limits::default().agree(&wishes)?)
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

/// Trains on normalised rows without encryption or approximation.
pub fn exactly(sets: &Sets, agreement: &Agreement) -> Result<Trained> {
    let (train, validation) = (&sets.train, &sets.validation);
    let initial = initial_weights(train.classes(), train.features().columns(), agreement.seed);
    let mut twin = ReferenceModel::new(initial.clone(), agreement.momentum);
    let mut follow = Follow::new(agreement, initial);
    for _ in 0..agreement.max_epochs {
        for r in train.batches(agreement.batch)? {
            let (x, labels) = (train.features().slice(r.clone()), &train.labels()[r]);
            follow.trained.ranges.push(twin.step(&x, labels, agreement.rate, softmax::exact)?);
        }
        let logits = reference::logits(validation.features(), twin.weights())?;
        if follow.epoch(&logits, validation, || Ok(twin.weights().clone()))? == Verdict::Stop {
            break;
        }
    }
    Ok(follow.trained)
}

/// The client's view of a training.
pub struct Follow {
    judge: Judge,
    range: f64,
    /// What came of it so far.
    pub trained: Trained,
}

impl Follow {
    /// Before the first epoch.
    pub fn new(agreement: &Agreement, weights: Matrix) -> Self {
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

    /// Judges an epoch by its validation logits; `weights` are wanted if it is the best so far.
    pub fn epoch(
        &mut self,
        logits: &Matrix,
        rows: &Dataset,
        weights: impl FnOnce() -> Result<Matrix>,
    ) -> Result<Verdict> {
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
}

/// Trains exactly with every row length and rate; the least loss on validation rows wins. It is the client's choice, on its own plain
/// data, before anything is encrypted. Test rows are not looked at.
pub fn choose(raw: &Sets, agreement: &Agreement, row_norms: &[f64], rates: &[f64]) -> Result<Choice> {
    let tries: Vec<(f64, f64)> =
        row_norms.iter().flat_map(|&norm| rates.iter().map(move |&rate| (norm, rate))).collect();
    let bar = progress::bar(tries.len() as u64);
    bar.set_message(format!("{}: choosing", raw.name));
    let attempt = |&(norm, rate): &(f64, f64)| -> Result<(f64, f64, Trained)> {
        let trained = exactly(&raw.normalised(norm)?, &Agreement { rate, ..agreement.clone() })?;
        bar.inc(1);
        Ok((norm, rate, trained))
    };
    let tried: Vec<_> = tries.par_iter().map(attempt).collect::<Result<_>>()?;
    bar.finish_and_clear();
    let allowed = (0..tried.len()).filter(|&n| !tried[n].2.left_range);
    let best = allowed.min_by(|&a, &b| tried[a].2.loss.total_cmp(&tried[b].2.loss)).unwrap_or(0);
    Ok(Choice { tried, best })
}
