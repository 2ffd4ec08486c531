//! A training from its first key to the decrypted classifier. Everything that was done is on disk before the next thing begins,
//! so a training that was killed goes on where it stopped.
//!
//! ```text
//! record    what is on disk: encrypted rows, the job, the verdicts that were given
//! follow    events as they come, a verdict for every epoch; what no honest server sends ends it
//! delete    a job that is not wanted any more, with what was sent for it
//! finish    weights fetched, compared with what was validated and with exact training, saved as a model
//! ```

mod delete;
mod finish;
mod follow;
mod hyper_parameters;
mod options;
mod progress;
mod record;
pub mod reference_check;

pub use delete::{Deleted, delete};
pub use hyper_parameters::batch_rows;
pub use options::Options;
pub use progress::{Round, Seconds, Step, Trained};

use crate::ciphertexts::row_blobs::{self, blob, to_batch};
use crate::keys::random_name;
use crate::project::{self, KeySet};
use crate::rpc::{BlobKind, Job, JobId, Remote};
use crate::{Error, Layout, Owner, Project, Result, Task, keys, rpc};
use hetal_keys::secret_file;
use hetal_learn::Judge;
use hyper_parameters::{agreed, expected_terms};
use record::{JobRecord, Record};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// An epoch is asked for again (with a lower rate, a wider range) at most so often in all.
const REPEATS: usize = 3;
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
            let path = row_blobs::path(&self.folder, upload)?;
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
        let training = rpc::Training {
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
    use hetal_testkit::TempDir;

    /// An interrupted training keeps the keys that were made for it, but not an open one where a lock was wished for.
    #[test]
    fn a_wish_for_a_lock_is_not_forgotten() {
        let folder = TempDir::new();
        let mut project = Project::open(folder.path(), Some("insecure-toy11")).unwrap();
        keys::owner(&mut project).unwrap();
        let mut record: Record = serde_json::from_slice(include_bytes!("../../tests/samples/training.json")).unwrap();
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
}
