//! The device that a network runs on: the CPU or an NVIDIA GPU.

use crate::{Error, Result};
use candle_core::Device;

/// The device to run a network on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The CPU.
    #[default]
    Cpu,
    /// The first NVIDIA GPU.
    Cuda,
    /// A GPU if this build supports GPUs and the machine has one, else the CPU.
    Auto,
}

impl DeviceChoice {
    /// Opens the device. With `Auto` on the CPU, a note says why no GPU is used.
    pub(crate) fn open(self) -> Result<(Device, Option<String>)> {
        match self {
            Self::Cpu => Ok((Device::Cpu, None)),
            Self::Cuda => Ok((gpu()?, None)),
            Self::Auto => Ok(gpu_or_cpu(gpu())),
        }
    }
}

/// The GPU if it can be used, else the CPU. A build without GPU support needs no note.
fn gpu_or_cpu(gpu: Result<Device>) -> (Device, Option<String>) {
    match gpu {
        Ok(gpu) => (gpu, None),
        Err(Error::NoCuda) => (Device::Cpu, None),
        Err(Error::NoGpu { reason }) => {
            (Device::Cpu, Some(format!("no NVIDIA GPU can be used: {reason}; the network runs on the CPU")))
        }
        Err(error) => (Device::Cpu, Some(format!("{error}; the network runs on the CPU"))),
    }
}

#[cfg(feature = "cuda")]
fn gpu() -> Result<Device> {
    let usable = || {
        let device = Device::new_cuda(0)?;
        // Kernels that were compiled for other GPUs fail only when one is run.
        candle_core::Tensor::zeros(1, candle_core::DType::F32, &device)?.affine(1.0, 1.0)?.to_vec1::<f32>()?;
        Ok(device)
    };
    usable().map_err(|e: candle_core::Error| Error::NoGpu { reason: e.to_string() })
}

#[cfg(not(feature = "cuda"))]
fn gpu() -> Result<Device> {
    Err(Error::NoCuda)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_why_no_gpu_is_used() {
        let (device, note) = gpu_or_cpu(Err(Error::NoGpu { reason: "the driver is too old".to_owned() }));
        assert!(device.is_cpu());
        let note = note.unwrap_or_default();
        assert!(note.contains("the driver is too old") && note.contains("on the CPU"), "{note}");
        // A build without GPU support has nothing to say.
        assert_eq!(gpu_or_cpu(Err(Error::NoCuda)).1, None);
    }
}
