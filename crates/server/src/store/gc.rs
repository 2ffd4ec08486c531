//! Garbage collection: deletes files of uploads and blobs that the state does not reference.
//!
//! A crash may leave three kinds of files: staged bytes of an upload that is complete or deleted,
//! blobs of a deleted upload or job, and ciphertexts of a checkpoint that was never committed. The
//! collection runs when a server starts, before it serves clients. With PostgreSQL `shared_gc` does
//! this instead.

use crate::store::blobs::{BlobKey, Blobs, Namespace};
use crate::store::staging::Staging;
use crate::store::state::{State, visit_events};
use crate::tenants::Tenant;
use crate::worker::checkpoint::Checkpoint;
use crate::{Error, Result};
use hetal_wire::{BlobName, JobId, v1};
use std::collections::BTreeSet;

/// Deletes everything that the state does not reference. Returns the number of deleted files.
pub fn collect_garbage(state: &dyn State, blobs: &dyn Blobs, staging: &Staging) -> Result<usize> {
    let mut removed = collect_staged(state, staging)?;
    for (tenant, namespace) in blobs.namespaces()? {
        let Some(keep) = blobs_to_keep(state, &tenant, namespace)? else {
            removed += blobs.list(&tenant, namespace)?.len();
            blobs.clear(&tenant, namespace)?;
            continue;
        };
        for name in blobs.list(&tenant, namespace)? {
            let unnamed = match &keep {
                Keep::Uploads => state.upload(&tenant, name)?.is_none(),
                Keep::Only(names) => !names.contains(&name),
                Keep::All => false,
            };
            if unnamed {
                blobs.delete(&BlobKey::new(&tenant, namespace, name))?;
                removed += 1;
            }
        }
    }
    Ok(removed)
}

/// Deletes staged bytes of uploads that are complete or deleted. Returns the number of deleted
/// files.
pub fn collect_staged(state: &dyn State, staging: &Staging) -> Result<usize> {
    let mut removed = 0;
    for (tenant, name) in staging.files()? {
        if state.upload(&tenant, name)?.is_none_or(|upload| upload.complete) {
            staging.lock(&tenant, name)?.discard()?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Which blobs of a namespace to keep.
enum Keep {
    Uploads,
    Only(BTreeSet<BlobName>),
    /// The job cannot be read, so its references are unknown.
    All,
}

/// `None` if the job of the namespace no longer exists.
fn blobs_to_keep(state: &dyn State, tenant: &Tenant, namespace: Namespace) -> Result<Option<Keep>> {
    let Namespace::Job(id) = namespace else { return Ok(Some(Keep::Uploads)) };
    match referenced_blobs(state, tenant, id) {
        Ok(names) => Ok(Some(Keep::Only(names))),
        Err(Error::NoJob { .. }) => Ok(None),
        Err(error @ (Error::State { .. } | Error::Failed { .. })) => {
            tracing::error!(job = %id, %tenant, %error, "a job cannot be read: all its blobs are kept");
            Ok(Some(Keep::All))
        }
        Err(error) => Err(error),
    }
}

/// The blobs that a job's checkpoint and events reference.
pub fn referenced_blobs(state: &dyn State, tenant: &Tenant, id: JobId) -> Result<BTreeSet<BlobName>> {
    let job = state.job(tenant, id)?;
    let mut names = BTreeSet::new();
    if let Some(checkpoint) = job.checkpoint.filter(|_| !job.state.has_ended()) {
        names.extend(Checkpoint::parse(&checkpoint)?.1);
    }
    visit_events(state, tenant, id, |event| {
        let outputs = match event.what {
            Some(v1::event::What::Validation(validation)) => validation.logits,
            Some(v1::event::What::Finished(finished)) => finished.outputs,
            _ => Vec::new(),
        };
        names.extend(outputs.iter().filter_map(|output| BlobName::try_from(&output.blob[..]).ok()));
    })?;
    Ok(names)
}
