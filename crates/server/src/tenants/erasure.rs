//! Erasure of a tenant: deletes all his data, then searches for remains.
//!
//! Before anything is deleted, a record of the erasure is written to the server's folder. It stays
//! until the search finds nothing. An interrupted erasure can therefore be repeated at any point,
//! even if only the deleted pages of the database are left.

mod record;

pub use record::unfinished_erasures;

use crate::config::Config;
use crate::store::blobs::{BlobKey, Blobs, Namespace};
use crate::store::disk::{Disk, OsDisk};
use crate::store::staging::Staging;
use crate::store::state::{self, Database, TenantTotals};
use crate::store::{blobs, folder, ownership};
use crate::tenants::Tenant;
use crate::tenants::audit::AuditLog;
use crate::{Error, Result};
use hetal_wire::BlobName;
use record::ErasureRecord;
use serde::Serialize;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What was deleted, and what a search found afterwards.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct ErasureReport {
    /// The tenant.
    pub tenant: String,
    /// Deleted jobs.
    pub jobs: u64,
    /// Deleted uploads.
    pub uploads: u64,
    /// Deleted blobs.
    pub blobs: usize,
    /// Deleted incomplete uploads.
    pub partial_uploads: usize,
    /// Files in which data of the tenant was found afterwards. Empty if the erasure succeeded.
    pub found_in: Vec<String>,
    /// Folders of other servers of the site, which may have bytes of uploads, or copies of keys.
    pub not_searched: Vec<String>,
}

/// Deletes all data of a tenant from the folder of a stopped server, or continues an interrupted
/// erasure. Fails if nothing is stored for the tenant, and, unless `even_if_configured` is set, if
/// the tenant is still configured.
pub fn forget_tenant(config: &Config, tenant: &Tenant, even_if_configured: bool) -> Result<ErasureReport> {
    if !even_if_configured && config.tenants.iter().any(|configured| configured.name == *tenant) {
        let reason = format!(
            "{tenant} is still configured: remove the tenant from the configuration first, or repeat the command with \
             --even-if-configured"
        );
        return Err(Error::Config { reason });
    }
    let _lock = folder::lock(&config.folder)?;
    let server = config.state.url.is_some().then(|| folder::worker_name(&config.folder)).transpose()?;
    erase_from(config, tenant, &*blobs::open(config, server.as_deref())?)
}

