//! Ownership of blobs: a blob store belongs to one copy of one database.
//!
//! Garbage collection deletes blobs that the database does not reference. With the wrong database,
//! it would delete everything.
//!
//! The store therefore records the identity of its database, which all copies of the database
//! share, and a random mark, which they do not. The server replaces the mark when it starts, once a
//! minute, and when it stops. It commits the new mark to the database before it writes the mark to
//! the store, and remembers the previous mark until the next replacement. After a crash, the store
//! holds one of these two marks.
//!
//! A copy of the database that is older than the last mark knows neither of them and is refused. A
//! more recent copy lacks at most the last minute before a crash.

use crate::store::blobs::Blobs;
use crate::store::state::{Database, OwnerMarks, TenantTotals};
use crate::{Error, Result};
use std::time::Duration;

/// How often a running server replaces the mark.
pub const RENEWAL_INTERVAL: Duration = Duration::from_secs(60);
/// Lost races for the mark after which another server must be active.
const MAX_ATTEMPTS: usize = 3;

/// How the blobs were matched with the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The mark matched: unreferenced blobs are garbage.
    Confirmed,
    /// The blobs had no owner, or the operator forced a takeover. Unreferenced blobs stay until the
    /// next start without the flag.
    New,
}

/// Checks that the blobs belong to this copy of the database, and renews the mark. With
/// `take_over`, blobs that another copy used last are accepted too.
pub fn establish(blobs: &dyn Blobs, state: &dyn Database, take_over: bool) -> Result<Ownership> {
    let mut established = None;
    state.exclusively(&mut || establish_alone(blobs, state, take_over).map(|done| established = Some(done)))?;
    established.ok_or_else(|| Error::State { reason: "the ownership of the blobs was not checked".to_owned() })
}

fn establish_alone(blobs: &dyn Blobs, state: &dyn Database, take_over: bool) -> Result<Ownership> {
    for _ in 0..MAX_ATTEMPTS {
        let recorded = blobs.owner()?;
        let ownership = match &recorded {
            None => check_unowned(blobs, state, take_over).map(|()| Ownership::New)?,
            Some(recorded) => check_owned(blobs, state, recorded, take_over)?,
        };
        if write_mark(blobs, state, recorded.as_deref())? {
            return Ok(ownership);
        }
        // Another server was faster: check what it wrote.
    }
    let reason = format!("another server is taking over {}: stop one of them", blobs.location());
    Err(Error::Config { reason })
}

/// Renews the mark. Returns false if the blobs no longer belong to this copy of the database.
pub fn renew(blobs: &dyn Blobs, state: &dyn Database) -> Result<bool> {
    let mut renewed = false;
    state.exclusively(&mut || {
        let Some(recorded) = blobs.owner()? else {
            return Err(Error::Config { reason: format!("{} no longer records its owner", blobs.location()) });
        };
        renewed = is_ours(state, &recorded)? && write_mark(blobs, state, Some(&recorded))?;
        Ok(())
    })?;
    Ok(renewed)
}

/// What a store records about its owner.
struct OwnerRecord<'a> {
    identity: &'a str,
    mark: &'a str,
}

/// Splits the record into the identity of the database and the mark. Servers before version 5 of
/// the database wrote no mark.
fn parse(recorded: &str) -> OwnerRecord<'_> {
    let (identity, mark) = recorded.split_once(' ').unwrap_or((recorded, ""));
    OwnerRecord { identity, mark }
}

/// Whether this copy of the database wrote the record.
pub(crate) fn is_ours(state: &dyn Database, recorded: &str) -> Result<bool> {
    let OwnerRecord { identity, mark } = parse(recorded);
    let OwnerMarks { found, intended } = state.marks()?;
    Ok(identity == state.identity()? && [found, intended].iter().any(|known| known == mark))
}

/// Writes a new mark to the store. Returns false if another server changed the record meanwhile.
fn write_mark(blobs: &dyn Blobs, state: &dyn Database, recorded: Option<&str>) -> Result<bool> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| Error::System { what: "randomness".to_owned(), reason: e.to_string() })?;
    let fresh: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let OwnerMarks { found, intended } = state.marks()?;
    // A mark of another copy must not become known before it is replaced.
    let is_intended = recorded.is_some_and(|recorded| parse(recorded).mark == intended);
    state.set_marks(if is_intended { &intended } else { &found }, &fresh)?;
    blobs.set_owner(recorded, &format!("{} {fresh}", state.identity()?))
}

