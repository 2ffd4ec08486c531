//! The manifest: what a set of features was made from and how, kept beside it and carried along with the classifier.

use crate::model::Identity;
use crate::{Error, Result, config};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What `manifest.json` holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of this form.
    pub version: u32,
    /// Which network made the features.
    pub model: Identity,
    /// Names of the classes, by label.
    pub classes: Vec<String>,
    /// Rows of each part.
    pub rows: BTreeMap<String, usize>,
    /// The seed of the split.
    pub seed: u64,
    /// SHA-256 over parts, names, classes and contents (of pictures' files, their sizes) of all samples, in order.
    pub samples: String,
    /// Where the network ran: `cpu`, `cuda`, or both if it went on elsewhere than it began. Empty where that was not written down.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub devices: BTreeSet<String>,
    /// Samples that could not be used.
    #[serde(default)]
    pub skipped: Vec<Skipped>,
    /// What the user was told about the data set.
    #[serde(default)]
    pub notes: Vec<String>,
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

impl Manifest {
    /// The version this program writes.
    pub const VERSION: u32 = 1;
    /// The name of the file.
    pub const FILE: &'static str = "manifest.json";

    /// Reads the manifest of a folder of features.
    pub fn read(folder: &Path) -> Result<Self> {
        Self::open(&folder.join(Self::FILE))
    }

    /// Reads a manifest.
    pub fn open(path: &Path) -> Result<Self> {
        let manifest: Self = config::read_if_there(path)?
            .ok_or_else(|| Error::file(path, "no such file; `hetal extract` writes it beside the features"))?;
        manifest.of_this_version(path)
    }

    /// The manifest that a classifier carries; `path` is the classifier's, for the error.
    pub fn carried(value: &serde_json::Value, path: &Path) -> Result<Self> {
        let bad = |e: serde_json::Error| Error::file(path, format!("its manifest of features cannot be read: {e}"));
        Self::deserialize(value).map_err(bad)?.of_this_version(path)
    }

    fn of_this_version(self, path: &Path) -> Result<Self> {
        match self.version {
            Self::VERSION => Ok(self),
            other => Err(Error::file(path, format!("has version {other}, this program knows {}", Self::VERSION))),
        }
    }
}
