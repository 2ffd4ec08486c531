//! GPU memory of a training, found by a dry run without a GPU.

use hetal_circuits::KeyPlan;
use hetal_circuits::bootstrap::BootstrapBounds;
use hetal_circuits::{Bootstrapper, Encrypted, LeveledCiphertext};
use hetal_ckks::{Backend, Ciphertext, EvaluationKeys, Evaluator, KeyId, Params, SwitchingKey};
use hetal_cuda::{CudaBackend, CudaPoly};
use hetal_learn::nesterov::{Momentum, StepSize};
use hetal_learn::session::MOST_OPEN;
use hetal_learn::trainer::{ModelState, Trainer};
use hetal_learn::{CachedBatch, EncryptedPiece, Geometry, LevelPlan};
use hetal_ring::Basis;
use std::sync::Arc;

/// One part in this many stays free. Long trainings fragment memory more than the two steps of a
/// dry run.
const MARGIN: usize = 32;

/// Any alpha takes the same memory.
const SOME_ALPHA: f64 = 0.01;

/// An estimate in bytes of GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Keys, matrices, masks and working memory.
    pub fixed: usize,
    /// One batch as uploaded.
    pub upload: usize,
    /// The row-shifted versions of one batch, with its labels and weights of rows.
    pub versions: usize,
}

/// The input of a dry run.
pub struct DryRun<'a> {
    /// The parameter set.
    pub params: &'a Arc<Params>,
    /// Switching keys, each with its number of limbs.
    pub keys: &'a [(KeyId, usize)],
    /// Bounds of the bootstrapped values, as powers of two.
    pub bounds: &'a BootstrapBounds,
    /// The rotation strategy of bootstraps.
    pub key_plan: KeyPlan,
    /// Whether bootstraps are recorded as CUDA graphs.
    pub graphs: bool,
    /// Pieces of a batch.
    pub pieces: usize,
    /// Whether L2 shrinks the weights.
    pub decays: bool,
}

/// A failed dry run: the circuit does not fit the parameter set.
type Problem = Box<dyn std::error::Error + Send + Sync>;

impl MemoryEstimate {
    /// Runs a training without a GPU: all keys, two steps with versions computed for each piece, a
    /// refresh, and logits.
    ///
    /// # Errors
    ///
    /// Fails as the training itself would fail.
    pub fn dry_run(
        run: &DryRun<'_>,
        trainer: impl FnOnce(&Encrypted<CudaBackend>) -> Result<Trainer<Encrypted<CudaBackend>>, Problem>,
    ) -> Result<Self, Problem> {
        let &DryRun { params, keys, bounds, key_plan, graphs, pieces, decays } = run;
        let gpu = Arc::new(CudaBackend::dry_run(params.log_n(), params.chain(), params.special())?);
        if !graphs {
            gpu.use_graphs(false);
        }
        let evaluator = Evaluator::new(Arc::clone(params), Arc::clone(&gpu));
        let bootstrapper = Bootstrapper::with_plan(&evaluator, bounds, key_plan)?;
        let engine = Encrypted::new(evaluator, placeholder_keys(&gpu, params, keys), bootstrapper);
        let trainer = trainer(&engine)?;
        let (g, level_plan) = (*trainer.products().geometry(), trainer.products().level_plan());
        let seal = |level| sealed(&engine, params, level);
        let features = (0..g.blocks()).map(|_| seal(level_plan.fresh_features())).collect::<Result<_, Problem>>()?;
        let held = CachedBatch::Raw(EncryptedPiece {
            features,
            labels: seal(level_plan.labels())?,
            row_weights: level_plan.is_weighted().then(|| seal(level_plan.row_weights())).transpose()?,
            rows: g.rows(),
        });
        let weights = (0..g.parts()).map(|_| seal(level_plan.weights())).collect::<Result<_, Problem>>()?;
        let mut model = ModelState::new(weights, Momentum::Nesterov);
        // The second piece runs while the gradient of the first is in memory.
        let pieces = pieces.clamp(1, 2);
        let size = StepSize { rate: 1.0, alpha: if decays { SOME_ALPHA } else { 0.0 } };
        for _ in 0..2 {
            let mut step = trainer.begin(&model, pieces * g.rows(), size);
            for _ in 0..pieces {
                step.add(&engine, &*held.ready(&engine, &trainer)?, &mut |_| {})?;
            }
            model = step.finish(&engine, &mut |_| {})?;
        }
        // The models of open checks, and the copy that a step works on.
        let open = vec![model.clone(); MOST_OPEN + 1];
        model = trainer.refresh(&engine, &model)?;
        trainer.logits(&engine, &held.ready(&engine, &trainer)?.versions, &model.weights)?;
        drop(open);
        let (upload, versions) = batch_bytes(&gpu, params, &g, level_plan);
        Ok(Self { fixed: gpu.peak_bytes() - upload - versions, upload, versions })
    }

