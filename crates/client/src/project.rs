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

use crate::{Error, Result};
use hetal_durable::{NewFile, UNFINISHED, sync_folder};
use hetal_keys::{Passphrase, secret_file};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// Bytes of the largest state file: a model of 128 classes and 2048 features has 6 MB.
const MAX_STATE: u64 = 64 << 20;
const VERSION: u32 = 2;
/// Where the only key set was before there could be several.
const FIRST_KEY_FILE: &str = "keys.hetal";

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
    /// The key sets that were made of it, one for each layout.
    #[serde(default, deserialize_with = "one_or_several")]
    pub keys: Vec<KeySet>,
    /// What was published under the secret key, once something was.
    pub released: Option<Released>,
    /// Whether the last secret key had a passphrase: its successor gets one too.
    #[serde(default)]
    pub locked: bool,
    /// A replacement of the secret key that has begun and not ended.
    #[serde(default)]
    pub rotation: Option<Rotation>,
}

impl Settings {
    fn new(set: &str) -> Self {
        let (version, set) = (VERSION, set.to_owned());
        Self { version, set, server: None, key_id: None, keys: vec![], released: None, locked: false, rotation: None }
    }

    /// The key set of these bytes.
    pub fn key_set(&self, blob: &str) -> Option<&KeySet> {
        self.keys.iter().find(|keys| keys.blob == blob)
    }
}

/// Version 1 knew one key set or none.
fn one_or_several<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<KeySet>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Several(Vec<KeySet>),
        One(Option<KeySet>),
    }
    Ok(match Form::deserialize(deserializer)? {
        Form::Several(all) => all,
        Form::One(one) => one.into_iter().collect(),
    })
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
    /// The shape of that layout.
    #[serde(default)]
    pub shape: Option<Shape>,
    /// Its file in the project folder.
    #[serde(default = "first_key_file")]
    pub file: String,
    /// Seconds it took.
    pub seconds: f64,
    /// Whether a server may have seen keys of this secret: unknown is yes.
    #[serde(default = "yes")]
    pub sent: bool,
}

/// Rows of a batch, features, classes, range.
pub type Shape = (usize, usize, usize, f64);

fn first_key_file() -> String {
    FIRST_KEY_FILE.to_owned()
}

fn yes() -> bool {
    true
}

/// A replacement of the secret key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rotation {
    /// The name of the old key.
    pub from: String,
    /// The shapes for which it had key sets.
    pub shapes: Vec<Shape>,
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
        let settings = match settings(root)? {
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
    pub fn look(root: &Path) -> Result<Self> {
        let settings = settings(root)?.ok_or_else(|| Error::NoProject { folder: root.to_owned() })?;
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
            write(&place.with_extension("json"), &Retired { key_id, released })?;
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
    pub(crate) fn adopt_key(&mut self, key_id: String, unknown: Option<Released>) -> Result<()> {
        let known = self.retired()?.into_iter().rev().find(|(_, old)| old.key_id.as_ref() == Some(&key_id));
        let (released, locked) = (known.map_or(unknown, |(_, old)| old.released), self.passphrase.is_some());
        self.update(|s| (s.key_id, s.released, s.locked) = (Some(key_id), released, locked))
    }

    /// What was published under the last secret key that was replaced before anyone knew its name.
    pub(crate) fn released_by_nameless(&self) -> Result<Option<Released>> {
        let nameless = self.retired()?.into_iter().rev().find(|(_, old)| old.key_id.is_none());
        Ok(nameless.and_then(|(_, old)| old.released))
    }

    /// The secret keys that were replaced and their numbers, oldest first. Some may have been taken away.
    fn retired(&self) -> Result<Vec<(u64, Retired)>> {
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
                let unknown = Retired { key_id: None, released: None };
                all.insert(number, read(&path.with_extension("json"))?.unwrap_or(unknown));
            }
        }
        Ok(all.into_iter().collect())
    }
}

/// What a folder is about; `None` if that is nothing yet.
fn settings(root: &Path) -> Result<Option<Settings>> {
    let path = root.join("project.json");
    let Some(mut settings) = read::<Settings>(&path)? else { return Ok(None) };
    if settings.version > VERSION {
        return Err(Error::NewerFile { path, found: settings.version, known: VERSION });
    }
    // They are written, removed and sent by these names: a folder that came from elsewhere must not lead out of itself, nor to
    // its other files.
    if let Some(keys) = settings.keys.iter().find(|keys| !is_key_file(&keys.file)) {
        return Err(Error::Damaged { path, reason: format!("{:?} is no name of a key set's file", keys.file) });
    }
    // The next time it is written it is in the form of today.
    settings.version = VERSION;
    Ok(Some(settings))
}

/// Takes a folder for this program alone, until the file is dropped.
pub(crate) fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let mut options = File::options();
    options.create(true).truncate(false).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let lock = options.open(&path).map_err(|e| io("opening", &path, &e))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(Error::InUse { folder: folder.to_owned() }),
        Err(TryLockError::Error(e)) => Err(io("locking", &path, &e)),
    }
}

/// A name that is a file's: letters, digits, `-`, `_` and `.`, not too long, not hidden.
pub(crate) fn checked_name(name: &str) -> Result<&str> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(good) {
        return Err(Error::Name { name: name.to_owned() });
    }
    Ok(name)
}

