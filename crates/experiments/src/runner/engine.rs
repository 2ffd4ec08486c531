//! Which engine an experiment uses, and the backends of encrypted engines.

use crate::Result;
use hetal_ckks::{Backend, Params};
use hetal_cuda::{CudaBackend, KernelTime};
use hetal_ring::{PackedPoly, Poly, RnsRing};
use std::sync::Arc;

/// An engine that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineKind {
    /// Plain numbers; operations are counted.
    Clear,
    /// Ciphertexts on the CPU.
    Cpu,
    /// Ciphertexts on an NVIDIA GPU.
    Cuda,
}

/// A processor that computes on ciphertexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Processor {
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

impl EngineKind {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

/// A backend that accepts polynomials made on the CPU by a data owner.
pub trait DeviceBackend: Backend {
    /// Moves a polynomial from the CPU to this backend.
    fn to_device(&self, poly: Poly) -> Self::Poly;

    /// Moves a packed polynomial from the CPU to this backend.
    fn to_device_packed(&self, poly: PackedPoly) -> Self::Packed;

    /// Waits until all queued work is done.
    ///
    /// # Errors
    ///
    /// Returns the first failure of the queued work.
    fn synchronize(&self) -> Result<()>;

    /// Starts or stops timing kernels, and returns the times recorded so far. A CPU has none.
    fn profile(&self, _on: bool) -> Vec<KernelTime> {
        Vec::new()
    }
}

impl DeviceBackend for RnsRing {
    fn to_device(&self, poly: Poly) -> Poly {
        poly
    }

    fn to_device_packed(&self, poly: PackedPoly) -> PackedPoly {
        poly
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}

impl DeviceBackend for CudaBackend {
    fn to_device(&self, poly: Poly) -> Self::Poly {
        self.upload_poly(&poly)
    }

    fn to_device_packed(&self, poly: PackedPoly) -> Self::Packed {
        self.upload_packed(&poly)
    }

    fn synchronize(&self) -> Result<()> {
        // The inherent method, not this one.
        Ok(CudaBackend::synchronize(self)?)
    }

    fn profile(&self, on: bool) -> Vec<KernelTime> {
        CudaBackend::profile(self, on)
    }
}

/// Opens GPU number `device` and compiles its kernels for a parameter set.
pub fn open_gpu(params: &Params, device: usize) -> Result<Arc<CudaBackend>> {
    Ok(Arc::new(CudaBackend::open(device, params.log_n(), params.chain(), params.special())?))
}
