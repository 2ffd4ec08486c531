//! A card through NVIDIA's driver.

use super::arguments::Arguments;
use super::nvrtc;
use crate::cache::Cache;
use crate::device::{Device, KernelTime, LANES, lane};
use crate::source::{Arithmetic, Kernel};
use crate::{Error, Result};
use cudarc::driver::{result, sys};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A kernel, its limbs, and the events before and after it.
type Timed = (Kernel, u32, sys::CUevent, sys::CUevent);

/// One card with a context, a stream and the kernels of one degree.
pub(crate) struct Driver {
    /// No other of this program ever has it.
    number: u64,
    name: String,
    driver_version: i32,
    log_n: u32,
    arithmetic: Arithmetic,
    /// Whether a kernel may be brought to the card while the one before it is still running, which they know to wait for.
    overlaps: bool,
    device: sys::CUdevice,
    context: sys::CUcontext,
    streams: [sys::CUstream; LANES],
    multiprocessors: u32,
    module: sys::CUmodule,
    functions: Vec<sys::CUfunction>,
    /// Events around launches, while profiling.
    timed: Mutex<Option<Vec<Timed>>>,
}

// SAFETY: the handles may be used from any thread that made the context current, which every method does first.
unsafe impl Send for Driver {}
// SAFETY: as above; the driver's functions may be called from many threads at once.
unsafe impl Sync for Driver {}

