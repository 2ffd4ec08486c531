//! The circuit of one shape and its batches.

use super::arguments::Arguments;
use super::data::{self, BenchRows};
use crate::runner::harness::{Harness, HarnessCiphertext};
use crate::{Error, Result};
use hetal_circuits::clear::KeyRequirements;
use hetal_circuits::{Complex64, Engine, encrypted};
use hetal_ckks::{Params, bytes};
use hetal_learn::agreement::{self, Preset};
use hetal_learn::judge::first_range;
use hetal_learn::nesterov::Momentum;
use hetal_learn::softmax::Constants;
use hetal_learn::trainer::{self, ModelState, Trainer};
use hetal_learn::{CachedBatch, EncryptedPiece, Geometry, LevelPlan, Matrix, RowForm, RowVector, packing};
use hetal_server::memory_estimate::{DryRun, MemoryEstimate};
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The largest absolute logit.
const RANGE: f64 = 32.0;

/// The circuit of one shape, and the batches that iterations use in turn.
pub(super) struct TrainingSetup {
    pub(super) preset: Preset,
    pub(super) geometry: Geometry,
    pub(super) level_plan: LevelPlan,
    pub(super) constants: Constants,
    pub(super) rate: f64,
    pub(super) rows_sent: RowsSent,
    pub(super) batches: Vec<BenchRows>,
    pub(super) test: Option<BenchRows>,
}

/// The form of the encrypted rows, and the lifts that it took.
#[derive(Default)]
pub(super) struct RowsSent {
    pub(super) form: RowForm,
    /// A bound of the length of a training row.
    pub(super) row_norm: f64,
    lifts: Mutex<Lifts>,
}

/// Lifts and the seconds of all of them.
#[derive(Clone, Copy, Default)]
struct Lifts {
    count: usize,
    seconds: f64,
}

impl RowsSent {
    pub(super) fn new(form: RowForm, row_norm: f64) -> Self {
        Self { form, row_norm, lifts: Mutex::default() }
    }

    /// Adds the form and the lifts to a report.
    pub(super) fn add_to(&self, report: &mut Value) {
        let Lifts { count, seconds } = *self.lifts();
        report["rows_form"] = self.form.name().into();
        if count > 0 {
            report["lifts"] = count.into();
            report["lifts_s"] = seconds.into();
            report["lifts_per_s"] = (count as f64 / seconds).into();
        }
    }

    fn lifts(&self) -> MutexGuard<'_, Lifts> {
        // The sums are right whenever a thread stops.
        self.lifts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TrainingSetup {
    /// The circuit and batches that the arguments ask for.
    pub(super) fn new(arguments: &Arguments, slots: usize) -> Result<Self> {
        let preset = arguments.preset()?;
        let (batches, test) = match &arguments.data {
            None => ((0..arguments.batches.max(1)).map(|k| data::clusters(&preset, k as u64)).collect(), None),
            Some(path) => data::load(path, arguments.rows, &preset)?,
        };
        let features = batches.first().map_or(preset.features, |b: &BenchRows| b.features.columns());
        let row_norm = batches.iter().map(|b: &BenchRows| longest_row(&b.features)).fold(0.0, f64::max);
        Ok(Self {
            preset,
            geometry: Geometry::new(slots, preset.batch, features, preset.classes)?,
            level_plan: LevelPlan::lowest().with_keys(arguments.key_plan()),
            constants: Constants::built_in(preset.classes, first_range(RANGE, preset.classes, false))?,
            rate: arguments.rate.unwrap_or(preset.rate),
            rows_sent: RowsSent::new(arguments.rows_form.into(), row_norm),
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
        let (needs, key_plan, graphs) = (self.required_keys(params)?, arguments.key_plan(), arguments.graphs());
        let keys = encrypted::keys_with_plan(params, &needs, key_plan);
        let pieces = self.geometry.pieces(self.preset.batch);
        let (bounds, decays) = (&needs.bounds, false);
        let dry_run = DryRun { params, keys: &keys, bounds, key_plan, graphs, pieces, decays };
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
        rows: &BenchRows,
    ) -> Result<EncryptedPiece<HarnessCiphertext<H>>> {
        let (blocks, labels) =
            (packing::features(&self.geometry, &rows.features)?, packing::labels(&self.geometry, &rows.labels)?);
        let features = self.encrypt_vectors(harness, RowVector::Features, &blocks)?;
        let labels = self.encrypt_vectors(harness, RowVector::Labels, &[labels])?.remove(0);
        Ok(EncryptedPiece { features, labels, row_weights: None, rows: rows.features.rows() })
    }

    /// Encrypts vectors of rows in the chosen form, and lifts them if needed.
    fn encrypt_vectors<H: Harness>(
        &self,
        harness: &H,
        vector: RowVector,
        values: &[Vec<Complex64>],
    ) -> Result<Vec<HarnessCiphertext<H>>> {
        let (plan, sent) = (self.level_plan, &self.rows_sent);
        if sent.form == RowForm::Slots {
            return harness.encrypt_all(values, vector.level(plan));
        }
        let log_bound = vector.log_bound(plan, sent.row_norm);
        let unlifted: Vec<_> = values
            .iter()
            .map(|values| harness.encrypt_unlifted(values, log_bound, vector.lift_form()))
            .collect::<Result<_>>()?;
        harness.synchronize()?;
        let start = Instant::now();
        let lifted = unlifted.iter().map(|unlifted| Ok(vector.lifted(harness.engine(), plan, unlifted)?)).collect();
        harness.synchronize()?;
        let mut lifts = sent.lifts();
        lifts.count += unlifted.len();
        lifts.seconds += start.elapsed().as_secs_f64();
        lifted
    }

    /// Bytes of the encrypted validation logits of one epoch, for the paper's validation rows.
    pub(super) fn validation_bytes(&self, params: &Params) -> u64 {
        let ciphertexts = self.preset.validation_rows.div_ceil(self.geometry.rows()) as u64;
        ciphertexts * bytes::ciphertext_len(params, params.limbs(0))
    }
}

/// The length of the longest row.
fn longest_row(rows: &Matrix) -> f64 {
    let length = |i: usize| rows.row(i).iter().map(|x| x * x).sum::<f64>().sqrt();
    (0..rows.rows()).map(length).fold(0.0, f64::max)
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
