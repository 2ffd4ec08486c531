//! What can go wrong on the way to a GPU and on it.

use hetal_ckks::backend::Failure;

/// An error of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No GPU, or no driver for it.
    #[error("no GPU: {reason}")]
    NoGpu {
        /// Why.
        reason: String,
    },
    /// A GPU, but nothing to compile kernels with.
    #[error(
        "GPU found, NVRTC missing: {gpu} needs the CUDA run-time compiler libnvrtc. Install the CUDA toolkit, or \
         `pip install nvidia-cuda-nvrtc` and set HETAL_NVRTC to the folder that holds libnvrtc.so.13"
    )]
    NvrtcMissing {
        /// The GPU.
        gpu: String,
    },
    /// The driver lacks something this program needs.
    #[error("the NVIDIA driver is too old: it lacks {symbol}; install version 525 or later")]
    DriverTooOld {
        /// The function it lacks.
        symbol: &'static str,
    },
    /// A compiler whose code the driver does not take.
    #[error(
        "NVRTC {compiler} is newer than the NVIDIA driver, which is for CUDA {driver}: install a newer driver, or NVRTC {driver} or before \
         (`pip install '{package}'` and HETAL_NVRTC set to the folder that holds libnvrtc.so.*)"
    )]
    CompilerTooNew {
        /// The compiler's version.
        compiler: String,
        /// The newest that the driver takes.
        driver: String,
        /// What pip would install.
        package: String,
    },
    /// Kernels do not compile.
    #[error("the kernels do not compile for {target}: {log}")]
    Compile {
        /// The architecture.
        target: String,
        /// The compiler's words.
        log: String,
    },
    /// No room.
    #[error("out of GPU memory: {needed} bytes more are needed, {free} of {total} are free")]
    OutOfMemory {
        /// Bytes asked for.
        needed: usize,
        /// Bytes free on the GPU.
        free: usize,
        /// Bytes of the GPU.
        total: usize,
    },
    /// Other programs hold the memory that the GPU needs to be used at all.
    #[error("no GPU memory is left for {operation}: {free} bytes of {total} are free")]
    NoRoom {
        /// What was asked of it.
        operation: &'static str,
        /// Bytes free on the GPU; zero where nobody could tell.
        free: usize,
        /// Bytes of the GPU.
        total: usize,
    },
    /// The driver refused or lost the GPU.
    #[error("the GPU failed in {operation}: {reason}")]
    Driver {
        /// What was asked of it.
        operation: &'static str,
        /// The driver's words.
        reason: String,
    },
    /// A compiler that no longer knows the GPU.
    #[error(
        "NVRTC {compiler} no longer compiles for {target}: install NVRTC 12 (`pip install nvidia-cuda-nvrtc-cu12` and HETAL_NVRTC \
         set to the folder that holds libnvrtc.so.12)"
    )]
    CardTooOld {
        /// The compiler's version.
        compiler: String,
        /// The GPU's architecture.
        target: String,
    },
    /// A variable of the environment with a value that means nothing.
    #[error("{variable} is {value}, must be {choices}")]
    Setting {
        /// The variable.
        variable: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        choices: &'static str,
    },
    /// A ring this crate has no kernels for.
    #[error("no GPU kernels for this ring: {reason}")]
    Unsupported {
        /// Why.
        reason: String,
    },
}

impl Error {
    /// Whether only memory is lacking, which others may give back.
    pub fn lacks_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::NoRoom { .. })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::OutOfMemory { needed, free, total } => Self::OutOfMemory { needed, free, total },
            // How much the driver wanted it does not say.
            Error::NoRoom { free, total, .. } => Self::OutOfMemory { needed: 1, free, total },
            Error::Driver { operation, reason } => Self::Device { operation, reason },
            other => Self::Device { operation: "preparing the card", reason: other.to_string() },
        }
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
