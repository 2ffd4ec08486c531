//! A training from its first key to the decrypted classifier. Everything that was done is on disk before the next thing begins,
//! so a training that was killed goes on where it stopped.
//!
//! ```text
//! record    what is on disk: encrypted rows, the job, the verdicts that were given
//! following events as they come, a verdict for every epoch; what no honest server sends ends it
//! deletion  a job that is not wanted any more, with what was sent for it
//! finish    weights fetched, compared with what was validated and with exact training, saved as a model
//! ```

mod deletion;
mod finish;
mod following;
mod record;

pub use deletion::{Deleted, delete};

use crate::owner::random_name;
use crate::project::{self, KeySet};
use crate::remote::{BlobKind, Job, JobId, Offer, Progress, Remote, Terms};
use crate::uploads::{self, blob, to_batch};
use crate::{Error, Layout, Model, Owner, Project, Result, Task, keys, remote};
use hetal_keys::secret_file;
use hetal_learn::{Judge, Matrix, Verdict, Wishes};
use record::{JobRecord, Record};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// An epoch is asked for again (with a lower rate, a wider range) at most so often in all.
const REPEATS: usize = 3;
/// A server's defaults beyond these are not taken without a word: every epoch gives it two bits.
const MOST_EPOCHS: usize = 200;
/// See [`MOST_EPOCHS`].
const MOST_PATIENCE: usize = 20;

/// How to train.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of the training and of its model.
    pub name: String,
    /// What to ask the server for.
    pub wishes: Wishes,
    /// Whether to compare with exact training on this machine.
    pub check: bool,
    /// Whether a model of this name may be replaced.
    pub replace: bool,
    /// Whether to retire the keys that were used before.
    pub fresh_keys: bool,
    /// How long after the logits a verdict leaves.
    pub verdict_delay: Duration,
    /// Whether to leave, with an error, a server whose GPU fails, instead of waiting until it works again.
    pub leave_resting: bool,
    /// How the features were made, as their extractor wrote it down: goes into the model file.
    pub extraction: Option<serde_json::Value>,
}

impl Options {
    /// The usual, for a name.
    pub fn new(name: &str) -> Self {
        let (wishes, verdict_delay) = (Wishes::default(), remote::VERDICT_DELAY);
        let (check, replace, fresh_keys, leave_resting, extraction) = (true, false, false, false, None);
        Self { name: name.to_owned(), wishes, check, replace, fresh_keys, verdict_delay, leave_resting, extraction }
    }
}

/// Something that is being done, for progress bars.
#[derive(Clone, Debug)]
pub enum Step {
    /// The key set that is there is compared with its name, which takes as long as reading it.
    Comparing,
    /// Keys are made: how many of how many.
    Keys(usize, usize),
    /// Trainings of these names were interrupted with a key set that was replaced, and can only begin again.
    Stranded(Vec<String>),
    /// Batches are encrypted: how many of how many.
    Encrypting(usize, usize),
    /// Keys are sent: bytes the server has, of all.
    SendingKeys(u64, u64),
    /// Encrypted rows are sent: bytes the server has, of all.
    SendingRows(u64, u64),
    /// The server has put the job in its queue.
    Queued,
    /// The server computes, on this engine.
    Started(String),
    /// The server's work is so far.
    Working(Progress),
    /// The epoch of this number, counted from 1 over all runs of the training, was judged.
    Judged(usize, Round),
    /// Exact training on this machine, to compare with.
    Checking,
}

/// An epoch that was judged.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// What the server was told.
    pub verdict: Verdict,
    /// Whether its weights count: logits in range, from a server that was believed.
    #[serde(default)]
    pub accepted: bool,
    /// Mean cross-entropy on the validation rows.
    pub loss: f64,
    /// Share of the validation rows that were right.
    pub accuracy: f64,
    /// The largest magnitude of a logit.
    pub largest: f64,
}

/// Where the time went, in seconds, summed over all runs of a training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Encrypting rows.
    pub encrypting: f64,
    /// Sending keys and rows.
    pub sending: f64,
    /// Waiting for the server, verdicts included.
    pub training: f64,
    /// Of it, iterations whose beginning and end were seen, and how many these were.
    pub iterations: (f64, u64),
    /// Everything.
    pub all: f64,
}

