//! Records of trainings, and the pages that show them.
//!
//! A training that ends writes its record, and its page unless a passphrase locks the project.
//! Records of trainings in progress are put together from the files of their folders. For models
//! of earlier versions, which have no record, the model file tells what it knows.

mod measures;

use crate::project::{self, KeySet, io_error};
use crate::rpc::HyperParameters;
use crate::training::current_phase::{LiveFile, now, tenths};
use crate::training::{Round, shown_loss};
use crate::{Error, Layout, Model, Project, Result, TrainingData};
use hetal_ckks::Params;
use hetal_keys::locked_file::FileSealer;
use hetal_learn::judge::{NEAR_THE_END, wider};
use hetal_learn::{Matrix, Verdict};
use hetal_report as report;
pub use hetal_report::{Record, TrainingState, page};
use std::path::PathBuf;

const NOTICE: &str = "PRIVATE: accuracies, losses and curves follow from decrypted values. Keep this like the model \
                      file. It holds no weight and no row.";
/// A larger difference to the plaintext reference is not noise.
pub const AGREES: f64 = 0.01;

/// What a training leaves for its record.
pub(crate) struct FinishedTraining<'a> {
    pub model: &'a Model,
    pub model_path: PathBuf,
    pub data: &'a TrainingData,
    pub layout: &'a Layout,
    pub terms: &'a HyperParameters,
    pub rounds: &'a [Round],
    /// The logits of the validation rows by which the best check was judged.
    pub logits: &'a Matrix,
    /// The relative difference to the plaintext reference, and what may be shown of it.
    pub difference: Option<f64>,
    pub difference_bound: Option<f64>,
    pub seconds_per_iteration: Option<f64>,
    pub keys: &'a KeySet,
    /// Bytes of all row blobs: of training rows and of validation rows.
    pub row_bytes: [u64; 2],
    /// Bytes of keys and rows that were really sent.
    pub sent: [u64; 2],
    /// Ciphertexts of validation rows, and returned weights.
    pub received: [usize; 2],
    pub live: &'a LiveFile,
}

impl FinishedTraining<'_> {
    pub fn record(&self) -> Result<Record> {
        let mut record = of_model(self.model, Some(&self.layout.params));
        let outcome = record.outcome.get_or_insert_default();
        outcome.converged = Some(self.rounds.last().is_some_and(|round| round.verdict == Verdict::Stop));
        outcome.difference_bound = self.difference_bound;
        outcome.agrees = self.difference.map(|difference| difference < AGREES);
        let accepted = self.rounds.iter().enumerate().filter(|(_, round)| round.accepted);
        outcome.best_check = accepted.map(|(k, _)| k + 1).nth(self.model.training.best_check().saturating_sub(1));
        record.set_checks(checks(self.rounds, self.terms, &self.live.checks));
        record.measures = Some(measures::of(self.logits, self.data.validation.labels())?);
        record.began = Some(self.live.began.clone());
        record.ended = Some(now());
        record.command.clone_from(&self.live.command);
        record.phases = phases(self.live);
        record.seconds = Some(tenths(record.phases.iter().map(|phase| phase.seconds).sum()));
        record.iteration_seconds = self.seconds_per_iteration.map(|seconds| (seconds * 1e3).round() / 1e3);
        record.transfers = self.transfers();
        record.server.engine.clone_from(&self.live.engine);
        record.hyper_parameters = hyper_parameters(self.terms);
        record.model_path = Some(self.model_path.display().to_string());
        Ok(record)
    }

    fn transfers(&self) -> Vec<report::Transfer> {
        let transfer =
            |what: &str, sent, bytes, transferred| report::Transfer { what: what.to_owned(), sent, bytes, transferred };
        let [training, validation] = self.row_bytes;
        // Which of the rows the server had before is not known one by one.
        let of_rows = |bytes| match self.sent[1] {
            0 => Some(0),
            sent if sent == training + validation => Some(bytes),
            _ => None,
        };
        let logits = self.rounds.len() as u64 * self.received[0] as u64 * self.layout.logit_bytes();
        let weights = self.received[1] as u64 * self.layout.weight_bytes();
        let all = self.keys.bytes + training + validation;
        vec![
            transfer("key set", true, self.keys.bytes, Some(self.sent[0])),
            transfer("training rows", true, training, of_rows(training)),
            transfer("validation rows", true, validation, of_rows(validation)),
            transfer(report::ALL_SENT, true, all, Some(self.sent.iter().sum())),
            transfer("validation logits", false, logits, Some(logits)),
            transfer("weights of the last checks", false, weights, Some(weights)),
        ]
    }
}

