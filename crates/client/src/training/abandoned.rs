//! Jobs of a training whose `job.json` was lost or replaced. A new job would wait behind them.

use super::ProgressEvent;
use crate::project::OpenJob;
use crate::rpc::{self, JobId, Remote};
use crate::{Project, Result};
use std::path::Path;

/// Cancels the jobs that this project has on the server under the name of a training, except the
/// one that it continues with (`current`). Returns those that were cancelled.
///
/// A job stays in the project's list until it was cancelled or its server does not know it: the
/// next command tries again. Jobs on other servers stay too, except the job of `job.json` (`last`):
/// the server may have another address now.
pub(super) fn cancel(
    project: &mut Project,
    remote: &Remote,
    training: &str,
    current: Option<&str>,
    last: Option<OpenJob>,
) -> Result<Vec<JobId>> {
    if let Some(job) = &last {
        // Projects of earlier versions do not list it.
        project.open_job(job.clone())?;
    }
    let last_id = last.as_ref().map(|job| job.id.as_str());
    let is_here = |job: &OpenJob| job.server == remote.server();
    let is_meant = |job: &&OpenJob| {
        let id = Some(job.id.as_str());
        job.training == training && id != current && (is_here(job) || id == last_id)
    };
    let jobs: Vec<OpenJob> = project.settings().jobs.iter().filter(is_meant).cloned().collect();
    let mut cancelled = Vec::new();
    for job in jobs {
        // One job can be listed under two addresses of its server.
        if !project.settings().jobs.contains(&job) {
            continue;
        }
        let Ok(id) = job.id.parse() else {
            project.close_job(&job.id)?;
            continue;
        };
        match remote.cancel(id) {
            Ok(_) => {
                cancelled.push(id);
                project.close_job(&job.id)?;
            }
            Err(rpc::Error::NotFound { .. }) if is_here(&job) => {
                project.update(|s| s.jobs.retain(|other| *other != job))?;
            }
            Err(_) => {}
        }
    }
    Ok(cancelled)
}

/// Tells the owner about the jobs of a training whose `job.json` is lost. If the project remembers
/// no job, jobs of the same label are reported: they may belong to another project of the same
/// tenant.
pub(super) fn report_lost(
    remote: &Remote,
    training: &str,
    folder: &Path,
    cancelled: &[JobId],
    on_progress: &mut (dyn FnMut(ProgressEvent) + Send),
) {
    cancelled.iter().for_each(|&job| on_progress(ProgressEvent::Abandoned { job, cancelled: true }));
    if cancelled.is_empty() && has_row_blobs(folder) {
        let jobs = remote.jobs().unwrap_or_default();
        let open = jobs.iter().filter(|job| job.label == training && !job.state.has_ended());
        open.for_each(|job| on_progress(ProgressEvent::Abandoned { job: job.id, cancelled: false }));
    }
}

/// Whether an earlier training left row blobs in its folder.
fn has_row_blobs(folder: &Path) -> bool {
    let mut entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.any(|entry| entry.file_name().to_string_lossy().ends_with(".ct"))
}
