//! Deletion of a job and its uploads.

use super::record::TrainingRecord;
use super::records;
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
/// hostile, its record is kept, so that this server is not trusted again.
pub fn delete(project: &Project, remote: &Remote, id: JobId) -> Result<Deleted> {
    let is_its = |record: &TrainingRecord| record.job.as_ref().is_some_and(|job| job.id == Some(id.to_string()));
    let known = records(project).into_iter().find(|(_, record)| is_its(record));
    match remote.delete(id) {
        // The job was deleted before, but its uploads may still exist on this server.
        Err(rpc::Error::NotFound { .. }) if known.as_ref().is_some_and(|(_, record)| is_on(record, remote)) => {}
        other => other?,
    }
    let Some((name, mut record)) = known else { return Ok(Deleted::default()) };
    let finished = record.finished;
    let rows = record.batches.iter().chain(&record.validation).map(|row_blob| &row_blob.blob);
    let mut deleted = Deleted { training: Some(name.clone()), finished, ..Deleted::default() };
    for name in rows.chain([&record.keys]) {
        match remote.delete_upload(parse_blob_name(name)?) {
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
