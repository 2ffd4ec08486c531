//! What computes: the CPU or a GPU.

use crate::config::Engine;
use crate::{Error, Result};
use hetal_ckks::Params;
use hetal_ckks::backend::Failure;
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
pub fn blamed<T>(health: std::result::Result<(), Failure>, outcome: Result<T>, has_checkpoint: bool) -> Result<T> {
    match (outcome, health) {
        (Ok(outcome), _) => Ok(outcome),
        (Err(error), Ok(())) => Err(error),
        (Err(Error::Fenced), _) => Err(Error::Fenced),
        (Err(_), Err(failure @ Failure::OutOfMemory { .. })) if !has_checkpoint => Err(Error::work(failure)),
        (Err(_), Err(failure)) => Err(Error::Device { reason: failure.to_string() }),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_blamed_on_who_can_mend_them() {
        let full = || Err(Failure::OutOfMemory { needed: 3, free: 2, total: 9 });
        let lost = || Err(Failure::Device { operation: "a copy", reason: "an illegal address".to_owned() });
        let failed = || Err::<(), _>(Error::work("a consequence"));
        assert_eq!(blamed(lost(), Ok(()), true), Ok(()));
        assert_eq!(blamed(Ok(()), failed(), true), failed());
        assert_eq!(blamed::<()>(lost(), Err(Error::Fenced), true), Err(Error::Fenced));
        assert!(matches!(blamed(lost(), failed(), false), Err(Error::Device { reason }) if reason.contains("illegal")));
        assert!(matches!(blamed(full(), failed(), true), Err(Error::Device { .. })));
        assert!(
            matches!(blamed(full(), failed(), false), Err(Error::Work { reason }) if reason.contains("3 bytes more"))
        );
    }
}
