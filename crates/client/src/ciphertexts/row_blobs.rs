//! Row blobs on disk. Rows are encrypted once, and the same bytes are sent however often an upload
//! is tried.

use crate::layout::Layout;
use crate::project::{checked_name, io_error};
use crate::rpc::{BlobDigest, BlobName, RowBlob};
use crate::{Error, Owner, Result, rpc};
use hetal_ckks::Complex64;
use hetal_durable::NewFile;
use hetal_learn::{LabelledMatrix, packing};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A row blob on disk: the encrypted rows of one piece.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowBlobFile {
    /// Its file name in the folder of the job.
    pub file: String,
    /// The hash of its bytes.
    pub blob: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its rows, without padding.
    pub rows: usize,
}

impl RowBlobFile {
    /// The hash and the size of its bytes.
    pub(crate) fn digest(&self) -> Result<BlobDigest> {
        Ok(BlobDigest { name: parse_blob_name(&self.blob)?, size: self.bytes })
    }

    /// The row blob as requests name it.
    pub(crate) fn reference(&self) -> Result<RowBlob> {
        Ok(RowBlob { blob: parse_blob_name(&self.blob)?, rows: self.rows })
    }
}

/// Encrypts rows into files of a folder.
pub(crate) struct RowBlobWriter<'a> {
    pub owner: &'a Owner,
    pub layout: &'a Layout,
    pub folder: &'a Path,
}

/// Rows to encrypt.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// Their features and labels.
    pub set: &'a LabelledMatrix,
    /// Whether the server needs the labels.
    pub with_labels: bool,
    /// Their weights, if the server needs them. Labels are multiplied by them.
    pub weights: Option<&'a [f64]>,
}

impl RowBlobWriter<'_> {
    /// Encrypts the features of a range of rows, and their labels and weights if the server needs
    /// them.
    pub fn write(&self, of: Rows<'_>, rows: Range<usize>, file: String) -> Result<RowBlobFile> {
        let Rows { set, with_labels, weights } = of;
        let weights = weights.map(|weights| &weights[rows.clone()]);
        let Self { owner, layout, folder } = self;
        let (geometry, level_plan) = (layout.geometry(), layout.level_plan());
        let blocks = packing::features(geometry, &set.features().slice(rows.clone()))?;
        let mut vectors: Vec<(Vec<Complex64>, usize)> =
            blocks.into_iter().map(|block| (block, level_plan.fresh_features())).collect();
        if with_labels {
            let labels = packing::weighted_labels(geometry, &set.labels()[rows.clone()], weights)?;
            vectors.push((labels, level_plan.labels()));
        }
        if let Some(weights) = weights {
            vectors.push((packing::row_weights(geometry, weights)?, level_plan.row_weights()));
        }
        let codec = owner.codec();
        let encrypt = |(values, level): &(Vec<Complex64>, usize)| -> Result<Vec<u8>> {
            let ciphertext = owner.encrypt_seeded(values, *level)?;
            Ok(codec.encode(&ciphertext).map_err(hetal_ckks::Error::from)?)
        };
        let ciphertexts: Vec<Vec<u8>> = vectors.par_iter().map(encrypt).collect::<Result<_>>()?;
        let mut hasher = blake3::Hasher::new();
        let path = folder.join(&file);
        let mut write = || {
            let mut out = NewFile::create(&path)?;
            for bytes in &ciphertexts {
                hasher.update(bytes);
                out.write_all(bytes)?;
            }
            out.finish()
        };
        write().map_err(|e| io_error("writing", &path, &e))?;
        let bytes = ciphertexts.iter().map(|b| b.len() as u64).sum();
        Ok(RowBlobFile { file, blob: hasher.finalize().to_hex().to_string(), bytes, rows: rows.len() })
    }
}

/// Splits `rows` rows into ranges of at most `batch` rows.
pub(crate) fn ranges(rows: usize, batch: usize) -> Vec<Range<usize>> {
    (0..rows).step_by(batch.max(1)).map(|start| start..(start + batch).min(rows)).collect()
}

/// The path of a row blob. A record from elsewhere cannot name files outside of the folder.
pub(crate) fn path(folder: &Path, row_blob: &RowBlobFile) -> Result<PathBuf> {
    Ok(folder.join(checked_name(&row_blob.file)?))
}

/// Returns whether a file is intact, by its length or, if `thoroughly`, by its hash.
pub(crate) fn is_whole(folder: &Path, row_blob: &RowBlobFile, thoroughly: bool) -> bool {
    let Ok(path) = path(folder, row_blob) else { return false };
    let as_written = || rpc::digest_file(&path).is_ok_and(|digest| digest.name.to_string() == row_blob.blob);
    path.metadata().is_ok_and(|m| m.len() == row_blob.bytes) && (!thoroughly || as_written())
}

/// Parses the name of a blob in a state file.
pub(crate) fn parse_blob_name(text: &str) -> Result<BlobName> {
    text.parse().map_err(|e: hetal_wire::NameError| Error::Protocol { what: e.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hetal_testkit::TempDir;

    #[test]
    fn a_record_names_no_other_files() {
        let folder = TempDir::new();
        let inner = folder.path().join("job");
        std::fs::create_dir(&inner).unwrap();
        for name in ["batch-0000.ct", "../secret.key"] {
            std::fs::write(inner.join(name), b"abc").unwrap();
            let row_blob = RowBlobFile { file: name.to_owned(), blob: String::new(), bytes: 3, rows: 1 };
            let good = name == "batch-0000.ct";
            assert_eq!((path(&inner, &row_blob).is_ok(), is_whole(&inner, &row_blob, false)), (good, good), "{name}");
        }
    }

    #[test]
    fn a_file_is_whole_by_its_length_or_by_its_bytes() {
        let folder = TempDir::new();
        let row_blob = |text: &[u8]| RowBlobFile {
            file: "batch-0000.ct".to_owned(),
            blob: blake3::hash(text).to_hex().to_string(),
            bytes: text.len() as u64,
            rows: 1,
        };
        let whole = |text| [false, true].map(|thoroughly| is_whole(folder.path(), &row_blob(text), thoroughly));
        assert_eq!(whole(b"abc"), [false, false]);
        std::fs::write(folder.path().join("batch-0000.ct"), b"abc").unwrap();
        assert_eq!((whole(b"abc"), whole(b"abd"), whole(b"ab")), ([true, true], [true, false], [false, false]));
    }
}
