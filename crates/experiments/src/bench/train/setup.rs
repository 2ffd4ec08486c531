//! The circuit of one shape and its batches.

use super::arguments::Arguments;
use super::data::{self, Rows};
use crate::runner::harness::{Harness, HarnessCiphertext};
use crate::{Error, Result};
use hetal_circuits::clear::KeyRequirements;
use hetal_circuits::{Engine, encrypted};
use hetal_ckks::{Params, bytes};
use hetal_learn::agreement::{self, Preset};
use hetal_learn::judge::first_range;
use hetal_learn::nesterov::Momentum;
use hetal_learn::softmax::Constants;
use hetal_learn::trainer::{self, ModelState, Trainer};
use hetal_learn::{CachedBatch, EncryptedPiece, Geometry, LevelPlan, Matrix, packing};
use hetal_server::memory_estimate::{DryRun, MemoryEstimate};
use std::sync::Arc;

/// The largest absolute logit.
const RANGE: f64 = 32.0;

/// The circuit of one shape, and the batches that iterations use in turn.
pub(super) struct TrainingSetup {
    pub(super) preset: Preset,
    pub(super) geometry: Geometry,
    pub(super) level_plan: LevelPlan,
    pub(super) constants: Constants,
    pub(super) rate: f64,
    pub(super) batches: Vec<Rows>,
    pub(super) test: Option<Rows>,
}

impl TrainingSetup {
    /// The circuit and batches that the arguments ask for.
    pub(super) fn new(arguments: &Arguments, slots: usize) -> Result<Self> {
        let preset = arguments.preset()?;
        let (batches, test) = match &arguments.data {
            None => ((0..arguments.batches.max(1)).map(|k| data::clusters(&preset, k as u64)).collect(), None),
            Some(path) => data::load(path, arguments.rows, &preset)?,
        };
        let features = batches.first().map_or(preset.features, |b: &Rows| b.features.columns());
        Ok(Self {
            preset,
            geometry: Geometry::new(slots, preset.batch, features, preset.classes)?,
            level_plan: LevelPlan::lowest(),
            constants: Constants::built_in(preset.classes, first_range(RANGE, preset.classes, false))?,
            rate: arguments.rate.unwrap_or(preset.rate),
            batches,
            test,
        })
    }

    /// The number of pieces of all batches.
    pub(super) fn pieces(&self) -> usize {
        self.batches.iter().map(|rows| self.geometry.pieces(rows.features.rows())).sum()
    }

    /// The keys and bootstraps that the circuit uses.
    pub(super) fn required_keys(&self, params: &Params) -> Result<KeyRequirements> {
        let constants = self.constants.clone();
        Ok(trainer::keys(self.geometry, self.level_plan, constants, params.top_level())?)
    }

    pub(super) fn trainer<E: Engine>(&self, engine: &E) -> Result<Trainer<E>> {
        Ok(Trainer::new(engine, self.geometry, self.level_plan, self.constants.clone())?)
    }

    /// The device memory of the training, by a dry run.
    pub(super) fn memory_estimate(&self, arguments: &Arguments, params: &Arc<Params>) -> Result<MemoryEstimate> {
        let (needs, split, graphs) = (self.required_keys(params)?, arguments.split(), arguments.graphs());
        let keys = encrypted::keys_with_split(params, &needs, split);
        let pieces = self.geometry.pieces(self.preset.batch);
        let (bounds, decays) = (&needs.bounds, false);
        let dry_run = DryRun { params, keys: &keys, bounds, steps: split, graphs, pieces, decays };
        let found = MemoryEstimate::dry_run(&dry_run, |engine| Ok(self.trainer(engine)?));
        found.map_err(|problem| Error::MemoryEstimate { reason: problem.to_string() })
    }

    /// The weights before the first iteration.
    pub(super) fn initial_weights(&self) -> Matrix {
        agreement::initial_weights(self.geometry.classes(), self.geometry.features(), 1)
    }

    /// The encrypted model before the first iteration.
    pub(super) fn initial_model<H: Harness>(&self, harness: &H) -> Result<ModelState<HarnessCiphertext<H>>> {
        let parts = packing::weights(&self.geometry, &self.initial_weights())?;
        Ok(ModelState::new(harness.encrypt_all(&parts, self.level_plan.weights())?, Momentum::Nesterov))
    }

    /// Encrypts the rows of one piece.
    pub(super) fn encrypt_rows<H: Harness>(
        &self,
        harness: &H,
        rows: &Rows,
    ) -> Result<EncryptedPiece<HarnessCiphertext<H>>> {
        let (g, level_plan) = (&self.geometry, self.level_plan);
        let features = harness.encrypt_all(&packing::features(g, &rows.features)?, level_plan.fresh_features())?;
        let labels = harness.encrypt(&packing::labels(g, &rows.labels)?, level_plan.labels())?;
        Ok(EncryptedPiece { features, labels, row_weights: None, rows: rows.features.rows() })
    }

    /// Bytes of the encrypted validation logits of one epoch, for the paper's validation rows.
    pub(super) fn validation_bytes(&self, params: &Params) -> u64 {
        let ciphertexts = self.preset.validation_rows.div_ceil(self.geometry.rows()) as u64;
        ciphertexts * bytes::ciphertext_len(params, params.limbs(0))
    }
}

/// Prepares an encrypted piece. If `resident`, its versions are computed now and stay in memory.
pub(super) fn prepare<E: Engine>(
    engine: &E,
    trainer: &Trainer<E>,
    blob: EncryptedPiece<E::Ciphertext>,
    resident: bool,
) -> Result<CachedBatch<E::Ciphertext>> {
    if !resident {
        return Ok(CachedBatch::Raw(blob));
    }
    Ok(CachedBatch::Prepared(trainer.batch(engine, &blob.features, blob.labels, blob.rows)?))
}
