//! Where networks run.

use crate::{Error, Result};
use candle_core::Device;

/// Where a network runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Place {
    /// On the CPU.
    #[default]
    Cpu,
    /// On the first NVIDIA card.
    Cuda,
    /// On a card where this build knows of cards and there is one, else on the CPU.
    Auto,
}

impl Place {
    /// The place as the tensor library knows it.
    pub(crate) fn device(self) -> Result<Device> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Cuda => card(),
            Self::Auto => Ok(card().unwrap_or(Device::Cpu)),
        }
    }
}

#[cfg(feature = "cuda")]
fn card() -> Result<Device> {
    let usable = || {
        let device = Device::new_cuda(0)?;
        // Kernels that were compiled for other cards are noticed when one is run.
        candle_core::Tensor::zeros(1, candle_core::DType::F32, &device)?.affine(1.0, 1.0)?.to_vec1::<f32>()?;
        Ok(device)
    };
    usable().map_err(|e: candle_core::Error| Error::NoCard { reason: e.to_string() })
}

#[cfg(not(feature = "cuda"))]
fn card() -> Result<Device> {
    Err(Error::NoCuda)
}
