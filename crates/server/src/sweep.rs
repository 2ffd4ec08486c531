//! What is no longer needed: jobs that their owners delete, and what a sudden end left behind and nobody names: bytes of forgotten uploads and jobs, ciphertexts of a checkpoint that was never
//! written. It is swept up when a server starts, before it serves anyone: nothing is on its way then.

use crate::blobs::{Blobs, Key, Shelf};
use crate::staging::Staging;
use crate::state::{Holdings, State};
use crate::tenants::Tenant;
use crate::training::Checkpoint;
use crate::{Error, Result};
use hetal_wire::{BlobName, JobId, v1};
use std::collections::BTreeSet;

/// Has a state remember whether there were blobs before it, at its first start. Without that it must not begin to store any.
pub fn remember_beginning(state: &dyn State, blobs: &dyn Blobs) -> Result<()> {
    if !blobs.is_shared() {
        state.is_from_the_beginning(blobs.shelves()?.is_empty())?;
    }
    Ok(())
}

/// Removes what nobody names; gives how much that was.
pub fn sweep(state: &dyn State, blobs: &dyn Blobs, staging: &Staging) -> Result<usize> {
    let mut removed = 0;
    for (tenant, name) in staging.files()? {
        if state.upload(&tenant, name)?.is_none_or(|upload| upload.complete) {
            staging.enter(&tenant, name)?.discard()?;
            removed += 1;
        }
    }
    for (tenant, shelf) in shelves_to_sweep(state, blobs)? {
        let Some(needed) = needed(state, &tenant, shelf)? else {
            removed += blobs.list(&tenant, shelf)?.len();
            blobs.clear(&tenant, shelf)?;
            continue;
        };
        for name in blobs.list(&tenant, shelf)? {
            let unnamed = match &needed {
                Needed::Uploads => state.upload(&tenant, name)?.is_none(),
                Needed::These(names) => !names.contains(&name),
                Needed::All => false,
            };
            if unnamed {
                blobs.delete(&Key::new(&tenant, shelf, name))?;
                removed += 1;
            }
        }
    }
    Ok(removed)
}

/// The shelves of which this state can say what is needed. Where others keep blobs in the same store it cannot; nor, if there were
/// blobs before it, of tenants of whom it knows nothing: a database that was lost or moved away must not take the blobs with it.
fn shelves_to_sweep(state: &dyn State, blobs: &dyn Blobs) -> Result<Vec<(Tenant, Shelf)>> {
    if blobs.is_shared() {
        return Ok(Vec::new());
    }
    let mut shelves = blobs.shelves()?;
    if state.is_from_the_beginning(shelves.is_empty())? {
        return Ok(shelves);
    }
    let mut unknown = 0;
    let mut failure = None;
    shelves.retain(|(tenant, _)| match state.holdings(tenant) {
        Ok(holdings) => {
            let known = holdings != Holdings::default();
            unknown += usize::from(!known);
            known
        }
        Err(error) => {
            failure = Some(error);
            false
        }
    });
    if unknown > 0 {
        tracing::warn!(
            shelves = unknown,
            "there are blobs from before this database, of tenants it knows nothing of: they are kept. If the database was lost, \
             restore it from a backup; if nobody needs them, delete their folders"
        );
    }
    failure.map_or(Ok(shelves), Err)
}

/// Removes a job that has ended, with everything it made. Blobs first: if this is interrupted, the job is still there to be deleted
/// again.
pub fn delete_job(state: &dyn State, blobs: &dyn Blobs, tenant: &Tenant, id: JobId) -> Result<()> {
    if !state.job(tenant, id)?.state.has_ended() {
        return Err(Error::NotNow { sentence: "the job has not ended: cancel it first".to_owned() });
    }
    blobs.clear(tenant, Shelf::Job(id))?;
    state.delete_job(tenant, id)
}