    /// The estimate for batches that are loaded from disk each time. The GPU holds one of them at a
    /// time.
    pub fn from_disk(self) -> Self {
        Self { fixed: self.fixed + self.upload, upload: 0, ..self }
    }

    /// Total bytes if the versions of `resident` batches stay in memory and the others are computed
    /// each time.
    pub fn bytes(&self, batches: usize, resident: usize) -> usize {
        let made = if resident < batches { self.versions } else { 0 };
        self.fixed + made + resident * self.versions + (batches - resident) * self.upload
    }

    /// The largest number of batches whose versions fit in `free` bytes, with a small margin.
    /// `None` if even the fixed part does not fit.
    pub fn resident(&self, batches: usize, free: usize) -> Option<usize> {
        let room = free - free / MARGIN;
        (0..=batches).rev().find(|&resident| self.bytes(batches, resident) <= room)
    }
}

/// Bytes of one batch as uploaded, and with its versions.
fn batch_bytes(gpu: &CudaBackend, params: &Params, g: &Geometry, level_plan: LevelPlan) -> (usize, usize) {
    let ciphertexts = |count: usize, level| gpu.device_bytes_of(2 * count, params.limbs(level));
    let weights = if level_plan.is_weighted() { ciphertexts(1, level_plan.row_weights()) } else { 0 };
    let beside = ciphertexts(1, level_plan.labels()) + weights;
    let upload = ciphertexts(g.blocks(), level_plan.fresh_features()) + beside;
    (upload, ciphertexts(g.blocks() * g.padded_classes(), level_plan.features()) + beside)
}

/// Keys of the right size without content.
fn placeholder_keys(gpu: &CudaBackend, params: &Params, wanted: &[(KeyId, usize)]) -> EvaluationKeys<CudaPoly> {
    let mut keys = EvaluationKeys::default();
    for &(id, limbs) in wanted {
        let basis = id.basis(params, limbs);
        let digits = id.digit_starts(params, limbs).iter().map(|_| (gpu.zero(basis), gpu.zero(basis))).collect();
        keys.insert(SwitchingKey { id, basis, seed: None, digits });
    }
    keys
}

fn sealed(
    engine: &Encrypted<CudaBackend>,
    params: &Params,
    level: usize,
) -> Result<LeveledCiphertext<CudaPoly>, Problem> {
    let (limbs, gpu) = (params.limbs(level), engine.evaluator().backend());
    let half = || gpu.zero(Basis { q: limbs, p: 0 });
    Ok(engine.import(Ciphertext { c0: half(), c1: half(), limbs, scale: params.scale(level), set: params.tag() })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_batches_stay_as_fit() {
        let estimate = MemoryEstimate { fixed: 100, upload: 1, versions: 10 };
        assert_eq!((estimate.bytes(5, 0), estimate.bytes(5, 2), estimate.bytes(5, 5)), (115, 133, 150));
        assert_eq!(estimate.resident(5, 1000), Some(5));
        assert_eq!(estimate.resident(5, 140), Some(2));
        assert_eq!(estimate.resident(5, 118), Some(0));
        assert_eq!(estimate.resident(5, 117), None);
        let from_disk = estimate.from_disk();
        assert_eq!((from_disk.bytes(5, 0), from_disk.bytes(5, 2), from_disk.bytes(5, 5)), (111, 131, 151));
    }
}
