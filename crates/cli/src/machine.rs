//! Memory and disk of this machine, and core dumps of this process.

pub use hetal_experiments::process::peak_rss_gib;

/// A field of `/proc/meminfo` in bytes; `None` where the system does not tell.
fn meminfo(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Memory that programs can still have.
pub fn available_memory_bytes() -> Option<u64> {
    meminfo("MemAvailable")
}

/// All memory.
pub fn memory_bytes() -> Option<u64> {
    meminfo("MemTotal")
}

/// Free bytes on the disk of a folder; `None` where the system does not tell.
#[cfg(unix)]
pub fn free_disk_bytes(folder: &std::path::Path) -> Option<u64> {
    let path = std::ffi::CString::new(std::os::unix::ffi::OsStrExt::as_bytes(folder.as_os_str())).ok()?;
    let mut stat: std::mem::MaybeUninit<libc::statvfs> = std::mem::MaybeUninit::uninit();
    // SAFETY: the path ends in a zero, and the pointer is to memory of the right size.
    if unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it has filled the structure.
    let stat = unsafe { stat.assume_init() };
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Free bytes on the disk of a folder; `None` where the system does not tell.
#[cfg(not(unix))]
pub fn free_disk_bytes(_folder: &std::path::Path) -> Option<u64> {
    None
}

/// No core dump of this process from now on, and no other process of its user looks into its memory: a secret key may be there.
#[cfg(unix)]
pub fn forbid_core_dumps() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure outlives the call. Lowering a limit always succeeds.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
    // Systems that hand cores to a program ignore the limit, but not this.
    #[cfg(target_os = "linux")]
    // SAFETY: takes numbers only.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0)
    };
}

/// There are no core dumps here.
#[cfg(not(unix))]
pub fn forbid_core_dumps() {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #[test]
    fn a_process_that_holds_a_key_leaves_no_core() {
        super::forbid_core_dumps();
        let mut limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        // SAFETY: the structure outlives the call.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_CORE, &raw mut limit) }, 0);
        assert_eq!((limit.rlim_cur, limit.rlim_max), (0, 0));
        // SAFETY: takes numbers only.
        assert_eq!(unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) }, 0);
    }
}
