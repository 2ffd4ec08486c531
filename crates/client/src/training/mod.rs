//! A training, from the first key to the decrypted classifier.
//!
//! Every step is on disk before the next one starts, so that a training that was killed continues
//! where it stopped.
//!
//! ```text
//! options, hyper_parameters   what the owner asks for, and what client and server agree on
//! defaults                    hyper-parameters that fit the rows
//! saved                       the state on disk: row blobs, the job, the verdicts
//! send                        uploads, repaired where the server or this folder lost something
//! abandoned                   jobs whose `job.json` was lost
//! follow                      events as they arrive, and a verdict for every round
//! pipeline                    downloads and verdicts beside the judging
//! judged                      judged rounds and the logits of the best check: the private file
//! current_phase               what it does just now, and the seconds of its phases
//! finish                      weights, checked against validated logits and plaintext reference
//! delete                      removes a job and its uploads from a server
//! reference_check             the same training without encryption
//! unfinished                  trainings that have not ended, for those who watch them
//! progress                    progress events and results
//! ```

mod abandoned;
pub(crate) mod current_phase;
mod defaults;
mod delete;
mod finish;
mod follow;
mod hyper_parameters;
mod judged;
mod options;
mod pipeline;
mod progress;
pub mod reference_check;
mod saved;
mod send;
mod unfinished;

pub use defaults::{Defaults, wishes_text};
pub use delete::{Deleted, delete};
pub use hyper_parameters::batch_rows;
pub use options::TrainingOptions;
pub use progress::{
    IterationTime, PhaseProgress, ProgressEvent, Round, Seconds, SentBytes, ShownRound, Trained, shown_loss,
};
pub use unfinished::{files_of_unfinished, record_of_unfinished, unfinished};

use crate::ciphertexts::RowBlobFile;
use crate::ciphertexts::row_blobs::parse_blob_name;
use crate::keys::random_name;
use crate::model::Prior;
use crate::project::{self, KeySet, OpenJob};
use crate::rpc::{JobId, JobInfo, JobState, Remote};
use crate::{Error, Layout, Owner, Project, Result, TrainingData, keys, report, rpc};
use current_phase::Live;
use hetal_keys::locked_file::FileSealer;
use hetal_keys::secret_file;
use hyper_parameters::{agree_on_layout, expected_hyper_parameters};
use judged::BestCheck;
use saved::{JobRecord, NewTraining, SavedTraining};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// How often a training goes back to the last accepted check at most, for a lower rate or a wider
/// range. Fewer than the server allows ([`hetal_learn::session::MOST_REPEATS`]).
const REPEATS: usize = 6;

/// A training in progress.
pub struct TrainingRun<'a> {
    project: &'a mut Project,
    remote: &'a Remote,
    data: &'a TrainingData,
    options: &'a TrainingOptions,
    layout: Layout,
    owner: Owner,
    folder: PathBuf,
    saved: SavedTraining,
    best: BestCheck,
    /// Locks the private file, if there is a passphrase. Its key is derived before the first round.
    lock: Option<FileSealer>,
    began: Instant,
    live: Arc<Mutex<Live>>,
}

