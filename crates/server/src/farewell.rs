//! The end of a tenant: everything of his is removed, and then looked for.

use crate::audit::Audit;
use crate::config::Config;
use crate::disk::Files;
use crate::staging::Staging;
use crate::state::{Holdings, SqliteState, State};
use crate::tenants::Tenant;
use crate::{Error, Result, audit_path, lock, open_blobs};
use hetal_wire::BlobName;
use serde::Serialize;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// What was removed of a tenant, and what a search for him found afterwards.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Farewell {
    /// The tenant.
    pub tenant: String,
    /// Jobs that were forgotten.
    pub jobs: u64,
    /// Uploads that were forgotten.
    pub uploads: u64,
    /// Blobs that were removed.
    pub blobs: usize,
    /// Uploads that had not been whole.
    pub partial_uploads: usize,
    /// Files of the server in which something of his was found afterwards: none, or the removal failed.
    pub found_in: Vec<String>,
}

/// Removes everything of a tenant from the folder of a server that does not run.
pub fn forget_tenant(config: &Config, tenant: &Tenant) -> Result<Farewell> {
    let folder = &config.folder;
    let _lock = lock(folder)?;
    let state = SqliteState::open(&folder.join("state.sqlite"))?;
    let blobs = open_blobs(config)?;
    let staging = Staging::open(Arc::new(Files), &folder.join("staging"), 1)?;
    // Names that stand for nothing but what is removed here: random, or hashes.
    let mut names: Vec<Vec<u8>> = state.jobs(tenant)?.iter().map(|job| job.id.to_vec()).collect();
    // The state last: if this is interrupted it can be done again.
    let (mut removed, mut partial) = (0, 0);
    for (_, shelf) in blobs.shelves()?.into_iter().filter(|(owner, _)| owner == tenant) {
        let all = blobs.list(tenant, shelf)?;
        removed += all.len();
        names.extend(all.into_iter().map(BlobName::to_vec));
        blobs.clear(tenant, shelf)?;
    }
    for (_, name) in staging.files()?.into_iter().filter(|(owner, _)| owner == tenant) {
        partial += 1;
        names.push(name.to_vec());
        staging.enter(tenant, name)?.discard()?;
    }
    staging.forget(tenant)?;
    remove_folders(&folder.join("blobs/tenants").join(tenant.as_str()))?;
    let Holdings { jobs, uploads } = state.forget_tenant(tenant)?;
    let left = state.holdings(tenant)?;
    drop(state);
    if left != Holdings::default() || blobs.shelves()?.iter().any(|(owner, _)| owner == tenant) {
        return Err(Error::State { reason: format!("something of {tenant} is still there: {left:?}") });
    }
    // The same bytes uploaded by two tenants have one name: what another has is no trace.
    for (other, shelf) in blobs.shelves()? {
        let theirs: HashSet<_> = blobs.list(&other, shelf)?.into_iter().map(BlobName::to_vec).collect();
        names.retain(|name| !theirs.contains(name));
    }
    let mut found_in = Vec::new();
    search(folder, folder, tenant.as_str(), &names, &mut found_in)?;
    let audit = Audit::open(&audit_path(folder), config.bounds.audit_bytes)?;
    audit.operator("forget", tenant, if found_in.is_empty() { "ok" } else { "failed" });
    let tenant = tenant.to_string();
    Ok(Farewell { tenant, jobs, uploads, blobs: removed, partial_uploads: partial, found_in })
}

/// Removes the empty folders of a tenant.
fn remove_folders(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::file(folder, e)),
        _ => Ok(()),
    }
}

/// Looks for a tenant's folders, and for the names of what he had in the bytes of the database. The audit log keeps both: it says who
/// did what.
fn search(root: &Path, folder: &Path, tenant: &str, names: &[Vec<u8>], found: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder).map_err(|e| Error::file(folder, e))? {
        let path = entry.map_err(|e| Error::file(folder, e))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_state = folder == root && name.starts_with("state.sqlite");
        if name == tenant || is_state && mentions(&path, names)? {
            found.push(path.strip_prefix(root).unwrap_or(&path).display().to_string());
        }
        if path.is_dir() {
            search(root, &path, tenant, names, found)?;
        }
    }
    Ok(())
}

fn mentions(path: &Path, names: &[Vec<u8>]) -> Result<bool> {
    let bytes = std::fs::read(path).map_err(|e| Error::file(path, e))?;
    // The first bytes of random names are enough to find them by.
    let starts: HashSet<&[u8]> = names.iter().filter_map(|name| name.get(..8)).collect();
    Ok(bytes.windows(8).any(|window| starts.contains(window)))
}
