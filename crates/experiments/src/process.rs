//! What this process used of the machine.

use std::time::{Duration, Instant};

/// Largest resident memory of this process so far, in GiB; 0 where the system does not tell.
pub fn peak_rss_gib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: f64 = line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse().ok()).unwrap_or(0.0);
    kib / f64::from(1 << 20)
}

/// CPU time of this process, all threads.
pub fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a valid timespec on the stack.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How long one run of `f` takes: `(wall, cpu)` seconds, each the least of `runs`.
pub fn time<T>(runs: usize, mut f: impl FnMut() -> T) -> (f64, f64) {
    let (mut wall, mut cpu) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..runs.max(1) {
        let (wall_start, cpu_start) = (Instant::now(), cpu_time());
        std::hint::black_box(f());
        wall = wall.min(wall_start.elapsed().as_secs_f64());
        cpu = cpu.min((cpu_time() - cpu_start).as_secs_f64());
    }
    (wall, cpu)
}

/// Runs `f` on a pool of its own with that many threads.
pub fn with_threads<T: Send>(threads: usize, f: impl FnOnce() -> T + Send) -> crate::Result<T> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|e| crate::Error::Threads { threads, reason: e.to_string() })?;
    Ok(pool.install(f))
}