impl<'a> TrainingRun<'a> {
    /// Starts a training, or resumes the interrupted one of the same name.
    pub fn open(
        project: &'a mut Project,
        remote: &'a Remote,
        data: &'a TrainingData,
        options: &'a TrainingOptions,
        on_progress: &mut (dyn FnMut(ProgressEvent) + Send),
    ) -> Result<Self> {
        let began = Instant::now();
        // What is wrong with it is said before anything is encrypted.
        Prior::new(options.prior, data)?;
        let folder = project.job(&options.name)?;
        let before = read_saved(&folder, options)?;
        let begun = before.as_ref().filter(|_| !options.replace).map(|saved| saved.key_plan);
        let (layout, wishes) = agree_on_layout(project, remote.offer(), data, options, begun)?;
        // Check this before keys are created or retired.
        keys::require_no_rotation(project)?;
        let start = Start::new(project, options, before)?;
        let live = Arc::new(Mutex::new(start.live(&folder, data, options)));
        let on_progress = &mut followed(&live, on_progress);
        let retire = options.fresh_keys && must_retire_keys(project, options.relock, start.saved());
        let form = options.row_form.form;
        let same = start.saved().is_some_and(|saved| !retire && saved.matches(data, &layout, &wishes, form));
        if !same && matches!(start, Start::Resume(_)) {
            return Err(Error::OtherTraining { name: options.name.clone() });
        }
        let (owner, keys) = open_keys(project, &layout, options, &start, retire, on_progress)?;
        let fitting = |saved: &SavedTraining| saved.keys == keys.blob && saved.can_be_sent(&folder, options.replace);
        let (saved, best) = match start.into_saved() {
            Some(saved) if same && fitting(&saved) => resumed(project, remote, data, options, saved, &folder)?,
            before => {
                discard(project, remote, options, before.as_ref(), &folder, on_progress)?;
                let form = options.row_form.choose(remote.offer(), &layout, project.settings().uplink)?;
                let new = NewTraining {
                    owner: &owner,
                    layout: &layout,
                    data,
                    keys: &keys,
                    wishes,
                    form,
                    folder: &folder,
                    cancellation: project.cancellation(),
                };
                let mut saved = SavedTraining::begin(new, on_progress)?;
                saved.fresh_keys = options.fresh_keys;
                (saved, BestCheck::none(data))
            }
        };
        let lock = project.passphrase().map(FileSealer::new).transpose()?;
        let mut training =
            Self { project, remote, data, options, layout, owner, folder, saved, best, lock, began, live };
        if training.saved.job.as_ref().is_some_and(|job| job.judged > 0) {
            // An earlier version had the rounds in `job.json`, which does not keep them.
            training.save_judged()?;
        }
        training.save()?;
        Ok(training)
    }

    fn save(&mut self) -> Result<()> {
        self.saved.seconds.all += self.began.elapsed().as_secs_f64();
        self.began = Instant::now();
        project::write(&self.folder.join("job.json"), &self.saved)
    }

    /// Uploads what the server does not have, follows the job, judges its checks and decrypts the
    /// result.
    pub fn run(mut self, on_progress: &mut (dyn FnMut(ProgressEvent) + Send)) -> Result<Trained> {
        let live = self.live.clone();
        let on_progress = &mut followed(&live, on_progress);
        self.send(on_progress)?;
        let job = self.job(on_progress)?;
        let start = Instant::now();
        let outcome = self.follow(&job, on_progress);
        self.saved.seconds.training += start.elapsed().as_secs_f64();
        let outcome = outcome.and_then(|outputs| self.download_weights(&job, &outputs).map(|()| outputs));
        // The server must not see how long the client works on what it downloaded.
        self.remote.disconnect();
        self.save()?;
        let outputs = self.record_fault(outcome)?;
        self.finish(&job, &outputs, on_progress)
    }

    /// Requests the job, or finds the one that was requested before. A job that failed since is
    /// replaced by a new one.
    fn job(&mut self, on_progress: &mut (dyn FnMut(ProgressEvent) + Send)) -> Result<JobInfo> {
        let requested_before = self.saved.job.as_ref().is_some_and(|job| job.fault.is_none());
        let job = self.request_job()?;
        if job.state != JobState::Failed || !requested_before {
            return Ok(job);
        }
        on_progress(ProgressEvent::Restarted { reason: job.reason });
        self.forget_job()?;
        self.request_job()
    }

