//! The identity of a project folder. A copy of the folder has another one.
//!
//! The release budget counts what was published under a secret key. A copy of the folder has a copy
//! of the count, and both could publish all of it. So the count belongs to one folder: to its
//! machine, and to the numbers that the file system gave to the folder and to its lock file, which
//! is never replaced. A disk image or a snapshot keeps these numbers and is not recognised.

use serde::{Deserialize, Serialize};
use std::path::Path;

/// The file that identifies a Linux installation.
const MACHINE_ID: &str = "/etc/machine-id";

/// The identity of a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderIdentity {
    /// A hash of the machine's id, if it has one.
    pub machine: Option<String>,
    /// The inode of the folder.
    pub folder: u64,
    /// The inode of its lock file.
    pub lock: u64,
}

impl FolderIdentity {
    /// The identity of a folder that is locked; `None` where the system has no inodes.
    pub(super) fn of(root: &Path) -> Option<Self> {
        Some(Self { machine: machine(), folder: inode(root)?, lock: inode(&root.join("lock"))? })
    }
}

/// A hash of the machine's id, which itself should not be passed on.
fn machine() -> Option<String> {
    let id = std::fs::read(MACHINE_ID).ok().filter(|id| !id.trim_ascii().is_empty())?;
    let hash = blake3::derive_key("hetal machine of a release budget v1", id.trim_ascii());
    Some(crate::keys::hex(&hash[..16]))
}

#[cfg(unix)]
fn inode(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|metadata| std::os::unix::fs::MetadataExt::ino(&metadata))
}

#[cfg(not(unix))]
fn inode(_: &Path) -> Option<u64> {
    None
}