thread_local! {
    /// The [`Driver::number`] of the context this thread works in; 0 for none.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

fn failed(operation: &'static str) -> impl Fn(result::DriverError) -> Error {
    move |error| Error::Driver { operation, reason: format!("{error:?}") }
}

fn no_gpu(reason: impl Into<String>) -> Error {
    Error::NoGpu { reason: reason.into() }
}

/// The first compute capability that takes a kernel's arguments as constants in place.
const LEAST_CAPABILITY: u32 = 70;

/// Functions that drivers of CUDA 12 have; without one of them cudarc would panic in the middle of work.
#[cfg(any(test, not(feature = "linked")))]
const NEEDED: [&str; 6] = [
    "cuMemGetInfo_v2",
    "cuModuleLoadData",
    "cuLaunchKernelEx",
    "cuDevicePrimaryCtxRetain",
    "cuMemsetD8Async",
    "cuStreamCreate",
];

/// Says which of the needed functions the driver lacks, if one.
#[cfg(any(test, not(feature = "linked")))]
fn require(has: impl Fn(&'static str) -> bool) -> Result<()> {
    NEEDED.into_iter().find(|&symbol| !has(symbol)).map_or(Ok(()), |symbol| Err(Error::DriverTooOld { symbol }))
}

/// Whether the driver's library is there and has what is needed; where it is linked, the program would not have started without it.
#[cfg(not(feature = "linked"))]
fn library() -> Result<()> {
    // SAFETY: looking for the driver's library loads and unloads it, nothing more.
    if !unsafe { sys::is_culib_present() } {
        return Err(no_gpu("the NVIDIA driver (libcuda) is not installed"));
    }
    // SAFETY: the library is there; the symbol is looked up and not called.
    require(|symbol| unsafe { sys::culib().get::<unsafe extern "C" fn()>(symbol.as_bytes()) }.is_ok())
}

#[cfg(feature = "linked")]
fn library() -> Result<()> {
    Ok(())
}

impl Driver {
    /// Card number `gpu`, with kernels for degree `2^log_n`.
    pub(crate) fn open(gpu: usize, log_n: u32) -> Result<Self> {
        library()?;
        result::init().map_err(|e| no_gpu(format!("the driver does not start: {e:?}")))?;
        let count = result::device::get_count().map_err(|e| no_gpu(format!("{e:?}")))?;
        let ordinal = i32::try_from(gpu).ok().filter(|&g| g < count);
        let ordinal = ordinal.ok_or_else(|| no_gpu(format!("number {gpu} was asked for, the driver sees {count}")))?;
        let device = result::device::get(ordinal).map_err(failed("finding the card"))?;
        let name = result::device::get_name(device).map_err(failed("naming the card"))?;
        if !nvrtc::is_present() {
            return Err(Error::NvrtcMissing { gpu: name });
        }
        let driver_version = driver_version();
        let capability = capability(device)?;
        if capability < LEAST_CAPABILITY {
            let (major, minor) = (capability / 10, capability % 10);
            return Err(Error::Unsupported {
                reason: format!("{name} has compute capability {major}.{minor}; the kernels need 7.0"),
            });
        }
        let arithmetic = chosen()?.unwrap_or(Arithmetic::of_card(capability));
        let multiprocessors = attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        // SAFETY: the device exists; the context is released when the value is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(failed("making a context"))?;
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let mut driver = Self {
            number: NUMBER.fetch_add(1, Ordering::Relaxed) + 1,
            name,
            driver_version,
            log_n,
            arithmetic,
            // The kernels wait for each other if they were compiled for this, whatever the card can do.
            overlaps: nvrtc::target(capability).architecture >= 90,
            device,
            context,
            streams: [std::ptr::null_mut(); LANES],
            multiprocessors,
            module: std::ptr::null_mut(),
            functions: Vec::new(),
            timed: Mutex::new(None),
        };
        driver.bind()?;
        for stream in &mut driver.streams {
            *stream =
                result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed("making a stream"))?;
        }
        driver.load_kernels(capability)?;
        Ok(driver)
    }

    /// Loads the kernels from the cache, or compiles them where it has none that this driver takes.
    fn load_kernels(&mut self, capability: u32) -> Result<()> {
        let cache = Cache::of_user();
        let key =
            nvrtc::cache_key(capability, self.log_n, self.arithmetic, &self.name, &self.driver_version.to_string());
        if let Some(code) = cache.as_ref().and_then(|cache| cache.get(&key))
            && self.load(code).is_ok()
        {
            return Ok(());
        }
        let code = nvrtc::compile(capability, self.log_n, self.arithmetic)?.0;
        if let Some(cache) = &cache {
            cache.put(&key, &code);
        }
        self.load(code)
    }

    fn load(&mut self, mut code: Vec<u8>) -> Result<()> {
        // Virtual assembly is text and ends with a zero; machine code does not mind one.
        code.push(0);
        // SAFETY: the code came from the compiler (the cache checks that), and the context is current.
        let module =
            unsafe { result::module::load_data(code.as_ptr().cast()) }.map_err(failed("loading the kernels"))?;
        let find = |kernel: &Kernel| {
            let name = CString::new(kernel.name()).map_err(|_| no_gpu("a kernel without a name"))?;
            // SAFETY: the module was loaded above.
            unsafe { result::module::get_function(module, name) }.map_err(failed("finding a kernel"))
        };
        let functions = Kernel::ALL.iter().map(find).collect::<Result<_>>().inspect_err(|_| {
            // SAFETY: loaded above, and nothing of it is used.
            _ = unsafe { result::module::unload(module) };
        })?;
        (self.module, self.functions) = (module, functions);
        Ok(())
    }

    /// Makes the context current on this thread.
    fn bind(&self) -> Result<()> {
        if CURRENT.get() != self.number {
            // SAFETY: the context is alive as long as `self`.
            unsafe { result::ctx::set_current(self.context) }.map_err(failed("entering the context"))?;
            CURRENT.set(self.number);
        }
        Ok(())
    }

    /// The stream of this thread's lane.
    fn stream(&self) -> sys::CUstream {
        self.streams[lane()]
    }

    /// An event at the end of what a lane has queued.
    fn event(&self, lane: usize, flags: sys::CUevent_flags) -> Result<sys::CUevent> {
        let event = result::event::create(flags).map_err(failed("making an event"))?;
        // SAFETY: both handles were made in the current context.
        unsafe { result::event::record(event, self.streams[lane]) }.map_err(failed("recording an event"))?;
        Ok(event)
    }

    fn time(&self) -> Result<sys::CUevent> {
        self.event(lane(), sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// Makes one lane wait for what others have queued.
    fn order(&self, before: &[usize], after: &[usize]) -> Result<()> {
        self.bind()?;
        for &first in before {
            let event = self.event(first, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
            for &then in after {
                let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
                // SAFETY: the event and the stream are alive.
                unsafe { result::stream::wait_event(self.streams[then], event, flags) }
                    .map_err(failed("ordering streams"))?;
            }
            // SAFETY: made above; the driver keeps what waits still need.
            unsafe { result::event::destroy(event) }.map_err(failed("forgetting an event"))?;
        }
        Ok(())
    }
}

fn driver_version() -> i32 {
    let mut version = 0;
    // SAFETY: the number is valid to write; an error leaves zero.
    unsafe { sys::cuDriverGetVersion(&mut version) };
    version
}

/// The compute capability, 90 for 9.0.
fn capability(device: sys::CUdevice) -> Result<u32> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    Ok(10 * attribute(device, MAJOR)? + attribute(device, MINOR)?)
}

fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<u32> {
    // SAFETY: the device exists.
    let value =
        unsafe { result::device::get_attribute(device, which) }.map_err(failed("asking for the card's size"))?;
    Ok(u32::try_from(value).unwrap_or(0))
}

/// Names the arithmetic to use instead of the card's own.
const ARITHMETIC_VARIABLE: &str = "HETAL_CUDA_ARITHMETIC";

/// The arithmetic that the user asked for.
fn chosen() -> Result<Option<Arithmetic>> {
    let Some(name) = std::env::var(ARITHMETIC_VARIABLE).ok().filter(|name| !name.is_empty()) else { return Ok(None) };
    let reason = || format!("{ARITHMETIC_VARIABLE} is {name}, must be fp64 or integer");
    Arithmetic::named(&name).map(Some).ok_or_else(|| Error::Unsupported { reason: reason() })
}

impl Device for Driver {
    fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    fn describe(&self) -> String {
        let (major, minor) = nvrtc::version();
        let version = self.driver_version;
        let (cuda, arithmetic) = (format!("{}.{}", version / 1000, version % 1000 / 10), self.arithmetic.name());
        format!("{}, driver for CUDA {cuda}, NVRTC {major}.{minor}, {arithmetic}", self.name)
    }

    fn memory(&self) -> (usize, usize) {
        self.bind().ok().and_then(|()| result::mem_get_info().ok()).unwrap_or((0, 0))
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.bind()?;
        // SAFETY: the context is current; the memory is written before it is read, or its contents do not matter.
        unsafe { result::malloc_sync(bytes) }.map_err(|error| {
            if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                let (free, total) = self.memory();
                return Error::OutOfMemory { needed: bytes, free, total };
            }
            failed("allocating memory")(error)
        })
    }

    fn free(&self, address: u64) {
        if self.bind().is_ok() {
            // SAFETY: the address came from `allocate`, and its owner gives it up. The driver waits for work that is
            // still queued; an error here is one that the work already had.
            _ = unsafe { result::free_sync(address) };
        }
    }

    fn upload(&self, to: u64, bytes: &[u8]) -> Result<()> {
        self.bind()?;
        // SAFETY: `to` has room for the bytes. They are in pageable memory, which the driver copies before it returns.
        unsafe { result::memcpy_htod_async(to, bytes, self.stream()) }.map_err(failed("copying to the card"))
    }

    fn download(&self, from: u64, words: &mut [u64]) -> Result<()> {
        self.bind()?;
        // SAFETY: `from` has as many words; they are waited for before the borrow ends.
        unsafe { result::memcpy_dtoh_async(words, from, self.stream()) }.map_err(failed("copying from the card"))?;
        // SAFETY: the stream is alive as long as `self`.
        unsafe { result::stream::synchronize(self.stream()) }.map_err(failed("waiting for the card"))
    }

    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.bind()?;
        // SAFETY: both places have the bytes and are owned by polynomials that are alive now; later owners' work is
        // queued after this.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream()) }.map_err(failed("copying on the card"))
    }

    fn zero(&self, to: u64, bytes: usize) -> Result<()> {
        self.bind()?;
        // SAFETY: as above.
        unsafe { result::memset_d8_async(to, 0, bytes, self.stream()) }.map_err(failed("clearing memory"))
    }

    fn launch(&self, kernel: Kernel, grid: (u32, u32), args: &dyn Arguments) -> Result<()> {
        self.bind()?;
        let (threads, blocks) = kernel.shape(self.log_n);
        let mut timed = self.timed.lock().unwrap_or_else(PoisonError::into_inner);
        let before = timed.as_ref().map(|_| self.time()).transpose()?;
        let mut pointers: [*mut c_void; 1] = [args.pointer().cast_mut()];
        let mut overlap = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: blocks,
            gridDimY: grid.0,
            gridDimZ: grid.1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: self.stream(),
            attrs: &mut overlap,
            numAttrs: u32::from(self.overlaps),
        };
        // SAFETY: the function is of the loaded module and takes one struct of the type that is passed, which the driver
        // copies; the addresses in it are of buffers and tables that are alive now.
        unsafe {
            let function = self.functions[kernel as usize];
            sys::cuLaunchKernelEx(&config, function, pointers.as_mut_ptr(), std::ptr::null_mut()).result()
        }
        .map_err(failed(kernel.name()))?;
        if let (Some(list), Some(before)) = (timed.as_mut(), before) {
            list.push((kernel, grid.0, before, self.time()?));
        }
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        self.bind()?;
        for &stream in &self.streams {
            // SAFETY: the stream is alive as long as `self`.
            unsafe { result::stream::synchronize(stream) }.map_err(failed("waiting for the card"))?;
        }
        Ok(())
    }

    fn blocks_at_once(&self) -> u32 {
        4 * self.multiprocessors
    }

    fn fork(&self) -> Result<()> {
        self.order(&[0], &[1, 2])
    }

    fn join(&self) -> Result<()> {
        self.order(&[1, 2], &[0])
    }

    fn profile(&self, on: bool) -> Vec<KernelTime> {
        _ = self.synchronize();
        let mut timed = self.timed.lock().unwrap_or_else(PoisonError::into_inner);
        let list = std::mem::replace(&mut *timed, on.then(Vec::new)).unwrap_or_default();
        let mut times: BTreeMap<(&'static str, u32), KernelTime> = BTreeMap::new();
        for (kernel, limbs, before, after) in list {
            let name = kernel.name();
            let time = times.entry((name, limbs)).or_insert(KernelTime { name, limbs, launches: 0, seconds: 0.0 });
            time.launches += 1;
            time.seconds += elapsed(before, after).unwrap_or(0.0);
            for event in [before, after] {
                // SAFETY: made by `event` and used no more.
                _ = unsafe { result::event::destroy(event) };
            }
        }
        let mut times: Vec<KernelTime> = times.into_values().collect();
        times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        times
    }
}

/// Seconds between two events that have passed.
#[cfg(feature = "linked")]
fn elapsed(before: sys::CUevent, after: sys::CUevent) -> Option<f64> {
    // SAFETY: both events are alive.
    unsafe { result::event::elapsed(before, after) }.ok().map(|milliseconds| f64::from(milliseconds) / 1000.0)
}

/// Seconds between two events that have passed. By the name that all drivers have.
#[cfg(not(feature = "linked"))]
fn elapsed(before: sys::CUevent, after: sys::CUevent) -> Option<f64> {
    type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;
    let mut milliseconds = 0.0;
    // SAFETY: the signature is the driver's; both events are alive and the number is valid to write.
    let result = unsafe {
        let function = sys::culib().get::<Elapsed>(b"cuEventElapsedTime").ok()?;
        function(&mut milliseconds, before, after)
    };
    (result == sys::CUresult::CUDA_SUCCESS).then(|| f64::from(milliseconds) / 1000.0)
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.bind().is_err() {
            return;
        }
        // SAFETY: everything was made by `open` and is used no more. Errors cannot be told to anyone.
        unsafe {
            for stream in self.streams.into_iter().filter(|s| !s.is_null()) {
                _ = result::stream::synchronize(stream);
                _ = result::stream::destroy(stream);
            }
            if !self.module.is_null() {
                _ = result::module::unload(self.module);
            }
            _ = result::primary_ctx::release(self.device);
        }
        CURRENT.set(0);
    }
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