    /// Requests the job. The same request returns the same job.
    fn request_job(&mut self) -> Result<JobInfo> {
        if self.saved.job.is_none() {
            let terms = expected_hyper_parameters(&self.saved.wishes, self.remote.offer(), self.data)?;
            self.saved.job = Some(JobRecord::new(self.remote.server(), random_name()?, terms));
            // The request is on disk before it is sent, so that a repeated request makes no second
            // job.
            self.save()?;
        }
        let request = self.job_record()?.request.parse::<JobId>();
        let request = request.map_err(|e| Error::Protocol { what: e.to_string() })?.0;
        let training = rpc::TrainingRequest {
            set: *self.layout.params.id(),
            features: self.data.features(),
            classes: self.data.classes.len(),
            keys: parse_blob_name(&self.saved.keys)?,
            batches: self.saved.batches.iter().map(RowBlobFile::reference).collect::<Result<_>>()?,
            validation: self.saved.validation.iter().map(RowBlobFile::reference).collect::<Result<_>>()?,
            wishes: self.saved.wishes.clone(),
            weighted: self.data.is_weighted(),
            form: self.saved.form,
            key_plan: self.saved.key_plan,
        };
        let job = self.remote.train(request, &self.options.name, &training)?;
        let data = self.data;
        let record = self.job_record()?;
        if job.terms.as_ref() != Some(&record.terms) {
            let fault = Error::hostile(format!("hyper-parameters other than those agreed on: {:?}", job.terms));
            self.saved.job = None;
            self.save()?;
            // The job is useless, whether or not the server cancels it.
            let _ = self.remote.cancel(job.id);
            return Err(fault);
        }
        if let Some(what) = record.fault.clone().filter(|_| record.id != Some(job.id.to_string())) {
            return Err(Error::KnownHostile { what });
        }
        let is_another = record.id.as_ref().is_some_and(|known| *known != job.id.to_string());
        record.assign_job(&job);
        record.judge.get_or_insert_with(|| data.judge(record.terms.patience, record.terms.range, REPEATS));
        if is_another {
            self.best = BestCheck::none(self.data);
        }
        self.save()?;
        self.project.open_job(OpenJob {
            training: self.options.name.clone(),
            server: self.remote.server().to_owned(),
            id: job.id.to_string(),
        })?;
        Ok(job)
    }

    /// Forgets the job, unless its server misbehaved, which is remembered.
    fn forget_job(&mut self) -> Result<()> {
        if self.job_record()?.fault.is_none() {
            let ended = self.saved.job.take().and_then(|job| job.id);
            self.best = BestCheck::none(self.data);
            self.save()?;
            self.close_job(ended.as_deref())?;
        }
        Ok(())
    }

    /// Forgets a job that has ended in the project's list of jobs.
    fn close_job(&mut self, id: Option<&str>) -> Result<()> {
        id.map_or(Ok(()), |id| self.project.close_job(id))
    }

    /// The key set of this training.
    fn key_set(&self) -> Result<KeySet> {
        self.project.settings().key_set(&self.saved.keys).cloned().ok_or(Error::Interrupted)
    }

    fn job_record(&mut self) -> Result<&mut JobRecord> {
        self.saved.job.as_mut().ok_or(Error::Interrupted)
    }

    /// Records the misbehaviour of the server, so that the next run does not trust it. The first
    /// misbehaviour is the error, whatever happened after it.
    fn record_fault<T>(&mut self, outcome: Result<T>) -> Result<T> {
        let new = outcome.as_ref().err().and_then(Error::misbehaviour);
        let Some(record) = &mut self.saved.job else { return outcome };
        let Some(what) = record.fault.clone().or(new) else { return outcome };
        record.fault = Some(what.clone());
        // If something else came in between, the next command follows the job to its end, like that
        // of a client that found no fault.
        record.left = match &outcome {
            Ok(_) | Err(Error::JobFailed { .. } | Error::JobCancelled) => true,
            Err(error) => error.misbehaviour().is_some(),
        };
        let ended = record.id.clone().filter(|_| record.left);
        self.save()?;
        self.close_job(ended.as_deref())?;
        Err(Error::Hostile { what })
    }
}

/// How a training starts, with what is saved of it.
enum Start {
    /// Nothing is saved.
    Begin,
    /// It was interrupted, and goes on.
    Resume(SavedTraining),
    /// It is finished, or replaced with `--replace`. Its rows are used again if they fit.
    Replace(SavedTraining),
}

