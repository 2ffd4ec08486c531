//! All of this crate's `unsafe`: the driver and its management library, the run-time compiler, and
//! the emulator that tests use.

pub(crate) mod arguments;
pub(crate) mod driver;
#[cfg(any(test, feature = "emulator"))]
pub(crate) mod emulator;
pub(crate) mod nvml;
pub(crate) mod nvrtc;
