//! What computes: the CPU or a GPU.

use crate::config::Engine;
use crate::{Error, Result};
use hetal_ckks::Backend;
use hetal_cuda::CudaBackend;
use hetal_ring::RnsRing;

/// A backend whose failures can be asked for.
pub trait Device: Backend {
    /// Its name, for people.
    fn describe(&self) -> String;

    /// Whether everything so far was computed rightly.
    fn check(&self) -> Result<()>;
}

impl Device for RnsRing {
    fn describe(&self) -> String {
        "cpu".to_owned()
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl Device for CudaBackend {
    fn describe(&self) -> String {
        CudaBackend::describe(self)
    }

    fn check(&self) -> Result<()> {
        // Another attempt begins at the last checkpoint, with the card opened anew.
        self.health().map_err(|e| Error::System { what: "the GPU".to_owned(), reason: e.to_string() })
    }
}

/// The GPU for a parameter set, where the engine asks for one and there is one.
pub fn gpu(engine: Engine, params: &hetal_ckks::Params) -> Result<Option<CudaBackend>> {
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
