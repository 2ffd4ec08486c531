//! Replaced secret keys, which are kept in the folder `old`.

use super::Project;
use super::home::FolderIdentity;
use super::settings::ReleaseBudget;
use super::state_files::{io_error, make_private_folder, read, remove_if_there, write};
use crate::Result;
use hetal_durable::sync_folder;
use hetal_keys::secret_file;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The record of a replaced secret key, beside the key in `old`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RetiredKey {
    /// Its id, if it was known.
    pub key_id: Option<String>,
    /// Its release budget, after the first export.
    pub released: Option<ReleaseBudget>,
    /// The folder that the budget belongs to.
    #[serde(default)]
    pub home: Option<FolderIdentity>,
}

impl Project {
    /// Moves the secret key and its release budget to `old` and removes its key sets. The next
    /// training creates new ones.
    pub(crate) fn retire_keys(&mut self) -> Result<()> {
        let (secret, old) = (self.secret(), self.root.join("old"));
        let files: Vec<PathBuf> = self.settings.keys.iter().map(|keys| self.key_file(keys)).collect();
        if !self.is_empty() {
            make_private_folder(&old)?;
            let number = self.retired()?.last().map_or(1, |(number, _)| number + 1);
            let path = old.join(format!("secret-{number}.key"));
            // If the file cannot be read, the settings are the only source.
            let before = self.settings.locked;
            let locked = if self.has_secret() { secret_file::is_locked(&secret).unwrap_or(before) } else { before };
            // The budget must be on disk at every moment: if the process is killed before the
            // secret is moved, the secret finds its budget here.
            let (key_id, released) = (self.settings.key_id.clone(), self.settings.released);
            let retired = RetiredKey { key_id, released, home: self.settings.home.clone() };
            // The next key is made here, so its budget belongs to this folder.
            let here = FolderIdentity::of(&self.root);
            write(&path.with_extension("json"), &retired)?;
            // The settings change before the secret, so that old key sets are never sent with a new
            // secret.
            self.update(|s| {
                s.key_id = None;
                s.keys = Vec::new();
                s.released = None;
                s.locked = locked;
                s.home = here;
            })?;
            if self.has_secret() {
                std::fs::rename(&secret, &path).map_err(|e| io_error("moving", &secret, &e))?;
                sync_folder(&path).map_err(|e| io_error("moving", &secret, &e))?;
            }
        }
        files.iter().try_for_each(|file| remove_if_there(file))
    }

    /// Records the id of the current secret key. A key that was retired here gets its budget back;
    /// any other key gets the budget `unknown`.
    pub(crate) fn adopt_key(&mut self, key_id: String, unknown: Option<ReleaseBudget>) -> Result<()> {
        let known = self.retired()?.into_iter().rev().find(|(_, old)| old.key_id.as_ref() == Some(&key_id));
        let locked = self.passphrase.is_some();
        self.update(|s| {
            s.key_id = Some(key_id);
            s.locked = locked;
            match known {
                Some((_, old)) => {
                    s.released = old.released;
                    s.home = old.home;
                }
                None => s.released = unknown,
            }
        })
    }

    /// The release budget of the last secret key that was retired without an id.
    pub(crate) fn released_by_nameless(&self) -> Result<Option<ReleaseBudget>> {
        let nameless = self.retired()?.into_iter().rev().find(|(_, old)| old.key_id.is_none());
        Ok(nameless.and_then(|(_, old)| old.released))
    }

    /// The retired keys and their numbers, oldest first. Files that were removed leave gaps.
    fn retired(&self) -> Result<Vec<(u64, RetiredKey)>> {
        let folder = self.root.join("old");
        let entries = match std::fs::read_dir(&folder) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|e| io_error("reading", &folder, &e))?,
        };
        let number = |path: &Path| -> Option<u64> {
            path.extension().filter(|e| *e == "key" || *e == "json")?;
            path.file_stem()?.to_str()?.strip_prefix("secret-")?.parse().ok()
        };
        let mut all = BTreeMap::new();
        for entry in entries {
            let path = entry.map_err(|e| io_error("reading", &folder, &e))?.path();
            if let Some(number) = number(&path) {
                let unknown = RetiredKey { key_id: None, released: None, home: None };
                all.insert(number, read(&path.with_extension("json"))?.unwrap_or(unknown));
            }
        }
        Ok(all.into_iter().collect())
    }
}
