//! Parts of blobs in a folder: a file for each, below `parts`. A part is never changed, so several
//! servers may write beside each other.

use super::{BlobKey, Blobs, LocalBlobs, Namespace, PartStore, name_of_bytes};
use crate::store::parts::StoredPart;
use crate::tenants::Tenant;
use crate::{Error, Result};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder of parts, beside that of blobs.
const PARTS: &str = "parts";

/// The error for a file that could not be written. A full disk is a limit, of which the client
/// hears.
fn not_written(path: &Path, error: &std::io::Error) -> Error {
    if !matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
        return Error::file(path, error);
    }
    tracing::warn!(file = %path.display(), %error, "refused an upload: the disk is full");
    Error::Limit { message: "the server has no disk space left: try again later".to_owned() }
}

impl LocalBlobs {
    /// The folder of a blob's parts.
    fn parts_of(&self, key: &BlobKey) -> PathBuf {
        self.root.join(PARTS).join(key.tenant().as_str()).join(key.name().to_string())
    }

    /// Writes all parts behind each other into a synced file.
    fn concatenate(&self, key: &BlobKey, parts: &[StoredPart], to: &Path) -> std::io::Result<bool> {
        let folder = self.parts_of(key);
        let mut file = self.create(to)?;
        for part in parts {
            let Some(mut reader) = self.disk.read(&folder.join(&part.receipt), 0)? else { return Ok(false) };
            std::io::copy(&mut reader, &mut file)?;
        }
        file.sync()?;
        drop(file);
        let Some(reader) = self.disk.read(to, 0)? else { return Ok(false) };
        Ok(name_of_bytes(reader)? == key.name())
    }
}

impl PartStore for LocalBlobs {
    fn begin(&self, _: &BlobKey) -> Result<String> {
        Ok("folder".to_owned())
    }

    fn put_part(&self, key: &BlobKey, _: &str, number: usize, bytes: Vec<u8>) -> Result<Option<String>> {
        let mut random = [0; 8];
        getrandom::fill(&mut random)
            .map_err(|e| Error::System { what: "randomness".to_owned(), reason: e.to_string() })?;
        // Two servers may write the same part, one of them in vain.
        let receipt = format!("{number}-{:016x}", u64::from_le_bytes(random));
        let scratch = self.scratch();
        let write = || {
            let mut file = self.create(&scratch)?;
            file.write_all(&bytes)?;
            file.sync()
        };
        let moved = write().map_err(|e| not_written(&scratch, &e));
        let moved = moved.and_then(|()| self.move_to(&self.parts_of(key).join(&receipt), &scratch));
        if moved.is_err() {
            let _ = self.disk.remove(&scratch);
        }
        moved.map(|()| Some(receipt))
    }

    fn join(&self, key: &BlobKey, id: &str, parts: &[StoredPart], confirm: &dyn Fn() -> Result<()>) -> Result<bool> {
        let scratch = self.scratch();
        let joined = self.concatenate(key, parts, &scratch).map_err(|e| not_written(&scratch, &e));
        let joined = joined.and_then(|is_whole| if is_whole { confirm().map(|()| true) } else { Ok(false) });
        if !matches!(joined, Ok(true)) {
            let _ = self.disk.remove(&scratch);
            return joined;
        }
        self.adopt(key, &scratch)?;
        if let Err(error) = self.discard(key, id) {
            tracing::warn!(%key, %error, "could not delete the parts of an upload: garbage collection does");
        }
        Ok(true)
    }

    fn discard(&self, key: &BlobKey, _: &str) -> Result<()> {
        let folder = self.parts_of(key);
        for name in self.names(&folder)? {
            let path = folder.join(name);
            self.disk.remove(&path).map_err(|e| Error::file(&path, e))?;
        }
        let of_tenant = folder.parent().unwrap_or(&folder);
        self.disk.remove_folder(&folder).map_err(|e| Error::file(&folder, e))?;
        // Not empty, if there are other uploads.
        let _ = self.disk.remove_folder(of_tenant);
        Ok(())
    }

    fn unfinished(&self) -> Result<Vec<BlobKey>> {
        let (root, mut found) = (self.root.join(PARTS), Vec::new());
        for name in self.names(&root)? {
            let names = self.names(&root.join(&name))?;
            let Ok(tenant) = Tenant::try_from(name) else { continue };
            let names = names.iter().filter_map(|name| name.parse().ok());
            found.extend(names.map(|name| BlobKey::new(&tenant, Namespace::Uploads, name)));
        }
        Ok(found)
    }

    /// A server that runs writes the owner of the blobs once a minute, and so changes its folder.
    fn delete_scratch(&self, age: Duration) -> Result<usize> {
        let (own, mut deleted) = (self.scratch(), 0);
        // The file system's clock may be another one.
        let now = self.create(&own).and_then(|_| std::fs::metadata(&own)?.modified());
        let _ = self.disk.remove(&own);
        let now = now.map_err(|e| Error::file(&own, e))?;
        for folder in self.foreign_scratch()? {
            let files: Vec<_> = self.names(&folder)?.into_iter().map(|name| folder.join(name)).collect();
            let is_old = |path: &PathBuf| {
                let time = std::fs::metadata(path).and_then(|found| found.modified());
                time.is_ok_and(|time| now.duration_since(time).is_ok_and(|passed| passed > age))
            };
            if !files.iter().chain([&folder]).all(is_old) {
                continue;
            }
            for file in &files {
                self.disk.remove(file).map_err(|e| Error::file(file, e))?;
                deleted += 1;
            }
            self.disk.remove_folder(&folder).map_err(|e| Error::file(&folder, e))?;
        }
        Ok(deleted)
    }

    fn free(&self) -> Result<Option<u64>> {
        LocalBlobs::free(self).map(Some)
    }
}
