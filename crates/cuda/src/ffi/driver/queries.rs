//! Questions to the driver: versions, properties of a GPU, times between events.

use super::failed;
use crate::source::Arithmetic;
use crate::{Error, Result};
use cudarc::driver::{result, sys};

/// Why kernels may not load that were just compiled. Versions of drivers are 12040 for 12.4.
pub(super) fn explained(error: Error, (major, minor): (i32, i32), driver: i32) -> Error {
    match error {
        Error::Driver { .. } if 1000 * major + 10 * minor > driver => {
            let (most, least) = (driver / 1000, driver % 1000 / 10);
            // The package has the version in its name up to 12.
            let name = if most < 13 { format!("nvidia-cuda-nvrtc-cu{most}") } else { "nvidia-cuda-nvrtc".to_owned() };
            Error::CompilerTooNew {
                compiler: format!("{major}.{minor}"),
                driver: format!("{most}.{least}"),
                package: format!("{name}<{most}.{}", least + 1),
            }
        }
        other => other,
    }
}

pub(super) fn driver_version() -> i32 {
    let mut version = 0;
    // SAFETY: the number is valid to write; an error leaves zero.
    unsafe { sys::cuDriverGetVersion(&mut version) };
    version
}

/// The compute capability, 90 for 9.0.
pub(super) fn capability(device: sys::CUdevice) -> Result<u32> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    Ok(10 * attribute(device, MAJOR)? + attribute(device, MINOR)?)
}

pub(super) fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<u32> {
    // SAFETY: the device exists.
    let value =
        unsafe { result::device::get_attribute(device, which) }.map_err(failed("asking for the card's size"))?;
    Ok(u32::try_from(value).unwrap_or(0))
}

/// Names the arithmetic to use instead of the GPU's own.
const ARITHMETIC_VARIABLE: &str = "HETAL_CUDA_ARITHMETIC";

/// The arithmetic that the user asked for.
pub(super) fn chosen() -> Result<Option<Arithmetic>> {
    let Some(name) = std::env::var(ARITHMETIC_VARIABLE).ok().filter(|name| !name.is_empty()) else { return Ok(None) };
    let (variable, choices) = (ARITHMETIC_VARIABLE, "fp64 or integer");
    Arithmetic::named(&name).map(Some).ok_or(Error::Setting { variable, value: name, choices })
}

/// Seconds between two events that have passed.
#[cfg(feature = "linked")]
pub(super) fn elapsed(before: sys::CUevent, after: sys::CUevent) -> Option<f64> {
    // SAFETY: both events are alive.
    unsafe { result::event::elapsed(before, after) }.ok().map(|milliseconds| f64::from(milliseconds) / 1000.0)
}

/// Seconds between two events that have passed. By the name that all drivers have.
#[cfg(not(feature = "linked"))]
pub(super) fn elapsed(before: sys::CUevent, after: sys::CUevent) -> Option<f64> {
    type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;
    let mut milliseconds = 0.0;
    // SAFETY: the signature is the driver's; both events are alive and the number is valid to
    // write.
    let result = unsafe {
        let function = sys::culib().get::<Elapsed>(b"cuEventElapsedTime").ok()?;
        function(&mut milliseconds, before, after)
    };
    (result == sys::CUresult::CUDA_SUCCESS).then(|| f64::from(milliseconds) / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_too_new_is_named() {
        let refused =
            || Error::Driver { operation: "loading the kernels", reason: "UNSUPPORTED_PTX_VERSION".to_owned() };
        let error = explained(refused(), (13, 1), 12040);
        let [compiler, driver] = ["13.1", "12.4"].map(str::to_owned);
        // 12.4.127 is 12.4 to people, and more than it to pip.
        let package = "nvidia-cuda-nvrtc-cu12<12.5".to_owned();
        assert_eq!(error, Error::CompilerTooNew { compiler, driver, package });
        assert!(error.to_string().contains("'nvidia-cuda-nvrtc-cu12<12.5'"), "{error}");
        assert_eq!(explained(refused(), (12, 4), 12040), refused(), "the reason is another");
        let full = Error::NoRoom { operation: "loading the kernels", free: 1, total: 2 };
        assert_eq!(explained(full.clone(), (13, 0), 12040), full);
    }
}
