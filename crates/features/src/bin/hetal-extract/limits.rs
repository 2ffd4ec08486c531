//! Limits on the memory and the open files of the worker.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Files that may be open at a time: a few for each thread, and a hundred that a GPU's
/// driver opens.
const FILES: u64 = 1024;

/// The memory for reading a Parquet or Arrow file, which is read in parts.
const TABLE_MEMORY: u64 = 4 << 30;
/// The seconds of processor time for reading one. The largest result has 16 GiB.
const TABLE_SECONDS: u64 = 3600;

const GIB: f64 = (1u64 << 30) as f64;

/// Limits of the worker.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of memory; none where the machine does not say how much it has.
    pub memory: Option<u64>,
    /// Open files.
    pub files: u64,
    /// Seconds of processor time.
    pub seconds: Option<u64>,
}

impl Limits {
    /// So many GiB of memory, or three quarters of the machine's.
    pub fn new(memory_gib: Option<f64>) -> Self {
        let memory = match memory_gib {
            Some(gib) => Some((gib * GIB) as u64),
            None => machine_memory().map(|bytes| bytes / 4 * 3),
        };
        Self { memory, files: FILES, seconds: None }
    }

    /// The limits for reading a Parquet or Arrow file.
    pub fn of_tables() -> Self {
        let memory = Self::new(None).memory.map_or(TABLE_MEMORY, |most| most.min(TABLE_MEMORY));
        Self { memory: Some(memory), files: FILES, seconds: Some(TABLE_SECONDS) }
    }

    /// The memory in GiB, for messages.
    pub fn memory_gib(&self) -> Option<f64> {
        self.memory.map(|bytes| bytes as f64 / GIB)
    }

    /// Sets the limits of this process, for good. The limit on memory is that of the data segment:
    /// a limit on addresses would refuse the large ranges that a GPU's driver reserves.
    #[cfg(unix)]
    pub fn apply(&self) -> Result<()> {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let set = |resource, most: u64| {
            // Nobody may raise a limit that was set before.
            let most = Some(getrlimit(resource).maximum.map_or(most, |before| before.min(most)));
            setrlimit(resource, Rlimit { current: most, maximum: most }).map_err(|error| Error::Limits(error.into()))
        };
        set(Resource::Core, 0)?;
        set(Resource::Nofile, self.files)?;
        self.seconds.map_or(Ok(()), |seconds| set(Resource::Cpu, seconds))?;
        self.memory.map_or(Ok(()), |memory| set(Resource::Data, memory))
    }

    /// Other systems have no such limits.
    #[cfg(not(unix))]
    pub fn apply(&self) -> Result<()> {
        Ok(())
    }
}

/// The memory of the machine, or of the container this runs in.
fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let machine = line.split_whitespace().next()?.parse::<u64>().ok()? << 10;
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let container = container.and_then(|text| text.trim().parse::<u64>().ok());
    Some(container.map_or(machine, |bytes| bytes.min(machine)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_is_asked_for_or_most_of_the_machine_s() {
        assert_eq!(Limits::new(Some(1.5)).memory, Some(3 << 29));
        if let Some(all) = machine_memory() {
            let share = Limits::new(None).memory.unwrap_or_default() as f64 / all as f64;
            assert!((0.7..0.8).contains(&share), "{share}");
        }
        assert!(Limits::of_tables().memory.is_some_and(|bytes| bytes <= TABLE_MEMORY));
    }
}
