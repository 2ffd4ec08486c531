//! Where the work on limbs is done, and how polynomials get there.

use crate::Result;
use hetal_ckks::{Backend, Params};
use hetal_cuda::{CudaBackend, KernelTime};
use hetal_ring::{PackedPoly, Poly, RnsRing};
use std::sync::Arc;

/// An engine to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineKind {
    /// Plain numbers, with exact counts.
    Clear,
    /// Ciphertexts, on the CPU.
    Cpu,
    /// Ciphertexts, on an NVIDIA GPU.
    Cuda,
}

/// What computes on ciphertexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Processor {
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

impl EngineKind {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

/// A backend that takes what a data owner makes on the CPU's ring.
pub trait Place: Backend {
    /// A polynomial of the CPU's ring, here.
    fn bring(&self, poly: Poly) -> Self::Poly;

    /// A packed polynomial of the CPU's ring, here.
    fn bring_packed(&self, poly: PackedPoly) -> Self::Packed;

    /// Waits until all work is done.
    ///
    /// # Errors
    ///
    /// A failure on the way.
    fn settle(&self) -> Result<()>;

    /// Begins to time kernels (or stops), and tells what was timed before. Only a card has kernels.
    fn profile(&self, _on: bool) -> Vec<KernelTime> {
        Vec::new()
    }
}

impl Place for RnsRing {
    fn bring(&self, poly: Poly) -> Poly {
        poly
    }

    fn bring_packed(&self, poly: PackedPoly) -> PackedPoly {
        poly
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }
}

impl Place for CudaBackend {
    fn bring(&self, poly: Poly) -> Self::Poly {
        self.upload_poly(&poly)
    }

    fn bring_packed(&self, poly: PackedPoly) -> Self::Packed {
        self.upload_packed(&poly)
    }

    fn settle(&self) -> Result<()> {
        Ok(self.synchronize()?)
    }

    fn profile(&self, on: bool) -> Vec<KernelTime> {
        self.profile(on)
    }
}

/// GPU number `device` with the kernels of a set.
pub fn gpu(params: &Params, device: usize) -> Result<Arc<CudaBackend>> {
    Ok(Arc::new(CudaBackend::open(device, params.log_n(), params.chain(), params.special())?))
}
