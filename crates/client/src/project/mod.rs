//! The project folder: all state of a data owner. Every file is written atomically.
//!
//! ```text
//! DIR/project.json     parameter set, server, key sets, release budget of the secret key
//!     secret.key       the secret key (mode 0600)
//!     keys-SHAPE.hetal the key sets for servers, one for each layout
//!     jobs/NAME/       one training: job.json and the row blobs
//!     models/NAME.json a decrypted classifier (mode 0600)
//!     reports/NAME.*   the record of a training, and its page (mode 0600)
//!     old/             replaced secret keys and their release budgets
//! ```

mod home;
mod lock;
mod retired;
mod settings;
mod state_files;

pub use home::FolderIdentity;
pub(crate) use lock::lock;
pub use retired::RetiredKey;
pub use settings::{KeySet, OpenJob, ReleaseBudget, Rotation, ServerSettings, Settings};
pub(crate) use state_files::{
    checked_name, io_error, read, read_private, remove_if_there, write, write_bytes, write_private,
};

use crate::{Cancellation, Error, Result};
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
    cancellation: Cancellation,
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
            None if has_lost_settings(root) => return Err(Error::SettingsLost { folder: root.to_owned() }),
            None => {
                let settings = Settings::new(set.unwrap_or("full"));
                write(&root.join("project.json"), &settings)?;
                settings
            }
        };
        let mut project =
            Self { root: root.to_owned(), settings, passphrase: None, cancellation: Cancellation::default(), lock };
        // A key of a project without `home` may have been copied before: its owner says so first.
        if project.settings.home.is_none() && project.is_empty() {
            project.declare_moved()?;
        }
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
            return Err(no_settings(root));
        }
        Self::open(root, None)
    }

    /// Opens an existing folder for reading, even while another process uses it. This is safe
    /// because every file is written atomically.
    pub fn open_without_lock(root: &Path) -> Result<Self> {
        let settings = settings::settings(root)?.ok_or_else(|| no_settings(root))?;
        Ok(Self {
            root: root.to_owned(),
            settings,
            passphrase: None,
            cancellation: Cancellation::default(),
            lock: None,
        })
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

    /// The request that ends work in this project.
    pub fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }

    /// Sets the request that ends work in this project: making keys and encrypting rows. Calls to a
    /// server have one of their own ([`crate::rpc::Remote::connect_until`]).
    pub fn set_cancellation(&mut self, cancellation: Cancellation) {
        self.cancellation = cancellation;
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

    /// Records a job, in case the record of its training is lost.
    pub(crate) fn open_job(&mut self, job: OpenJob) -> Result<()> {
        if self.settings.jobs.contains(&job) {
            return Ok(());
        }
        self.update(|s| s.jobs.push(job))
    }

    /// Forgets a job that has ended, under whatever addresses its server was known.
    pub(crate) fn close_job(&mut self, id: &str) -> Result<()> {
        if self.settings.jobs.iter().all(|job| job.id != id) {
            return Ok(());
        }
        self.update(|s| s.jobs.retain(|job| job.id != id))
    }

    /// Requires that this is the folder that the release budget of the secret key belongs to.
    pub(crate) fn require_home(&self) -> Result<()> {
        if self.settings.home == FolderIdentity::of(&self.root) {
            Ok(())
        } else {
            Err(Error::CopiedFolder { folder: self.root.clone() })
        }
    }

    /// Declares that the folder was moved here: its old place is gone, and no copy of it publishes.
    pub fn declare_moved(&mut self) -> Result<()> {
        let home = FolderIdentity::of(&self.root);
        self.update(|s| s.home = home)
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

    /// The names of all models, in order.
    pub fn models(&self) -> Result<Vec<String>> {
        let folder = self.root.join("models");
        let entries = match std::fs::read_dir(&folder) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|e| io_error("reading", &folder, &e))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let path = entry.map_err(|e| io_error("reading", &folder, &e))?.path();
            let name = path.file_stem().and_then(|name| name.to_str()).filter(|name| checked_name(name).is_ok());
            if path.extension().is_some_and(|extension| extension == "json") {
                names.extend(name.map(str::to_owned));
            }
        }
        names.sort();
        Ok(names)
    }

    /// The path of a training's record (`json`) or of its page (`html`).
    pub(crate) fn report(&self, name: &str, extension: &str) -> Result<PathBuf> {
        let folder = self.root.join("reports");
        make_private_folder(&folder)?;
        Ok(folder.join(format!("{}.{extension}", checked_name(name)?)))
    }

    /// The path of a model file.
    pub fn model(&self, name: &str) -> Result<PathBuf> {
        let folder = self.root.join("models");
        make_private_folder(&folder)?;
        Ok(folder.join(format!("{}.json", checked_name(name)?)))
    }
}

/// Why a folder without settings cannot be opened.
fn no_settings(root: &Path) -> Error {
    let folder = root.to_owned();
    if has_lost_settings(root) { Error::SettingsLost { folder } } else { Error::NoProject { folder } }
}

/// Whether a folder without `project.json` had one: it has a secret key, a key set or a training.
/// With new settings the count of what was published would start again.
fn has_lost_settings(root: &Path) -> bool {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_key = |name: &str| name == "secret.key" || name.starts_with("keys") && name.ends_with(".hetal");
    entries(root).any(|entry| is_key(&entry.file_name().to_string_lossy()))
        || entries(&root.join("old")).any(|entry| entry.file_name().to_string_lossy().starts_with("secret-"))
        || entries(&root.join("jobs")).any(|entry| entry.path().join("job.json").exists())
}

#[cfg(test)]
mod tests;
