//! What a training keeps on disk (`job.json`), from which it resumes.

use super::hyper_parameters::expected_hyper_parameters;
use super::judged::BEST;
use super::{ProgressEvent, Round, Seconds, SentBytes, TrainingOptions};
use crate::ciphertexts::{RowBlobFile, RowBlobWriter, RowsToEncrypt, row_blobs};
use crate::keys::hex;
use crate::project::OpenJob;
use crate::project::{KeySet, io_error, remove_if_there};
use crate::rpc::{HyperParameters, JobInfo, Remote};
use crate::{Cancellation, Error, Layout, Owner, Project, Result, TrainingData};
use hetal_learn::judge::wider;
use hetal_learn::{Judge, KeyPlan, RowForm, Verdict, Wishes};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Instant;

const VERSION: u32 = 5;

/// A training on disk: row blobs, job, sizes and times. [`hetal_report::Record`] is what a report
/// shows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SavedTraining {
    version: u32,
    /// The hash of the training data.
    fingerprint: String,
    layout: String,
    pub keys: String,
    pub wishes: Wishes,
    pub batches: Vec<RowBlobFile>,
    pub validation: Vec<RowBlobFile>,
    /// The job on a server, if it was requested.
    pub job: Option<JobRecord>,
    /// Payload bytes that were sent.
    pub sent: SentBytes,
    pub seconds: Seconds,
    /// Whether new keys were created for it.
    #[serde(default)]
    pub fresh_keys: bool,
    /// The form of the rows.
    #[serde(default)]
    pub form: RowForm,
    /// The plan of the key set.
    #[serde(default)]
    pub key_plan: KeyPlan,
    pub finished: bool,
}

/// What a training begins with.
pub(super) struct NewTraining<'a> {
    pub owner: &'a Owner,
    pub layout: &'a Layout,
    pub data: &'a TrainingData,
    pub keys: &'a KeySet,
    pub wishes: Wishes,
    pub form: RowForm,
    /// The folder of its files.
    pub folder: &'a Path,
    pub cancellation: &'a Cancellation,
}

/// A requested job and its rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct JobRecord {
    pub server: String,
    /// The id of the request: repeating it creates no second job.
    pub request: String,
    /// The agreed hyper-parameters.
    #[serde(default)]
    pub terms: HyperParameters,
    pub id: Option<String>,
    /// Decrypted values: on disk they are in the private file of the training ([`BEST`]). Earlier
    /// versions had them here.
    #[serde(default, skip_serializing)]
    pub judge: Option<Judge>,
    pub range: f64,
    /// On disk like `judge`.
    #[serde(default, skip_serializing)]
    pub rounds: Vec<Round>,
    /// The number of rounds in the private file; 0 in records of earlier versions.
    #[serde(default)]
    pub judged: usize,
    /// The misbehaviour of the server, if there was any.
    #[serde(default)]
    pub fault: Option<String>,
    /// After a misbehaviour: whether the client has left the server as it leaves an honest one, at
    /// the end of the job. Otherwise the next command does that first.
    #[serde(default)]
    pub left: bool,
}

impl JobRecord {
    pub fn new(server: &str, request: [u8; 16], terms: HyperParameters) -> Self {
        Self {
            server: server.to_owned(),
            request: hex(&request),
            range: terms.range,
            terms,
            id: None,
            judge: None,
            rounds: Vec::new(),
            judged: 0,
            fault: None,
            left: false,
        }
    }

    /// Records the id of the job. The rounds of another job than before are judged from the first
    /// one.
    pub fn assign_job(&mut self, job: &JobInfo) {
        let id = job.id.to_string();
        if self.id.as_ref().is_some_and(|known| *known != id) {
            self.judge = None;
            self.range = self.terms.range;
            self.rounds.clear();
            self.judged = 0;
        }
        self.id = Some(id);
    }

    /// Records a round.
    pub fn add_round(&mut self, round: Round) {
        if round.verdict == Verdict::WidenRange {
            self.range = wider(self.range).unwrap_or(self.range);
        }
        self.rounds.push(round);
        self.judged = self.rounds.len();
    }
}

