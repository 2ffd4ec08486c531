//! The content of `project.json`.

use super::home::FolderIdentity;
use super::state_files::{checked_name, read};
use crate::layout::LayoutShape;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

pub(super) const VERSION: u32 = 2;
/// The file of the only key set in projects of version 1.
const FIRST_KEY_FILE: &str = "keys.hetal";

/// The settings of a project.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub(super) version: u32,
    /// The parameter set.
    pub set: String,
    /// The server that was used last.
    #[serde(default)]
    pub server: Option<ServerSettings>,
    /// The id of the secret key, if there is one.
    #[serde(default)]
    pub key_id: Option<String>,
    /// The key sets of the secret key, one for each layout.
    #[serde(default, deserialize_with = "one_or_several")]
    pub keys: Vec<KeySet>,
    /// The release budget of the secret key, after the first export.
    pub released: Option<ReleaseBudget>,
    /// Whether the last secret key had a passphrase. Its successor must have one too.
    #[serde(default)]
    pub locked: bool,
    /// A rotation of the secret key that has not finished.
    #[serde(default)]
    pub rotation: Option<Rotation>,
    /// The jobs that may not have ended, in case the record of a training is lost.
    #[serde(default)]
    pub jobs: Vec<OpenJob>,
    /// The folder that the release budget of the secret key belongs to.
    #[serde(default)]
    pub home: Option<FolderIdentity>,
    /// The rate of the last long upload, in Mbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<f64>,
}

impl Settings {
    pub(super) fn new(set: &str) -> Self {
        Self {
            version: VERSION,
            set: set.to_owned(),
            server: None,
            key_id: None,
            keys: Vec::new(),
            released: None,
            locked: false,
            rotation: None,
            jobs: Vec::new(),
            home: None,
            uplink: None,
        }
    }

    /// Finds a key set by its hash.
    pub fn key_set(&self, blob: &str) -> Option<&KeySet> {
        self.keys.iter().find(|keys| keys.blob == blob)
    }
}

/// Reads the key sets. Projects of version 1 have one key set or none.
fn one_or_several<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<KeySet>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum KeySetsField {
        Several(Vec<KeySet>),
        One(Option<KeySet>),
    }
    Ok(match KeySetsField::deserialize(deserializer)? {
        KeySetsField::Several(all) => all,
        KeySetsField::One(one) => one.into_iter().collect(),
    })
}

/// The address of a server and the files of its credentials. Nothing here is secret.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerSettings {
    /// `host:port`.
    pub address: String,
    /// A file with the certificate authorities (PEM) that may have issued its certificate.
    pub authority: PathBuf,
    /// A file with a token.
    pub token_file: Option<PathBuf>,
    /// The files of a certificate and of its key (PEM).
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// A key set on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeySet {
    /// The hash of its content.
    pub blob: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// The layout it was generated for, as text.
    pub layout: String,
    /// The shape of that layout.
    #[serde(default)]
    pub shape: Option<LayoutShape>,
    /// Its file in the project folder.
    #[serde(default = "first_key_file")]
    pub file: String,
    /// The seconds that its generation took.
    pub seconds: f64,
    /// Whether a server may have seen these keys. Unknown counts as yes.
    #[serde(default = "yes")]
    pub sent: bool,
}

fn first_key_file() -> String {
    FIRST_KEY_FILE.to_owned()
}

fn yes() -> bool {
    true
}

/// A job on a server that may not have ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenJob {
    /// The name of its training.
    pub training: String,
    /// The server.
    pub server: String,
    /// The id of the job.
    pub id: String,
}

/// An unfinished rotation of the secret key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rotation {
    /// The id of the old key.
    pub from: String,
    /// The shapes of its key sets.
    pub shapes: Vec<LayoutShape>,
}

/// The release budget of a secret key. The first export fixes it, and every export uses a part of
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReleaseBudget {
    /// The bound on the noise of decrypted values.
    pub noise: f64,
    /// Real numbers that may be published in all.
    pub numbers: u64,
    /// Bits of security.
    pub security: u32,
    /// Numbers that may still be published.
    pub left: u64,
}

/// Reads the settings of a folder; `None` if it has none yet.
pub(super) fn settings(root: &Path) -> Result<Option<Settings>> {
    let path = root.join("project.json");
    let Some(mut settings) = read::<Settings>(&path)? else { return Ok(None) };
    if settings.version > VERSION {
        return Err(Error::NewerFile { path, found: settings.version, known: VERSION });
    }
    // Key sets are written, removed and sent by these names. A folder from elsewhere must not name
    // files outside of it, nor its other files.
    if let Some(keys) = settings.keys.iter().find(|keys| !is_key_file(&keys.file)) {
        return Err(Error::Damaged { path, reason: format!("{:?} is not a valid file name of a key set", keys.file) });
    }
    // The next write uses the current format.
    settings.version = VERSION;
    Ok(Some(settings))
}

/// Returns whether a name may be the file of a key set: `keys.hetal` or `keys-SHAPE.hetal`.
fn is_key_file(name: &str) -> bool {
    checked_name(name).is_ok() && name.starts_with("keys") && name.ends_with(".hetal")
}
