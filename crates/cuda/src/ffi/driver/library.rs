//! The library of the driver: whether it is there and has the functions that are called.

use super::no_gpu;
#[cfg(any(test, not(feature = "linked")))]
use crate::Error;
use crate::Result;
use cudarc::driver::result;
#[cfg(not(feature = "linked"))]
use cudarc::driver::sys;

/// Functions that drivers of CUDA 12 have; without one of them cudarc would panic in the middle of
/// work.
#[cfg(any(test, not(feature = "linked")))]
const NEEDED: [&str; 6] = [
    "cuMemGetInfo_v2",
    "cuModuleLoadData",
    "cuLaunchKernelEx",
    "cuDevicePrimaryCtxRetain",
    "cuMemsetD8Async",
    "cuStreamCreate",
];

/// Functions without which nothing is recorded.
#[cfg(not(feature = "linked"))]
const GRAPHS: [&str; 6] = [
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
];

/// Says which of the needed functions the driver lacks, if one.
#[cfg(any(test, not(feature = "linked")))]
fn require(has: impl Fn(&'static str) -> bool) -> Result<()> {
    NEEDED.into_iter().find(|&symbol| !has(symbol)).map_or(Ok(()), |symbol| Err(Error::DriverTooOld { symbol }))
}

/// Requires that the driver's library is there and has what is needed; tells whether it can record
/// work. Where it is linked, the program would not have started without all of it.
#[cfg(not(feature = "linked"))]
pub(super) fn library() -> Result<bool> {
    // SAFETY: looking for the driver's library loads and unloads it, nothing more.
    if !unsafe { sys::is_culib_present() } {
        return Err(no_gpu("the NVIDIA driver (libcuda) is not installed"));
    }
    // SAFETY: the library is there; the symbol is looked up and not called.
    let has = |symbol: &'static str| unsafe { sys::culib().get::<unsafe extern "C" fn()>(symbol.as_bytes()) }.is_ok();
    require(has)?;
    Ok(GRAPHS.into_iter().all(has))
}

#[cfg(feature = "linked")]
pub(super) fn library() -> Result<bool> {
    Ok(true)
}

/// Number of GPUs that the driver sees. They are counted from 0.
///
/// # Errors
///
/// No driver, or one that does not start.
pub fn cards() -> Result<usize> {
    #[cfg(feature = "emulator")]
    if crate::emulated::card().is_some() {
        return Ok(1);
    }
    library()?;
    result::init().map_err(|e| no_gpu(format!("the driver does not start: {e:?}")))?;
    let count = result::device::get_count().map_err(|e| no_gpu(format!("{e:?}")))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_too_old_is_told_by_what_it_lacks() {
        require(|_| true).unwrap();
        let error = require(|symbol| symbol != "cuLaunchKernelEx").unwrap_err();
        assert_eq!(error, Error::DriverTooOld { symbol: "cuLaunchKernelEx" });
        assert!(error.to_string().contains("too old") && error.to_string().contains("install"), "{error}");
    }
}
