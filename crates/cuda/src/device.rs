//! What the backend asks of a GPU. There are two: a real one through the driver, and an emulator
//! for tests.

use crate::ffi::arguments::KernelArguments;
use crate::source::{Arithmetic, Kernel};
use crate::{Error, Result};
use std::cell::Cell;

/// Time a kernel took, over all its launches since profiling began.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// The kernel.
    pub name: &'static str,
    /// Limbs of each launch (for conversions, groups of source primes).
    pub limbs: u32,
    /// Its launches.
    pub launches: usize,
    /// Seconds on the GPU.
    pub seconds: f64,
}

/// Queues of a GPU that run beside each other. Work is queued on the one of the thread; 0 unless
/// inside of a fork, which uses the others.
pub(crate) const LANES: usize = 1 + SIDES;

/// Sides of a fork at most. An iteration of MNIST took 67.8 ms on an H200 with one, 62.6 with two,
/// 62.3 with three, 62.5 with four (SNIPS 63.4, 59.1, 57.4, 58.3), and every side has buffers of
/// its own.
pub(crate) const SIDES: usize = 3;

thread_local! {
    static LANE: Cell<usize> = const { Cell::new(0) };
}

/// The queue this thread uses.
pub(crate) fn lane() -> usize {
    LANE.get()
}

/// Runs `f` with another queue.
pub(crate) fn in_lane<T>(lane: usize, f: impl FnOnce() -> T) -> T {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            LANE.set(self.0);
        }
    }
    let _restore = Restore(LANE.replace(lane));
    f()
}

thread_local! {
    static RECORDING: Cell<bool> = const { Cell::new(false) };
}

/// Whether what this thread queues is recorded and not done.
pub(crate) fn is_recording() -> bool {
    RECORDING.get()
}

/// Runs `f` as what is recorded.
pub(crate) fn recording<T>(f: impl FnOnce() -> T) -> T {
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            RECORDING.set(false);
        }
    }
    RECORDING.set(true);
    let _restore = Restore;
    f()
}

/// Refuses what a recording cannot hold: what the host gives, takes or waits for.
pub(crate) fn not_recorded(operation: &'static str) -> Result<()> {
    if is_recording() {
        return Err(Error::Driver { operation, reason: "this cannot be recorded".to_owned() });
    }
    Ok(())
}

/// Memory and kernels of one GPU. Everything is queued, in order, on the thread's lane.
pub(crate) trait Device: Send + Sync {
    /// What its kernels compute with.
    fn arithmetic(&self) -> Arithmetic;
    /// Blocks of 256 threads and 64 registers that run at once.
    fn blocks_at_once(&self) -> u32;
    /// The first so many lanes after lane 0 wait for what that has queued.
    fn fork(&self, sides: usize) -> Result<()>;
    /// Lane 0 waits for what they have queued.
    fn join(&self, sides: usize) -> Result<()>;
    /// Words for people: the GPU and its driver.
    fn describe(&self) -> String;
    /// Bytes free and in all.
    fn memory(&self) -> Result<(usize, usize)>;
    fn allocate(&self, bytes: usize) -> Result<u64>;
    fn free(&self, address: u64);
    /// Returns when `bytes` may change again.
    fn upload(&self, to: u64, bytes: &[u8]) -> Result<()>;
    /// Waits for everything queued on this thread's lane.
    fn download(&self, from: u64, words: &mut [u64]) -> Result<()>;
    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()>;
    fn zero(&self, to: u64, bytes: usize) -> Result<()>;
    /// Blocks of one limb times `grid`, of the kernel's number of threads.
    fn launch(&self, kernel: Kernel, grid: (u32, u32), args: &dyn KernelArguments) -> Result<()>;
    fn synchronize(&self) -> Result<()>;
    /// Whether work can be recorded now.
    fn can_record(&self) -> bool;
    /// Records what `work` queues, on all lanes, from this thread, and does nothing of it. Returns
    /// the recording's number.
    fn record(&self, work: &mut dyn FnMut()) -> Result<u64>;
    /// Queues all that was recorded.
    fn replay(&self, recording: u64) -> Result<()>;
    /// Gives a recording up; what is still queued of it is done.
    fn forget(&self, recording: u64);
    /// Puts pauses of random length before kernels, or no longer. What has one queue only has
    /// nothing to delay.
    fn inject_pauses(&self, _seed: Option<u64>) {}
    /// Begins to time kernels (or stops), and tells what was timed.
    fn profile(&self, on: bool) -> Vec<KernelTime>;
}
