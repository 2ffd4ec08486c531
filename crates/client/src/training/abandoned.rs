//! Jobs of a training whose record was lost or replaced. A new job would wait behind them.

use super::ProgressEvent;
use crate::project::OpenJob;
use crate::rpc::{JobId, Remote};
use crate::{Project, Result};
use std::path::Path;

/// Cancels the jobs that this project has on the server under the name of a training, which starts
/// anew. If the record is `lost` and the project remembers no job either, jobs of the same label
/// are only reported: they may belong to another project of the same tenant.
pub(super) fn cancel(
    project: &Project,
    remote: &Remote,
    training: &str,
    folder: &Path,
    lost: bool,
    report: &mut (dyn FnMut(ProgressEvent) + Send),
) -> Result<()> {
    let is_its = |job: &&OpenJob| job.training == training && job.server == remote.server();
    let known: Vec<JobId> =
        project.settings().jobs.iter().filter(is_its).filter_map(|job| job.id.parse().ok()).collect();
    for &job in &known {
        // It may have ended or been deleted.
        if remote.cancel(job).is_ok() && lost {
            report(ProgressEvent::Abandoned { job, cancelled: true });
        }
    }
    if lost && known.is_empty() && has_row_blobs(folder) {
        let jobs = remote.jobs().unwrap_or_default();
        let open = jobs.iter().filter(|job| job.label == training && !job.state.has_ended());
        open.for_each(|job| report(ProgressEvent::Abandoned { job: job.id, cancelled: false }));
    }
    Ok(())
}

/// Whether an earlier training left row blobs in its folder.
fn has_row_blobs(folder: &Path) -> bool {
    let mut entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.any(|entry| entry.file_name().to_string_lossy().ends_with(".ct"))
}
