//! The noise of a model's weights, by repeating its training on plain numbers with the noise of
//! every operation.
//!
//! The rows are decrypted from the folder of the training. The estimate depends on the secret key
//! through the verdicts and, slightly, through the noise of these rows: it is rounded before it is
//! published (`room_for` in `release.rs`).

use super::ExportEvent;
use crate::ciphertexts::RowBlobFile;
use crate::ciphertexts::row_blobs;
use crate::model::history::TrainingHistory;
use crate::project::io_error;
use crate::{Error, Layout, Model, Owner, Project, Result, keys};
use hetal_circuits::Complex64;
use hetal_circuits::clear::Noise;
use hetal_ckks::bytes::{Header, ObjectKind};
use hetal_ckks::{RoundedCiphertext, SeededCiphertext};
use hetal_learn::rehearsal::{NoiseEstimate, PieceSlots, Rehearsal};
use hetal_learn::{Circuit, EncryptedPiece, LevelPlan, Matrix, packing};
use hetal_ring::Poly;
use std::path::PathBuf;
use std::sync::Arc;

/// The rows of a training, decrypted from its folder.
pub(super) struct DecryptedRows<'a> {
    model: &'a Model,
    history: &'a TrainingHistory,
    layout: Layout,
    owner: Owner,
    folder: PathBuf,
}

impl<'a> DecryptedRows<'a> {
    /// The rows of a model. Fails if one of their files is not as the training wrote it.
    pub fn open(project: &mut Project, model: &'a Model, history: &'a TrainingHistory) -> Result<Self> {
        let owner = keys::existing_owner(project)?;
        let layout = Layout::new(Arc::clone(&owner.params), history.shape(model.features(), model.classes.len()))?;
        let folder = project.job(&model.name)?;
        let all = history.batches.iter().chain(&history.validation);
        if let Some(gone) = all.into_iter().find(|file| !row_blobs::is_whole(&folder, file, true)) {
            return Err(Error::RowsGone { model: model.name.clone(), file: folder.join(&gone.file) });
        }
        Ok(Self { model, history, layout, owner, folder })
    }

    /// Estimates the noise of the weights.
    pub fn estimate(&self, on_progress: &mut (dyn FnMut(ExportEvent<'_>) + Send)) -> Result<NoiseEstimate> {
        let params = &self.layout.params;
        let noise =
            Noise::measured(params.name()).ok_or_else(|| Error::NoiseNotMeasured { set: params.name().to_owned() })?;
        let agreement = self.history.agreement()?;
        let pieces: Vec<PieceSlots> =
            self.history.batches.iter().map(|file| self.piece(file)).collect::<Result<_>>()?;
        let (g, plan) = (self.layout.geometry(), LevelPlan::of(self.history.weighted));
        let noise = self.largest_lift(plan)?.map_or(noise, |log_bound| noise.with_lifted_inputs(log_bound));
        let (batch, range) = (agreement.batch, agreement.range);
        let circuit = Circuit::with_plan(g.slots(), batch, g.features(), g.classes(), range, plan)?;
        let rehearsal = Rehearsal {
            circuit: &circuit,
            agreement: &agreement,
            pieces: &pieces,
            verdicts: &self.history.verdicts,
            check: self.model.training.best_check(),
        };
        let progress = std::sync::Mutex::new((0, on_progress));
        let done = || {
            let mut progress = progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            progress.0 += 1;
            let done = progress.0;
            (progress.1)(ExportEvent::Trial { done, total: NoiseEstimate::TRIALS + 1 });
        };
        Ok(rehearsal.estimate(params.top_level(), noise, &done)?)
    }

    /// The validation rows, normalised.
    pub fn validation(&self) -> Result<Matrix> {
        let g = self.layout.geometry();
        let mut values = Vec::new();
        for file in &self.history.validation {
            let rows = packing::unpack_features(g, &self.slots(file)?, file.rows)?;
            values.extend_from_slice(rows.values());
        }
        Ok(Matrix::new(values.len() / g.features(), g.features(), values)?)
    }

    /// The slots of the training rows in a file.
    fn piece(&self, file: &RowBlobFile) -> Result<PieceSlots> {
        let mut features = self.slots(file)?;
        let blocks = self.layout.geometry().blocks();
        let mut rest = features.split_off(blocks.min(features.len())).into_iter();
        let damaged = || Error::RowsGone { model: self.model.name.clone(), file: self.folder.join(&file.file) };
        let labels = rest.next().ok_or_else(damaged)?;
        Ok(EncryptedPiece { features, labels, row_weights: rest.next(), rows: file.rows })
    }

    /// The largest bound of the lifts of the training, as a power of two, if its rows were in
    /// coefficient form. The errors of all rows are taken to be as large as those of that lift.
    fn largest_lift(&self, plan: LevelPlan) -> Result<Option<u32>> {
        let Some(first) = self.history.batches.first() else { return Ok(None) };
        if !is_rounded(&self.bytes(first)?) {
            return Ok(None);
        }
        let vectors = self.layout.row_vectors(true);
        let row_norm = self.model.normalisation.row_norm();
        Ok(vectors.into_iter().map(|vector| vector.log_bound(plan, row_norm)).max())
    }

    fn bytes(&self, file: &RowBlobFile) -> Result<Vec<u8>> {
        let path = row_blobs::path(&self.folder, file)?;
        std::fs::read(&path).map_err(|e| io_error("reading", &path, &e))
    }

    /// The slots of all ciphertexts of a file.
    fn slots(&self, file: &RowBlobFile) -> Result<Vec<Vec<Complex64>>> {
        let bytes = self.bytes(file)?;
        let (codec, mut rest, mut all) = (self.owner.codec(), &bytes[..], Vec::new());
        while !rest.is_empty() {
            if is_rounded(rest) {
                let ct: RoundedCiphertext = codec.read(&mut rest).map_err(hetal_ckks::Error::from)?;
                all.push(self.owner.decrypt_rounded(&ct)?.expose());
                continue;
            }
            let ct: SeededCiphertext<Poly> = codec.read(&mut rest).map_err(hetal_ckks::Error::from)?;
            all.push(self.owner.decrypt(&ct.expand(&self.owner.params, &*self.owner.ring))?.expose());
        }
        Ok(all)
    }
}

/// Whether an object in coefficient form comes next.
fn is_rounded(bytes: &[u8]) -> bool {
    bytes.first_chunk().is_some_and(|header| Header::parse(header, ObjectKind::RoundedCiphertext).is_ok())
}