/// Whether a name is one of a key set's file: `keys.hetal`, `keys-SHAPE.hetal`.
fn is_key_file(name: &str) -> bool {
    checked_name(name).is_ok() && name.starts_with("keys") && name.ends_with(".hetal")
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
    NewFile::create(path).and_then(|file| file.finish_with(bytes)).map_err(|e| io("writing", path, &e))
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
        // Nothing depends on the set before there is a key.
        let mut project = Project::open(&root, Some("insecure-toy12")).unwrap();
        assert_eq!(project.settings().set, "insecure-toy12");
        project.update(|s| s.key_id = Some("a key".to_owned())).unwrap();
        drop(project);
        assert!(matches!(Project::open(&root, Some("full")), Err(Error::OtherSet { .. })));
    }

    #[test]
    fn a_project_in_use_can_be_looked_at() {
        let folder = TempDir::new();
        assert!(matches!(Project::look(folder.path()), Err(Error::NoProject { .. })));
        let mut project = Project::open(folder.path(), Some("insecure-toy11")).unwrap();
        let mut other = Project::look(folder.path()).unwrap();
        assert_eq!(other.settings().set, "insecure-toy11");
        assert!(matches!(other.update(|s| s.locked = true), Err(Error::InUse { .. })));
        project.update(|s| s.key_id = Some("a key".to_owned())).unwrap();
        drop(project);
        // What was written meanwhile is not undone.
        other.update(|s| s.locked = true).unwrap();
        let project = Project::existing(folder.path()).unwrap();
        assert_eq!((project.settings().locked, project.settings().key_id.as_deref()), (true, Some("a key")));
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
        let file = "keys-any.hetal".to_owned();
        let keys = KeySet { blob, bytes: 1, layout, shape: None, file, seconds: 1.0, sent: true };
        let released = |left| Some(Released { noise: 1e-6, numbers: 10, security: 10, left });
        for k in 1..=3 {
            project.adopt_key(format!("key {k}"), released(u64::from(k))).unwrap();
            std::fs::write(project.secret(), [k]).unwrap();
            std::fs::write(project.key_file(&keys), b"keys").unwrap();
            project.update(|s| s.keys = vec![keys.clone()]).unwrap();
            project.retire_keys().unwrap();
            assert!(!project.secret().exists() && !project.key_file(&keys).exists());
            let settings = project.settings();
            assert_eq!((settings.keys.len(), &settings.key_id, settings.released), (0, &None, None));
            assert_eq!(std::fs::read(folder.path().join(format!("old/secret-{k}.key"))).unwrap(), [k]);
            if k == 2 {
                // One that was taken away leaves a gap; those behind it still count, and it is not filled.
                let first = folder.path().join("old/secret-1.key");
                std::fs::remove_file(first.with_extension("json")).unwrap();
                std::fs::remove_file(first).unwrap();
            }
        }
        // A secret that comes back has published what it had published; one that was never here has what the caller says.
        project.adopt_key("key 2".to_owned(), released(10)).unwrap();
        assert_eq!(project.settings().released, released(2));
        project.adopt_key("key 4".to_owned(), None).unwrap();
        assert_eq!(project.settings().released, None);
    }

    /// Projects of version 1 had one key set or none, and did not say whether it was sent.
    #[test]
    fn projects_of_version_1_are_read() {
        let folder = TempDir::new();
        let open = |keys: &str| {
            let text = format!("{{\"version\":1,\"set\":\"full\",\"keys\":{keys},\"released\":null}}");
            std::fs::write(folder.path().join("project.json"), text).unwrap();
            Project::existing(folder.path()).unwrap().settings().clone()
        };
        assert!(open("null").keys.is_empty());
        let settings = open("{\"blob\":\"00\",\"bytes\":1,\"layout\":\"any\",\"seconds\":1.0}");
        assert_eq!((settings.keys[0].file.as_str(), settings.keys[0].sent), ("keys.hetal", true));
        assert_eq!(settings.version, VERSION);
    }

    #[test]
    fn files_of_key_sets_stay_inside_the_folder() {
        let folder = TempDir::new();
        for bad in ["/etc/keys.hetal", "../keys.hetal", "keys/../../keys.hetal", "secret.key", "project.json", "lock"] {
            let mut project = Project::open(folder.path(), None).unwrap();
            let (blob, layout, file) = ("00".to_owned(), "any".to_owned(), bad.to_owned());
            let keys = KeySet { blob, bytes: 1, layout, shape: None, file, seconds: 1.0, sent: true };
            project.update(|s| s.keys = vec![keys]).unwrap();
            drop(project);
            assert!(matches!(Project::open(folder.path(), None), Err(Error::Damaged { .. })), "{bad}");
            std::fs::remove_file(folder.path().join("project.json")).unwrap();
        }
    }

    /// A secret of which nothing is left does not free its successor from a passphrase.
    #[test]
    fn an_empty_secret_leaves_the_lock() {
        let folder = TempDir::new();
        let mut project = Project::open(folder.path(), None).unwrap();
        project.adopt_key("key".to_owned(), None).unwrap();
        project.update(|s| s.locked = true).unwrap();
        std::fs::write(project.secret(), b"").unwrap();
        project.retire_keys().unwrap();
        assert!(project.settings().locked);
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
