//! The project folder: everything a data owner keeps, each file written whole or not at all.
//!
//! ```text
//! DIR/project.json     the parameter set, the server, what was released under the secret key
//!     secret.key       the secret key (mode 0600)
//!     keys.hetal       the key set a server gets
//!     jobs/NAME/       one training: job.json and the encrypted uploads
//!     models/NAME.json a decrypted classifier (mode 0600)
//!     old/             secret keys that were replaced, and what was published under them
//! ```

use crate::{Error, Result};
use hetal_keys::Passphrase;
use hetal_keys::durable::{NewFile, UNFINISHED, sync_folder};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Bytes of the largest state file: a model of 128 classes and 2048 features has 6 MB.
const MAX_STATE: u64 = 64 << 20;
const VERSION: u32 = 1;

/// What a project is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    version: u32,
    /// The parameter set.
    pub set: String,
    /// The server that was used last.
    #[serde(default)]
    pub server: Option<ServerSettings>,
    /// The name of the secret key, once there is one.
    #[serde(default)]
    pub key_id: Option<String>,
    /// The key set, once it is made.
    pub keys: Option<KeySet>,
    /// What was published under the secret key, once something was.
    pub released: Option<Released>,
}

/// Where a server is and where the credentials for it are kept; nothing of it is secret.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerSettings {
    /// `host:port`.
    pub address: String,
    /// A file with the certificate authorities (PEM) its certificate must come from.
    pub authority: PathBuf,
    /// A file with a token.
    pub token_file: Option<PathBuf>,
    /// Files with a certificate and its key (PEM).
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// A key set that was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeySet {
    /// Its content's hash.
    pub blob: String,
    /// Its size.
    pub bytes: u64,
    /// The layout it was made for, in words.
    pub layout: String,
    /// The shape of that layout: rows of a batch, features, classes, range.
    #[serde(default)]
    pub shape: Option<(usize, usize, usize, f64)>,
    /// Seconds it took.
    pub seconds: f64,
    /// Whether a server may have seen it.
    #[serde(default)]
    pub sent: bool,
}

/// A secret key that was replaced, kept beside it in `old`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retired {
    /// Its name.
    pub key_id: Option<String>,
    /// What was published under it.
    pub released: Option<Released>,
}

/// The policy under which values were published, fixed by the first time, and what it has left.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Released {
    /// The bound on the noise.
    pub noise: f64,
    /// Real numbers that will ever be published.
    pub numbers: u64,
    /// Bits of security.
    pub security: u32,
    /// Numbers left.
    pub left: u64,
}

/// An open project folder: no other program writes to it.
pub struct Project {
    root: PathBuf,
    settings: Settings,
    passphrase: Option<Passphrase>,
    _lock: File,
}

impl Project {
    /// Opens a folder, or makes one for a parameter set. Waits for no one: a folder in use is an error.
    pub fn open(root: &Path, set: Option<&str>) -> Result<Self> {
        make_private_folder(root)?;
        let lock_path = root.join("lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(|e| io("opening", &lock_path, &e))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::InUse { folder: root.to_owned() }),
            Err(TryLockError::Error(e)) => return Err(io("locking", &lock_path, &e)),
        }
        remove_unfinished(root);
        let path = root.join("project.json");
        let settings: Settings = match read(&path)? {
            Some(settings) => settings,
            None => {
                let set = set.unwrap_or("full").to_owned();
                let settings =
                    Settings { version: VERSION, set, server: None, key_id: None, keys: None, released: None };
                write(&path, &settings)?;
                settings
            }
        };
        if settings.version != VERSION {
            return Err(Error::NewerFile { path, found: settings.version, known: VERSION });
        }
        match set {
            Some(set) if set != settings.set => {
                Err(Error::OtherSet { folder: root.to_owned(), has: settings.set, asked: set.to_owned() })
            }
            _ => Ok(Self { root: root.to_owned(), settings, passphrase: None, _lock: lock }),
        }
    }

