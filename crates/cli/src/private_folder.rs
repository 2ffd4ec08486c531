//! A folder for its owner's eyes that goes away.

use crate::{Error, Result};
use std::path::{Path, PathBuf};

/// A new folder among the system's temporary files, removed with what is in it when this is dropped.
pub struct PrivateFolder {
    path: PathBuf,
}

impl PrivateFolder {
    /// Makes it.
    pub fn new() -> Result<Self> {
        let mut name = [0; 16];
        getrandom::fill(&mut name).map_err(|error| Error::Randomness { reason: error.to_string() })?;
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = std::env::temp_dir().join(format!("hetal-{name}"));
        let mut builder = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        let failed =
            |error: std::io::Error| Error::File { path: path.display().to_string(), reason: error.to_string() };
        builder.create(&path).map_err(failed)?;
        Ok(Self { path })
    }

    /// Where it is.
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