/// Deletes all data of a tenant, with a given blob store.
pub(crate) fn erase_from(config: &Config, tenant: &Tenant, blobs: &dyn Blobs) -> Result<ErasureReport> {
    let folder = &config.folder;
    let database = state::open(config)?;
    let state = &*database;
    // Another server may have a tenant of the same name.
    ownership::establish(blobs, state, false)?;
    let staging = Staging::open(Arc::new(OsDisk), &folder.join("staging"), 1)?;
    let record = ErasureRecord::new(folder, tenant);
    let interrupted = record.read()?;
    if interrupted.is_none() {
        require_data(state, blobs, &staging, tenant)?;
    }
    // Random names and hashes, which occur only in data of this tenant.
    let mut names = interrupted.unwrap_or_default();
    names.extend(state.jobs(tenant)?.iter().map(|job| job.id.to_vec()));
    let (mut removed, mut partial) = (0, 0);
    let namespaces: Vec<_> = blobs.namespaces()?.into_iter().filter(|(owner, _)| owner == tenant).collect();
    for (_, namespace) in &namespaces {
        let all = blobs.list(tenant, *namespace)?;
        removed += all.len();
        names.extend(all.into_iter().map(BlobName::to_vec));
    }
    let staged: Vec<_> = staging.files()?.into_iter().filter(|(owner, _)| owner == tenant).collect();
    names.extend(staged.iter().map(|(_, name)| name.to_vec()));
    record.write(&names)?;
    for (_, namespace) in namespaces {
        blobs.clear(tenant, namespace)?;
    }
    for (_, name) in staged {
        partial += 1;
        staging.lock(tenant, name)?.discard()?;
    }
    staging.remove_tenant(tenant)?;
    partial += discard_parts(state, blobs, tenant)?;
    let not_searched = folders_of_others(config, state)?;
    let blobs_folder = config.blobs.clone().unwrap_or_else(|| folder.join("blobs"));
    remove_folders(&blobs_folder.join("tenants").join(tenant.as_str()))?;
    let TenantTotals { jobs, uploads } = state.forget_tenant(tenant)?;
    let left = state.tenant_totals(tenant)?;
    // The search reads the closed file.
    drop(database);
    if left != TenantTotals::default() || blobs.namespaces()?.iter().any(|(owner, _)| owner == tenant) {
        return Err(Error::State { reason: format!("data of {tenant} remains: {left:?}") });
    }
    // Equal uploads of two tenants have the same name. Names that another tenant has are not
    // searched for.
    for (other, namespace) in blobs.namespaces()? {
        let theirs: HashSet<_> = blobs.list(&other, namespace)?.into_iter().map(BlobName::to_vec).collect();
        names.retain(|name| !theirs.contains(name));
    }
    let unfinished = blobs.parts().map_or(Ok(Vec::new()), |parts| parts.unfinished())?;
    names.retain(|name| unfinished.iter().all(|key| key.name().0[..] != name[..]));
    let found_in = search(config, tenant, &names)?;
    if found_in.is_empty() {
        record.remove()?;
    }
    let audit = AuditLog::open(folder, config.bounds.audit_bytes)?;
    audit.operator("forget", tenant, if found_in.is_empty() { "ok" } else { "failed" });
    let tenant = tenant.to_string();
    Ok(ErasureReport { tenant, jobs, uploads, blobs: removed, partial_uploads: partial, found_in, not_searched })
}

/// Searches the folder of the server, and that of the blobs if it is elsewhere.
fn search(config: &Config, tenant: &Tenant, names: &[Vec<u8>]) -> Result<Vec<String>> {
    let mut found = Search::new(&config.folder, &["blobs/tenants", "staging"], tenant, names).run()?;
    if let Some(blobs) = config.blobs.as_ref().filter(|blobs| !blobs.starts_with(&config.folder)) {
        let theirs = Search::new(blobs, &["tenants", "parts"], tenant, names).run()?;
        found.extend(theirs.into_iter().map(|path| blobs.join(path).display().to_string()));
    }
    Ok(found)
}

/// Folders that this process does not search: those of the other servers that the database knows,
/// and what a killed one was writing into the shared folder of blobs.
fn folders_of_others(config: &Config, state: &dyn Database) -> Result<Vec<String>> {
    let Some(shared) = state.shared() else { return Ok(Vec::new()) };
    let own = folder::worker_name(&config.folder)?;
    let mut folders: Vec<_> = shared.servers()?.into_iter().filter(|server| *server != own).collect();
    folders.iter_mut().for_each(|server| *server = format!("the folder of server {server}"));
    let list = |folder: &Path| OsDisk.names(folder).map_err(|e| Error::file(folder, e));
    if let Some(blobs) = &config.blobs {
        for name in list(blobs)?.into_iter().filter(|name| name.starts_with("scratch-") && !name.ends_with(&own)) {
            let scratch = blobs.join(name);
            if !list(&scratch)?.is_empty() {
                folders.push(scratch.display().to_string());
            }
        }
    }
    Ok(folders)
}

/// Deletes the parts of unfinished uploads in the blob store. Returns the number of uploads.
fn discard_parts(state: &dyn Database, blobs: &dyn Blobs, tenant: &Tenant) -> Result<usize> {
    let (Some(shared), Some(parts)) = (state.shared(), blobs.parts()) else { return Ok(0) };
    let open = shared.uploads_in_parts(tenant)?;
    for (name, id) in &open {
        parts.discard(&BlobKey::new(tenant, Namespace::Uploads, *name), id)?;
    }
    for key in parts.unfinished()?.iter().filter(|key| key.tenant() == tenant) {
        parts.discard(key, "")?;
    }
    Ok(open.len())
}

