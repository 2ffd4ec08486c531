//! What a training will hold on a card, found by rehearsing it without one.

use crate::{Error, Result};
use hetal_circuits::bootstrap::Steps;
use hetal_circuits::{Bootstrapper, Encrypted, Sealed, clear, encrypted};
use hetal_ckks::{Backend, Ciphertext, EvaluationKeys, Evaluator, KeyId, Params, SwitchingKey};
use hetal_cuda::{CudaBackend, CudaPoly};
use hetal_learn::nesterov::Momentum;
use hetal_learn::trainer::{Model, Trainer};
use hetal_learn::{Geometry, Held, Ledger, Upload};
use hetal_ring::Basis;
use hetal_ring::sampler::Seed;
use std::sync::Arc;

/// One part in so many is left free: long trainings leave gaps that a rehearsal of two steps does not show.
const MARGIN: usize = 32;

/// Bytes of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Keys, matrices, masks and the room that steps work in.
    pub fixed: usize,
    /// What was sent of one batch.
    pub upload: usize,
    /// The row-shifted versions of one batch and its labels.
    pub versions: usize,
}

impl Footprint {
    /// Rehearses a training: every key, two steps with versions made for each, a refresh and logits; bootstraps as graphs or
    /// kernel by kernel.
    pub fn rehearse(
        params: &Arc<Params>,
        needs: &clear::Keys,
        steps: Steps,
        graphs: bool,
        trainer: impl FnOnce(&Encrypted<CudaBackend>) -> Result<Trainer<Encrypted<CudaBackend>>>,
    ) -> Result<Self> {
        let gpu = Arc::new(CudaBackend::rehearsal(params.log_n(), params.chain(), params.special())?);
        if !graphs {
            gpu.use_graphs(false);
        }
        let evaluator = Evaluator::new(Arc::clone(params), Arc::clone(&gpu));
        let bootstrapper = Bootstrapper::with_steps(&evaluator, &needs.bounds, steps)?;
        let engine = Encrypted::new(
            evaluator,
            keys(&gpu, params, &encrypted::keys_with_steps(params, needs, steps)),
            bootstrapper,
        );
        let trainer = trainer(&engine)?;
        let (g, ledger) = (*trainer.products().geometry(), trainer.products().ledger());
        let seal = |level| sealed(&engine, params, level);
        let features = (0..g.blocks()).map(|_| seal(ledger.fresh_features())).collect::<Result<_>>()?;
        let held = Held::AsSent(Upload { features, labels: seal(ledger.probabilities())?, rows: g.rows() });
        let weights = (0..g.parts()).map(|_| seal(ledger.weights())).collect::<Result<_>>()?;
        let mut model = Model::new(weights, Momentum::Nesterov);
        for _ in 0..2 {
            model = trainer.step(&engine, &model, &*held.ready(&engine, &trainer)?, 1.0)?;
        }
        model = trainer.refresh(&engine, &model)?;
        trainer.logits(&engine, &held.ready(&engine, &trainer)?.versions, &model.weights)?;
        let (upload, versions) = batch_bytes(&gpu, params, &g, ledger);
        Ok(Self { fixed: gpu.peak_bytes() - upload - versions, upload, versions })
    }

    /// Bytes with versions kept for `resident` of the batches, and made each time for the rest.
    pub fn bytes(&self, batches: usize, resident: usize) -> usize {
        let made = if resident < batches { self.versions } else { 0 };
        self.fixed + made + resident * self.versions + (batches - resident) * self.upload
    }

    /// The most batches whose versions can be kept in `free` bytes, of which a few percent stay free.
    pub fn resident(&self, batches: usize, free: usize) -> Result<usize> {
        let needed = self.bytes(batches, 0);
        let room = free - free / MARGIN;
        let fits = (0..=batches).rev().find(|&resident| self.bytes(batches, resident) <= room);
        fits.ok_or(Error::DoesNotFit { needed, free })
    }
}

/// Bytes of one batch as it was sent, and with its versions.
fn batch_bytes(gpu: &CudaBackend, params: &Params, g: &Geometry, ledger: Ledger) -> (usize, usize) {
    let ciphertexts = |count: usize, level| gpu.bytes_of(2 * count, params.limbs(level));
    let labels = ciphertexts(1, ledger.probabilities());
    let upload = ciphertexts(g.blocks(), ledger.fresh_features()) + labels;
    (upload, ciphertexts(g.blocks() * g.padded_classes(), ledger.features()) + labels)
}

/// Keys that take the room of real ones.
fn keys(gpu: &CudaBackend, params: &Params, wanted: &[(KeyId, usize)]) -> EvaluationKeys<CudaPoly> {
    let mut keys = EvaluationKeys::default();
    for &(id, limbs) in wanted {
        let basis = id.basis(params, limbs);
        let digits = id.digit_starts(params, limbs).iter().map(|_| (gpu.zero(basis), gpu.zero(basis))).collect();
        keys.insert(SwitchingKey { id, basis, seed: Seed([0; 32]), digits });
    }
    keys
}

fn sealed(engine: &Encrypted<CudaBackend>, params: &Params, level: usize) -> Result<Sealed<CudaPoly>> {
    let (limbs, gpu) = (params.limbs(level), engine.evaluator().backend());
    let half = || gpu.zero(Basis { q: limbs, p: 0 });
    Ok(engine.admit(Ciphertext { c0: half(), c1: half(), limbs, scale: params.scale(level), set: params.tag() })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_batches_stay_as_fit() {
        let footprint = Footprint { fixed: 100, upload: 1, versions: 10 };
        assert_eq!((footprint.bytes(5, 0), footprint.bytes(5, 2), footprint.bytes(5, 5)), (115, 133, 150));
        assert_eq!(footprint.resident(5, 1000).unwrap(), 5);
        assert_eq!(footprint.resident(5, 140).unwrap(), 2);
        assert_eq!(footprint.resident(5, 118).unwrap(), 0);
        let error = footprint.resident(5, 117).unwrap_err();
        assert!(matches!(error, Error::DoesNotFit { needed: 115, free: 117 }), "{error}");
    }
}