/// A training that has ended well.
pub struct Trained {
    /// The classifier.
    pub model: Model,
    /// Where it was saved.
    pub path: PathBuf,
    /// Every epoch that was judged.
    pub rounds: Vec<Round>,
    /// Exact training: its weights for normalised features, where the server told enough.
    pub twin: Option<Matrix>,
    /// The largest difference to the twin's weights over their largest magnitude.
    pub difference: Option<f64>,
    /// Bytes of the key set.
    pub key_bytes: u64,
    /// Bytes of all encrypted rows.
    pub row_bytes: u64,
    /// Payload bytes that really left, of keys and of rows: fewer where the server had them.
    pub sent: (u64, u64),
    /// Where the time went.
    pub seconds: Seconds,
    /// Seconds the keys took when they were made.
    pub key_seconds: f64,
}

/// A training in progress.
pub struct Training<'a> {
    project: &'a mut Project,
    remote: &'a Remote,
    task: &'a Task,
    options: &'a Options,
    layout: Layout,
    owner: Owner,
    folder: PathBuf,
    record: Record,
    began: Instant,
}

/// The rows of a batch: what was wished for, or the server's default, or all rows if there are fewer.
pub fn batch_rows(wishes: &Wishes, offer: &Offer, rows: usize) -> usize {
    wishes.batch.unwrap_or(offer.defaults.batch).min(rows)
}

/// The terms that an offer and some wishes come to: what the server must answer with.
fn expected_terms(wishes: &Wishes, offer: &Offer) -> Result<Terms> {
    let defaults = &offer.defaults;
    let terms = Terms {
        batch: wishes.batch.unwrap_or(defaults.batch),
        patience: wishes.patience.unwrap_or(defaults.patience),
        max_epochs: wishes.max_epochs.unwrap_or(defaults.max_epochs),
        // What a server hides is not told later either.
        rate: defaults.rate.map(|rate| wishes.rate.unwrap_or(rate)),
        momentum: defaults.momentum.map(|momentum| wishes.momentum.unwrap_or(momentum)),
        ..defaults.clone()
    };
    let unasked = |wish: Option<usize>, value: usize, most: usize| wish.is_none() && value > most;
    if unasked(wishes.max_epochs, terms.max_epochs, MOST_EPOCHS)
        || unasked(wishes.patience, terms.patience, MOST_PATIENCE)
    {
        let (epochs, patience) = (terms.max_epochs, terms.patience);
        return Err(Error::TooManyEpochs { epochs, patience, most_epochs: MOST_EPOCHS, most_patience: MOST_PATIENCE });
    }
    Ok(terms)
}

/// The layout and the wishes that an offer allows.
fn agreed(project: &Project, offer: &Offer, task: &Task, options: &Options) -> Result<(Layout, Wishes)> {
    let params = keys::params(project)?;
    if !offer.accepts(params.id()) {
        let offered = offer.sets.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Error::SetRefused { set: params.name().to_owned(), offered });
    }
    let batch = batch_rows(&options.wishes, offer, task.training.rows());
    let wishes = Wishes { batch: Some(batch), ..options.wishes.clone() };
    expected_terms(&wishes, offer)?;
    let layout = Layout::new(params, batch, task.features(), task.classes.len(), offer.defaults.range)?;
    Ok((layout, wishes))
}