/// Refuses a tenant for whom nothing is stored: the name may be misspelt.
fn require_data(state: &dyn Database, blobs: &dyn Blobs, staging: &Staging, tenant: &Tenant) -> Result<()> {
    let is_known = state.tenant_totals(tenant)? != TenantTotals::default()
        || blobs.namespaces()?.iter().any(|(owner, _)| owner == tenant)
        || staging.files()?.iter().any(|(owner, _)| owner == tenant);
    if is_known {
        return Ok(());
    }
    Err(Error::Config { reason: format!("nothing is stored for a tenant named {tenant}: check the spelling") })
}

/// Deletes the empty folders of a tenant.
fn remove_folders(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::file(folder, e)),
        _ => Ok(()),
    }
}

/// A search for a tenant's folders and for the names of his data: in file names, and in the
/// database as bytes and as text. The audit log keeps its entries.
struct Search<'a> {
    root: &'a Path,
    homes: Vec<PathBuf>,
    /// The first bytes of each name, and the same in hexadecimal.
    bytes: HashSet<[u8; 8]>,
    digits: HashSet<[u8; 16]>,
}

impl<'a> Search<'a> {
    /// A search below `root`, where these folders have one for each tenant.
    fn new(root: &'a Path, folders: &[&str], tenant: &Tenant, names: &[Vec<u8>]) -> Self {
        let homes = folders.iter().map(|folder| root.join(folder).join(tenant.as_str())).collect();
        let bytes: HashSet<[u8; 8]> = names.iter().filter_map(|name| name.first_chunk().copied()).collect();
        let text = |bytes: &[u8; 8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let digits = bytes.iter().filter_map(|bytes| text(bytes).as_bytes().first_chunk().copied()).collect();
        Self { root, homes, bytes, digits }
    }

    /// The files and folders with data of the tenant.
    fn run(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        self.walk(self.root, &mut found)?;
        Ok(found)
    }

    fn walk(&self, folder: &Path, found: &mut Vec<String>) -> Result<()> {
        for entry in std::fs::read_dir(folder).map_err(|e| Error::file(folder, e))? {
            let path = entry.map_err(|e| Error::file(folder, e))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_state = folder == self.root && name.starts_with("state.sqlite");
            let is_his =
                self.homes.contains(&path) || name.as_bytes().first_chunk().is_some_and(|d| self.digits.contains(d));
            if is_his || is_state && self.mentioned(&path)? {
                found.push(path.strip_prefix(self.root).unwrap_or(&path).display().to_string());
            }
            if path.is_dir() {
                self.walk(&path, found)?;
            }
        }
        Ok(())
    }

    fn mentioned(&self, path: &Path) -> Result<bool> {
        let all = std::fs::read(path).map_err(|e| Error::file(path, e))?;
        let named = |at: usize| {
            let here = &all[at..];
            here.first_chunk().is_some_and(|bytes| self.bytes.contains(bytes))
                || here.first_chunk().is_some_and(|digits| self.digits.contains(digits))
        };
        Ok((0..all.len()).any(named))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::blobs::{BlobKey, MemoryBlobs, Namespace};
    use crate::store::state::{SqliteState, State};
    use crate::testing::suites::state::{QUOTA, complete, new_job};
    use hetal_testkit::TempDir;

    fn ann() -> Tenant {
        "ann".to_owned().try_into().unwrap()
    }

    /// Whether the database file contains some bytes.
    fn holds(folder: &Path, trace: &[u8]) -> bool {
        let all = std::fs::read(folder.join("state.sqlite")).unwrap();
        all.windows(trace.len()).any(|window| window == trace)
    }

    /// An erasure can be repeated wherever it was interrupted, also if nothing is left but deleted
    /// pages of the database.
    #[test]
    fn an_interrupted_erasure_is_finished_by_its_repetition() {
        let dir = TempDir::new();
        let root = dir.path();
        let config = Config { folder: root.to_owned(), ..Config::default() };
        let blobs = MemoryBlobs::new(root);
        let job = new_job(0xA7);
        let state = SqliteState::open(&root.join("state.sqlite")).unwrap();
        complete(&state, &ann(), [1, 2, 3]);
        state.create_job(&ann(), &job, &QUOTA, 1).unwrap();
        drop(state);
        blobs.put(&BlobKey::new(&ann(), Namespace::Uploads, BlobName([1; 32])), b"bytes").unwrap();
        // The erasure fails in the middle: a file has the name of a folder that it deletes.
        let obstacle = root.join("blobs/tenants/ann");
        std::fs::create_dir_all(obstacle.parent().unwrap()).unwrap();
        std::fs::write(&obstacle, b"").unwrap();
        erase_from(&config, &ann(), &blobs).unwrap_err();
        assert_eq!(unfinished_erasures(root).unwrap(), ["ann"]);
        std::fs::remove_file(&obstacle).unwrap();
        // What a kill during the vacuum leaves: no rows, but their bytes in free pages.
        let rows = "DELETE FROM uploads; DELETE FROM specs; DELETE FROM events; DELETE FROM uses; DELETE FROM jobs;";
        rusqlite::Connection::open(root.join("state.sqlite")).unwrap().execute_batch(rows).unwrap();
        assert!(holds(root, &job.id.0), "the deleted pages are still there");
        let report = erase_from(&config, &ann(), &blobs).unwrap();
        assert!(report.found_in.is_empty() && report.jobs == 0, "{report:?}");
        assert!(!holds(root, &job.id.0) && unfinished_erasures(root).unwrap().is_empty());
        // Now it is over.
        let refused = erase_from(&config, &ann(), &blobs).unwrap_err().to_string();
        assert!(refused.contains("nothing is stored"), "{refused}");
    }

    /// A tenant's name may equal the name of any folder. His data is found by name, in every
    /// notation.
    #[test]
    fn a_search_finds_what_is_his_and_nothing_else() {
        let folder = TempDir::new();
        let root = folder.path();
        let name = BlobName([0xA7; 32]);
        for others in ["blobs/tenants/bob/uploads", "blobs/tenants/bob/jobs", "blobs/scratch", "staging/bob", "tls"] {
            std::fs::create_dir_all(root.join(others)).unwrap();
        }
        std::fs::write(root.join("state.sqlite"), b"nothing").unwrap();
        let found = |tenant: &str| {
            let (homes, tenant) = (["blobs/tenants", "staging"], tenant.to_owned().try_into().unwrap());
            Search::new(root, &homes, &tenant, &[name.to_vec()]).run().unwrap()
        };
        for tenant in ["blobs", "tenants", "uploads", "jobs", "scratch", "staging", "tls", "ann"] {
            assert!(found(tenant).is_empty(), "{tenant}: {:?}", found(tenant));
        }
        assert_eq!(found("bob").len(), 2);
        std::fs::write(root.join("state.sqlite"), [b"..", &name.0[..], b".."].concat()).unwrap();
        assert_eq!(found("ann"), ["state.sqlite"]);
        std::fs::write(root.join("state.sqlite"), format!("{{\"keys\":\"{name}\"}}")).unwrap();
        assert_eq!(found("ann"), ["state.sqlite"]);
        std::fs::write(root.join("state.sqlite"), b"nothing").unwrap();
        std::fs::write(root.join("staging/bob").join(name.to_string()), b"").unwrap();
        assert_eq!(found("ann"), [format!("staging/bob/{name}")]);
    }
}
