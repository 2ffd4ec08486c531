//! Deletion of a job and its uploads.

use super::saved::SavedTraining;
use super::saved_trainings;
use crate::ciphertexts::row_blobs::parse_blob_name;
use crate::project;
use crate::rpc::{self, JobId, Remote};
use crate::{Project, Result};

/// The result of a deletion on a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// The training of the job, if this project knows it.
    pub training: Option<String>,
    /// Whether that training had finished with a model.
    pub finished: bool,
    /// Deleted uploads: row blobs and the key set.
    pub uploads: usize,
    /// Uploads that were kept because other jobs use them.
    pub kept: usize,
}

/// Deletes a job that has ended, with its outputs and with those of its uploads that no other job
/// uses. An interrupted deletion continues when it is repeated.
///
/// The training of the job starts again with the rows that are encrypted here. If its server was
/// hostile, its `job.json` is kept, so that this server is not trusted again.
pub fn delete(project: &Project, remote: &Remote, id: JobId) -> Result<Deleted> {
    let is_its = |saved: &SavedTraining| saved.job.as_ref().is_some_and(|job| job.id == Some(id.to_string()));
    let known = saved_trainings(project).into_iter().find(|(_, saved)| is_its(saved));
    match remote.delete(id) {
        // The job was deleted before, but its uploads may still exist on this server.
        Err(rpc::Error::NotFound { .. }) if known.as_ref().is_some_and(|(_, saved)| is_on(saved, remote)) => {}
        other => other?,
    }
    let Some((name, mut saved)) = known else { return Ok(Deleted::default()) };
    let finished = saved.finished;
    let rows = saved.batches.iter().chain(&saved.validation).map(|row_blob| &row_blob.blob);
    let mut deleted = Deleted { training: Some(name.clone()), finished, ..Deleted::default() };
    for name in rows.chain([&saved.keys]) {
        match remote.delete_upload(parse_blob_name(name)?) {
            Ok(()) => deleted.uploads += 1,
            Err(rpc::Error::Refused { .. }) => deleted.kept += 1,
            Err(rpc::Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if !finished && saved.job.as_ref().is_none_or(|job| job.fault.is_none()) {
        saved.job = None;
        project::write(&project.job(&name)?.join("job.json"), &saved)?;
    }
    Ok(deleted)
}

fn is_on(saved: &SavedTraining, remote: &Remote) -> bool {
    saved.job.as_ref().is_some_and(|job| job.server == remote.server())
}
