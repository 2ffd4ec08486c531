//! What a training has decrypted so far: the judged rounds, and the logits of the best check.
//!
//! They are in one private file, which is locked if the secret key is. The file is written in every
//! round, whatever the verdict, with a key that is derived before the first round: the time of a
//! verdict does not depend on it.

use super::saved::{JobRecord, SavedTraining};
use super::{Round, TrainingRun};
use crate::project;
use crate::{Error, Result, TrainingData};
use hetal_keys::Passphrase;
use hetal_learn::judge::wider;
use hetal_learn::{Judge, Matrix, Verdict};
use serde::{Deserialize, Serialize};
use std::path::Path;
use zeroize::Zeroizing;

/// The file of the judged rounds and of the logits of the best check.
pub(super) const BEST: &str = "best.json";
/// The most logits that are kept.
const BEST_LOGITS: usize = 1 << 16;
/// Stands for logits before there is a best check, with as many digits.
const NO_LOGIT: f64 = 0.123_456_789_012_345_67;

/// The logits by which the best check was judged. Its weights must give the same logits.
pub(super) struct BestCheck {
    /// The check, counted from 1; 0 if there is none.
    pub check: usize,
    pub logits: Zeroizing<Vec<f64>>,
}

/// The content of the file.
#[derive(Serialize)]
struct JudgedRounds<'a> {
    /// The request and the job that they belong to.
    request: &'a str,
    job: Option<&'a str>,
    judge: Option<&'a Judge>,
    rounds: &'a [Round],
    fault: Option<&'a str>,
    #[serde(rename = "epoch")]
    check: usize,
    logits: &'a [f64],
}

/// The content of a file that is read. Earlier versions wrote only the last two fields.
#[derive(Deserialize)]
pub(super) struct StoredRounds {
    #[serde(default)]
    request: Option<String>,
    #[serde(default)]
    job: Option<String>,
    #[serde(default)]
    judge: Option<Judge>,
    #[serde(default)]
    pub rounds: Vec<Round>,
    #[serde(default)]
    fault: Option<String>,
    #[serde(rename = "epoch")]
    check: usize,
    logits: Vec<f64>,
}

impl StoredRounds {
    pub fn is_of(&self, job: &JobRecord) -> bool {
        self.request.as_ref() == Some(&job.request) && self.job == job.id
    }
}

impl BestCheck {
    /// Before the first accepted check.
    pub fn none(data: &TrainingData) -> Self {
        let count = BEST_LOGITS.min(data.validation.rows() * data.classes.len());
        Self { check: 0, logits: Zeroizing::new(vec![NO_LOGIT; count]) }
    }

    pub fn new(check: usize, logits: &Matrix) -> Self {
        let logits = &logits.values()[..BEST_LOGITS.min(logits.values().len())];
        Self { check, logits: Zeroizing::new(logits.to_vec()) }
    }
}

impl TrainingRun<'_> {
    /// Writes the judged rounds, before the verdict on the last of them leaves.
    pub(super) fn save_judged(&self) -> Result<()> {
        let JobRecord { request, id, judge, rounds, fault, .. } = self.saved.job.as_ref().ok_or(Error::Interrupted)?;
        let content = JudgedRounds {
            request,
            job: id.as_deref(),
            judge: judge.as_ref(),
            rounds,
            fault: fault.as_deref(),
            check: self.best.check,
            logits: &self.best.logits,
        };
        project::write_private(&self.folder.join(BEST), &content, self.lock.as_ref())
    }
}

/// Completes an interrupted training with its judged rounds, and returns the logits of the best
/// check. Without them neither the next round nor the weights can be judged, and only another job
/// can give them: `None` if they are lost.
pub(super) fn load(
    saved: &mut SavedTraining,
    data: &TrainingData,
    folder: &Path,
    passphrase: Option<&Passphrase>,
) -> Result<Option<BestCheck>> {
    let Some(job) = saved.job.as_mut().filter(|_| !saved.finished) else { return Ok(Some(BestCheck::none(data))) };
    let stored = match project::read_private::<StoredRounds>(&folder.join(BEST), passphrase) {
        Err(Error::Damaged { .. }) => None,
        stored => stored?,
    };
    let of_earlier_version = !job.rounds.is_empty();
    match stored {
        Some(stored) if of_earlier_version => {
            job.judged = job.rounds.len();
            Ok(Some(BestCheck { check: stored.check, logits: Zeroizing::new(stored.logits) }))
        }
        // `job.json` is written after this file, so it may know one round less.
        Some(stored) if stored.is_of(job) && stored.rounds.len() >= job.judged => Ok(Some(job.add_judged(stored))),
        _ if of_earlier_version && job.judge.as_ref().is_some_and(|judge| judge.best_check().is_none()) => {
            job.judged = job.rounds.len();
            Ok(Some(BestCheck::none(data)))
        }
        // No round was judged, or those of another job.
        _ if !of_earlier_version && job.judged == 0 => Ok(Some(BestCheck::none(data))),
        _ => Ok(None),
    }
}

impl JobRecord {
    fn add_judged(&mut self, stored: StoredRounds) -> BestCheck {
        let widened = stored.rounds.iter().filter(|round| round.verdict == Verdict::WidenRange);
        self.range = widened.fold(self.terms.range, |range, _| wider(range).unwrap_or(range));
        self.judged = stored.rounds.len();
        self.rounds = stored.rounds;
        self.judge = stored.judge;
        self.fault = self.fault.take().or(stored.fault);
        BestCheck { check: stored.check, logits: Zeroizing::new(stored.logits) }
    }
}