impl Start {
    fn new(project: &Project, options: &TrainingOptions, saved: Option<SavedTraining>) -> Result<Self> {
        let going_on = saved.as_ref().is_some_and(|saved| !saved.finished);
        if !options.replace && !going_on && project.model(&options.name)?.exists() {
            return Err(Error::ModelExists { name: options.name.clone() });
        }
        match saved {
            None => Ok(Self::Begin),
            Some(saved) if options.replace || saved.finished => Ok(Self::Replace(saved)),
            Some(saved) if saved.is_of_another_version() => Err(Error::OldTraining { name: options.name.clone() }),
            Some(saved) => Ok(Self::Resume(saved)),
        }
    }

    fn saved(&self) -> Option<&SavedTraining> {
        match self {
            Self::Begin => None,
            Self::Resume(saved) | Self::Replace(saved) => Some(saved),
        }
    }

    fn into_saved(self) -> Option<SavedTraining> {
        match self {
            Self::Begin => None,
            Self::Resume(saved) | Self::Replace(saved) => Some(saved),
        }
    }

    /// What the training does just now.
    fn live(&self, folder: &Path, data: &TrainingData, options: &TrainingOptions) -> Live {
        let resumed = matches!(self, Self::Resume(_)).then(|| Live::resume(folder)).flatten();
        resumed.unwrap_or_else(|| {
            let (shape, preparation) = (report::shape(data), report::preparation(data, options.prior));
            Live::begin(folder, options.command.clone(), shape, preparation)
        })
    }
}

/// The secret key and the key set of a training: new ones if the current ones are retired.
fn open_keys(
    project: &mut Project,
    layout: &Layout,
    options: &TrainingOptions,
    start: &Start,
    retire: bool,
    on_progress: &mut (dyn FnMut(ProgressEvent) + Send),
) -> Result<(Owner, KeySet)> {
    let before = project.settings().keys.clone();
    if retire {
        keys::retire(project)?;
    }
    let owner = keys::owner(project)?;
    let keys = match start {
        Start::Resume(saved) if saved.needs_its_keys(project) => {
            kept_key_set(project, &owner, layout, saved, &options.name)?
        }
        _ => key_set_for_new_training(project, &owner, layout, options, on_progress)?,
    };
    let stranded: Vec<_> = stranded(project, &before).into_iter().filter(|name| *name != options.name).collect();
    if !stranded.is_empty() {
        on_progress(ProgressEvent::Stranded(stranded));
    }
    Ok((owner, keys))
}

/// Events that are recorded before they are reported.
fn followed<'a>(
    live: &Arc<Mutex<Live>>,
    on_progress: &'a mut (dyn FnMut(ProgressEvent) + Send),
) -> impl FnMut(ProgressEvent) + Send + use<'a> {
    let live = live.clone();
    move |event| {
        live.lock().unwrap_or_else(PoisonError::into_inner).observe(&event);
        on_progress(event);
    }
}

/// Resumes an interrupted training, or starts a finished one again with the rows that are encrypted
/// already.
fn resumed(
    project: &mut Project,
    remote: &Remote,
    data: &TrainingData,
    options: &TrainingOptions,
    mut saved: SavedTraining,
    folder: &Path,
) -> Result<(SavedTraining, BestCheck)> {
    let best = judged::load(&mut saved, data, folder, project.passphrase())?;
    let is_lost = best.is_none();
    if let (true, Some(JobRecord { fault: Some(what), .. })) = (is_lost, &saved.job) {
        return Err(Error::KnownHostile { what: what.clone() });
    }
    let job = saved.open_job(&options.name);
    let (current, last) = if is_lost { (None, job) } else { (job, None) };
    abandoned::cancel(project, remote, &options.name, current.as_ref().map(|job| job.id.as_str()), last)?;
    let Some(best) = best else {
        saved.job = None;
        project::write(&folder.join("job.json"), &saved)?;
        return Err(Error::JudgedLogitsLost { path: folder.join(judged::BEST) });
    };
    Ok((saved.resume(remote, options, data)?, best))
}

