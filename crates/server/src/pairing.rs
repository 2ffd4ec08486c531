//! Blobs and the database that knows them belong together: each alone looks whole beside the other of another server, and what a
//! database does not name is swept up.

use crate::blobs::Blobs;
use crate::state::{Holdings, SqliteState, State};
use crate::{Error, Result};

/// Makes sure that blobs are those of the database: they name it. Where none is named yet they are this database's, unless all that is
/// there is of tenants of whom the database knows nothing.
pub fn pair(blobs: &dyn Blobs, state: &SqliteState) -> Result<()> {
    let identity = state.identity()?;
    let is_ours = match blobs.owner()? {
        Some(owner) => owner == identity,
        None if knows_some(state, blobs)? => {
            blobs.set_owner(&identity)?;
            true
        }
        None => false,
    };
    if is_ours {
        return Ok(());
    }
    Err(Error::Config {
        reason: format!(
            "{} holds the blobs of another database than state.sqlite: restore the one they belong to, or take another place (a folder, or \
             a prefix in the bucket) to begin anew",
            blobs.place()
        ),
    })
}

/// Whether there are no blobs, or a tenant who has some is known.
fn knows_some(state: &dyn State, blobs: &dyn Blobs) -> Result<bool> {
    let mut strangers = false;
    for (tenant, shelf) in blobs.shelves()? {
        if state.holdings(&tenant)? != Holdings::default() {
            return Ok(true);
        }
        // Of who has left, an empty folder may be there.
        strangers |= !blobs.list(&tenant, shelf)?.is_empty();
    }
    Ok(!strangers)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::blobs::{Key, LocalBlobs, Shelf, name_of};
    use crate::state::{BlobKind, Quota, Upload};
    use hetal_testkit::TempDir;

    #[test]
    fn a_lost_database_does_not_take_the_blobs_with_it() {
        let dir = TempDir::new();
        let folder = dir.path().join("blobs");
        std::fs::create_dir(&folder).unwrap();
        let blobs = LocalBlobs::open(&folder).unwrap();
        let open = |name: &str| SqliteState::open(&dir.path().join(name)).unwrap();
        let first = open("first.sqlite");
        pair(&blobs, &first).unwrap();
        let ann = "ann".to_owned().try_into().unwrap();
        let key = Key::new(&ann, Shelf::Uploads, name_of(b"rows"));
        blobs.put(&key, b"rows").unwrap();
        blobs.delete(&key).unwrap();
        assert!(knows_some(&first, &blobs).unwrap(), "an empty folder is nobody's");
        blobs.put(&key, b"rows").unwrap();
        pair(&blobs, &first).unwrap();
        let refused = |state: &SqliteState| {
            let error = pair(&blobs, state).unwrap_err().to_string();
            assert!(error.contains("another database"), "{error}");
        };
        // Another database, and an empty one beside blobs that say nothing.
        refused(&open("second.sqlite"));
        std::fs::remove_file(folder.join("owner")).unwrap();
        refused(&open("second.sqlite"));
        // One that knows their tenant may be theirs.
        let upload = Upload { name: name_of(b"others"), kind: BlobKind::Batch, size: 6, complete: false };
        let quota = Quota { bytes: 100, uploads: 3, jobs: 3, kept_jobs: 4 };
        first.begin_upload(&ann, &upload, &quota).unwrap();
        pair(&blobs, &first).unwrap();
    }
}
