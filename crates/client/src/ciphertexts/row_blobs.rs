//! Row blobs on disk. Rows are encrypted once, and the same bytes are sent however often an upload
//! is tried.

use crate::layout::Layout;
use crate::project::{checked_name, io_error};
use crate::rpc::{BlobDigest, BlobName, RowBlob};
use crate::{Error, Owner, Result, rpc};
use hetal_ckks::Complex64;
use hetal_durable::NewFile;
use hetal_learn::{LabelledMatrix, RowForm, RowVector, packing};
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
    pub form: RowForm,
    /// The length that the longest training row was scaled to.
    pub row_norm: f64,
}

/// Rows to encrypt.
#[derive(Clone, Copy)]
pub(crate) struct RowsToEncrypt<'a> {
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
    pub fn write(&self, of: RowsToEncrypt<'_>, rows: Range<usize>, file: String) -> Result<RowBlobFile> {
        let RowsToEncrypt { set, with_labels, weights } = of;
        let weights = weights.map(|weights| &weights[rows.clone()]);
        let geometry = self.layout.geometry();
        let mut vectors = packing::features(geometry, &set.features().slice(rows.clone()))?;
        if with_labels {
            vectors.push(packing::weighted_labels(geometry, &set.labels()[rows.clone()], weights)?);
        }
        if let Some(weights) = weights {
            vectors.push(packing::row_weights(geometry, weights)?);
        }
        let vectors: Vec<_> = self.layout.row_vectors(with_labels).into_iter().zip(vectors).collect();
        let encrypt = |(vector, values): &(RowVector, Vec<Complex64>)| self.encrypt(*vector, values);
        let ciphertexts: Vec<Vec<u8>> = vectors.par_iter().map(encrypt).collect::<Result<_>>()?;
        let mut hasher = blake3::Hasher::new();
        let path = self.folder.join(&file);
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

    /// The bytes of one encrypted vector.
    fn encrypt(&self, vector: RowVector, values: &[Complex64]) -> Result<Vec<u8>> {
        let (owner, codec, plan) = (self.owner, self.owner.codec(), self.layout.level_plan());
        let bytes = match self.form {
            RowForm::Slots => codec.encode(&owner.encrypt_seeded(values, vector.level(plan))?),
            RowForm::Coefficients => {
                let log_bound = vector.log_bound(plan, self.row_norm);
                codec.encode(&owner.encrypt_rounded(values, log_bound, vector.lift_form())?)
            }
        };
        Ok(bytes.map_err(hetal_ckks::Error::from)?)
    }
}

/// Encrypts training and validation rows in a form and counts the bytes of their files, for
/// measurements. The files are written one at a time below `folder` and removed.
pub fn written_row_bytes(
    owner: &Owner,
    layout: &Layout,
    (form, row_norm): (RowForm, f64),
    (training, validation): (&LabelledMatrix, &LabelledMatrix),
    folder: &Path,
) -> Result<u64> {
    let writer = RowBlobWriter { owner, layout, folder, form, row_norm };
    let of = |set, with_labels| RowsToEncrypt { set, with_labels, weights: None };
    let pieces = layout.pieces(training.rows()).into_iter().map(|rows| (of(training, true), rows));
    let others = ranges(validation.rows(), layout.geometry().rows()).into_iter();
    let mut bytes = 0;
    for (set, rows) in pieces.chain(others.map(|rows| (of(validation, false), rows))) {
        let written = writer.write(set, rows, "measured.ct".to_owned())?;
        let path = path(folder, &written)?;
        bytes += path.metadata().map_err(|e| io_error("reading", &path, &e))?.len();
        crate::project::remove_if_there(&path)?;
    }
    Ok(bytes)
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
