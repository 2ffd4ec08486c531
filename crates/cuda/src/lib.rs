#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod backend;
mod cache;
mod device;
mod dry_run;
#[cfg(feature = "emulator")]
pub mod emulated;
mod error;
#[allow(unsafe_code)]
mod ffi;
mod memory;
mod plan;
pub mod selftest;
mod source;
mod transfer;

pub use backend::{CudaBackend, CudaDigits, CudaPoly, CudaRoutine, Graphs};
pub use device::KernelTime;
pub use error::{Error, Result};
pub use ffi::driver::cards;
pub use ffi::nvml::{CardState, card_state};
pub use source::Arithmetic;

#[cfg(test)]
mod tests;