/// Checks blobs with a recorded owner.
fn check_owned(blobs: &dyn Blobs, state: &dyn Database, recorded: &str, take_over: bool) -> Result<Ownership> {
    let (location, database) = (blobs.location(), state.location());
    let reason = if parse(recorded).identity != state.identity()? {
        format!(
            "{location} holds the blobs of another database than {database}: restore the database that belongs to \
             them, or choose another location (a folder, or a prefix in the bucket)"
        )
    } else if is_ours(state, recorded)? {
        return Ok(Ownership::Confirmed);
    } else if take_over {
        return Ok(Ownership::New);
    } else {
        format!(
            "{location} was last used with another copy of {database}. This one is a copy or a restored backup. Two \
             servers on the same blobs destroy each other's data: make sure that no other server uses them, and start \
             this one once with --take-over"
        )
    };
    Err(Error::Config { reason })
}

/// Checks blobs without a recorded owner. They belong to this database unless their tenants or the
/// uploads contradict it.
fn check_unowned(blobs: &dyn Blobs, state: &dyn Database, take_over: bool) -> Result<()> {
    let (location, database, holders) = (blobs.location(), state.location(), blobs.tenants()?);
    let mut unknown = Vec::new();
    for tenant in &holders {
        if state.tenant_totals(tenant)? == TenantTotals::default() {
            unknown.push(tenant.as_str());
        }
    }
    let uploads = state.complete_uploads()?;
    let reason = if !unknown.is_empty() {
        format!(
            "{location} records no owner and holds blobs of tenants that {database} does not know ({}). Restore the \
             database that belongs to them, or choose another location (a folder, or a prefix in the bucket), or, if \
             nobody needs them, move the folders of these tenants away",
            unknown.join(", ")
        )
    } else if state.is_shared() && !take_over && !state.marks()?.intended.is_empty() {
        format!(
            "{location} records no owner, but other servers keep the blobs of {database} elsewhere: configure the \
             same bucket in all of them. If no other server runs, start this one once with --take-over"
        )
    } else if holders.is_empty() && uploads > 0 {
        format!(
            "{location} is empty, but {database} knows of {uploads} uploads: configure or mount the location of the \
             blobs, or, if they are lost, move {database} away to start anew"
        )
    } else {
        return Ok(());
    };
    Err(Error::Config { reason })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;
    use crate::store::blobs::{BlobKey, LocalBlobs, MemoryBlobs, Namespace, name_of};
    use crate::store::gc::collect_garbage;
    use crate::store::staging::Staging;
    use crate::store::state::{BlobKind, Quota, SqliteState, State, Upload};
    use crate::tenants::Tenant;
    use hetal_testkit::TempDir;
    use std::path::Path;
    use std::sync::Arc;

    fn tenant(name: &str) -> Tenant {
        name.to_owned().try_into().unwrap()
    }

    /// A complete upload, in the database and in the store.
    pub(crate) fn upload(blobs: &dyn Blobs, state: &dyn State, name: &str, bytes: &[u8]) -> BlobKey {
        let (tenant, key) = (tenant(name), BlobKey::new(&tenant(name), Namespace::Uploads, name_of(bytes)));
        let upload = Upload { name: key.name(), kind: BlobKind::Batch, size: bytes.len() as u64, complete: false };
        let quota = Quota { bytes: 1 << 30, uploads: 9, jobs: 3, kept_jobs: 4 };
        state.begin_upload(&tenant, &upload, &quota).unwrap();
        blobs.put(&key, bytes).unwrap();
        state.complete_upload(&tenant, key.name()).unwrap();
        key
    }

    pub(crate) fn refused(blobs: &dyn Blobs, state: &SqliteState, word: &str) {
        let error = establish(blobs, state, false).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }

    /// Copies a database that is in use.
    pub(crate) fn copy(dir: &Path, from: &str, to: &str) -> SqliteState {
        let backup = format!("VACUUM INTO '{}'", dir.join(to).display());
        rusqlite::Connection::open(dir.join(from)).unwrap().execute_batch(&backup).unwrap();
        SqliteState::open(&dir.join(to)).unwrap()
    }

    /// Everything that ownership must satisfy, with databases in `dir`, on an empty store and a
    /// second one.
    pub(crate) fn check(blobs: &dyn Blobs, other_store: &dyn Blobs, dir: &Path) {
        let open = |name: &str| SqliteState::open(&dir.join(name)).unwrap();
        let staging = Staging::open(Arc::new(crate::store::disk::OsDisk), &dir.join("staging"), 8).unwrap();
        let (first, second) = (open("first.sqlite"), open("second.sqlite"));
        // Two servers share a store without an owner: neither may claim the blobs of the other.
        let anns = upload(blobs, &first, "ann", b"rows");
        let bobs = upload(blobs, &second, "bob", b"more rows");
        refused(blobs, &first, "does not know (bob)");
        refused(blobs, &second, "does not know (ann)");
        blobs.delete(&bobs).unwrap();
        refused(blobs, &open("third.sqlite"), "ann");
        assert_eq!(establish(blobs, &first, false).unwrap(), Ownership::New);
        assert_eq!(establish(blobs, &first, false).unwrap(), Ownership::Confirmed);
        refused(blobs, &second, "another database");
        assert!(establish(blobs, &second, true).is_err(), "only copies of a database take over");
        // A copy of the database matches until the original renews the mark.
        let copied = copy(dir, "first.sqlite", "copy.sqlite");
        assert!(is_ours(&copied, &blobs.owner().unwrap().unwrap()).unwrap());
        let later = upload(blobs, &first, "ann", b"rows that the copy does not know");
        assert!(renew(blobs, &first).unwrap());
        refused(blobs, &copied, "--take-over");
        assert!(!renew(blobs, &copied).unwrap());
        assert_eq!(establish(blobs, &first, false).unwrap(), Ownership::Confirmed);
        // A takeover that was killed halfway has no effect.
        let recorded = blobs.owner().unwrap().unwrap();
        assert!(!write_mark(blobs, &copied, Some("what was there before")).unwrap());
        assert_eq!(blobs.owner().unwrap().unwrap(), recorded);
        refused(blobs, &copied, "--take-over");
        // The copy takes over on request. From then on the original is refused.
        assert_eq!(establish(blobs, &copied, true).unwrap(), Ownership::New);
        assert!(!renew(blobs, &first).unwrap());
        refused(blobs, &first, "--take-over");
        assert!(renew(blobs, &copied).unwrap());
        assert_eq!(establish(blobs, &copied, false).unwrap(), Ownership::Confirmed);
        assert_eq!(collect_garbage(&copied, blobs, &staging).unwrap(), 1, "now it is known to be rubbish");
        assert!(blobs.len(&later).unwrap().is_none() && blobs.len(&anns).unwrap().is_some());
        // An empty store does not match a database with uploads.
        refused(other_store, &copied, "knows of 1 uploads");
        refused(other_store, &second, "knows of 1 uploads");
        assert_eq!(establish(other_store, &open("third.sqlite"), false).unwrap(), Ownership::New);
    }

    #[test]
    fn blobs_belong_to_one_copy_of_one_database() {
        let dir = TempDir::new();
        let local = |name: &str| LocalBlobs::open(&dir.path().join(name)).unwrap();
        check(&local("blobs"), &local("other"), dir.path());
        let dir = TempDir::new();
        check(&MemoryBlobs::new(dir.path()), &MemoryBlobs::new(dir.path()), dir.path());
    }

    /// A crash between the two writes never locks the server out, nor does a failed write.
    #[test]
    fn a_sudden_end_between_the_writes_locks_nobody_out() {
        let dir = TempDir::new();
        let blobs = MemoryBlobs::new(dir.path());
        let state = SqliteState::open(&dir.path().join("state.sqlite")).unwrap();
        establish(&blobs, &state, false).unwrap();
        for _ in 0..3 {
            // Committed to the database, not written to the store.
            let recorded = blobs.owner().unwrap().unwrap();
            state.set_marks(parse(&recorded).mark, "never written").unwrap();
            assert_eq!(establish(&blobs, &state, false).unwrap(), Ownership::Confirmed);
            // Written to the store, and then a crash.
            let recorded = blobs.owner().unwrap().unwrap();
            assert!(write_mark(&blobs, &state, Some(&recorded)).unwrap());
            assert!(renew(&blobs, &state).unwrap());
        }
        // A record from before marks existed.
        let old = SqliteState::open(&dir.path().join("old.sqlite")).unwrap();
        let blobs = MemoryBlobs::new(dir.path());
        blobs.set_owner(None, &old.identity().unwrap()).unwrap();
        assert_eq!(establish(&blobs, &old, false).unwrap(), Ownership::Confirmed);
    }

    /// Two servers find a store without an owner at the same time. The second gets the ordinary
    /// error.
    #[test]
    fn the_second_of_two_is_told_why() {
        let dir = TempDir::new();
        let [first, second] = ["first", "second"].map(|name| SqliteState::open(&dir.path().join(name)).unwrap());
        let blobs = MemoryBlobs::new(dir.path());
        establish(&blobs, &first, false).unwrap();
        assert!(!write_mark(&blobs, &second, None).unwrap(), "it had found nothing");
        refused(&blobs, &second, "another database");
    }

    #[test]
    fn an_empty_folder_is_nobodys() {
        let dir = TempDir::new();
        let blobs = LocalBlobs::open(&dir.path().join("blobs")).unwrap();
        let [state, other] = ["one", "other"].map(|name| SqliteState::open(&dir.path().join(name)).unwrap());
        let key = upload(&blobs, &other, "ann", b"rows");
        blobs.delete(&key).unwrap();
        assert!(blobs.tenants().unwrap().is_empty());
        establish(&blobs, &state, false).unwrap();
    }
}
