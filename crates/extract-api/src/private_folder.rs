//! A temporary folder that only its owner can read.

use std::io;
use std::path::{Path, PathBuf};

/// A new temporary folder. Dropping it removes the folder and its contents.
pub struct PrivateFolder {
    path: PathBuf,
}

impl PrivateFolder {
    /// Creates the folder.
    pub fn new() -> io::Result<Self> {
        let mut name = [0; 16];
        let no_bytes = |error| io::Error::other(format!("the operating system returns no random bytes: {error}"));
        getrandom::fill(&mut name).map_err(no_bytes)?;
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = std::env::temp_dir().join(format!("hetal-{name}"));
        let mut builder = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        builder.create(&path).map_err(named)?;
        Ok(Self { path })
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.path).ok();
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn it_is_its_owner_s_and_goes_away() {
        let folder = PrivateFolder::new().unwrap();
        let path = folder.path().to_owned();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::write(path.join("features.npy"), "private").unwrap();
        drop(folder);
        assert!(!path.exists());
    }
}
