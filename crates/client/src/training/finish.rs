//! The end of a training: weights that are those validated, compared with exact training, saved.

use super::record::JobRecord;
use super::{Round, Step, Trained, Training};
use crate::model::Provenance;
use crate::project::{self, remove_if_there};
use crate::remote::{Job, Output};
use crate::{Error, Model, Result, reference};
use hetal_keys::noise_bound;
use hetal_learn::reference::logits;
use hetal_learn::{Judge, Matrix};
use serde::{Deserialize, Serialize};

/// The encrypted weights on their way.
const WEIGHTS: &str = "weights.ct";
/// Logits of the best epoch so far: the weights that come back must give these.
pub(super) const BEST: &str = "best.json";
/// So many of them are kept.
const BEST_LOGITS: usize = 1 << 16;
/// Logits of decrypted weights may differ from decrypted logits by this, and by this share of the largest.
const TOLERANCE: (f64, f64) = (0.02, 1e-3);

/// What an epoch was judged by.
#[derive(Serialize, Deserialize)]
struct Best {
    epoch: usize,
    logits: Vec<f64>,
}

impl Training<'_> {
    /// Decrypts the weights of the best epoch and saves the model.
    pub(super) fn finish(
        mut self,
        job: &Job,
        outputs: &[Output],
        report: &mut (dyn FnMut(Step) + Send),
    ) -> Result<Trained> {
        let record = self.job_record()?.clone();
        let best = record.judge.as_ref().and_then(Judge::best_epoch).ok_or(Error::NothingLearned)?;
        let validated = self.validated(job, outputs, &record.rounds, best);
        let (output, weights, round) = self.remember_fault(validated)?;
        let twin = self.twin(&record, best, report)?;
        let difference = twin.as_ref().map(|twin| weights.max_difference(twin));
        let training = self.provenance(job, &record, &output, best, round);
        let noise = difference.map(noise_bound);
        let normalisation = self.task.normalisation.clone();
        let mut model =
            Model::new(&self.options.name, self.task.classes.clone(), &weights, normalisation, noise, training)?;
        model.extraction.clone_from(&self.options.extraction);
        let place = self.project.model(&self.options.name)?;
        model.save(&place)?;
        remove_if_there(&self.folder.join(WEIGHTS))?;
        remove_if_there(&self.folder.join(BEST))?;
        self.record.finished = true;
        self.save()?;
        let keys = self.key_set()?;
        Ok(Trained {
            difference: difference.zip(twin.as_ref()).map(|(d, twin)| d / twin.max_magnitude()),
            model,
            path: place,
            rounds: record.rounds,
            twin,
            key_bytes: keys.bytes,
            row_bytes: self.record.row_bytes(),
            sent: self.record.sent,
            seconds: self.record.seconds,
            key_seconds: keys.seconds,
        })
    }

    /// The weights of the best epoch, which must be those whose logits were judged.
    fn validated(
        &self,
        job: &Job,
        outputs: &[Output],
        rounds: &[Round],
        best: usize,
    ) -> Result<(Output, Matrix, Round)> {
        let output = outputs
            .iter()
            .find(|output| output.epoch == best)
            .ok_or_else(|| Error::hostile(format!("the weights of epoch {best} are not among those returned")))?;
        let weights = self.outputs(job).weights(output, &self.folder.join(WEIGHTS))?;
        let round = rounds.iter().filter(|round| round.accepted).nth(best - 1);
        let round = round.copied().ok_or(Error::NothingLearned)?;
        let path = self.folder.join(BEST);
        let judged: Best = project::read(&path)?
            .ok_or_else(|| Error::Damaged { path: path.clone(), reason: "it is gone".to_owned() })?;
        let logits = logits(self.task.validation.features(), &weights)?;
        let near = TOLERANCE.0 + TOLERANCE.1 * round.largest;
        // Not a number is not close either.
        let same = |(a, b): (&f64, &f64)| (a - b).abs() <= near;
        if judged.epoch == best && judged.logits.iter().zip(logits.values()).all(same) {
            return Ok((*output, weights, round));
        }
        Err(Error::hostile(
            "weights that are not those it was judged by: they give other logits for the validation rows",
        ))
    }

    /// Keeps what an epoch was judged by, until there is a better one.
    pub(super) fn remember_best(&self, epoch: usize, logits: &Matrix) -> Result<()> {
        let logits = logits.values().iter().take(BEST_LOGITS).copied().collect();
        project::write(&self.folder.join(BEST), &Best { epoch, logits })
    }

    fn twin(&self, record: &JobRecord, best: usize, report: &mut (dyn FnMut(Step) + Send)) -> Result<Option<Matrix>> {
        if !self.options.check {
            return Ok(None);
        }
        let terms = &record.terms;
        let told = (terms.rate, terms.lowering, terms.momentum, terms.seed);
        let (Some(rate), Some(lowering), Some(momentum), Some(seed)) = told else { return Ok(None) };
        report(Step::Checking);
        let terms = reference::Terms { batch: terms.batch, rate, lowering, momentum, seed };
        reference::train(self.task, &terms, &record.rounds, best)
    }

    fn provenance(
        &self,
        job: &Job,
        record: &JobRecord,
        output: &Output,
        best_epoch: usize,
        round: Round,
    ) -> Provenance {
        let terms = &record.terms;
        Provenance {
            set: self.layout.params.name().to_owned(),
            rows: self.task.training.rows(),
            validation_rows: self.task.validation.rows(),
            batch: terms.batch,
            rate: terms.rate,
            patience: terms.patience,
            max_epochs: terms.max_epochs,
            range: terms.range,
            epochs: record.rounds.iter().filter(|round| round.accepted).count(),
            best_epoch,
            iterations: (record.rounds.len() * self.layout.batches(self.record.batches.len())) as u64,
            validation_loss: round.loss,
            validation_accuracy: round.accuracy,
            server: record.server.clone(),
            job: job.id.to_string(),
            weights: output.blob.to_string(),
            key_id: Some(self.owner.key_id()),
        }
    }
}