/// What of a shelf is needed.
enum Needed {
    Uploads,
    These(BTreeSet<BlobName>),
    /// The job cannot be read: what it needs is not known.
    All,
}

/// `None` where the whole shelf has lost its job.
fn needed(state: &dyn State, tenant: &Tenant, shelf: Shelf) -> Result<Option<Needed>> {
    let Shelf::Job(id) = shelf else { return Ok(Some(Needed::Uploads)) };
    match named(state, tenant, id) {
        Ok(names) => Ok(Some(Needed::These(names))),
        Err(Error::NoJob { .. }) => Ok(None),
        Err(error @ (Error::State { .. } | Error::Work { .. })) => {
            tracing::error!(job = %id, %tenant, %error, "a job cannot be read: everything it made is kept");
            Ok(Some(Needed::All))
        }
        Err(error) => Err(error),
    }
}

/// The blobs that a job's checkpoint and events name.
fn named(state: &dyn State, tenant: &Tenant, id: JobId) -> Result<BTreeSet<BlobName>> {
    let job = state.job(tenant, id)?;
    let mut names = BTreeSet::new();
    if let Some(checkpoint) = job.checkpoint.filter(|_| !job.state.has_ended()) {
        names.extend(Checkpoint::parse(&checkpoint)?.1);
    }
    for event in state.events(tenant, id, 0, usize::MAX >> 1)? {
        let outputs = match event.what {
            Some(v1::event::What::Validation(validation)) => validation.logits,
            Some(v1::event::What::Finished(finished)) => finished.outputs,
            _ => Vec::new(),
        };
        names.extend(outputs.iter().filter_map(|output| BlobName::try_from(&output.blob[..]).ok()));
    }
    Ok(names)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::blobs::{MemoryBlobs, name_of};
    use crate::disk::Files;
    use crate::state::{BlobKind, MemoryState, Quota, Upload};
    use hetal_testkit::TempDir;
    use std::sync::Arc;

    #[test]
    fn a_lost_database_does_not_take_the_blobs_with_it() {
        let folder = TempDir::new();
        let (state, blobs) = (MemoryState::default(), MemoryBlobs::new(&folder.path().join("blobs")));
        let staging = Staging::open(Arc::new(Files), &folder.path().join("staging"), 4).unwrap();
        let ann: Tenant = "ann".to_owned().try_into().unwrap();
        let key = Key::new(&ann, Shelf::Uploads, name_of(b"rows"));
        blobs.put(&key, b"rows").unwrap();
        assert_eq!(sweep(&state, &blobs, &staging).unwrap(), 0, "nothing is known of her");
        assert_eq!(sweep(&state, &blobs, &staging).unwrap(), 0, "nor the next time");
        assert_eq!(blobs.len(&key).unwrap(), Some(4));
        // Where she is known, and the blob is not, nobody needs it.
        let other = Upload { name: name_of(b"others"), kind: BlobKind::Batch, size: 6, complete: false };
        let quota = Quota { bytes: 100, uploads: 3, jobs: 3, kept_jobs: 4 };
        state.begin_upload(&ann, &other, &quota).unwrap();
        assert_eq!(sweep(&state, &blobs, &staging).unwrap(), 1);
        assert_eq!(blobs.len(&key).unwrap(), None);
    }

    #[test]
    fn what_nobody_names_goes_where_the_database_is_the_first() {
        let folder = TempDir::new();
        let (state, blobs) = (MemoryState::default(), MemoryBlobs::new(&folder.path().join("blobs")));
        let staging = Staging::open(Arc::new(Files), &folder.path().join("staging"), 4).unwrap();
        assert_eq!(sweep(&state, &blobs, &staging).unwrap(), 0);
        let key = Key::new(&"ann".to_owned().try_into().unwrap(), Shelf::Uploads, name_of(b"rows"));
        blobs.put(&key, b"rows").unwrap();
        assert_eq!(sweep(&state, &blobs, &staging).unwrap(), 1, "her upload was forgotten");
    }
}
