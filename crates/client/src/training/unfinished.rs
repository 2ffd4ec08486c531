//! Trainings that have not ended, as far as the files of a project tell: for those who watch them.

use super::current_phase::{LIVE, LiveFile};
use super::judged::{BEST, StoredRounds};
use super::saved::SavedTraining;
use crate::project::{read, read_private};
use crate::report::{self, Record, TrainingState};
use crate::{Project, Result};
use hetal_ckks::Params;
use std::path::{Path, PathBuf};

/// The names of the trainings that have not ended, in order.
pub fn unfinished(project: &Project) -> Vec<String> {
    let folders = std::fs::read_dir(project.root().join("jobs")).into_iter().flatten().flatten();
    let mut names: Vec<String> = folders
        .filter(|folder| !matches!(Unfinished::read(&folder.path()), Ok(None)))
        .filter_map(|f| f.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// The files that change while a training goes on.
pub fn files_of_unfinished(project: &Project, name: &str) -> [PathBuf; 2] {
    let folder = project.root().join("jobs").join(name);
    [folder.join(LIVE), folder.join(BEST)]
}

/// The files of a training that has not ended.
struct Unfinished {
    state: TrainingState,
    live: LiveFile,
    /// What is saved of it, if its rows are encrypted.
    saved: Option<SavedTraining>,
}

impl Unfinished {
    /// `None` if there is no training in the folder, or it has ended.
    fn read(folder: &Path) -> Result<Option<Self>> {
        let live = LiveFile::read(folder)?;
        let saved: Option<SavedTraining> = read(&folder.join("job.json"))?.filter(|r: &SavedTraining| !r.finished);
        let is_running = live.as_ref().is_some_and(LiveFile::is_running);
        // A training that replaces one begins beside `job.json` of that one.
        let begins = is_running && live.as_ref().is_some_and(|live| !live.ended);
        let state = if is_running { TrainingState::Running } else { TrainingState::Interrupted };
        Ok((begins || saved.is_some()).then(|| Self { state, live: live.unwrap_or_default(), saved }))
    }
}

/// The record of a training that has not ended; `None` if there is no such training.
pub fn record_of_unfinished(project: &Project, name: &str) -> Result<Option<Record>> {
    let folder = project.root().join("jobs").join(crate::project::checked_name(name)?);
    let Some(Unfinished { state, live, saved: training }) = Unfinished::read(&folder)? else { return Ok(None) };
    let params = Params::named(&project.settings().set).ok();
    let mut record = Record {
        name: name.to_owned(),
        state,
        progress: (!live.progress.phase.is_empty()).then(|| live.progress.clone()),
        began: Some(live.began.clone()).filter(|began| !began.is_empty()),
        command: live.command.clone(),
        shape: live.shape.clone(),
        phases: report::phases(&live),
        parameters: report::parameters(&project.settings().set, params.as_ref()),
        preparation: live.preparation.clone(),
        ..report::empty()
    };
    record.parameters.key_id.clone_from(&project.settings().key_id);
    let Some(job) = training.and_then(|training| training.job) else { return Ok(Some(record)) };
    record.hyper_parameters = report::hyper_parameters(&job.terms);
    record.server.address = Some(job.server.clone());
    record.server.job.clone_from(&job.id);
    record.server.engine.clone_from(&live.engine);
    let stored = read_private::<StoredRounds>(&folder.join(BEST), project.passphrase())?;
    // Those of another job do not count.
    let stored = stored.filter(|stored| stored.is_of(&job));
    let rounds = stored.map_or(job.rounds.clone(), |stored| stored.rounds);
    if rounds.is_empty() && job.judged > 0 && live.ended {
        // The checks are in the report by now, and the training has all but ended.
        return Ok(None);
    }
    record.set_checks(report::checks(&rounds, &job.terms, &live.checks));
    Ok(Some(record))
}
