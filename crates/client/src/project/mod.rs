//! The project folder: all state of a data owner. Every file is written atomically.
//!
//! ```text
//! DIR/project.json     parameter set, server, key sets, release budget of the secret key
//!     secret.key       the secret key (mode 0600)
//!     keys-SHAPE.hetal the key sets for servers, one for each layout
//!     jobs/NAME/       one training: job.json and the row blobs
//!     models/NAME.json a decrypted classifier (mode 0600)
//!     old/             replaced secret keys and their release budgets
//! ```

mod lock;
mod retired;
mod settings;
mod state_files;

pub(crate) use lock::lock;
pub use retired::RetiredKey;
pub use settings::{KeySet, ReleaseBudget, Rotation, ServerSettings, Settings};
pub(crate) use state_files::{checked_name, io_error, read, remove_if_there, write};

use crate::{Error, Result};
use hetal_keys::Passphrase;
use state_files::{make_private_folder, remove_unfinished};
use std::fs::File;
use std::path::{Path, PathBuf};

/// An open project folder. It is locked against other processes, unless it was opened without the
/// lock.
pub struct Project {
    root: PathBuf,
    settings: Settings,
    passphrase: Option<Passphrase>,
    lock: Option<File>,
}

impl Project {
    /// Opens a folder, or creates one for a parameter set. A folder that another process uses is an
    /// error.
    pub fn open(root: &Path, set: Option<&str>) -> Result<Self> {
        make_private_folder(root)?;
        let lock = Some(lock(root)?);
        remove_unfinished(root);
        let settings = match settings::settings(root)? {
            Some(settings) => settings,
            None => {
                let settings = Settings::new(set.unwrap_or("full"));
                write(&root.join("project.json"), &settings)?;
                settings
            }
        };
        let mut project = Self { root: root.to_owned(), settings, passphrase: None, lock };
        match set {
            Some(set) if set == project.settings.set => {}
            // Before the first key, nothing depends on the parameter set.
            Some(set) if project.is_empty() => project.update(|s| s.set = set.to_owned())?,
            Some(set) => {
                let (folder, has) = (root.to_owned(), project.settings.set);
                return Err(Error::OtherSet { folder, has, asked: set.to_owned() });
            }
            None => {}
        }
        Ok(project)
    }

    /// Opens an existing folder.
    pub fn existing(root: &Path) -> Result<Self> {
        if !root.join("project.json").exists() {
            return Err(Error::NoProject { folder: root.to_owned() });
        }
        Self::open(root, None)
    }

    /// Opens an existing folder for reading, even while another process uses it. This is safe
    /// because every file is written atomically.
    pub fn open_without_lock(root: &Path) -> Result<Self> {
        let settings = settings::settings(root)?.ok_or_else(|| Error::NoProject { folder: root.to_owned() })?;
        Ok(Self { root: root.to_owned(), settings, passphrase: None, lock: None })
    }

    /// The path of the folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The passphrase that unlocks the secret key and locks new ones.
    pub fn passphrase(&self) -> Option<&Passphrase> {
        self.passphrase.as_ref()
    }

    /// Sets the passphrase that unlocks the secret key and locks new ones.
    pub fn set_passphrase(&mut self, passphrase: Option<Passphrase>) {
        self.passphrase = passphrase;
    }

    /// The content of `project.json`.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes the settings, on disk first. A project without the lock takes it for the change.
    pub fn update(&mut self, change: impl FnOnce(&mut Settings)) -> Result<()> {
        if self.lock.is_none() {
            let mut own = Self::existing(&self.root)?;
            own.update(change)?;
            self.settings = own.settings;
            return Ok(());
        }
        let mut settings = self.settings.clone();
        change(&mut settings);
        write(&self.root.join("project.json"), &settings)?;
        self.settings = settings;
        Ok(())
    }

    /// The path of the secret key.
    pub fn secret(&self) -> PathBuf {
        self.root.join("secret.key")
    }

    /// Returns whether the secret key exists. An empty file was left by a process that was killed
    /// while it created the file.
    pub fn has_secret(&self) -> bool {
        self.secret().metadata().is_ok_and(|m| m.len() > 0)
    }

    fn is_empty(&self) -> bool {
        !self.has_secret() && self.settings.key_id.is_none() && self.settings.keys.is_empty()
    }

    /// The path of a key set.
    pub fn key_file(&self, keys: &KeySet) -> PathBuf {
        self.root.join(&keys.file)
    }

    /// The folder of a training, which is created if necessary.
    pub fn job(&self, name: &str) -> Result<PathBuf> {
        let folder = self.root.join("jobs").join(checked_name(name)?);
        make_private_folder(&folder)?;
        remove_unfinished(&folder);
        Ok(folder)
    }

    /// The path of a model file.
    pub fn model(&self, name: &str) -> Result<PathBuf> {
        let folder = self.root.join("models");
        make_private_folder(&folder)?;
        Ok(folder.join(format!("{}.json", checked_name(name)?)))
    }
}

#[cfg(test)]
mod tests;
