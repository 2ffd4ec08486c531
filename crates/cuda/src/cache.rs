//! Compiled kernels on disk. They are code that this program will run, so the folder is private and
//! every file carries a checksum; whatever does not fit is compiled again.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Bytes of the checksum before the code.
const CHECKSUM: usize = 32;
/// No compiled kernel file is larger.
const MAX_BYTES: u64 = 64 << 20;

/// A private folder of compiled kernels.
pub(crate) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The user's: `$HETAL_CACHE`, else `hetal` in `$XDG_CACHE_HOME` or `~/.cache`. `None` when
    /// there is no such place or others can write to it.
    pub(crate) fn of_user() -> Option<Self> {
        let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let folder = set("HETAL_CACHE")
            .or_else(|| set("XDG_CACHE_HOME").map(|base| base.join("hetal")))
            .or_else(|| set("HOME").map(|home| home.join(".cache").join("hetal")))?;
        Self::in_folder(folder.join("kernels"))
    }

    /// A cache in `folder`, which is made if it does not exist.
    pub(crate) fn in_folder(folder: PathBuf) -> Option<Self> {
        make_private(&folder).then_some(Self { folder })
    }

    fn file(&self, key: &blake3::Hash) -> PathBuf {
        self.folder.join(key.to_hex().as_str())
    }

    /// The code kept under `key`, if it is whole.
    pub(crate) fn get(&self, key: &blake3::Hash) -> Option<Vec<u8>> {
        let file = self.file(key);
        if fs::metadata(&file).ok()?.len() > MAX_BYTES {
            return None;
        }
        let bytes = fs::read(file).ok()?;
        let (sum, code) = bytes.split_at_checked(CHECKSUM)?;
        (checksum(key, code).as_bytes() == sum).then(|| code.to_vec())
    }

    /// Keeps code under `key`. A failure costs a compilation next time and nothing else.
    pub(crate) fn put(&self, key: &blake3::Hash, code: &[u8]) {
        let partial = self.folder.join(format!("{}.{}", key.to_hex(), std::process::id()));
        let write = || -> std::io::Result<()> {
            let mut file = fs::File::create(&partial)?;
            file.write_all(checksum(key, code).as_bytes())?;
            file.write_all(code)?;
            file.sync_all()?;
            fs::rename(&partial, self.file(key))
        };
        if write().is_err() {
            _ = fs::remove_file(&partial);
        }
    }
}

fn checksum(key: &blake3::Hash, code: &[u8]) -> blake3::Hash {
    blake3::keyed_hash(key.as_bytes(), code)
}

/// The key of code compiled from all these.
pub(crate) fn key(parts: &[&str]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_derive_key("hetal compiled kernels v1");
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize()
}

/// Makes a folder that is this user's and that no one else can read or write; false if it cannot be
/// had.
#[cfg(unix)]
fn make_private(folder: &Path) -> bool {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
    if fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).is_err() {
        return false;
    }
    // This process's own folder is its user's. Without one nothing is cached.
    let user = fs::metadata("/proc/self").map(|m| m.uid()).ok();
    let is_private = |m: fs::Metadata| m.is_dir() && m.permissions().mode() & 0o077 == 0 && Some(m.uid()) == user;
    fs::symlink_metadata(folder).is_ok_and(is_private)
}

#[cfg(not(unix))]
fn make_private(folder: &Path) -> bool {
    fs::create_dir_all(folder).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("hetal-cache-{name}-{}", std::process::id()))
    }

    #[test]
    fn whole_files_come_back_and_broken_ones_do_not() {
        let folder = scratch("whole");
        let cache = Cache::in_folder(folder.clone()).unwrap();
        let (one, other) = (key(&["a", "bc"]), key(&["ab", "c"]));
        assert_ne!(one, other);
        assert_eq!(cache.get(&one), None);
        cache.put(&one, b"code");
        assert_eq!(cache.get(&one).as_deref(), Some(&b"code"[..]));
        assert_eq!(cache.get(&other), None);
        let mut bytes = fs::read(cache.file(&one)).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(cache.file(&one), &bytes).unwrap();
        assert_eq!(cache.get(&one), None);
        fs::write(cache.file(&one), b"short").unwrap();
        assert_eq!(cache.get(&one), None);
        // Code of one key does not serve another.
        cache.put(&one, b"code");
        fs::copy(cache.file(&one), cache.file(&other)).unwrap();
        assert_eq!(cache.get(&other), None);
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn folders_open_to_others_are_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let folder = scratch("open");
        assert!(Cache::in_folder(folder.clone()).is_some());
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Cache::in_folder(folder.clone()).is_none());
        fs::remove_dir_all(folder).unwrap();
    }
}
