//! The kernels on the CPU, for tests: the same sources, compiled by the system's C++ compiler
//! against `emulator.h`.

use super::arguments::KernelArguments;
use crate::device::{Device, KernelTime, is_recording, not_recorded, recording};
use crate::source::{Arithmetic, Kernel, SOURCE};
use crate::{Error, Result};
use std::alloc::Layout;
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const HEADER: &str = include_str!("../../kernels/emulator.h");

type Launch = unsafe extern "C" fn(*const c_char, c_uint, c_uint, c_uint, c_uint, *const c_void) -> c_int;

/// Something queued, as a recording keeps it.
enum Step {
    Launch { kernel: Kernel, grid: (u32, u32), args: Vec<u64> },
    Copy { to: u64, from: u64, bytes: usize },
    Zero { to: u64, bytes: usize },
}

/// A device whose memory is the host's and whose blocks run one after the other.
pub(crate) struct Emulator {
    log_n: u32,
    /// One launch at a time: a block's shared memory is static.
    library: Mutex<libloading::Library>,
    layouts: Mutex<HashMap<u64, Layout>>,
    arithmetic: Arithmetic,
    /// Bytes it has.
    total: usize,
    /// Launches until it is lost.
    launches_left: Arc<AtomicUsize>,
    /// What is being recorded.
    tape: Mutex<Vec<Step>>,
    recordings: Mutex<HashMap<u64, Arc<Vec<Step>>>>,
    recorded: AtomicU64,
}

fn compiler() -> std::ffi::OsString {
    std::env::var_os("CXX").unwrap_or_else(|| "c++".into())
}

/// Whether there is a compiler; says so if not.
pub fn is_present() -> bool {
    let found = Command::new(compiler()).arg("--version").output().is_ok();
    if !found {
        println!("skipped: no C++ compiler");
    }
    found
}

fn failure(reason: impl std::fmt::Display) -> Error {
    Error::Driver { operation: "the emulator", reason: reason.to_string() }
}

impl Emulator {
    /// Compiles the kernels for degree `2^log_n`.
    pub(crate) fn open(log_n: u32, arithmetic: Arithmetic) -> Result<Self> {
        Self::with(log_n, arithmetic, usize::MAX, Arc::new(AtomicUsize::new(usize::MAX)))
    }

    /// [`Emulator::open`] with so many bytes of memory, to be lost after so many launches.
    pub(crate) fn with(
        log_n: u32,
        arithmetic: Arithmetic,
        total: usize,
        launches_left: Arc<AtomicUsize>,
    ) -> Result<Self> {
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("hetal-emulator-{}-{number}", std::process::id()));
        let library = build(&folder, log_n, arithmetic);
        _ = std::fs::remove_dir_all(&folder);
        Ok(Self {
            log_n,
            arithmetic,
            library: Mutex::new(library?),
            layouts: Mutex::default(),
            total,
            launches_left,
            tape: Mutex::default(),
            recordings: Mutex::default(),
            recorded: AtomicU64::new(0),
        })
    }

    /// Notes a step if it is to be recorded, or does it.
    fn queue(&self, step: Step) -> Result<()> {
        if is_recording() {
            self.tape.lock().unwrap_or_else(PoisonError::into_inner).push(step);
            return Ok(());
        }
        self.perform(&step)
    }

    fn perform(&self, step: &Step) -> Result<()> {
        match *step {
            Step::Launch { kernel, grid, ref args } => self.run(kernel, grid, args)?,
            // SAFETY: the backend's buffers have room for what is copied to them.
            Step::Copy { to, from, bytes } => unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) },
            // SAFETY: as above.
            Step::Zero { to, bytes } => unsafe { std::ptr::write_bytes(to as *mut u8, 0, bytes) },
        }
        Ok(())
    }

    fn run(&self, kernel: Kernel, grid: (u32, u32), args: &[u64]) -> Result<()> {
        let one_less = |left: usize| if left == usize::MAX { Some(left) } else { left.checked_sub(1) };
        if self.launches_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err() {
            return Err(Error::Driver { operation: kernel.name(), reason: "the emulated card is lost".to_owned() });
        }
        let name = CString::new(kernel.name()).map_err(failure)?;
        let (threads, blocks) = kernel.shape(self.log_n);
        let library = self.library.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the function has this signature; the kernel reads a struct of the type that was
        // passed, and touches only buffers of this device.
        let code = unsafe {
            let launch = library.get::<Launch>(b"hetal_launch").map_err(failure)?;
            launch(name.as_ptr(), blocks, grid.0, grid.1, threads, args.as_ptr().cast())
        };
        if code == 0 { Ok(()) } else { Err(failure(format!("{} of {threads} threads: code {code}", kernel.name()))) }
    }
}

/// Emulators of this process so far: each is built in a folder of its own.
static OPENED: AtomicUsize = AtomicUsize::new(0);

