//! Key sets: the files of switching keys that a server gets, one for each layout.

use super::Owner;
use crate::project::{KeySet, io_error, remove_if_there};
use crate::training::ProgressEvent;
use crate::{Error, Layout, Project, Result, rpc};
use hetal_ckks::KeyId;
use hetal_ckks::bytes::{FormatError, KeySetReader};
use hetal_durable::NewFile;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

/// Compares the key set of a layout with its hash, and removes it if it is damaged. It can be
/// generated again.
pub fn check_set(project: &mut Project, layout: &Layout) -> Result<()> {
    let Some(keys) = project.settings().keys.iter().find(|keys| keys.layout == layout.key()) else { return Ok(()) };
    let path = project.key_file(keys);
    if path.exists() && rpc::digest_file(&path)?.name.to_string() != keys.blob {
        remove_if_there(&path)?;
    }
    Ok(())
}

/// Returns whether a key set contains other keys than a server of this version takes, by its length
/// and by the list at the start of its file.
pub(crate) fn is_of_another_version(project: &Project, owner: &Owner, layout: &Layout, keys: &KeySet) -> Result<bool> {
    let listed = listed(owner, &project.key_file(keys));
    for accepted in layout.accepted_keys()? {
        let same_list = || listed.as_ref().is_none_or(|listed| *listed == accepted.iter().copied().collect());
        if keys.bytes == layout.key_bytes(&accepted)? && same_list() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads the list of keys at the start of a file: a few KiB.
fn listed(owner: &Owner, path: &Path) -> Option<BTreeSet<(KeyId, usize)>> {
    let mut file = std::io::BufReader::new(std::fs::File::open(path).ok()?);
    Some(KeySetReader::new(&owner.codec(), &mut file).ok()?.remaining().collect())
}

/// Ensures that a project has the key set of a layout. A set of another version of this program, or
/// of the wrong length, is generated again. Other damage is found by [`check_set`] or when the set
/// is sent.
pub fn ensure_set(
    project: &mut Project,
    owner: &Owner,
    layout: &Layout,
    on_progress: &mut (dyn FnMut(ProgressEvent) + Send),
) -> Result<KeySet> {
    let known = project.settings().keys.iter().find(|keys| keys.layout == layout.key()).cloned();
    if let Some(keys) = &known
        && project.key_file(keys).metadata().is_ok_and(|m| m.len() == keys.bytes)
        && !is_of_another_version(project, owner, layout, keys)?
    {
        return Ok(keys.clone());
    }
    let wanted = layout.sent_keys()?;
    let file = known.as_ref().map_or_else(|| layout.key_file(), |keys| keys.file.clone());
    // A server may have seen the previous keys of this layout.
    let sent = known.is_some_and(|keys| keys.sent);
    let path = project.root().join(&file);
    let start = Instant::now();
    let mut out = HashedFile::create(&path)?;
    let (mut made, cancellation) = (0, project.cancellation().clone());
    owner
        .write_keys(&wanted, &mut out, || {
            made += 1;
            on_progress(ProgressEvent::Keys { done: made, total: wanted.len() });
            cancellation.check()
        })
        .map_err(|error| with_path(error, &path))?;
    let (blob, bytes) = out.finish(&path)?;
    let keys = KeySet {
        blob,
        bytes,
        layout: layout.key(),
        shape: Some(layout.shape()),
        file,
        seconds: start.elapsed().as_secs_f64(),
        sent,
    };
    project.update(|settings| {
        settings.keys.retain(|other| other.layout != keys.layout);
        settings.keys.push(keys.clone());
    })?;
    Ok(keys)
}

/// Names the file in an error of the operating system, such as a full disk.
fn with_path(error: Error, path: &Path) -> Error {
    match error {
        Error::Scheme(hetal_ckks::Error::Format(FormatError::Io { message, .. })) => {
            Error::Io { operation: "writing", path: path.to_owned(), message }
        }
        other => other,
    }
}

/// Hashes a file while it is written.
struct HashedFile {
    file: std::io::BufWriter<NewFile>,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl HashedFile {
    fn create(path: &Path) -> Result<Self> {
        let file = NewFile::create(path).map_err(|e| io_error("creating", path, &e))?;
        Ok(Self { file: std::io::BufWriter::with_capacity(1 << 20, file), hasher: blake3::Hasher::new(), bytes: 0 })
    }

    fn finish(self, path: &Path) -> Result<(String, u64)> {
        let file = self.file.into_inner().map_err(|e| io_error("writing", path, e.error()))?;
        file.finish().map_err(|e| io_error("writing", path, &e))?;
        Ok((self.hasher.finalize().to_hex().to_string(), self.bytes))
    }
}

impl std::io::Write for HashedFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_names_the_file() {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let error = Error::from(hetal_ckks::Error::from(FormatError::from(full)));
        let said = with_path(error, Path::new("p/keys.hetal")).to_string();
        assert!(said.starts_with("writing p/keys.hetal failed:"), "{said}");
    }
}
