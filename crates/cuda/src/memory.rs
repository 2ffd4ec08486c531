//! Device memory: buffers of whole limbs that are used again, tables that stay, and the first error, which is kept.

use crate::device::{Device, LANES, lane};
use crate::ffi::arguments::{Plain, bytes_of};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The first error of a backend. Operations cannot return one, so it is kept, and everything after it does nothing.
#[derive(Default)]
pub(crate) struct Health(OnceLock<Error>);

impl Health {
    /// Whether all went well so far.
    pub(crate) fn check(&self) -> Result<()> {
        self.0.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.0.get().is_some()
    }

    /// The value, or `None` and a note of the error.
    pub(crate) fn note<T>(&self, result: Result<T>) -> Option<T> {
        result.map_err(|error| _ = self.0.set(error)).ok()
    }
}

/// Buffers of a device.
pub(crate) struct Pool {
    device: Arc<dyn Device>,
    health: Arc<Health>,
    limb_bytes: usize,
    free: Mutex<Free>,
    held: AtomicUsize,
    peak: AtomicUsize,
}

/// Addresses that are free, by size in limbs.
///
/// What was queued on a lane before a buffer came back runs before what its next owner queues there, so a buffer goes
/// to the lane it was taken on. Outside of forks lane 0 comes after all others, and takes every buffer. One that a
/// forked lane gives back but did not take may still be in use on another: it waits for the end of the fork.
#[derive(Default)]
struct Free {
    lanes: [BTreeMap<usize, Vec<u64>>; LANES],
    waiting: Vec<(usize, u64)>,
}

impl Pool {
    pub(crate) fn new(device: Arc<dyn Device>, health: Arc<Health>, limb_bytes: usize) -> Self {
        Self {
            device,
            health,
            limb_bytes,
            free: Mutex::default(),
            held: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
        }
    }

    /// Bytes held from the device.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// The most it ever held.
    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// A buffer with arbitrary contents; without memory behind it once something failed.
    pub(crate) fn take(self: &Arc<Self>, limbs: usize) -> Buffer {
        let limbs = size_class(limbs);
        let lane = lane();
        let known = self.free().lanes[lane].get_mut(&limbs).and_then(Vec::pop);
        let address = known.or_else(|| self.health.note(self.allocate(limbs))).unwrap_or(0);
        Buffer { address, limbs, lane, pool: Arc::clone(self) }
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, buffer: &Buffer) {
        let mut free = self.free();
        match lane() {
            lane if lane == 0 || lane == buffer.lane => {
                free.lanes[lane].entry(buffer.limbs).or_default().push(buffer.address);
            }
            _ => free.waiting.push((buffer.limbs, buffer.address)),
        }
    }

    /// Ends a fork: `join` makes lane 0 wait for the others, and then what waited for that is free.
    pub(crate) fn settle<T>(&self, join: impl FnOnce() -> T) -> T {
        // Before: what comes to wait later may be in use by work that this join does not wait for.
        let waiting = std::mem::take(&mut self.free().waiting);
        let out = join();
        let mut free = self.free();
        for (limbs, address) in waiting {
            free.lanes[0].entry(limbs).or_default().push(address);
        }
        out
    }

    fn allocate(&self, limbs: usize) -> Result<u64> {
        self.health.check()?;
        let bytes = limbs * self.limb_bytes;
        let address = self.device.allocate(bytes).or_else(|error| {
            // Perhaps the room is in buffers of other sizes.
            self.trim();
            self.device.allocate(bytes).map_err(|_| error)
        })?;
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(held, Ordering::Relaxed);
        Ok(address)
    }

    /// Gives unused buffers back to the device.
    pub(crate) fn trim(&self) {
        let free = std::mem::take(&mut self.free().lanes);
        for (limbs, addresses) in free.into_iter().flatten() {
            for address in addresses {
                self.device.free(address);
                self.held.fetch_sub(limbs * self.limb_bytes, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.trim();
    }
}

/// Sizes that buffers are rounded up to, so that one of a few limbs more serves again.
pub(crate) fn size_class(limbs: usize) -> usize {
    let grain = if limbs < 16 { 1 } else { 1 << (limbs / 8).ilog2() };
    limbs.next_multiple_of(grain)
}

/// Limbs of device memory. Returns to its pool when dropped.
pub(crate) struct Buffer {
    address: u64,
    limbs: usize,
    /// Where it was taken.
    lane: usize,
    pool: Arc<Pool>,
}

impl Buffer {
    /// Where it is.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Limbs there is room for.
    pub(crate) fn limbs(&self) -> usize {
        self.limbs
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.address != 0 {
            self.pool.give_back(self);
        }
    }
}

/// A table of constants on the device.
pub(crate) struct Table {
    address: u64,
    len: usize,
    device: Arc<dyn Device>,
}

impl Table {
    pub(crate) fn new<T: Plain>(device: &Arc<dyn Device>, elements: &[T]) -> Result<Self> {
        let bytes = bytes_of(elements);
        let table =
            Self { address: device.allocate(bytes.len().max(16))?, len: elements.len(), device: Arc::clone(device) };
        device.upload(table.address, bytes)?;
        // It will be read on every lane.
        device.synchronize()?;
        Ok(table)
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> u32 {
        self.len as u32
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.device.free(self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_waste_little() {
        for limbs in 1..2000 {
            let class = size_class(limbs);
            assert!(class >= limbs && class - limbs <= limbs / 8, "{limbs} -> {class}");
            assert_eq!(size_class(class), class);
        }
    }
}
