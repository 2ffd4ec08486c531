//! A job that its owner wants gone, with what was sent for it.

use super::record::TrainingRecord;
use super::records;
use crate::ciphertexts::row_blobs::blob;
use crate::project;
use crate::rpc::{self, JobId, Remote};
use crate::{Project, Result};

/// What was deleted on a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// The training whose job it was, where this project knows it.
    pub training: Option<String>,
    /// Whether that training had ended, with a model.
    pub finished: bool,
    /// Uploads that are gone: encrypted rows, and the key set.
    pub uploads: usize,
    /// Uploads that stay, because other jobs use them.
    pub kept: usize,
}

/// Deletes a job that has ended, with everything it made, and what was sent for it and no other job uses. Interrupted, it goes on. A training
/// whose job it was begins anew, with the rows that are encrypted here; one whose server was caught stays as it is, so that this server is not
/// believed again.
pub fn delete(project: &Project, remote: &Remote, id: JobId) -> Result<Deleted> {
    let is_its = |record: &TrainingRecord| record.job.as_ref().is_some_and(|job| job.id == Some(id.to_string()));
    let known = records(project).into_iter().find(|(_, record)| is_its(record));
    match remote.delete(id) {
        // What it used may still be there. Another server never had it, and knows nothing about it.
        Err(rpc::Error::NotFound { .. }) if known.as_ref().is_some_and(|(_, record)| is_on(record, remote)) => {}
        other => other?,
    }
    let Some((name, mut record)) = known else { return Ok(Deleted::default()) };
    let finished = record.finished;
    let rows = record.batches.iter().chain(&record.validation).map(|row_blob| &row_blob.blob);
    let mut deleted = Deleted { training: Some(name.clone()), finished, ..Deleted::default() };
    for name in rows.chain([&record.keys]) {
        match remote.delete_upload(blob(name)?) {
            Ok(()) => deleted.uploads += 1,
            Err(rpc::Error::Refused { .. }) => deleted.kept += 1,
            Err(rpc::Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if !finished && record.job.as_ref().is_none_or(|job| job.fault.is_none()) {
        record.job = None;
        project::write(&project.job(&name)?.join("job.json"), &record)?;
    }
    Ok(deleted)
}

fn is_on(record: &TrainingRecord, remote: &Remote) -> bool {
    record.job.as_ref().is_some_and(|job| job.server == remote.server())
}
