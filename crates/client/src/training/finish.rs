//! The end of a training: all returned weights are downloaded; those of the best check are checked
//! against the validated logits, compared with the plaintext reference, and saved as a model.

use super::judged::{BEST, BestCheck};
use super::progress::shown_difference;
use super::reference_check;
use super::saved::JobRecord;
use super::{ProgressEvent, Round, Trained, TrainingRun};
use crate::ciphertexts::RowBlobFile;
use crate::model::{Prior, Provenance, TrainingHistory};
use crate::project::remove_if_there;
use crate::report::{self, FinishedTraining};
use crate::rpc::{HyperParameters, JobInfo, Output};
use crate::{Error, Model, Result};
use hetal_keys::noise_bound;
use hetal_learn::reference::logits;
use hetal_learn::{Judge, Matrix};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

/// The logits of the decrypted weights may differ from the decrypted logits by this.
const ABSOLUTE_TOLERANCE: f64 = 0.02;
/// They may also differ by this share of the largest logit.
const RELATIVE_TOLERANCE: f64 = 1e-3;

/// The weights of the best check, which give the logits that were judged.
struct ValidatedWeights {
    /// What the server said of them.
    output: Output,
    weights: Matrix,
    /// The round in which they were judged.
    round: Round,
    /// Their logits of the validation rows.
    logits: Matrix,
}

