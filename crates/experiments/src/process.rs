//! Resources of this process: memory, CPU time, threads.

use crate::{Error, Result};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// The largest resident memory of this process so far, in GiB; 0 if the system does not report it.
pub fn peak_rss_gib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: f64 = line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse().ok()).unwrap_or(0.0);
    kib / f64::from(1 << 20)
}

/// CPU time of this process, summed over its threads.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Seconds of one run.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Elapsed seconds.
    pub wall: f64,
    /// CPU seconds, summed over threads.
    pub cpu: f64,
}

impl Timing {
    /// The starting value of a minimum: longer than any run.
    pub const LONGEST: Self = Self { wall: f64::INFINITY, cpu: f64::INFINITY };

    /// The smaller of two timings, field by field.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self { wall: self.wall.min(other.wall), cpu: self.cpu.min(other.cpu) }
    }
}

/// Times `runs` runs of `f` and returns the smallest wall time and the smallest CPU time.
pub fn time<T>(runs: usize, mut f: impl FnMut() -> T) -> Timing {
    let mut best = Timing::LONGEST;
    for _ in 0..runs.max(1) {
        let (wall_start, cpu_start) = (Instant::now(), cpu_time());
        std::hint::black_box(f());
        let wall = wall_start.elapsed().as_secs_f64();
        best = best.min(Timing { wall, cpu: (cpu_time() - cpu_start).as_secs_f64() });
    }
    best
}

/// Runs `f` in a thread pool of its own with `threads` threads.
pub fn with_threads<T: Send>(threads: usize, f: impl FnOnce() -> T + Send) -> Result<T> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|e| Error::Threads { threads, reason: e.to_string() })?;
    Ok(pool.install(f))
}
