//! Memory and disk of this machine, and core dumps of this process.

pub use hetal_experiments::process::peak_rss_gib;

/// A field of `/proc/meminfo` in bytes; `None` if the system does not report it.
fn meminfo(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Memory that is available to programs, in bytes.
pub fn available_memory_bytes() -> Option<u64> {
    meminfo("MemAvailable")
}

/// All memory of the machine, in bytes.
pub fn memory_bytes() -> Option<u64> {
    meminfo("MemTotal")
}

/// Free bytes on the file system of a folder; `None` if the system does not report them.
#[cfg(unix)]
pub fn free_disk_bytes(folder: &std::path::Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Free bytes on the file system of a folder; `None` if the system does not report them.
#[cfg(not(unix))]
pub fn free_disk_bytes(_folder: &std::path::Path) -> Option<u64> {
    None
}

/// Disables core dumps of this process, whose memory may hold a secret key.
///
/// On Linux it also stops other processes of the same user from reading that memory.
#[cfg(unix)]
pub fn forbid_core_dumps() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    // Lowering a limit always succeeds.
    _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    // A system that pipes core dumps to a program ignores the limit, but not this.
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
}

/// Does nothing: this system has no core dumps.
#[cfg(not(unix))]
pub fn forbid_core_dumps() {}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use rustix::process::{DumpableBehavior, Resource, dumpable_behavior, getrlimit};

    #[test]
    fn a_process_that_holds_a_key_leaves_no_core() {
        super::forbid_core_dumps();
        let limit = getrlimit(Resource::Core);
        assert_eq!((limit.current, limit.maximum), (Some(0), Some(0)));
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }
}
