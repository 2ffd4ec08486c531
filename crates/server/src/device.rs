//! What computes: the CPU or a GPU.

use crate::config::Engine;
use crate::{Error, Result};
use hetal_ckks::backend::Failure;
use hetal_ckks::{Backend, Params};
use hetal_cuda::{CudaBackend, Graphs};

/// The GPU for a parameter set, where the engine asks for one and there is one.
pub fn gpu(engine: Engine, params: &Params) -> Result<Option<CudaBackend>> {
    if engine == Engine::Cpu {
        return Ok(None);
    }
    match CudaBackend::open(0, params.log_n(), params.chain(), params.special()) {
        Ok(gpu) => Ok(Some(gpu)),
        Err(error) if engine == Engine::Auto => {
            tracing::info!(%error, "no GPU: the CPU computes");
            Ok(None)
        }
        Err(error) => Err(Error::Device { reason: error.to_string() }),
    }
}

/// An outcome, with a failure of the card blamed on the card. Without a checkpoint, a lack of memory is the job's: it needs too much.
pub fn blamed<T>(gpu: &CudaBackend, outcome: Result<T>, has_checkpoint: bool) -> Result<T> {
    match (outcome, gpu.health()) {
        (Err(error), Err(Failure::OutOfMemory { .. })) if !has_checkpoint => Err(error),
        (Err(_), Err(failure)) => Err(Error::Device { reason: failure.to_string() }),
        (outcome, _) => outcome,
    }
}

/// Tells the log how bootstraps were queued, and why not as graphs.
pub fn tell(gpu: &CudaBackend) {
    let Graphs { recorded, replayed, passed_over, ended, .. } = gpu.graphs();
    if let Some(reason) = ended {
        tracing::warn!(
            reason,
            replayed,
            "bootstraps are no longer recorded as graphs: the rest was queued kernel by kernel"
        );
    } else if passed_over > 0 {
        tracing::warn!(
            recorded,
            replayed,
            passed_over,
            "GPU memory was short: some bootstraps were queued kernel by kernel"
        );
    } else if recorded > 0 {
        tracing::info!(recorded, replayed, "bootstraps were replayed as graphs");
    }
}