/// Cancels the jobs of a training that starts anew and removes its files.
fn discard(
    project: &mut Project,
    remote: &Remote,
    options: &TrainingOptions,
    before: Option<&SavedTraining>,
    folder: &Path,
    on_progress: &mut (dyn FnMut(ProgressEvent) + Send),
) -> Result<()> {
    let last = before.and_then(|saved| saved.open_job(&options.name));
    let cancelled = abandoned::cancel(project, remote, &options.name, None, last)?;
    if before.is_none() {
        abandoned::report_lost(remote, &options.name, folder, &cancelled, on_progress);
    }
    saved::discard(folder)
}

/// Reads what is saved of the training. A damaged file is ignored if the training may be replaced.
fn read_saved(folder: &Path, options: &TrainingOptions) -> Result<Option<SavedTraining>> {
    let path = folder.join("job.json");
    match project::read::<SavedTraining>(&path) {
        Err(Error::Damaged { .. }) if options.replace => Ok(None),
        Err(Error::Damaged { path, reason }) => {
            Err(Error::Damaged { path, reason: format!("{reason}. Start the training again with --replace") })
        }
        saved => saved,
    }
}

/// The key set that an interrupted training continues with. It is not generated again, because the
/// training cannot continue with other keys. If the server has it, its file is not needed.
fn kept_key_set(
    project: &Project,
    owner: &Owner,
    layout: &Layout,
    saved: &SavedTraining,
    name: &str,
) -> Result<KeySet> {
    let keys = project.settings().key_set(&saved.keys).cloned();
    let keys = keys.ok_or_else(|| Error::Stranded { name: name.to_owned() })?;
    if keys::is_of_another_version(project, owner, layout, &keys)? {
        return Err(Error::OldKeys { name: name.to_owned() });
    }
    Ok(keys)
}

/// The key set for a new training.
fn key_set_for_new_training(
    project: &mut Project,
    owner: &Owner,
    layout: &Layout,
    options: &TrainingOptions,
    on_progress: &mut (dyn FnMut(ProgressEvent) + Send),
) -> Result<KeySet> {
    if options.replace {
        on_progress(ProgressEvent::Comparing);
        keys::check_set(project, layout)?;
    }
    keys::ensure_set(project, owner, layout, on_progress)
}

/// The names of interrupted trainings whose key set was among those `before` and no longer exists.
pub fn stranded(project: &Project, before: &[KeySet]) -> Vec<String> {
    let settings = project.settings();
    let gone = |keys: &str| settings.key_set(keys).is_none() && before.iter().any(|set| set.blob == keys);
    let waits = |(_, saved): &(String, SavedTraining)| !saved.finished && gone(&saved.keys);
    saved_trainings(project).into_iter().filter(waits).map(|(name, _)| name).collect()
}

/// What is saved of all trainings, ordered by name. Damaged files are skipped.
fn saved_trainings(project: &Project) -> Vec<(String, SavedTraining)> {
    let folders = std::fs::read_dir(project.root().join("jobs")).into_iter().flatten().flatten();
    let saved = |folder: std::fs::DirEntry| {
        let saved = project::read::<SavedTraining>(&folder.path().join("job.json")).ok().flatten()?;
        Some((folder.file_name().into_string().ok()?, saved))
    };
    let mut all: Vec<_> = folders.filter_map(saved).collect();
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all
}