impl<'a> Training<'a> {
    /// Begins a training, or takes up the one of this name that was interrupted.
    pub fn open(
        project: &'a mut Project,
        remote: &'a Remote,
        task: &'a Task,
        options: &'a Options,
        report: &mut (dyn FnMut(Step) + Send),
    ) -> Result<Self> {
        let began = Instant::now();
        let (layout, wishes) = agreed(project, remote.offer(), task, options)?;
        let folder = project.job(&options.name)?;
        let before = record_before(&folder, options)?;
        // Before keys are made, or old ones go.
        keys::require_settled(project)?;
        let going_on = before.as_ref().is_some_and(|record| !record.finished);
        if !options.replace && !going_on && project.model(&options.name)?.exists() {
            return Err(Error::ModelExists { name: options.name.clone() });
        }
        let retire = must_retire(project, options, before.as_ref());
        let same = before.as_ref().is_some_and(|record| !retire && record.is_about(task, &layout, &wishes));
        if going_on && !same && !options.replace {
            return Err(Error::OtherTraining { name: options.name.clone() });
        }
        let sets = project.settings().keys.clone();
        if retire {
            keys::retire(project)?;
        }
        let owner = keys::owner(project)?;
        let keys = match &before {
            Some(record) if going_on && !options.replace => kept_set(project, &owner, &layout, record, &options.name)?,
            _ => fresh_set(project, &owner, &layout, options, report)?,
        };
        let stranded: Vec<_> = stranded(project, &sets).into_iter().filter(|name| *name != options.name).collect();
        if !stranded.is_empty() {
            report(Step::Stranded(stranded));
        }
        let fitting = |record: &Record| record.keys == keys.blob && record.can_be_sent(&folder, options.replace);
        let record = match before {
            Some(record) if same && fitting(&record) => record.taken_up(remote, options)?,
            before => {
                record::give_up(before, remote, &folder)?;
                let mut record = Record::begin(&owner, &layout, task, &keys, wishes, &folder, report)?;
                record.fresh_keys = options.fresh_keys;
                record
            }
        };
        let mut training = Self { project, remote, task, options, layout, owner, folder, record, began };
        training.save()?;
        Ok(training)
    }

    fn save(&mut self) -> Result<()> {
        self.record.seconds.all += self.began.elapsed().as_secs_f64();
        self.began = Instant::now();
        project::write(&self.folder.join("job.json"), &self.record)
    }

    /// Sends what the server does not have, waits for it, judges epochs, decrypts.
    pub fn run(mut self, report: &mut (dyn FnMut(Step) + Send)) -> Result<Trained> {
        self.send(report)?;
        let job = self.job()?;
        let start = Instant::now();
        let outcome = self.follow(&job, report);
        self.record.seconds.training += start.elapsed().as_secs_f64();
        self.save()?;
        let outputs = self.remember_fault(outcome)?;
        self.finish(&job, &outputs, report)
    }

    fn send(&mut self, report: &mut (dyn FnMut(Step) + Send)) -> Result<()> {
        let start = Instant::now();
        let keys = self.key_set()?;
        if !keys.sent {
            // Before the first byte leaves: a key set that a server may have seen is not taken for a new one.
            let sent = |keys: &&mut KeySet| keys.blob == self.record.keys;
            self.project.update(|s| s.keys.iter_mut().filter(sent).for_each(|keys| keys.sent = true))?;
        }
        let (path, name) = (self.project.key_file(&keys), (blob(&keys.blob)?, keys.bytes));
        let mut progress = |held, all| report(Step::SendingKeys(held, all));
        self.record.sent.0 += self.remote.upload_exactly(BlobKind::Keys, &path, name, &mut progress)?.sent;
        let all = self.record.row_bytes();
        let mut before = 0;
        let (batches, validation) = (self.record.batches.clone(), self.record.validation.clone());
        let kinds =
            batches.iter().map(|u| (BlobKind::Batch, u)).chain(validation.iter().map(|u| (BlobKind::Features, u)));
        for (kind, upload) in kinds {
            let path = uploads::path(&self.folder, upload)?;
            let mut progress = |held, _| report(Step::SendingRows(before + held, all));
            let name = (blob(&upload.blob)?, upload.bytes);
            let sent = self.remote.upload_exactly(kind, &path, name, &mut progress)?;
            self.record.sent.1 += sent.sent;
            before += upload.bytes;
        }
        self.record.seconds.sending += start.elapsed().as_secs_f64();
        self.save()
    }

