//! Secret keys that were replaced, kept in the folder `old`.

use super::Project;
use super::settings::ReleaseBudget;
use super::state_files::{io, make_private_folder, read, remove_if_there, write};
use crate::Result;
use hetal_durable::sync_folder;
use hetal_keys::secret_file;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A secret key that was replaced, kept beside it in `old`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RetiredKey {
    /// Its name.
    pub key_id: Option<String>,
    /// What was published under it.
    pub released: Option<ReleaseBudget>,
}

impl Project {
    /// Moves the secret key away, with what was published under it, and forgets its key sets: the next training makes new ones.
    pub(crate) fn retire_keys(&mut self) -> Result<()> {
        let (secret, old) = (self.secret(), self.root.join("old"));
        let files: Vec<PathBuf> = self.settings.keys.iter().map(|keys| self.key_file(keys)).collect();
        if !self.is_empty() {
            make_private_folder(&old)?;
            let number = self.retired()?.last().map_or(1, |(number, _)| number + 1);
            let place = old.join(format!("secret-{number}.key"));
            let (key_id, released) = (self.settings.key_id.clone(), self.settings.released);
            // Of a file that cannot be read nothing more is known than the settings say.
            let before = self.settings.locked;
            let locked = if self.has_secret() { secret_file::is_locked(&secret).unwrap_or(before) } else { before };
            // What was published stays written down at every moment: a secret that a killed program left in place finds it here.
            write(&place.with_extension("json"), &RetiredKey { key_id, released })?;
            // The settings before the secret, so that no one sends old keys with a new secret.
            self.update(|s| (s.key_id, s.keys, s.released, s.locked) = (None, vec![], None, locked))?;
            if self.has_secret() {
                std::fs::rename(&secret, &place).map_err(|e| io("moving", &secret, &e))?;
                sync_folder(&place).map_err(|e| io("moving", &secret, &e))?;
            }
        }
        files.iter().try_for_each(|file| remove_if_there(file))
    }

    /// Takes the name of the secret key that is in place, and what was published under it if it was here before.
    pub(crate) fn adopt_key(&mut self, key_id: String, unknown: Option<ReleaseBudget>) -> Result<()> {
        let known = self.retired()?.into_iter().rev().find(|(_, old)| old.key_id.as_ref() == Some(&key_id));
        let (released, locked) = (known.map_or(unknown, |(_, old)| old.released), self.passphrase.is_some());
        self.update(|s| (s.key_id, s.released, s.locked) = (Some(key_id), released, locked))
    }

    /// What was published under the last secret key that was replaced before anyone knew its name.
    pub(crate) fn released_by_nameless(&self) -> Result<Option<ReleaseBudget>> {
        let nameless = self.retired()?.into_iter().rev().find(|(_, old)| old.key_id.is_none());
        Ok(nameless.and_then(|(_, old)| old.released))
    }

    /// The secret keys that were replaced and their numbers, oldest first. Some may have been taken away.
    fn retired(&self) -> Result<Vec<(u64, RetiredKey)>> {
        let folder = self.root.join("old");
        let entries = match std::fs::read_dir(&folder) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|e| io("reading", &folder, &e))?,
        };
        let number = |path: &Path| -> Option<u64> {
            path.extension().filter(|e| *e == "key" || *e == "json")?;
            path.file_stem()?.to_str()?.strip_prefix("secret-")?.parse().ok()
        };
        let mut all = BTreeMap::new();
        for entry in entries {
            let path = entry.map_err(|e| io("reading", &folder, &e))?.path();
            if let Some(number) = number(&path) {
                let unknown = RetiredKey { key_id: None, released: None };
                all.insert(number, read(&path.with_extension("json"))?.unwrap_or(unknown));
            }
        }
        Ok(all.into_iter().collect())
    }
}
