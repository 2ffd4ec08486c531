//! The server's folder: its permissions, its lock, and private files in it.

use crate::{Error, Result};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Creates the folder with access for its owner only. It contains labels, verdicts, and which
/// tenant owns which blobs.
pub fn make_private(folder: &Path) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    let failed = |e: std::io::Error| Error::file(folder, e);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    let mode = std::fs::metadata(folder).map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let mode = format!("{mode:o}");
        tracing::warn!(folder = %folder.display(), mode, "other users of this machine can read the folder: run chmod 700 on it");
    }
    Ok(())
}

/// Locks the folder against other processes.
pub fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let file =
        File::options().create(true).truncate(false).write(true).open(&path).map_err(|e| Error::file(&path, e))?;
    file.try_lock().map_err(|_| Error::Config {
        reason: format!("{} is in use by another server: stop it, or choose another folder", folder.display()),
    })?;
    Ok(file)
}

/// The name by which a shared database knows the server of this folder. It is random, and stays, so
/// that a restarted server can end the leases of the process before.
pub fn worker_name(folder: &Path) -> Result<String> {
    let path = folder.join("worker");
    match std::fs::read_to_string(&path) {
        Ok(name) if name.len() == 32 && name.bytes().all(|b| b.is_ascii_hexdigit()) => return Ok(name),
        Ok(_) => return Err(Error::file(&path, "not the name of a worker: delete this file")),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(Error::file(&path, e)),
    }
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| Error::System { what: "randomness".to_owned(), reason: e.to_string() })?;
    let name: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    write_private(&path, name.as_bytes())?;
    Ok(name)
}

/// Writes a file atomically, readable only by its owner.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let scratch = path.with_extension("new");
    let write = || {
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&scratch)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&scratch, path)
    };
    write().map_err(|e| Error::file(path, e))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hetal_testkit::TempDir;

    #[test]
    fn a_server_keeps_the_name_of_its_folder() {
        let [first, second] = [TempDir::new(), TempDir::new()];
        let name = worker_name(first.path()).unwrap();
        assert_eq!(worker_name(first.path()).unwrap(), name);
        assert_ne!(worker_name(second.path()).unwrap(), name);
        std::fs::write(first.path().join("worker"), "local").unwrap();
        assert!(worker_name(first.path()).unwrap_err().to_string().contains("worker"));
    }

    #[test]
    fn a_folder_is_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = TempDir::new();
        let folder = dir.path().join("of/hetal");
        make_private(&folder).unwrap();
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        // Permissions that the operator widened stay.
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o750)).unwrap();
        make_private(&folder).unwrap();
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o750);
    }
}