    /// The job on the server: the one that was asked for, or a new one.
    fn job(&mut self) -> Result<Job> {
        if self.record.job.is_none() {
            let terms = expected_terms(&self.record.wishes, self.remote.offer())?;
            self.record.job = Some(JobRecord::new(self.remote.server(), random_name()?, terms));
            // On disk before the server hears of it: asked for twice, it is made once.
            self.save()?;
        }
        let request = self.job_record()?.request.parse::<JobId>();
        let request = request.map_err(|e| Error::Protocol { what: e.to_string() })?.0;
        let training = remote::Training {
            set: *self.layout.params.id(),
            features: self.task.features(),
            classes: self.task.classes.len(),
            keys: blob(&self.record.keys)?,
            batches: self.record.batches.iter().map(to_batch).collect::<Result<_>>()?,
            validation: self.record.validation.iter().map(to_batch).collect::<Result<_>>()?,
            wishes: self.record.wishes.clone(),
        };
        let job = self.remote.train(request, &self.options.name, &training)?;
        let record = self.job_record()?;
        if job.terms.as_ref() != Some(&record.terms) {
            let fault = Error::hostile(format!("terms other than those agreed on: {:?}", job.terms));
            self.record.job = None;
            self.save()?;
            // It is of no use to us; that the server may not end it changes nothing.
            let _ = self.remote.cancel(job.id);
            return Err(fault);
        }
        record.belongs_to(&job);
        record.judge.get_or_insert_with(|| Judge::new(record.terms.patience, record.terms.range, REPEATS));
        self.save()?;
        Ok(job)
    }

    /// The key set of this training.
    fn key_set(&self) -> Result<KeySet> {
        self.project.settings().key_set(&self.record.keys).cloned().ok_or(Error::Interrupted)
    }

    fn job_record(&mut self) -> Result<&mut JobRecord> {
        self.record.job.as_mut().ok_or(Error::Interrupted)
    }

    /// Writes down that the server was caught, so that the next run does not believe it again.
    fn remember_fault<T>(&mut self, outcome: Result<T>) -> Result<T> {
        if let Err(error) = &outcome
            && let Some(what) = error.caught()
            && let Ok(record) = self.job_record()
        {
            record.fault = Some(what);
            self.save()?;
        }
        outcome
    }
}

/// The training of this name as it is on disk. One that cannot be read is as good as none where it may be replaced.
fn record_before(folder: &Path, options: &Options) -> Result<Option<Record>> {
    let path = folder.join("job.json");
    match project::read::<Record>(&path) {
        Err(Error::Damaged { .. }) if options.replace => Ok(None),
        Err(Error::Damaged { path, reason }) => {
            Err(Error::Damaged { path, reason: format!("{reason}; begin the training again with --replace") })
        }
        record => record,
    }
}

/// The key set that an interrupted training goes on with. Nothing is made in its place: under another one it would not go on. Its file is
/// not needed where the server has it, and is compared with its name where it does not.
fn kept_set(project: &Project, owner: &Owner, layout: &Layout, record: &Record, name: &str) -> Result<KeySet> {
    let keys = project.settings().key_set(&record.keys).cloned();
    let keys = keys.ok_or_else(|| Error::Stranded { name: name.to_owned() })?;
    if keys::is_of_another_version(project, owner, layout, &keys)? {
        return Err(Error::OldKeys { name: name.to_owned() });
    }
    Ok(keys)
}

/// The key set for a training that begins.
fn fresh_set(
    project: &mut Project,
    owner: &Owner,
    layout: &Layout,
    options: &Options,
    report: &mut (dyn FnMut(Step) + Send),
) -> Result<KeySet> {
    if options.replace {
        report(Step::Comparing);
        keys::check_set(project, layout)?;
    }
    keys::ensure_set(project, owner, layout, report)
}

/// Names of the trainings that were interrupted with a key set that was there `before` and is not any more, in order.
pub fn stranded(project: &Project, before: &[KeySet]) -> Vec<String> {
    let settings = project.settings();
    let gone = |keys: &str| settings.key_set(keys).is_none() && before.iter().any(|set| set.blob == keys);
    let waits = |(_, record): &(String, Record)| !record.finished && gone(&record.keys);
    records(project).into_iter().filter(waits).map(|(name, _)| name).collect()
}

