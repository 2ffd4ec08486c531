//! Garbage collection beside other servers, which store blobs before they record them.
//!
//! One server at a time collects. It deletes what nobody has referenced for a day, and nothing of a
//! job that has not ended: a worker may be about to reference a blob that it found in the store.

use crate::store::blobs::{BlobKey, Blobs, Namespace};
use crate::store::gc::referenced_blobs;
use crate::store::state::{Database, Millis, SharedState};
use crate::tenants::Tenant;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long nobody references what is deleted.
pub const GRACE: Millis = 24 * 3_600_000;

/// What nobody references.
enum Orphan {
    Blob(BlobKey),
    /// All blobs of a job that does not exist.
    Namespace(Tenant, Namespace),
    /// Parts of an upload.
    Parts(BlobKey),
}

impl Orphan {
    fn tenant(&self) -> &Tenant {
        match self {
            Self::Blob(key) | Self::Parts(key) => key.tenant(),
            Self::Namespace(tenant, _) => tenant,
        }
    }

    /// Its name in the database.
    fn place(&self) -> String {
        match self {
            Self::Blob(key) => key.to_string(),
            Self::Namespace(tenant, namespace) => crate::store::blobs::folder(tenant, *namespace),
            Self::Parts(key) => format!("parts of {key}"),
        }
    }

    /// Deletes it. Returns false if an upload needs it by now.
    fn delete(&self, shared: &dyn SharedState, blobs: &dyn Blobs) -> Result<bool> {
        match (self, blobs.parts()) {
            (Self::Blob(key), _) if key.namespace() == Namespace::Uploads => {
                shared.delete_unneeded(key.tenant(), key.name(), |_| true, &mut || blobs.delete(key))
            }
            (Self::Blob(key), _) => blobs.delete(key).map(|()| true),
            (Self::Namespace(tenant, namespace), _) => blobs.clear(tenant, *namespace).map(|()| true),
            (Self::Parts(key), Some(parts)) => {
                shared.delete_unneeded(key.tenant(), key.name(), |upload| !upload.complete, &mut || {
                    parts.discard(key, "")
                })
            }
            (Self::Parts(_), None) => Ok(false),
        }
    }
}

/// Deletes what nobody has referenced for `grace`. Returns the number of blobs, folders of jobs and
/// uploads that it deleted.
pub fn collect(database: &dyn Database, blobs: &dyn Blobs, grace: Millis) -> Result<usize> {
    let Some(shared) = database.shared() else { return Ok(0) };
    let mut waiting: BTreeMap<Tenant, Vec<String>> =
        shared.tenants_of_orphans()?.into_iter().map(|tenant| (tenant, Vec::new())).collect();
    let mut removed = 0;
    for (tenant, namespace) in blobs.namespaces()? {
        for orphan in orphans_in(database, blobs, &tenant, namespace)? {
            removed += usize::from(delete_old(shared, blobs, &orphan, grace, &mut waiting)?);
        }
    }
    for key in blobs.parts().map_or(Ok(Vec::new()), |parts| parts.unfinished())? {
        if database.upload(key.tenant(), key.name())?.is_none_or(|upload| upload.complete) {
            removed += usize::from(delete_old(shared, blobs, &Orphan::Parts(key), grace, &mut waiting)?);
        }
    }
    waiting.iter().try_for_each(|(tenant, places)| shared.forget_orphans_except(tenant, places))?;
    if let Some(parts) = blobs.parts() {
        removed += parts.delete_scratch(Duration::from_millis(grace))?;
    }
    Ok(removed)
}

/// Deletes an orphan that has been one for long, or lets it wait.
fn delete_old(
    shared: &dyn SharedState,
    blobs: &dyn Blobs,
    orphan: &Orphan,
    grace: Millis,
    waiting: &mut BTreeMap<Tenant, Vec<String>>,
) -> Result<bool> {
    let (tenant, place) = (orphan.tenant(), orphan.place());
    if !shared.record_orphan(tenant, &place, grace)? {
        waiting.entry(tenant.clone()).or_default().push(place);
        return Ok(false);
    }
    let is_deleted = orphan.delete(shared, blobs)?;
    if is_deleted {
        tracing::info!(%tenant, place, "deleted what nobody has referenced for a day");
    }
    Ok(is_deleted)
}

/// What nobody references in a namespace.
fn orphans_in(
    database: &dyn Database,
    blobs: &dyn Blobs,
    tenant: &Tenant,
    namespace: Namespace,
) -> Result<Vec<Orphan>> {
    let mut names = blobs.list(tenant, namespace)?;
    match namespace {
        Namespace::Uploads => {
            let mut unknown = Vec::new();
            for name in names {
                if database.upload(tenant, name)?.is_none() {
                    unknown.push(name);
                }
            }
            names = unknown;
        }
        Namespace::Job(id) => match database.summary(tenant, id) {
            Err(Error::NoJob { .. }) => return Ok(vec![Orphan::Namespace(tenant.clone(), namespace)]),
            Ok(job) if job.state.has_ended() => match referenced_blobs(database, tenant, id) {
                Ok(keep) => names.retain(|name| !keep.contains(name)),
                Err(Error::NoJob { .. }) => return Ok(Vec::new()),
                Err(error) => return keep_all(tenant, namespace, &error),
            },
            Ok(_) => return Ok(Vec::new()),
            Err(error) => return keep_all(tenant, namespace, &error),
        },
    }
    Ok(names.into_iter().map(|name| Orphan::Blob(BlobKey::new(tenant, namespace, name))).collect())
}

fn keep_all(tenant: &Tenant, namespace: Namespace, error: &Error) -> Result<Vec<Orphan>> {
    let place = crate::store::blobs::folder(tenant, namespace);
    tracing::error!(place, %error, "a job cannot be read: all its blobs are kept");
    Ok(Vec::new())
}