/// The name of the training of this project, among those whose names begin with `prefix`, that has
/// these rows and asks for the same. It was interrupted, or can start again with its encrypted
/// rows.
pub fn name_of_same(
    project: &Project,
    remote: &Remote,
    data: &TrainingData,
    options: &TrainingOptions,
    prefix: &str,
) -> Result<Option<String>> {
    for (name, saved) in saved_trainings(project).into_iter().filter(|(name, _)| name.starts_with(prefix)) {
        let (layout, wishes) = agree_on_layout(project, remote.offer(), data, options, Some(saved.key_plan))?;
        if saved.matches(data, &layout, &wishes, options.row_form.form) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Whether the project has an interrupted training of this name.
pub fn is_interrupted(project: &Project, name: &str) -> Result<bool> {
    let saved = project::read::<SavedTraining>(&project.job(name)?.join("job.json"))?;
    Ok(saved.is_some_and(|saved| !saved.finished))
}

/// A random label for a training: 16 hexadecimal digits.
pub fn random_label() -> Result<String> {
    Ok(keys::hex(&random_name()?[..8]))
}

/// The key set of the training with this job, if this project still has both.
pub(crate) fn key_set_of_job(project: &Project, job: &str) -> Option<KeySet> {
    let is_its = |saved: &SavedTraining| saved.job.as_ref().is_some_and(|known| known.id.as_deref() == Some(job));
    let (_, saved) = saved_trainings(project).into_iter().find(|(_, saved)| is_its(saved))?;
    project.settings().key_set(&saved.keys).cloned()
}

/// Returns whether bytes are a valid `job.json`.
pub(crate) fn parse(bytes: &[u8]) -> bool {
    serde_json::from_slice::<SavedTraining>(bytes).is_ok()
}

/// Returns whether a training of this name that asks for fresh keys replaces the current ones.
/// With `relock` the fresh ones are to have a passphrase of their own.
pub fn replaces_keys(project: &Project, name: &str, relock: bool) -> Result<bool> {
    // That a file is damaged is said where the training begins.
    let before = project::read::<SavedTraining>(&project.job(name)?.join("job.json")).ok().flatten();
    Ok(must_retire_keys(project, relock, before.as_ref()))
}

/// Returns whether fresh keys must replace the current ones. They stay if they were made for this
/// training, which was interrupted, or if no server has seen them; unless a passphrase is wanted
/// that they do not have.
fn must_retire_keys(project: &Project, relock: bool, before: Option<&SavedTraining>) -> bool {
    let made_for_this = |saved: &SavedTraining| {
        saved.fresh_keys && !saved.finished && project.settings().key_set(&saved.keys).is_some()
    };
    let wants_lock = relock || project.passphrase().is_some();
    let open = wants_lock && secret_file::is_locked(&project.secret()).is_ok_and(|locked| !locked);
    open || (relock || keys::are_used(project)) && !before.is_some_and(made_for_this)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hetal_testkit::TempDir;

    /// An interrupted training keeps the keys that were created for it, unless a passphrase is
    /// wanted and the key has none. A locked key gives way to one with a new passphrase.
    #[test]
    fn a_wish_for_a_lock_is_not_forgotten() {
        let folder = TempDir::new();
        let mut project = Project::open(folder.path(), Some("insecure-toy11")).unwrap();
        keys::owner(&mut project).unwrap();
        let mut saved: SavedTraining =
            serde_json::from_slice(include_bytes!("../../tests/samples/training.json")).unwrap();
        saved.fresh_keys = true;
        let (blob, layout, file) = (saved.keys.clone(), "32 rows".to_owned(), "keys.hetal".to_owned());
        let set = KeySet { blob, bytes: 1, layout, shape: None, file, seconds: 1.0, sent: true };
        project.update(|s| s.keys = vec![set]).unwrap();
        assert!(!must_retire_keys(&project, false, Some(&saved)), "made for this");
        assert!(must_retire_keys(&project, false, None), "a server has seen them");
        project.update(|s| s.keys[0].sent = false).unwrap();
        assert!(!must_retire_keys(&project, false, None), "no server has seen them");
        assert!(must_retire_keys(&project, true, None), "they are to have another passphrase");
        project.set_passphrase(Some(hetal_keys::Passphrase::new("a b c".to_owned().into()).unwrap()));
        assert!(must_retire_keys(&project, false, Some(&saved)), "the key is open");
    }
}