/// What is shown of the rows and the result.
pub(crate) fn preparation(data: &TrainingData, prior: f64) -> report::PreparationRecord {
    report::PreparationRecord {
        scaling: data.normalisation.scaling().name().to_owned(),
        imputes: data.normalisation.fill().is_some(),
        weighted: data.is_weighted(),
        prior,
    }
}

/// The shape of a training.
pub(crate) fn shape(data: &TrainingData) -> report::TrainedShape {
    report::TrainedShape {
        features: data.features(),
        classes: data.classes.len(),
        rows: data.training.rows(),
        validation_rows: data.validation.rows(),
        validated_on_training_rows: data.preparation.validates_on_training_rows,
    }
}

/// The checks of a training. Range and rate follow from the verdicts.
pub(crate) fn checks(rounds: &[Round], terms: &HyperParameters, seconds: &[Option<f64>]) -> Vec<report::Check> {
    let (mut range, mut rate) = (terms.range, terms.rate);
    let check = |(k, round): (usize, &Round)| {
        let shown = round.shown();
        let check = report::Check {
            number: k + 1,
            verdict: shown.verdict,
            accepted: shown.accepted,
            loss: shown.loss,
            accuracy: shown.accuracy,
            largest_logit: shown.largest_logit,
            range,
            limit: NEAR_THE_END * range,
            rate,
            seconds: seconds.get(k).copied().flatten(),
        };
        match round.verdict {
            Verdict::WidenRange => range = wider(range).unwrap_or(range),
            Verdict::LowerRate => rate = rate.zip(terms.lowering).map(|(rate, factor)| rate * factor),
            Verdict::Continue | Verdict::Stop => {}
        }
        check
    };
    rounds.iter().enumerate().map(check).collect()
}

pub(crate) fn hyper_parameters(terms: &HyperParameters) -> report::HyperParameterRecord {
    report::HyperParameterRecord {
        batch: terms.batch,
        rate: terms.rate,
        patience: terms.patience,
        max_epochs: terms.max_epochs,
        check_every: terms.check_every,
        range: terms.range,
        alpha: terms.alpha,
        lowering: terms.lowering,
        seed: terms.seed,
    }
}

/// Seconds of each phase, as reports have them.
pub(crate) fn phases(live: &LiveFile) -> Vec<report::PhaseSeconds> {
    let shown = |phase: &report::PhaseSeconds| report::PhaseSeconds {
        name: phase.name.clone(),
        seconds: tenths(phase.seconds),
    };
    live.phases.iter().map(shown).collect()
}

pub(crate) fn parameters(set: &str, params: Option<&Params>) -> report::ParameterRecord {
    report::ParameterRecord {
        set: set.to_owned(),
        security_bits: params.map(|params| tenths(params.security().bits().max(0.0))),
        degree: params.map(Params::degree),
        modulus_bits: params.map(|params| params.log_qp(params.full_basis()).round()),
        slots: params.map(Params::slots),
        key_id: None,
    }
}

