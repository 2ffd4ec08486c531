//! Memory and disk of this machine, and core dumps of this process.

use std::path::Path;

/// The folders of the control group of this process, versions 2 and 1, as containers see them.
#[cfg(target_os = "linux")]
const CONTROL_GROUPS: [(&str, &str, &str); 2] = [
    ("/sys/fs/cgroup", "memory.max", "memory.current"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
];

/// Bytes that a control group still allows; `None` if it has no limit.
#[cfg(target_os = "linux")]
fn allowed_by(group: &Path, limit: &str, usage: &str) -> Option<u64> {
    let number = |file: &str| std::fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    let cached = || {
        let text = std::fs::read_to_string(group.join("memory.stat")).ok()?;
        // Pages of files are given back when programs need memory.
        text.lines().find_map(|line| line.strip_prefix("inactive_file "))?.parse::<u64>().ok()
    };
    let used = number(usage)?.saturating_sub(cached().unwrap_or(0));
    Some(number(limit)?.saturating_sub(used))
}

/// Bytes that the control group of this process still allows; `None` if it has no limit.
#[cfg(target_os = "linux")]
fn allowed_by_control_group() -> Option<u64> {
    CONTROL_GROUPS.iter().find_map(|(group, limit, usage)| allowed_by(Path::new(group), limit, usage))
}

#[cfg(not(target_os = "linux"))]
fn allowed_by_control_group() -> Option<u64> {
    None
}

/// Bytes that this process may still allocate (`ulimit -v`); `None` if it has no limit.
#[cfg(target_os = "linux")]
fn allowed_by_limit() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::As).current?;
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages = text.split_whitespace().next()?.parse::<u64>().ok()?;
    Some(limit.saturating_sub(pages * rustix::param::page_size() as u64))
}

#[cfg(not(target_os = "linux"))]
fn allowed_by_limit() -> Option<u64> {
    None
}

/// A field of `/proc/meminfo` in bytes; `None` if the system does not report it.
fn meminfo(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Memory that is available to this process, in bytes: that of the machine, or what its container
/// or its limit still allows.
pub fn available_memory_bytes() -> Option<u64> {
    meminfo("MemAvailable").into_iter().chain(allowed_by_control_group()).chain(allowed_by_limit()).min()
}

/// All memory of the machine, in bytes.
pub fn memory_bytes() -> Option<u64> {
    meminfo("MemTotal")
}

/// Free bytes on the file system of a folder; `None` if the system does not report them.
#[cfg(unix)]
pub fn free_disk_bytes(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Free bytes on the file system of a folder; `None` if the system does not report them.
#[cfg(not(unix))]
pub fn free_disk_bytes(_folder: &Path) -> Option<u64> {
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
    fn the_limit_of_a_container_counts() {
        let folder = hetal_testkit::TempDir::new();
        let write = |file: &str, text: &str| std::fs::write(folder.path().join(file), text).unwrap();
        let allowed = || super::allowed_by(folder.path(), "memory.max", "memory.current");
        assert_eq!(allowed(), None);
        write("memory.max", "8000\n");
        write("memory.current", "3000\n");
        assert_eq!(allowed(), Some(5000));
        write("memory.stat", "anon 1\ninactive_file 1000\n");
        assert_eq!(allowed(), Some(6000));
        write("memory.max", "max\n");
        assert_eq!(allowed(), None);
    }

    #[test]
    fn a_process_that_holds_a_key_leaves_no_core() {
        super::forbid_core_dumps();
        let limit = getrlimit(Resource::Core);
        assert_eq!((limit.current, limit.maximum), (Some(0), Some(0)));
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }
}
