//! What computes: the CPU or a GPU.

use crate::config::Engine;
use crate::{Error, Result};
use hetal_ckks::Params;
use hetal_cuda::CudaBackend;

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
        Err(error) => Err(Error::System { what: "the GPU".to_owned(), reason: error.to_string() }),
    }
}
