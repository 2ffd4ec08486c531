//! A GPU through NVIDIA's driver.

mod graph_recording;
mod library;
mod queries;
mod staging;

pub use library::cards;

use super::arguments::{KernelArguments, PauseArgs};
use super::nvrtc;
use crate::cache::Cache;
use crate::device::{Device, KernelTime, LANES, is_recording, lane, not_recorded, recording};
use crate::source::{Arithmetic, Kernel};
use crate::{Error, Result};
use cudarc::driver::{result, sys};
use graph_recording::{GraphRecording, destroy};
use library::library;
use queries::{attribute, capability, chosen, driver_version, elapsed, explained};
use staging::{PinnedStaging, STAGED};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CString, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Kernels that are queued between two marks.
const BETWEEN_MARKS: usize = 256;

/// Marks that may be ahead of the GPU. The driver queues about a thousand launches and then waits
/// by spinning: the host's thread sleeps before that.
const MARKS_AHEAD: usize = 2;

/// What was queued since the last mark, and the marks that the GPU may not have passed.
#[derive(Default)]
struct Queue {
    kernels: usize,
    marks: VecDeque<sys::CUevent>,
}

/// A kernel, its limbs, and the events before and after it.
type TimedLaunch = (Kernel, u32, sys::CUevent, sys::CUevent);

/// One GPU with a context, its streams and the kernels of one degree.
pub(crate) struct Driver {
    /// No other of this program ever has it.
    number: u64,
    name: String,
    driver_version: i32,
    log_n: u32,
    arithmetic: Arithmetic,
    /// Whether a kernel may be brought to the GPU while the one before it is still running, which
    /// they know to wait for.
    overlaps: bool,
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// Those of the lanes, and those that take their place in a recording.
    streams: [sys::CUstream; 2 * LANES],
    /// Whether the driver can record work.
    has_graphs: bool,
    multiprocessors: u32,
    module: sys::CUmodule,
    functions: Vec<sys::CUfunction>,
    /// Events around launches, while profiling.
    timed: Mutex<Option<Vec<TimedLaunch>>>,
    queue: Mutex<Queue>,
    staging: Mutex<PinnedStaging>,
    recorded: Mutex<GraphRecording>,
    /// What the next pause is drawn from; 0 for none.
    pause_state: AtomicU64,
    /// Recordings and their numbers of kernels.
    graphs: Mutex<BTreeMap<u64, (Vec<sys::CUgraphExec>, usize)>>,
}

// SAFETY: the handles may be used from any thread that made the context current, which every method
// does first.
unsafe impl Send for Driver {}
// SAFETY: as above; the driver's functions may be called from many threads at once.
unsafe impl Sync for Driver {}

thread_local! {
    /// The [`Driver::number`] of the context this thread works in; 0 for none.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

fn failed(operation: &'static str) -> impl Fn(result::DriverError) -> Error {
    move |error| match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            let (free, total) = result::mem_get_info().unwrap_or_default();
            Error::NoRoom { operation, free, total }
        }
        _ => Error::Driver { operation, reason: format!("{error:?}") },
    }
}

fn no_gpu(reason: impl Into<String>) -> Error {
    Error::NoGpu { reason: reason.into() }
}

/// The first compute capability that takes a kernel's arguments as constants in place.
const LEAST_CAPABILITY: u32 = 70;