impl TrainingRun<'_> {
    /// Downloads the weights of all returned checks, in the order in which the server lists them.
    /// Which of them are decrypted is not decided before, so that the server does not learn it.
    pub(super) fn download_weights(&mut self, job: &JobInfo, outputs: &[Output]) -> Result<()> {
        let most = self.job_record()?.terms.patience + 1;
        if outputs.len() > most {
            return Err(Error::hostile(format!("weights of {} checks instead of at most {most}", outputs.len())));
        }
        let of_job = self.outputs(job);
        outputs.iter().enumerate().try_for_each(|(k, output)| of_job.download_weights(output, &self.weights_file(k)))
    }

    /// The file of the downloaded weights number `index`.
    fn weights_file(&self, index: usize) -> PathBuf {
        self.folder.join(format!("weights-{index:04}.ct"))
    }

    /// Decrypts the weights of the best check and saves the model.
    pub(super) fn finish(
        mut self,
        job: &JobInfo,
        outputs: &[Output],
        on_progress: &mut (dyn FnMut(ProgressEvent) + Send),
    ) -> Result<Trained> {
        let record = self.job_record()?.clone();
        let best = record.judge.as_ref().and_then(Judge::best_check).ok_or(Error::NothingLearned)?;
        let validated = self.validated(job, outputs, &record.rounds, best, &self.best);
        let ValidatedWeights { output, weights, round, logits } = self.record_fault(validated)?;
        let reference = self.reference(&record, best, on_progress)?;
        let difference = reference.as_ref().map(|reference| weights.max_difference(reference));
        let training = self.provenance(job, &record, &output, best, round);
        let noise = difference.map(noise_bound);
        let normalisation = self.data.normalisation.clone();
        let mut model =
            Model::new(&self.options.name, self.data.classes.clone(), &weights, normalisation, noise, training)?;
        model.extraction.clone_from(&self.options.extraction);
        model.columns.clone_from(&self.data.columns);
        model.class_type = Some(self.data.class_type);
        if let Some(prior) = Prior::new(self.options.prior, self.data)? {
            model.subtract(prior);
        }
        model.history = Some(self.history(&record));
        let place = self.project.model(&self.options.name)?;
        model.save(&place, self.project.passphrase())?;
        let relative = difference.zip(reference.as_ref()).map(|(d, reference)| d / reference.max_magnitude());
        let bound = relative.zip(reference.as_ref()).map(|(relative, to)| shown_difference(relative, to));
        let page = self.write_report(&model, &place, &logits, (relative, bound), outputs.len())?;
        self.live.lock().unwrap_or_else(PoisonError::into_inner).end();
        (0..outputs.len()).try_for_each(|k| remove_if_there(&self.weights_file(k)))?;
        remove_if_there(&self.folder.join(BEST))?;
        self.saved.finished = true;
        self.save()?;
        self.project.close_job(&job.id.to_string())?;
        let keys = self.key_set()?;
        Ok(Trained {
            difference: relative,
            model,
            path: place,
            report: page,
            rounds: record.rounds,
            reference,
            key_bytes: keys.bytes,
            row_bytes: self.saved.row_bytes(),
            sent: self.saved.sent,
            seconds: self.saved.seconds,
            key_seconds: keys.seconds,
        })
    }

    /// Decrypts the weights of the best check and checks that they give the logits that were
    /// judged.
    fn validated(
        &self,
        job: &JobInfo,
        outputs: &[Output],
        rounds: &[Round],
        best: usize,
        judged: &BestCheck,
    ) -> Result<ValidatedWeights> {
        let index = outputs
            .iter()
            .position(|output| output.check == best)
            .ok_or_else(|| Error::hostile(format!("the weights of check {best} are not among those returned")))?;
        let weights = self.outputs(job).weights(&self.weights_file(index))?;
        let round = rounds.iter().filter(|round| round.accepted).nth(best - 1);
        let round = round.copied().ok_or(Error::NothingLearned)?;
        let logits = logits(self.data.validation.features(), &weights)?;
        let near = ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * round.largest;
        // This comparison also fails for NaN.
        let same = |(a, b): (&f64, &f64)| (a - b).abs() <= near;
        if judged.check == best && judged.logits.iter().zip(logits.values()).all(same) {
            // Those that were judged, if all of them were kept: the report has the same accuracy.
            let shape = (logits.rows(), logits.columns());
            let logits = Matrix::new(shape.0, shape.1, judged.logits.to_vec()).unwrap_or(logits);
            return Ok(ValidatedWeights { output: outputs[index], weights, round, logits });
        }
        Err(Error::hostile(
            "weights other than those that were validated: they give other logits for the validation rows",
        ))
    }

    /// Writes the record of the training and its page. Returns the path of the page.
    fn write_report(
        &mut self,
        model: &Model,
        place: &Path,
        logits: &Matrix,
        (difference, difference_bound): (Option<f64>, Option<f64>),
        returned: usize,
    ) -> Result<Option<PathBuf>> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner).file().clone();
        let keys = self.key_set()?;
        let job = self.saved.job.as_ref().ok_or(Error::Interrupted)?;
        let bytes = |blobs: &[RowBlobFile]| blobs.iter().map(|blob| blob.bytes).sum();
        let record = FinishedTraining {
            model,
            model_path: place.to_owned(),
            data: self.data,
            layout: &self.layout,
            terms: &job.terms,
            rounds: &job.rounds,
            logits,
            difference,
            difference_bound,
            seconds_per_iteration: self.saved.seconds.iterations.mean(),
            keys: &keys,
            row_bytes: [bytes(&self.saved.batches), bytes(&self.saved.validation)],
            sent: [self.saved.sent.keys, self.saved.sent.rows],
            received: [self.saved.validation.len(), returned],
            live: &live,
        }
        .record()?;
        report::save(self.project, &record, self.lock.as_ref())
    }

    fn reference(
        &self,
        record: &JobRecord,
        best: usize,
        on_progress: &mut (dyn FnMut(ProgressEvent) + Send),
    ) -> Result<Option<Matrix>> {
        if !self.options.verify {
            return Ok(None);
        }
        let terms = &record.terms;
        let told = (terms.rate, terms.lowering, terms.momentum, terms.seed, terms.alpha);
        let (Some(rate), Some(lowering), Some(momentum), Some(seed), Some(alpha)) = told else { return Ok(None) };
        on_progress(ProgressEvent::Checking);
        let HyperParameters { batch, max_epochs, check_every, .. } = *terms;
        let terms =
            reference_check::ReferenceConfig { batch, rate, lowering, momentum, seed, alpha, max_epochs, check_every };
        reference_check::train(self.data, &terms, &record.rounds, best)
    }

    /// What an export of the model will need.
    fn history(&self, record: &JobRecord) -> TrainingHistory {
        TrainingHistory {
            terms: record.terms.clone(),
            verdicts: record.rounds.iter().map(|round| round.verdict).collect(),
            batches: self.saved.batches.clone(),
            validation: self.saved.validation.clone(),
            labels: self.data.validation.labels().to_vec(),
            weighted: self.data.is_weighted(),
        }
    }

    fn provenance(
        &self,
        job: &JobInfo,
        record: &JobRecord,
        output: &Output,
        best_check: usize,
        round: Round,
    ) -> Provenance {
        let terms = &record.terms;
        let batches = self.layout.batches(self.saved.batches.len()).max(1);
        let checks = record.rounds.iter().filter(|round| round.accepted).count();
        let epoch = |check: usize| terms.iterations_until(check, batches).div_ceil(batches);
        Provenance {
            set: self.layout.params.name().to_owned(),
            rows: self.data.training.rows(),
            validation_rows: self.data.validation.rows(),
            validated_on_training_rows: self.data.preparation.validates_on_training_rows,
            batch: terms.batch,
            rate: terms.rate,
            patience: terms.patience,
            max_epochs: terms.max_epochs,
            range: terms.range,
            epochs: epoch(checks),
            best_epoch: epoch(best_check),
            checks,
            best_check,
            check_every: terms.iterations_until(1, batches),
            iterations: iterations(&record.rounds, terms, batches),
            validation_loss: round.loss,
            validation_accuracy: round.accuracy,
            server: record.server.clone(),
            job: job.id.to_string(),
            weights: output.blob.to_string(),
            key_id: Some(self.owner.key_id()),
            alpha: terms.alpha,
            weighted: self.data.is_weighted(),
        }
    }
}

/// The iterations that led to the judged rounds, repeated ones included.
fn iterations(rounds: &[Round], terms: &HyperParameters, batches: usize) -> u64 {
    let mut accepted = 0;
    let of_round = |round: &Round| {
        let iterations = terms.iterations_until(accepted + 1, batches) - terms.iterations_until(accepted, batches);
        accepted += usize::from(round.accepted);
        iterations as u64
    };
    rounds.iter().map(of_round).sum()
}
