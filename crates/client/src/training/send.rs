//! Sends a training to the server: its key set and its row blobs.
//!
//! The server is asked about every blob, also about those that were sent before: it may have lost
//! or damaged one. What it lacks is sent from the files of this folder. If a file is not what was
//! written, its rows are encrypted again, under new seeds and as another blob.

use super::judged::BestCheck;
use super::saved::rows_to_send;
use super::{JobRecord, ProgressEvent, SavedTraining, TrainingRun, abandoned, saved_trainings};
use crate::ciphertexts::row_blobs::{self, parse_blob_name};
use crate::ciphertexts::{RowBlobFile, RowBlobWriter};
use crate::project::{KeySet, remove_if_there};
use crate::rpc::{self, BlobDigest, BlobKind};
use crate::{Error, Result, keys};
use std::time::Instant;

/// An upload of so many bytes tells the rate of the line.
const MEASURED_BYTES: u64 = 16 << 20;

/// The index of a row blob of a training.
#[derive(Clone, Copy)]
enum RowBlobIndex {
    Batch(usize),
    Validation(usize),
}

impl TrainingRun<'_> {
    /// Uploads what the server does not have.
    pub(super) fn send(&mut self, on_progress: &mut (dyn FnMut(ProgressEvent) + Send)) -> Result<()> {
        let (start, sent_before) = (Instant::now(), self.saved.sent);
        self.send_keys(on_progress)?;
        let total = self.saved.row_bytes();
        let mut before = 0;
        let batches = (0..self.saved.batches.len()).map(RowBlobIndex::Batch);
        let indices: Vec<_> = batches.chain((0..self.saved.validation.len()).map(RowBlobIndex::Validation)).collect();
        for index in indices {
            let mut progress = |held, _| on_progress(ProgressEvent::SendingRows { sent: before + held, total });
            let sent = match self.send_rows(index, &mut progress) {
                Err(Error::Remote(rpc::Error::NotAsWritten { .. })) => {
                    self.encrypt_again(index)?;
                    self.send_rows(index, &mut progress)?
                }
                sent => sent?,
            };
            self.saved.sent.rows += sent;
            before += self.row_blob(index).bytes;
        }
        let seconds = start.elapsed().as_secs_f64();
        self.saved.seconds.sending += seconds;
        let sent = self.saved.sent.keys + self.saved.sent.rows - sent_before.keys - sent_before.rows;
        if sent >= MEASURED_BYTES {
            let rate = sent as f64 * 8e-6 / seconds.max(1e-3);
            self.project.update(|settings| settings.uplink = Some(rate))?;
        }
        self.save()
    }

    fn row_blob(&self, index: RowBlobIndex) -> &RowBlobFile {
        match index {
            RowBlobIndex::Batch(k) => &self.saved.batches[k],
            RowBlobIndex::Validation(k) => &self.saved.validation[k],
        }
    }

    /// Uploads a row blob, and returns the bytes that were sent.
    fn send_rows(&self, index: RowBlobIndex, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        let row_blob = self.row_blob(index);
        let kind = match index {
            RowBlobIndex::Batch(_) if self.data.is_weighted() => BlobKind::WeightedBatch,
            RowBlobIndex::Batch(_) => BlobKind::Batch,
            RowBlobIndex::Validation(_) => BlobKind::Features,
        };
        let path = row_blobs::path(&self.folder, row_blob)?;
        Ok(self.remote.upload_exactly(kind, &path, row_blob.digest()?, progress)?.sent)
    }

    /// Encrypts rows again whose file is lost. The seeds are new, so the blob is another one, and
    /// so is the job.
    fn encrypt_again(&mut self, index: RowBlobIndex) -> Result<()> {
        let [to_train, to_validate] = rows_to_send(self.data);
        let (of, rows) = match index {
            RowBlobIndex::Batch(k) => (to_train, self.layout.pieces(self.data.training.rows()).get(k).cloned()),
            RowBlobIndex::Validation(k) => {
                let ranges = row_blobs::ranges(self.data.validation.rows(), self.layout.geometry().rows());
                (to_validate, ranges.get(k).cloned())
            }
        };
        let known = self.row_blob(index);
        let rows = rows.filter(|rows| rows.len() == known.rows);
        let rows = rows.ok_or_else(|| Error::Protocol { what: format!("{} has other rows", known.file) })?;
        let file = known.file.clone();
        self.leave_job()?;
        let writer = RowBlobWriter {
            owner: &self.owner,
            layout: &self.layout,
            folder: &self.folder,
            form: self.saved.form,
            row_norm: self.data.normalisation.row_norm(),
        };
        let written = writer.write(of, rows, file)?;
        match index {
            RowBlobIndex::Batch(k) => self.saved.batches[k] = written,
            RowBlobIndex::Validation(k) => self.saved.validation[k] = written,
        }
        // On disk before the first byte is sent.
        self.save()
    }

    /// Cancels the job, because it cannot continue with other blobs. `job.json` forgets it before
    /// they are made: a client that is killed meanwhile starts a new job.
    fn leave_job(&mut self) -> Result<()> {
        if let Some(JobRecord { fault: Some(what), .. }) = &self.saved.job {
            return Err(Error::KnownHostile { what: what.clone() });
        }
        let last = self.saved.open_job(&self.options.name);
        self.saved.job = None;
        self.best = BestCheck::none(self.data);
        self.save()?;
        abandoned::cancel(self.project, self.remote, &self.options.name, None, last).map(drop)
    }

    fn send_keys(&mut self, on_progress: &mut (dyn FnMut(ProgressEvent) + Send)) -> Result<()> {
        let sent = match self.send_key_set(on_progress) {
            Err(Error::Remote(rpc::Error::NotAsWritten { path, .. })) => {
                let others = self.other_users_of_its_keys();
                if !others.is_empty() {
                    return Err(Error::KeySetLost { path, trainings: others.join(", ") });
                }
                self.make_keys_again(on_progress)?;
                self.send_key_set(on_progress)?
            }
            sent => sent?,
        };
        self.saved.sent.keys += sent;
        Ok(())
    }

    /// Uploads the key set, and returns the bytes that were sent.
    fn send_key_set(&mut self, on_progress: &mut (dyn FnMut(ProgressEvent) + Send)) -> Result<u64> {
        let keys = self.key_set()?;
        if !keys.sent {
            // Record this before the first byte leaves: a key set that a server may have seen is
            // not new any more.
            let sent = |keys: &&mut KeySet| keys.blob == self.saved.keys;
            self.project.update(|s| s.keys.iter_mut().filter(sent).for_each(|keys| keys.sent = true))?;
        }
        let path = self.project.key_file(&keys);
        let digest = BlobDigest { name: parse_blob_name(&keys.blob)?, size: keys.bytes };
        let mut progress = |held, all| on_progress(ProgressEvent::SendingKeys { sent: held, total: all });
        Ok(self.remote.upload_exactly(BlobKind::Keys, &path, digest, &mut progress)?.sent)
    }

    /// The names of the other interrupted trainings that need the key set of this one.
    fn other_users_of_its_keys(&self) -> Vec<String> {
        let all = saved_trainings(self.project).into_iter();
        let needs = |name: &str, other: &SavedTraining| {
            name != self.options.name && !other.finished && other.keys == self.saved.keys
        };
        all.filter(|(name, other)| needs(name, other)).map(|(name, _)| name).collect()
    }

    /// Generates the key set again: the server lost it, and so did this folder.
    fn make_keys_again(&mut self, on_progress: &mut (dyn FnMut(ProgressEvent) + Send)) -> Result<()> {
        self.leave_job()?;
        remove_if_there(&self.project.key_file(&self.key_set()?))?;
        let keys = keys::ensure_set(self.project, &self.owner, &self.layout, on_progress)?;
        self.saved.keys = keys.blob;
        self.save()
    }
}