/// What a model file tells about its training.
fn of_model(model: &Model, params: Option<&Params>) -> Record {
    let training = &model.training;
    Record {
        name: model.name.clone(),
        classes: model.classes.clone(),
        shape: report::TrainedShape {
            features: model.features(),
            classes: model.classes.len(),
            rows: training.rows,
            validation_rows: training.validation_rows,
            validated_on_training_rows: training.validated_on_training_rows,
        },
        outcome: Some(report::Outcome {
            epochs: training.epochs,
            best_epoch: training.best_epoch,
            checks: training.checks(),
            iterations: training.iterations,
            loss: shown_loss(training.validation_loss),
            accuracy: training.validation_accuracy,
            exportable: model.noise.is_some() || model.history.is_some(),
            ..report::Outcome::default()
        }),
        server: report::ServerRecord {
            address: Some(training.server.clone()),
            engine: None,
            job: Some(training.job.clone()),
        },
        parameters: report::ParameterRecord { key_id: training.key_id.clone(), ..parameters(&training.set, params) },
        hyper_parameters: report::HyperParameterRecord {
            batch: training.batch,
            rate: training.rate,
            patience: training.patience,
            max_epochs: training.max_epochs,
            check_every: training.check_every,
            range: training.range,
            alpha: training.alpha,
            ..report::HyperParameterRecord::default()
        },
        preparation: report::PreparationRecord {
            scaling: model.normalisation.scaling().name().to_owned(),
            imputes: model.normalisation.fill().is_some(),
            weighted: training.weighted,
            prior: model.prior.as_ref().map_or(0.0, |prior| prior.share),
        },
        ..empty()
    }
}

/// A record of this version, of nothing yet.
pub(crate) fn empty() -> Record {
    Record {
        format: report::FORMAT.to_owned(),
        version: report::VERSION,
        notice: NOTICE.to_owned(),
        program: concat!("hetal ", env!("CARGO_PKG_VERSION")).to_owned(),
        ..Record::default()
    }
}

/// Writes the record of a training that has ended, locked if there is a lock, and its page if there
/// is none. Returns the path of the page.
pub(crate) fn save(project: &Project, record: &Record, lock: Option<&FileSealer>) -> Result<Option<PathBuf>> {
    project::write_private(&project.report(&record.name, "json")?, record, lock)?;
    let place = project.report(&record.name, "html")?;
    if lock.is_some() {
        // A page of an earlier training would be taken for one of this.
        project::remove_if_there(&place)?;
        return Ok(None);
    }
    project::write_bytes(&place, page(record).as_bytes())?;
    Ok(Some(place))
}

/// The record of a model: the one that its training wrote, or what the model file tells.
pub fn of(project: &Project, model: &Model) -> Result<Record> {
    let path = project.report(&model.name, "json")?;
    let stored: Option<Record> = project::read_private(&path, project.passphrase())?;
    if let Some(record) = &stored
        && record.version > report::VERSION
    {
        return Err(Error::NewerFile { path, found: record.version, known: report::VERSION });
    }
    // A program of an earlier version may have trained the model again, and left the record.
    let is_its = |record: &Record| record.server.job.as_ref() == Some(&model.training.job);
    match stored.filter(is_its) {
        Some(record) => Ok(record),
        None => {
            let mut record = of_model(model, Params::named(&model.training.set).ok().as_ref());
            record.program = "not known".to_owned();
            record.model_path = Some(project.model(&model.name)?.display().to_string());
            Ok(record)
        }
    }
}

/// The files that the record of a model comes from: the record, and the model file.
pub fn files_of(project: &Project, name: &str) -> Result<[PathBuf; 2]> {
    Ok([project.report(name, "json")?, project.model(name)?])
}

/// The record of a model by its name. The model file, which may be large, is read only if it is
/// newer than the record.
pub fn of_name(project: &Project, name: &str) -> Result<Record> {
    let [record, model] = files_of(project, name)?;
    let written = |path: &PathBuf| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let is_current = written(&record).zip(written(&model)).is_some_and(|(record, model)| record >= model);
    if is_current
        && let Some(record) = project::read_private::<Record>(&record, project.passphrase())?
        && record.version <= report::VERSION
    {
        return Ok(record);
    }
    of(project, &Model::open(&model, project.passphrase())?)
}

/// Writes the page of a record into the project, and returns its path.
pub fn write_page(project: &Project, record: &Record) -> Result<PathBuf> {
    let place = project.report(&record.name, "html")?;
    project::write_bytes(&place, page(record).as_bytes())?;
    Ok(place.canonicalize().map_err(|e| io_error("reading", &place, &e)).unwrap_or(place))
}