    /// Opens a folder that must be there.
    pub fn existing(root: &Path) -> Result<Self> {
        if !root.join("project.json").exists() {
            return Err(Error::NoProject { folder: root.to_owned() });
        }
        Self::open(root, None)
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

    /// Changes what it is about, on disk first.
    pub fn update(&mut self, change: impl FnOnce(&mut Settings)) -> Result<()> {
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

    /// Where the key set is.
    pub fn key_set(&self) -> PathBuf {
        self.root.join("keys.hetal")
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

    /// Moves the secret key away, with what was published under it, and forgets the key set: the next training makes new ones.
    pub fn retire_keys(&mut self) -> Result<()> {
        let secret = self.secret();
        if !secret.exists() && self.settings.key_id.is_none() && self.settings.keys.is_none() {
            return remove_if_there(&self.key_set());
        }
        let old = self.root.join("old");
        make_private_folder(&old)?;
        let place = (1..)
            .map(|k| old.join(format!("secret-{k}.key")))
            .find(|place| !place.exists() && !place.with_extension("json").exists())
            .ok_or(Error::Interrupted)?;
        let (key_id, released) = (self.settings.key_id.clone(), self.settings.released);
        // What was published stays written down at every moment: a secret that a killed program left in place finds it here.
        write(&place.with_extension("json"), &Retired { key_id, released })?;
        // The settings before the secret, so that no one sends old keys with a new secret.
        self.update(|s| (s.key_id, s.keys, s.released) = (None, None, None))?;
        if secret.exists() {
            std::fs::rename(&secret, &place).map_err(|e| io("moving", &secret, &e))?;
            sync_folder(&place).map_err(|e| io("moving", &secret, &e))?;
        }
        remove_if_there(&self.key_set())
    }

    /// Takes the name of the secret key that is in place, and what was published under it if it was here before.
    pub fn adopt_key(&mut self, key_id: String, unknown: Option<Released>) -> Result<()> {
        let released = self.retired()?.into_iter().rev().find(|old| old.key_id.as_ref() == Some(&key_id));
        let released = released.map_or(unknown, |old| old.released);
        self.update(|s| (s.key_id, s.released) = (Some(key_id), released))
    }

    /// The secret keys that were replaced, oldest first.
    fn retired(&self) -> Result<Vec<Retired>> {
        let old = self.root.join("old");
        let mut all = Vec::new();
        for k in 1.. {
            let (key, state) = (old.join(format!("secret-{k}.key")), old.join(format!("secret-{k}.json")));
            if !key.exists() && !state.exists() {
                break;
            }
            all.extend(read::<Retired>(&state)?);
        }
        Ok(all)
    }
}

/// A name that is a file's: letters, digits, `-`, `_` and `.`, not too long, not hidden.
fn checked_name(name: &str) -> Result<&str> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(good) {
        return Err(Error::Name { name: name.to_owned() });
    }
    Ok(name)
}

pub(crate) fn io(operation: &'static str, path: &Path, error: &std::io::Error) -> Error {
    Error::Io { operation, path: path.to_owned(), message: error.to_string() }
}

pub(crate) fn remove_if_there(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io("removing", path, &e)),
        _ => Ok(()),
    }
}

/// A folder that only its owner can look into.
fn make_private_folder(folder: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|e| io("creating", folder, &e))
}

/// What a killed program left half written is worth nothing.
fn remove_unfinished(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with(UNFINISHED) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Reads a state file; `None` if there is none.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let bytes = match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io("reading", path, &e)),
        Ok(metadata) if metadata.len() > MAX_STATE => {
            return Err(Error::Damaged { path: path.to_owned(), reason: format!("it has {} bytes", metadata.len()) });
        }
        Ok(_) => std::fs::read(path).map_err(|e| io("reading", path, &e))?,
    };
    let damaged = |e: serde_json::Error| Error::Damaged { path: path.to_owned(), reason: e.to_string() };
    serde_json::from_slice(&bytes).map(Some).map_err(damaged)
}