impl SavedTraining {
    /// Encrypts all rows. They are on disk before the first of them is sent.
    pub fn begin(new: NewTraining<'_>, on_progress: &mut (dyn FnMut(ProgressEvent) + Send)) -> Result<Self> {
        let NewTraining { owner, layout, data, keys, wishes, form, folder, cancellation } = new;
        let start = Instant::now();
        let training = layout.pieces(data.training.rows());
        let validation = row_blobs::ranges(data.validation.rows(), layout.geometry().rows());
        let all = training.len() + validation.len();
        let writer = RowBlobWriter { owner, layout, folder, form, row_norm: data.normalisation.row_norm() };
        let mut done = 0;
        let mut encrypt = |of: RowsToEncrypt<'_>, rows, name: &str| -> Result<RowBlobFile> {
            cancellation.check()?;
            on_progress(ProgressEvent::Encrypting { done, total: all });
            let file = format!("{name}-{done:04}.ct");
            done += 1;
            writer.write(of, rows, file)
        };
        let [to_train, to_validate] = rows_to_send(data);
        let batches = training.into_iter().map(|r| encrypt(to_train, r, "batch")).collect::<Result<_>>()?;
        let validation =
            validation.into_iter().map(|r| encrypt(to_validate, r, "validation")).collect::<Result<_>>()?;
        on_progress(ProgressEvent::Encrypting { done: all, total: all });
        Ok(Self {
            version: VERSION,
            fingerprint: data.fingerprint(),
            layout: layout.key(),
            keys: keys.blob.clone(),
            wishes,
            batches,
            validation,
            job: None,
            sent: SentBytes::default(),
            seconds: Seconds { encrypting: start.elapsed().as_secs_f64(), ..Seconds::default() },
            fresh_keys: false,
            form,
            key_plan: layout.level_plan().key_plan(),
            finished: false,
        })
    }

    /// Returns whether it has these rows, this layout, these wishes and this form if one is
    /// wished for, whatever its keys are.
    pub fn matches(&self, data: &TrainingData, layout: &Layout, wishes: &Wishes, form: Option<RowForm>) -> bool {
        self.version == VERSION
            && form.is_none_or(|form| form == self.form)
            && self.layout == layout.key()
            && self.wishes == *wishes
            && self.fingerprint == data.fingerprint()
    }

    /// Whether another version of this program began the training.
    pub fn is_of_another_version(&self) -> bool {
        self.version != VERSION
    }

    /// Resumes the training. A finished training starts again with the rows that are encrypted
    /// already. If its server was hostile, a training continues only with another server, or with
    /// `replace`.
    pub fn resume(mut self, remote: &Remote, options: &TrainingOptions, data: &TrainingData) -> Result<Self> {
        if self.finished {
            let seconds = Seconds { encrypting: self.seconds.encrypting, ..Seconds::default() };
            return Ok(Self { job: None, sent: SentBytes::default(), seconds, finished: false, ..self });
        }
        let Some(job) = &mut self.job else { return Ok(self) };
        let moved = job.server != remote.server();
        match &job.fault {
            Some(_) if moved || options.replace => self.job = None,
            // The server must not see from an interruption that its misbehaviour was noticed.
            Some(_) if !job.left => {}
            Some(what) => return Err(Error::KnownHostile { what: what.clone() }),
            // The same server under another address knows the request. To another server it is new,
            // with hyper-parameters of its own.
            None if moved => {
                job.server = remote.server().to_owned();
                job.terms = expected_hyper_parameters(&self.wishes, remote.offer(), data)?;
            }
            None => {}
        }
        Ok(self)
    }

    /// Returns whether the training can continue with its row blobs: they are intact, or the job
    /// was requested, which happens only after the server has all of them. With `thoroughly`, every
    /// byte is compared.
    pub fn can_be_sent(&self, folder: &Path, thoroughly: bool) -> bool {
        let is_there = self.job.is_some() && !self.finished && !thoroughly;
        is_there || self.batches.iter().chain(&self.validation).all(|b| row_blobs::is_whole(folder, b, thoroughly))
    }

    /// Whether the training continues with its key set: a job uses it, or the project still has it.
    /// A training without a job was killed while it made its key set again; it gets another one.
    pub fn needs_its_keys(&self, project: &Project) -> bool {
        self.job.is_some() || project.settings().key_set(&self.keys).is_some()
    }

    /// The job, if it may not have ended. A server that was left has ended its job: it is not told
    /// that the training is replaced.
    pub fn open_job(&self, training: &str) -> Option<OpenJob> {
        let job = self.job.as_ref().filter(|job| !self.finished && !job.left)?;
        Some(OpenJob { training: training.to_owned(), server: job.server.clone(), id: job.id.clone()? })
    }

    pub fn row_bytes(&self) -> u64 {
        self.batches.iter().chain(&self.validation).map(|row_blob| row_blob.bytes).sum()
    }
}

/// The rows that are trained on, and those that are validated with.
pub(super) fn rows_to_send(data: &TrainingData) -> [RowsToEncrypt<'_>; 2] {
    [
        RowsToEncrypt { set: &data.training, with_labels: true, weights: data.row_weights.as_deref() },
        // The owner judges validation rows, so their labels and weights stay here.
        RowsToEncrypt { set: &data.validation, with_labels: false, weights: None },
    ]
}

/// Removes the files of a training that is replaced. `job.json` is removed first, so that it never
/// names missing files. The progress stays: it is that of the training that begins.
pub(super) fn discard(folder: &Path) -> Result<()> {
    remove_if_there(&folder.join("job.json"))?;
    for entry in std::fs::read_dir(folder).map_err(|e| io_error("reading", folder, &e))? {
        let path = entry.map_err(|e| io_error("reading", folder, &e))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Row blobs, logits and weights, complete or not, and the judged rounds.
        if name == BEST || name.ends_with(".ct") || name.ends_with(".ct.part") {
            remove_if_there(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::current_phase::LIVE;
    use hetal_testkit::TempDir;

    /// Whoever watches a training that begins sees it all the time.
    #[test]
    fn a_replaced_training_leaves_nothing_but_the_progress_of_the_new_one() {
        let folder = TempDir::new();
        for name in ["job.json", BEST, LIVE, "batch-0000.ct", "validation-0001.ct.part"] {
            std::fs::write(folder.path().join(name), "{}").unwrap();
        }
        discard(folder.path()).unwrap();
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [LIVE]);
    }
}
