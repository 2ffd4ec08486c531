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
    /// The place as the tensor library knows it; and, where it might have been another, why it is not.
    pub(crate) fn device(self) -> Result<(Device, Option<String>)> {
        match self {
            Self::Cpu => Ok((Device::Cpu, None)),
            Self::Cuda => Ok((card()?, None)),
            Self::Auto => Ok(card_or_cpu(card())),
        }
    }
}

/// Who has a build for cards means to use one, and is told why it is not.
fn card_or_cpu(card: Result<Device>) -> (Device, Option<String>) {
    match card {
        Ok(card) => (card, None),
        Err(Error::NoCuda) => (Device::Cpu, None),
        Err(Error::NoCard { reason }) => {
            (Device::Cpu, Some(format!("no NVIDIA card can be used: {reason}; the network runs on the CPU")))
        }
        Err(error) => (Device::Cpu, Some(format!("{error}; the network runs on the CPU"))),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_that_cannot_be_used_is_said() {
        let (device, note) = card_or_cpu(Err(Error::NoCard { reason: "the driver is too old".to_owned() }));
        assert!(device.is_cpu());
        let note = note.unwrap_or_default();
        assert!(note.contains("the driver is too old") && note.contains("on the CPU"), "{note}");
        // A build without cards has nothing to say.
        assert_eq!(card_or_cpu(Err(Error::NoCuda)).1, None);
    }
}
