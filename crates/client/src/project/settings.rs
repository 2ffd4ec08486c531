//! What `project.json` holds.

use super::state_files::{checked_name, read};
use crate::layout::LayoutShape;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

pub(super) const VERSION: u32 = 2;
/// Where the only key set was before there could be several.
const FIRST_KEY_FILE: &str = "keys.hetal";

/// What a project is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub(super) version: u32,
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
    pub released: Option<ReleaseBudget>,
    /// Whether the last secret key had a passphrase: its successor gets one too.
    #[serde(default)]
    pub locked: bool,
    /// A replacement of the secret key that has begun and not ended.
    #[serde(default)]
    pub rotation: Option<Rotation>,
}

impl Settings {
    pub(super) fn new(set: &str) -> Self {
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
    enum KeySetsField {
        Several(Vec<KeySet>),
        One(Option<KeySet>),
    }
    Ok(match KeySetsField::deserialize(deserializer)? {
        KeySetsField::Several(all) => all,
        KeySetsField::One(one) => one.into_iter().collect(),
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
    pub shape: Option<LayoutShape>,
    /// Its file in the project folder.
    #[serde(default = "first_key_file")]
    pub file: String,
    /// Seconds it took.
    pub seconds: f64,
    /// Whether a server may have seen keys of this secret: unknown is yes.
    #[serde(default = "yes")]
    pub sent: bool,
}

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
    pub shapes: Vec<LayoutShape>,
}

/// The policy under which values were published, fixed by the first time, and what it has left.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReleaseBudget {
    /// The bound on the noise.
    pub noise: f64,
    /// Real numbers that will ever be published.
    pub numbers: u64,
    /// Bits of security.
    pub security: u32,
    /// Numbers left.
    pub left: u64,
}

/// What a folder is about; `None` if that is nothing yet.
pub(super) fn settings(root: &Path) -> Result<Option<Settings>> {
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

/// Whether a name is one of a key set's file: `keys.hetal`, `keys-SHAPE.hetal`.
fn is_key_file(name: &str) -> bool {
    checked_name(name).is_ok() && name.starts_with("keys") && name.ends_with(".hetal")
}
