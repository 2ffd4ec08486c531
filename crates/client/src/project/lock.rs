//! The lock of a folder.

use super::state_files::io_error;
use crate::{Error, Result};
use std::fs::{File, TryLockError};
use std::path::Path;

/// Locks a folder against other processes until the returned file is dropped.
pub(crate) fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let mut options = File::options();
    options.create(true).truncate(false).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let lock = options.open(&path).map_err(|e| io_error("opening", &path, &e))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(Error::InUse { folder: folder.to_owned() }),
        Err(TryLockError::Error(e)) => Err(io_error("locking", &path, &e)),
    }
}
