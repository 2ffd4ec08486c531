//! The manifest: what a set of features was made from and how. It is kept beside the features and
//! stored in the model file of a classifier that was trained on them.

use crate::{read_regular, sanitize_terminal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Larger files are refused.
const MAX_BYTES: u64 = 64 << 20;

/// A manifest whose preprocessing is kept as it is, without being interpreted: what `hetal` needs.
pub type Manifest = ManifestOf<serde_json::Value>;

/// What `manifest.json` holds. `P` is the preprocessing of the network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ManifestOf<P> {
    /// The version of this form.
    pub version: u32,
    /// Which network made the features.
    pub model: IdentityOf<P>,
    /// Names of the classes, by label.
    pub classes: Vec<String>,
    /// Rows of each part.
    pub rows: BTreeMap<String, usize>,
    /// The seed of the split.
    pub seed: u64,
    /// SHA-256 over parts, names, classes and contents (of pictures' files, their sizes) of all
    /// samples, in order.
    pub samples: String,
    /// Where the network ran: `cpu`, `cuda`, or both if a later run used another device. Empty if
    /// that was not recorded.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub devices: BTreeSet<String>,
    /// Samples that could not be used.
    #[serde(default)]
    pub skipped: Vec<Skipped>,
    /// What the user was told about the data set.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Which network made features: enough to find it again and to refuse another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IdentityOf<P> {
    /// Where the user had it: a path or a name on the hub.
    pub source: String,
    /// The hub's revision, where it came from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Its family.
    pub architecture: String,
    /// Columns of its features.
    pub columns: usize,
    /// SHA-256 of each of its files.
    pub files: BTreeMap<String, String>,
    /// What is done to an input before the network and to its output after it.
    pub preprocessing: P,
}

/// A sample that could not be used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    /// Its part.
    pub part: String,
    /// Its name.
    pub item: String,
    /// Why.
    pub reason: String,
}

/// A manifest that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", sanitize_terminal(&.path.to_string_lossy()), sanitize_terminal(.reason))]
pub struct Error {
    /// Which file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

impl Error {
    fn new(path: &Path, reason: impl ToString) -> Self {
        Self { path: path.to_owned(), reason: reason.to_string() }
    }
}

impl<P> IdentityOf<P> {
    /// A file of an earlier identity, with its hash, that differs now. Files that only this
    /// identity names are no difference: earlier versions did not read all of them, and what they
    /// change shows in the preprocessing.
    pub fn changed<'a>(&self, earlier: &'a Self) -> Option<(&'a String, &'a String)> {
        earlier.files.iter().find(|(name, hash)| self.files.get(*name) != Some(hash))
    }
}

impl<P: DeserializeOwned> ManifestOf<P> {
    /// The version this program writes.
    pub const VERSION: u32 = 1;
    /// The name of the file.
    pub const FILE: &'static str = "manifest.json";

    /// Reads the manifest of a folder of features.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        Self::open(&folder.join(Self::FILE))
    }

    /// Reads a manifest.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let bytes = read_regular(path, MAX_BYTES).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                Error::new(path, "no such file; `hetal extract` writes it beside the features")
            }
            _ => Error::new(path, error),
        })?;
        let manifest: Self = serde_json::from_slice(&bytes).map_err(|error| Error::new(path, error))?;
        manifest.of_this_version(path)
    }

    /// The manifest that a model file holds; `path` is that of the model file, for the error.
    pub fn from_model(value: &serde_json::Value, path: &Path) -> Result<Self, Error> {
        let bad =
            |error: serde_json::Error| Error::new(path, format!("its manifest of features cannot be read: {error}"));
        Self::deserialize(value).map_err(bad)?.of_this_version(path)
    }

    fn of_this_version(self, path: &Path) -> Result<Self, Error> {
        match self.version {
            Self::VERSION => Ok(self),
            other => Err(Error::new(
                path,
                format!("has version {other}, this program reads {}; update hetal and hetal-extract", Self::VERSION),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_preprocessing_is_kept_uninterpreted() {
        let model = json!({
            "source": "x", "architecture": "bert", "columns": 3, "files": { "a": "1" },
            "preprocessing": { "sentence": { "pooling": "mean", "more": [1.5] } },
        });
        let mut value = json!({
            "version": 1, "model": model, "classes": ["a"], "rows": {}, "seed": 0, "samples": "", "skipped": [], "notes": [],
        });
        let manifest = Manifest::from_model(&value, Path::new("m.json")).unwrap();
        assert_eq!(serde_json::to_value(&manifest).unwrap(), value);
        value["version"] = 2.into();
        let error = Manifest::from_model(&value, Path::new("m.json")).unwrap_err().to_string();
        assert!(error.starts_with("m.json: has version 2, this program reads 1; update hetal"), "{error}");
    }

    #[test]
    fn a_missing_manifest_says_who_writes_it() {
        let folder = hetal_testkit::TempDir::new();
        let error = Manifest::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("manifest.json: no such file; `hetal extract` writes it"), "{error}");
    }
}