/// Writes a state file, whole or not at all.
pub(crate) fn write<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let text = serde_json::to_vec_pretty(value)
        .map_err(|e| Error::Damaged { path: path.to_owned(), reason: e.to_string() })?;
    write_bytes(path, &text)
}

/// Writes a file, whole or not at all, for its owner's eyes only.
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || {
        let mut file = NewFile::create(path)?;
        file.write_all(bytes)?;
        file.finish()
    };
    write().map_err(|e| io("writing", path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hetal_testkit::TempDir;

    #[test]
    fn a_project_is_one_program_s_at_a_time_and_of_one_set() {
        let folder = TempDir::new();
        let root = folder.path().join("p");
        assert!(matches!(Project::existing(&root), Err(Error::NoProject { .. })));
        let mut project = Project::open(&root, Some("insecure-toy11")).unwrap();
        assert!(matches!(Project::open(&root, None), Err(Error::InUse { .. })));
        let released = Released { noise: 1e-6, numbers: 10, security: 10, left: 3 };
        project.update(|s| s.released = Some(released)).unwrap();
        std::fs::write(root.join("x.0.unfinished"), b"half").unwrap();
        drop(project);
        let project = Project::existing(&root).unwrap();
        assert_eq!(project.settings().released, Some(released));
        assert!(!root.join("x.0.unfinished").exists());
        drop(project);
        assert!(matches!(Project::open(&root, Some("full")), Err(Error::OtherSet { .. })));
    }

    #[test]
    fn names_stay_inside_the_folder() {
        let folder = TempDir::new();
        let project = Project::open(folder.path(), None).unwrap();
        for bad in ["", "..", "a/b", "a\\b", ".hidden", "ü", &"x".repeat(65)] {
            assert!(matches!(project.model(bad), Err(Error::Name { .. })), "{bad}");
        }
        assert!(project.job("first-2").unwrap().is_dir());
    }

    #[test]
    fn retired_secrets_are_kept_and_nothing_else_is() {
        let folder = TempDir::new();
        let mut project = Project::open(folder.path(), None).unwrap();
        let (blob, layout) = ("00".to_owned(), "any".to_owned());
        let keys = KeySet { blob, bytes: 1, layout, shape: None, seconds: 1.0, sent: true };
        let released = |left| Some(Released { noise: 1e-6, numbers: 10, security: 10, left });
        for k in 1..=2 {
            project.adopt_key(format!("key {k}"), released(u64::from(k))).unwrap();
            std::fs::write(project.secret(), [k]).unwrap();
            std::fs::write(project.key_set(), b"keys").unwrap();
            project.update(|s| s.keys = Some(keys.clone())).unwrap();
            project.retire_keys().unwrap();
            assert!(!project.secret().exists() && !project.key_set().exists());
            let settings = project.settings();
            assert_eq!((&settings.keys, &settings.key_id, settings.released), (&None, &None, None));
            assert_eq!(std::fs::read(folder.path().join(format!("old/secret-{k}.key"))).unwrap(), [k]);
        }
        // A secret that comes back has published what it had published; one that was never here has what the caller says.
        project.adopt_key("key 1".to_owned(), released(10)).unwrap();
        assert_eq!(project.settings().released, released(1));
        project.adopt_key("key 3".to_owned(), None).unwrap();
        assert_eq!(project.settings().released, None);
    }

    #[test]
    fn damaged_state_is_named() {
        let folder = TempDir::new();
        drop(Project::open(folder.path(), None).unwrap());
        std::fs::write(folder.path().join("project.json"), b"{\"version\": 1").unwrap();
        let error = Project::open(folder.path(), None).err().unwrap();
        assert!(error.to_string().contains("project.json"), "{error}");
    }
}
