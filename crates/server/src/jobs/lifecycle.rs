//! The end of jobs: cancellation, deletion, and the removal of what they no longer need.

use crate::store::blobs::{BlobKey, Blobs, Namespace};
use crate::store::gc::referenced_blobs;
use crate::store::state::{JobSummary, Millis, State};
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_wire::JobId;

/// Cancels a job. If a worker has it, the worker is asked to end it.
pub fn cancel_job(state: &dyn State, blobs: &dyn Blobs, tenant: &Tenant, id: JobId, now: Millis) -> Result<JobSummary> {
    let job = state.cancel_job(tenant, id, now)?;
    clear_ended(state, blobs, tenant, id);
    Ok(job)
}

/// Deletes the checkpoint of an ended job, and all blobs of a deleted job. Blobs that cannot be
/// deleted now are left for garbage collection.
pub fn clear_ended(state: &dyn State, blobs: &dyn Blobs, tenant: &Tenant, id: JobId) {
    if let Err(error) = try_clear_ended(state, blobs, tenant, id) {
        tracing::warn!(job = %id, %error, "could not delete the checkpoint of an ended job");
    }
}

fn try_clear_ended(state: &dyn State, blobs: &dyn Blobs, tenant: &Tenant, id: JobId) -> Result<()> {
    match state.summary(tenant, id) {
        Ok(job) if !job.state.has_ended() => return Ok(()),
        // Job ids are never reused.
        Err(Error::NoJob { .. }) => return blobs.clear(tenant, Namespace::Job(id)),
        job => job.map(|_| ())?,
    }
    let keep = referenced_blobs(state, tenant, id)?;
    for name in blobs.list(tenant, Namespace::Job(id))? {
        if !keep.contains(&name) {
            blobs.delete(&BlobKey::new(tenant, Namespace::Job(id), name))?;
        }
    }
    Ok(())
}

/// Deletes an ended job and its blobs. The blobs go first: after an interruption, the job can be
/// deleted again.
pub fn delete_job(state: &dyn State, blobs: &dyn Blobs, tenant: &Tenant, id: JobId) -> Result<()> {
    if !state.summary(tenant, id)?.state.has_ended() {
        return Err(Error::Precondition { message: "the job has not ended: cancel it first".to_owned() });
    }
    blobs.clear(tenant, Namespace::Job(id))?;
    state.delete_job(tenant, id)
}
