//! The end of jobs: cancellation, deletion, and the removal of what they no longer need.

use crate::store::blobs::{Blobs, Key, Namespace};
use crate::store::gc::referenced_blobs;
use crate::store::state::{JobSummary, Millis, State};
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_wire::JobId;

/// Ends a job that no worker has; asks the worker that has it to end it.
pub fn cancel_job(state: &dyn State, blobs: &dyn Blobs, tenant: &Tenant, id: JobId, now: Millis) -> Result<JobSummary> {
    let job = state.cancel_job(tenant, id, now)?;
    clear_ended(state, blobs, tenant, id);
    Ok(job)
}

/// Removes what a job that has ended would have gone on from, and everything of one that is gone: it counts no more, and takes no room
/// either. What cannot be removed now is swept up later.
pub fn clear_ended(state: &dyn State, blobs: &dyn Blobs, tenant: &Tenant, id: JobId) {
    if let Err(error) = try_clear_ended(state, blobs, tenant, id) {
        tracing::warn!(job = %id, %error, "the checkpoint of a job that has ended could not be removed");
    }
}

fn try_clear_ended(state: &dyn State, blobs: &dyn Blobs, tenant: &Tenant, id: JobId) -> Result<()> {
    match state.summary(tenant, id) {
        Ok(job) if !job.state.has_ended() => return Ok(()),
        // Names of jobs are not used twice.
        Err(Error::NoJob { .. }) => return blobs.clear(tenant, Namespace::Job(id)),
        job => job.map(|_| ())?,
    }
    let keep = referenced_blobs(state, tenant, id)?;
    for name in blobs.list(tenant, Namespace::Job(id))? {
        if !keep.contains(&name) {
            blobs.delete(&Key::new(tenant, Namespace::Job(id), name))?;
        }
    }
    Ok(())
}

/// Removes a job that has ended, with everything it made. Blobs first: if this is interrupted, the job is still there to be deleted
/// again.
pub fn delete_job(state: &dyn State, blobs: &dyn Blobs, tenant: &Tenant, id: JobId) -> Result<()> {
    if !state.summary(tenant, id)?.state.has_ended() {
        return Err(Error::Precondition { message: "the job has not ended: cancel it first".to_owned() });
    }
    blobs.clear(tenant, Namespace::Job(id))?;
    state.delete_job(tenant, id)
}