impl Driver {
    /// Card number `gpu`, with kernels for degree `2^log_n`.
    pub(crate) fn open(gpu: usize, log_n: u32) -> Result<Self> {
        let (count, has_graphs) = (cards()?, library()?);
        let ordinal = i32::try_from(gpu).ok().filter(|_| gpu < count);
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
            let reason = format!("{name} has compute capability {major}.{minor}; the kernels need 7.0");
            return Err(no_gpu(reason));
        }
        let (target, arithmetic) = (nvrtc::target(capability)?, chosen()?.unwrap_or(Arithmetic::of_card(capability)));
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
            // The kernels wait for each other if they were compiled for this, whatever the GPU can
            // do.
            overlaps: target.architecture >= 90,
            device,
            context,
            streams: [std::ptr::null_mut(); 2 * LANES],
            has_graphs,
            multiprocessors,
            module: std::ptr::null_mut(),
            functions: Vec::new(),
            timed: Mutex::new(None),
            queue: Mutex::default(),
            staging: Mutex::default(),
            recorded: Mutex::default(),
            pause_state: AtomicU64::new(0),
            graphs: Mutex::default(),
        };
        driver.bind()?;
        for stream in &mut driver.streams {
            *stream =
                result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed("making a stream"))?;
        }
        driver.staging = Mutex::new(PinnedStaging::new()?);
        driver.load_kernels(capability)?;
        Ok(driver)
    }

    /// Loads the kernels from the cache, or compiles them where it has none that this driver takes.
    fn load_kernels(&mut self, capability: u32) -> Result<()> {
        let cache = Cache::of_user();
        let key =
            nvrtc::cache_key(capability, self.log_n, self.arithmetic, &self.name, &self.driver_version.to_string())?;
        if let Some(code) = cache.as_ref().and_then(|cache| cache.get(&key))
            && self.load(code).is_ok()
        {
            return Ok(());
        }
        let code = nvrtc::compile(capability, self.log_n, self.arithmetic)?;
        if let Some(cache) = &cache {
            cache.put(&key, &code);
        }
        self.load(code).map_err(|error| explained(error, nvrtc::version(), self.driver_version))
    }

    fn load(&mut self, mut code: Vec<u8>) -> Result<()> {
        // Virtual assembly is text and ends with a zero; machine code does not mind one.
        code.push(0);
        // SAFETY: the code came from the compiler (the cache checks that), and the context is
        // current.
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
        // Other code on this thread may have entered another one since.
        if CURRENT.get() != self.number || result::ctx::get_current().ok().flatten() != Some(self.context) {
            // SAFETY: the context is alive as long as `self`.
            unsafe { result::ctx::set_current(self.context) }.map_err(failed("entering the context"))?;
            CURRENT.set(self.number);
        }
        Ok(())
    }

    /// The stream of this thread's lane.
    fn stream(&self) -> sys::CUstream {
        self.stream_of(lane())
    }

    /// The stream of a lane.
    fn stream_of(&self, lane: usize) -> sys::CUstream {
        self.streams[if is_recording() { LANES + lane } else { lane }]
    }

    /// An event at the end of what a lane has queued.
    fn event(&self, lane: usize, flags: sys::CUevent_flags) -> Result<sys::CUevent> {
        let event = result::event::create(flags).map_err(failed("making an event"))?;
        // SAFETY: both handles were made in the current context.
        unsafe { result::event::record(event, self.stream_of(lane)) }.map_err(failed("recording an event"))?;
        Ok(event)
    }

    fn time(&self) -> Result<sys::CUevent> {
        self.event(lane(), sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// Makes lanes wait for what others have queued.
    fn order(&self, before: Range<usize>, after: Range<usize>) -> Result<()> {
        self.bind()?;
        for first in before {
            let event = self.event(first, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
            for then in after.clone() {
                let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
                // SAFETY: the event and the stream are alive.
                unsafe { result::stream::wait_event(self.stream_of(then), event, flags) }
                    .map_err(failed("ordering streams"))?;
            }
            // SAFETY: made above; the driver keeps what waits still need.
            unsafe { result::event::destroy(event) }.map_err(failed("forgetting an event"))?;
        }
        Ok(())
    }
}

/// Work that is queued.
impl Driver {
    /// Sleeps while very many kernels are queued.
    fn throttle(&self, kernels: usize) -> Result<()> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.kernels += kernels;
        if queue.kernels < BETWEEN_MARKS {
            return Ok(());
        }
        queue.kernels = 0;
        queue.marks.push_back(self.event(lane(), sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC)?);
        if queue.marks.len() > MARKS_AHEAD
            && let Some(mark) = queue.marks.pop_front()
        {
            // SAFETY: made above, in this context, and used no more.
            unsafe {
                let passed = result::event::synchronize(mark);
                _ = result::event::destroy(mark);
                passed.map_err(failed("waiting for the card"))?;
            }
        }
        Ok(())
    }
}

/// Kernels.
impl Driver {
    fn launch_now(&self, kernel: Kernel, grid: (u32, u32), args: &dyn KernelArguments) -> Result<()> {
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
        // SAFETY: the function is of the loaded module and takes one struct of the type that is
        // passed, which the driver copies; the addresses in it are of buffers and tables that are
        // alive now.
        unsafe {
            let function = self.functions[kernel as usize];
            sys::cuLaunchKernelEx(&config, function, pointers.as_mut_ptr(), std::ptr::null_mut()).result()
        }
        .map_err(failed(kernel.name()))?;
        if let (Some(list), Some(before)) = (timed.as_mut(), before) {
            list.push((kernel, grid.0, before, self.time()?));
        }
        if is_recording() { self.count_kernel() } else { self.throttle(1) }
    }

    /// A pause before the next kernel, if there is to be one.
    fn pause(&self) -> Option<PauseArgs> {
        let state = self.pause_state.load(Ordering::Relaxed);
        if state == 0 {
            return None;
        }
        let next = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.pause_state.store(next.max(1), Ordering::Relaxed);
        // One kernel in four waits, up to 70 microseconds: longer than most kernels take.
        (next >> 62 == 0).then_some(PauseArgs { cycles: next >> 45 & 0x1_ffff })
    }
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

    fn memory(&self) -> Result<(usize, usize)> {
        self.bind()?;
        result::mem_get_info().map_err(failed("asking for its memory"))
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.bind()?;
        // SAFETY: the context is current; the memory is written before it is read, or its contents
        // do not matter.
        unsafe { result::malloc_sync(bytes) }.map_err(|error| {
            if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                let (free, total) = self.memory().unwrap_or_default();
                return Error::OutOfMemory { needed: bytes, free, total };
            }
            failed("allocating memory")(error)
        })
    }

    fn free(&self, address: u64) {
        if self.bind().is_ok() {
            // SAFETY: the address came from `allocate`, and its owner gives it up. The driver waits
            // for work that is still queued; an error here is one that the work already had.
            _ = unsafe { result::free_sync(address) };
        }
    }

    fn upload(&self, to: u64, bytes: &[u8]) -> Result<()> {
        not_recorded("copying to the card")?;
        self.bind()?;
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pieces = bytes.chunks(STAGED).enumerate();
        pieces.try_for_each(|(i, piece)| staging.send(to + (i * STAGED) as u64, piece, self.stream()))
    }

    fn download(&self, from: u64, words: &mut [u64]) -> Result<()> {
        not_recorded("copying from the card")?;
        self.bind()?;
        // SAFETY: `from` has as many words; they are waited for before the borrow ends.
        unsafe { result::memcpy_dtoh_async(words, from, self.stream()) }.map_err(failed("copying from the card"))?;
        // SAFETY: the stream is alive as long as `self`.
        unsafe { result::stream::synchronize(self.stream()) }.map_err(failed("waiting for the card"))
    }

    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.bind()?;
        // SAFETY: both places have the bytes and are owned by polynomials that are alive now; later
        // owners' work is queued after this.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream()) }.map_err(failed("copying on the card"))
    }

    fn zero(&self, to: u64, bytes: usize) -> Result<()> {
        self.bind()?;
        // SAFETY: as above.
        unsafe { result::memset_d8_async(to, 0, bytes, self.stream()) }.map_err(failed("clearing memory"))
    }

    fn launch(&self, kernel: Kernel, grid: (u32, u32), args: &dyn KernelArguments) -> Result<()> {
        self.bind()?;
        if let Some(pause) = self.pause() {
            self.launch_now(Kernel::Pause, (1, 1), &pause)?;
        }
        self.launch_now(kernel, grid, args)
    }

    fn synchronize(&self) -> Result<()> {
        not_recorded("waiting for the card")?;
        self.bind()?;
        for &stream in &self.streams[..LANES] {
            // SAFETY: the stream is alive as long as `self`.
            unsafe { result::stream::synchronize(stream) }.map_err(failed("waiting for the card"))?;
        }
        Ok(())
    }

    fn can_record(&self) -> bool {
        // Kernels that are timed are launched one by one.
        self.has_graphs && self.timed.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn record(&self, work: &mut dyn FnMut()) -> Result<u64> {
        self.bind()?;
        // Left by work that panicked.
        self.abandon();
        self.begin_part()?;
        recording(work);
        if let Err(error) = self.end_part() {
            self.abandon();
            return Err(error);
        }
        let GraphRecording { kernels, parts, .. } = std::mem::take(&mut *self.recorded());
        let mut graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        let number = graphs.keys().next_back().map_or(0, |last| last + 1);
        graphs.insert(number, (parts, kernels));
        Ok(number)
    }

    fn replay(&self, recording: u64) -> Result<()> {
        self.bind()?;
        let graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = || Error::Driver { operation: "replaying a graph", reason: "no such graph".to_owned() };
        let (parts, kernels) = graphs.get(&recording).ok_or_else(missing)?;
        for &part in parts {
            // SAFETY: it is alive as long as it is listed; so is what it reads and writes, by the
            // caller.
            unsafe { result::graph::launch(part, self.stream()) }.map_err(failed("replaying a graph"))?;
        }
        self.throttle(*kernels)
    }

    fn forget(&self, recording: u64) {
        let found = self.graphs.lock().unwrap_or_else(PoisonError::into_inner).remove(&recording);
        if self.bind().is_ok() {
            found.into_iter().flat_map(|(parts, _)| parts).for_each(destroy);
        }
    }

    fn blocks_at_once(&self) -> u32 {
        4 * self.multiprocessors
    }

    fn fork(&self, sides: usize) -> Result<()> {
        if is_recording() {
            self.recorded().is_forked = true;
        }
        self.order(0..1, 1..1 + sides)
    }

    fn join(&self, sides: usize) -> Result<()> {
        if is_recording() {
            self.recorded().is_forked = false;
        }
        self.order(1..1 + sides, 0..1)
    }

    fn inject_pauses(&self, seed: Option<u64>) {
        self.pause_state.store(seed.map_or(0, |seed| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1), Ordering::Relaxed);
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

impl Drop for Driver {
    fn drop(&mut self) {
        // A context that failed is gone with its last user: whoever opens the GPU next gets
        // another.
        if self.bind().is_err() {
            // SAFETY: retained by `open`, used no more.
            _ = unsafe { result::primary_ctx::release(self.device) };
            return;
        }
        self.abandon();
        let graphs = std::mem::take(&mut *self.graphs.lock().unwrap_or_else(PoisonError::into_inner));
        graphs.into_values().flat_map(|(parts, _)| parts).for_each(destroy);
        let marks = std::mem::take(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner).marks);
        // SAFETY: everything was made by `open` or since and is used no more. Errors cannot be told
        // to anyone.
        unsafe {
            marks.into_iter().for_each(|mark| _ = result::event::destroy(mark));
            for stream in self.streams.into_iter().filter(|s| !s.is_null()) {
                _ = result::stream::synchronize(stream);
                _ = result::stream::destroy(stream);
            }
            self.staging.get_mut().unwrap_or_else(PoisonError::into_inner).free();
            if !self.module.is_null() {
                _ = result::module::unload(self.module);
            }
            _ = result::primary_ctx::release(self.device);
        }
        CURRENT.set(0);
    }
}
