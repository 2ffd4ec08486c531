//! The project folder: everything a data owner keeps, each file written whole or not at all.
//!
//! ```text
//! DIR/project.json     the parameter set, the server, what was released under the secret key
//!     secret.key       the secret key (mode 0600)
//!     keys-SHAPE.hetal the key set a server gets, one for each shape of batches
//!     jobs/NAME/       one training: job.json and the encrypted uploads
//!     models/NAME.json a decrypted classifier (mode 0600)
//!     old/             secret keys that were replaced, and what was published under them
//! ```

mod lock;
mod retired;
mod settings;
mod state_files;

pub(crate) use lock::lock;
pub use retired::RetiredKey;
pub use settings::{KeySet, ReleaseBudget, Rotation, ServerSettings, Settings};
pub(crate) use state_files::{checked_name, io, read, remove_if_there, write};

use crate::{Error, Result};
use hetal_keys::Passphrase;
use state_files::{make_private_folder, remove_unfinished};
use std::fs::File;
use std::path::{Path, PathBuf};

/// An open project folder: no other program writes to it, unless it was only opened to be looked at.
pub struct Project {
    root: PathBuf,
    settings: Settings,
    passphrase: Option<Passphrase>,
    lock: Option<File>,
}

impl Project {
    /// Opens a folder, or makes one for a parameter set. Waits for no one: a folder in use is an error.
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
            // Where no key was made yet, nothing depends on the set.
            Some(set) if project.is_empty() => project.update(|s| s.set = set.to_owned())?,
            Some(set) => {
                let (folder, has) = (root.to_owned(), project.settings.set);
                return Err(Error::OtherSet { folder, has, asked: set.to_owned() });
            }
            None => {}
        }
        Ok(project)
    }

    /// Opens a folder that must be there.
    pub fn existing(root: &Path) -> Result<Self> {
        if !root.join("project.json").exists() {
            return Err(Error::NoProject { folder: root.to_owned() });
        }
        Self::open(root, None)
    }

    /// Opens a folder that must be there to look at it, whoever works in it: its files are whole or not there at every moment.
    pub fn open_without_lock(root: &Path) -> Result<Self> {
        let settings = settings::settings(root)?.ok_or_else(|| Error::NoProject { folder: root.to_owned() })?;
        Ok(Self { root: root.to_owned(), settings, passphrase: None, lock: None })
    }

    /// Its folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The passphrase that opens the secret key and locks new ones.
    pub fn passphrase(&self) -> Option<&Passphrase> {
        self.passphrase.as_ref()
    }

    /// Gives the passphrase that opens the secret key and locks new ones.
    pub fn set_passphrase(&mut self, passphrase: Option<Passphrase>) {
        self.passphrase = passphrase;
    }

    /// What it is about.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes what it is about, on disk first. In a folder that is only looked at no one else may work meanwhile.
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

    /// Where the secret key is.
    pub fn secret(&self) -> PathBuf {
        self.root.join("secret.key")
    }

    /// Whether there is one. A file without a byte is what is left of a program that was killed while it took the name.
    pub fn has_secret(&self) -> bool {
        self.secret().metadata().is_ok_and(|m| m.len() > 0)
    }

    fn is_empty(&self) -> bool {
        !self.has_secret() && self.settings.key_id.is_none() && self.settings.keys.is_empty()
    }

    /// Where a key set is.
    pub fn key_file(&self, keys: &KeySet) -> PathBuf {
        self.root.join(&keys.file)
    }

    /// The folder of a training, made if it is not there.
    pub fn job(&self, name: &str) -> Result<PathBuf> {
        let folder = self.root.join("jobs").join(checked_name(name)?);
        make_private_folder(&folder)?;
        remove_unfinished(&folder);
        Ok(folder)
    }

    /// The file of a model.
    pub fn model(&self, name: &str) -> Result<PathBuf> {
        let folder = self.root.join("models");
        make_private_folder(&folder)?;
        Ok(folder.join(format!("{}.json", checked_name(name)?)))
    }
}

#[cfg(test)]
mod tests;