fn build(folder: &PathBuf, log_n: u32, arithmetic: Arithmetic) -> Result<libloading::Library> {
    std::fs::create_dir_all(folder).map_err(failure)?;
    let (header, source, out) = (folder.join("emulator.h"), folder.join("kernels.cc"), folder.join("kernels.so"));
    std::fs::write(&header, HEADER).map_err(failure)?;
    std::fs::write(&source, SOURCE).map_err(failure)?;
    let done = Command::new(compiler())
        .args(["-std=c++17", "-O1", "-march=native", "-ffp-contract=off", "-fPIC", "-shared", "-w"])
        .args(arithmetic.definitions(log_n))
        .arg("-include")
        .args([&header, &source])
        .arg("-o")
        .arg(&out)
        .output()
        .map_err(failure)?;
    if !done.status.success() {
        return Err(failure(String::from_utf8_lossy(&done.stderr)));
    }
    // SAFETY: the library is ours; its initialisers fill a list.
    unsafe { libloading::Library::new(&out) }.map_err(failure)
}

impl Device for Emulator {
    fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    fn describe(&self) -> String {
        "emulated on the CPU".to_owned()
    }

    fn memory(&self) -> Result<(usize, usize)> {
        let layouts = self.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((self.total - layouts.values().map(Layout::size).sum::<usize>(), self.total))
    }

    fn blocks_at_once(&self) -> u32 {
        16
    }

    fn fork(&self, _sides: usize) -> Result<()> {
        Ok(())
    }

    fn join(&self, _sides: usize) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        let layout = Layout::from_size_align(bytes.max(1), 256).map_err(failure)?;
        let (free, total) = self.memory()?;
        if layout.size() > free {
            return Err(Error::OutOfMemory { needed: bytes, free, total });
        }
        // SAFETY: the layout is not empty.
        let pointer = unsafe { std::alloc::alloc(layout) };
        if pointer.is_null() {
            return Err(Error::OutOfMemory { needed: bytes, free, total });
        }
        // SAFETY: just allocated. The pattern makes reads of memory that nothing wrote show as
        // wrong results.
        unsafe { pointer.write_bytes(0xA5, bytes) };
        self.layouts.lock().unwrap_or_else(PoisonError::into_inner).insert(pointer as u64, layout);
        Ok(pointer as u64)
    }

    fn free(&self, address: u64) {
        if let Some(layout) = self.layouts.lock().unwrap_or_else(PoisonError::into_inner).remove(&address) {
            // SAFETY: allocated by `allocate` with this layout, and freed once as the layout is
            // forgotten.
            unsafe { std::alloc::dealloc(address as *mut u8, layout) };
        }
    }

    fn upload(&self, to: u64, bytes: &[u8]) -> Result<()> {
        not_recorded("copying to the card")?;
        // SAFETY: the backend's buffers have room for what is copied to them.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
        Ok(())
    }

    fn download(&self, from: u64, words: &mut [u64]) -> Result<()> {
        not_recorded("copying from the card")?;
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u64, words.as_mut_ptr(), words.len()) };
        Ok(())
    }

    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.queue(Step::Copy { to, from, bytes })
    }

    fn zero(&self, to: u64, bytes: usize) -> Result<()> {
        self.queue(Step::Zero { to, bytes })
    }

    fn launch(&self, kernel: Kernel, grid: (u32, u32), args: &dyn KernelArguments) -> Result<()> {
        let mut words = vec![0u64; args.size().div_ceil(8)];
        // SAFETY: the words have room for the struct's bytes.
        unsafe { std::ptr::copy_nonoverlapping(args.pointer().cast::<u8>(), words.as_mut_ptr().cast(), args.size()) };
        self.queue(Step::Launch { kernel, grid, args: words })
    }

    fn synchronize(&self) -> Result<()> {
        not_recorded("waiting for the card")
    }

    fn can_record(&self) -> bool {
        true
    }

    fn record(&self, work: &mut dyn FnMut()) -> Result<u64> {
        self.tape.lock().unwrap_or_else(PoisonError::into_inner).clear();
        recording(work);
        let steps = std::mem::take(&mut *self.tape.lock().unwrap_or_else(PoisonError::into_inner));
        let number = self.recorded.fetch_add(1, Ordering::Relaxed);
        self.recordings.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(steps));
        Ok(number)
    }

    fn replay(&self, recording: u64) -> Result<()> {
        let found = self.recordings.lock().unwrap_or_else(PoisonError::into_inner).get(&recording).cloned();
        found.ok_or_else(|| failure("no such recording"))?.iter().try_for_each(|step| self.perform(step))
    }

    fn forget(&self, recording: u64) {
        self.recordings.lock().unwrap_or_else(PoisonError::into_inner).remove(&recording);
    }

    fn profile(&self, _on: bool) -> Vec<KernelTime> {
        Vec::new()
    }
}