/// The trainings of a project by name, in order. One that cannot be read does not go on, and is left out.
fn records(project: &Project) -> Vec<(String, Record)> {
    let folders = std::fs::read_dir(project.root().join("jobs")).into_iter().flatten().flatten();
    let record = |folder: std::fs::DirEntry| {
        let record = project::read::<Record>(&folder.path().join("job.json")).ok().flatten()?;
        Some((folder.file_name().into_string().ok()?, record))
    };
    let mut all: Vec<_> = folders.filter_map(record).collect();
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all
}

/// Whether bytes are a training as it is on disk.
pub(crate) fn parse(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Record>(bytes).is_ok()
}

/// Whether there must be new keys: they are wanted, those that are there were used, and no interrupted training made them for this wish.
fn must_retire(project: &Project, options: &Options, before: Option<&Record>) -> bool {
    // A passphrase was wished for, and the key that is there has none.
    let open = project.passphrase().is_some() && secret_file::is_locked(&project.secret()).is_ok_and(|locked| !locked);
    let made_for_this =
        |record: &Record| record.fresh_keys && !record.finished && project.settings().key_set(&record.keys).is_some();
    options.fresh_keys && (open || keys::are_used(project) && !before.is_some_and(made_for_this))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hetal_learn::nesterov::Momentum;
    use hetal_testkit::TempDir;

    fn offer() -> Offer {
        let defaults = Terms {
            batch: 1024,
            patience: 3,
            max_epochs: 50,
            range: 128.0,
            rate: Some(1.0),
            lowering: Some(0.5),
            momentum: Some(Momentum::Nesterov),
            seed: Some(0),
        };
        Offer { defaults, ..Offer::default() }
    }

    /// An interrupted training keeps the keys that were made for it, but not an open one where a lock was wished for.
    #[test]
    fn a_wish_for_a_lock_is_not_forgotten() {
        let folder = TempDir::new();
        let mut project = Project::open(folder.path(), Some("insecure-toy11")).unwrap();
        keys::owner(&mut project).unwrap();
        let mut record: Record = serde_json::from_slice(include_bytes!("../tests/samples/training.json")).unwrap();
        record.fresh_keys = true;
        let (blob, layout, file) = (record.keys.clone(), "32 rows".to_owned(), "keys.hetal".to_owned());
        let set = KeySet { blob, bytes: 1, layout, shape: None, file, seconds: 1.0, sent: true };
        project.update(|s| s.keys = vec![set]).unwrap();
        let mut options = Options::new("model");
        assert!(!must_retire(&project, &options, Some(&record)));
        options.fresh_keys = true;
        assert!(!must_retire(&project, &options, Some(&record)), "made for this");
        assert!(must_retire(&project, &options, None), "a server has seen them");
        project.set_passphrase(Some(hetal_keys::Passphrase::new("a b c".to_owned().into()).unwrap()));
        assert!(must_retire(&project, &options, Some(&record)), "the key is open");
    }

    #[test]
    fn terms_are_the_offer_with_the_wishes() {
        let wishes = Wishes { batch: Some(64), rate: Some(2.0), max_epochs: Some(7), ..Wishes::default() };
        let terms = expected_terms(&wishes, &offer()).unwrap();
        let expected = Terms { batch: 64, rate: Some(2.0), max_epochs: 7, ..offer().defaults };
        assert_eq!(terms, expected);
        let mut hiding = offer();
        (hiding.defaults.rate, hiding.defaults.momentum) = (None, None);
        assert_eq!(expected_terms(&wishes, &hiding).unwrap().rate, None);
    }

    #[test]
    fn endless_defaults_are_not_taken_without_a_word() {
        let mut endless = offer();
        endless.defaults.max_epochs = 100_000;
        let refused = expected_terms(&Wishes::default(), &endless);
        assert!(matches!(refused, Err(Error::TooManyEpochs { epochs: 100_000, .. })), "{refused:?}");
        let asked = Wishes { max_epochs: Some(1000), ..Wishes::default() };
        assert_eq!(expected_terms(&asked, &endless).unwrap().max_epochs, 1000);
        endless.defaults = Terms { patience: 1000, ..offer().defaults };
        assert!(expected_terms(&Wishes::default(), &endless).is_err());
    }
}
