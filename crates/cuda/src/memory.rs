//! Device memory: buffers of whole limbs that are used again, tables that stay, and the first error, which is kept.

use crate::device::{Device, LANES, is_recording, lane};
use crate::ffi::arguments::{Plain, bytes_of};
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The first error of a backend. Operations cannot return one, so it is kept, and everything after it does nothing. What
/// fails in a recording is not done yet: it has a place of its own, and ends only recordings.
#[derive(Default)]
pub(crate) struct Health {
    work: OnceLock<Error>,
    recordings: OnceLock<Error>,
}

impl Health {
    fn first(&self) -> &OnceLock<Error> {
        if is_recording() { &self.recordings } else { &self.work }
    }

    /// Whether all went well so far.
    pub(crate) fn check(&self) -> Result<()> {
        self.first().get().map_or(Ok(()), |error| Err(error.clone()))
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.first().get().is_some()
    }

    /// The value, or `None` and a note of the error.
    pub(crate) fn note<T>(&self, result: Result<T>) -> Option<T> {
        result.map_err(|error| _ = self.first().set(error)).ok()
    }

    /// Why nothing is recorded any more, if so.
    pub(crate) fn of_recordings(&self) -> Option<&Error> {
        self.recordings.get()
    }

    /// Ends all recordings.
    pub(crate) fn end_recordings(&self, error: Error) {
        _ = self.recordings.set(error);
    }
}

/// Limbs that are asked of the device at once.
pub(crate) const CHUNK: usize = 256;

/// Buffers of a device, cut from chunks.
pub(crate) struct Pool {
    device: Arc<dyn Device>,
    health: Arc<Health>,
    limb_bytes: usize,
    rooms: Mutex<[Free; 2]>,
    held: AtomicUsize,
    peak: AtomicUsize,
}

/// The rooms: what work is done in, and what recordings work in when they are replayed. Nothing is done while work is
/// recorded, and replays come one after the other, so all recordings share a room; between them, chunks of it that are free
/// may be borrowed for other work.
const WORK: usize = 0;
const RECORDINGS: usize = 1;

/// The room of this thread.
fn room() -> usize {
    if is_recording() { RECORDINGS } else { WORK }
}

/// What is free on each lane.
///
/// What was queued on a lane before a buffer came back runs before what its next owner queues there, so a buffer goes
/// to the lane it was taken on. A fork comes after everything on lane 0 and lends what is free there to either side; lane 0
/// goes on after both sides and takes back all that is free. A buffer that a side gives back but did not take in this fork
/// may still be in use on the other: it waits for the end of the fork. There is one fork at a time.
#[derive(Default)]
struct Free {
    lanes: [Ranges; LANES],
    lent: Ranges,
    waiting: Ranges,
    /// Every chunk's address and limbs.
    chunks: BTreeMap<u64, usize>,
    /// How many forks there were.
    forks: u64,
}

impl Free {
    /// Whether a chunk is of this room and all of it is free outside of forks.
    fn is_free(&self, chunk: u64, size: usize) -> bool {
        [self.chunks.get(&chunk), self.lanes[0].places.get(&chunk)] == [Some(&size); 2]
    }

    /// Takes a free chunk out of the room.
    fn remove(&mut self, chunk: u64) -> Option<usize> {
        let size = self.chunks.remove(&chunk)?;
        self.lanes[0].remove(chunk, size);
        Some(size)
    }
}

/// Ranges of free limbs: by address, and by size. Neighbours are one range, as long as a chunk does not end between them.
#[derive(Default)]
struct Ranges {
    places: BTreeMap<u64, usize>,
    sizes: BTreeSet<(usize, u64)>,
}

impl Ranges {
    fn insert(&mut self, address: u64, limbs: usize) {
        self.places.insert(address, limbs);
        self.sizes.insert((limbs, address));
    }

    fn remove(&mut self, address: u64, limbs: usize) {
        self.places.remove(&address);
        self.sizes.remove(&(limbs, address));
    }

    /// The first limbs of the smallest range that has as many.
    fn take(&mut self, limbs: usize, limb_bytes: usize) -> Option<u64> {
        let &(size, address) = self.sizes.range((limbs, 0)..).next()?;
        self.remove(address, size);
        if size > limbs {
            self.insert(address + (limbs * limb_bytes) as u64, size - limbs);
        }
        Some(address)
    }

    /// Adds a range, joined with its neighbours.
    fn give(&mut self, mut address: u64, mut limbs: usize, limb_bytes: usize, chunks: &BTreeMap<u64, usize>) {
        let end = |address: u64, limbs: usize| address + (limbs * limb_bytes) as u64;
        let after = end(address, limbs);
        if let Some(&next) = self.places.get(&after).filter(|_| !chunks.contains_key(&after)) {
            self.remove(after, next);
            limbs += next;
        }
        let before = self.places.range(..address).next_back().map(|(&place, &size)| (place, size));
        if let Some((place, size)) = before.filter(|&(p, s)| end(p, s) == address && !chunks.contains_key(&address)) {
            self.remove(place, size);
            (address, limbs) = (place, size + limbs);
        }
        self.insert(address, limbs);
    }
}

impl Pool {
    pub(crate) fn new(device: Arc<dyn Device>, health: Arc<Health>, limb_bytes: usize) -> Self {
        let (held, peak) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { device, health, limb_bytes, rooms: Mutex::default(), held, peak }
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
        let lane = lane();
        let (found, fork) = self.find(lane, limbs);
        let address = found.or_else(|| self.health.note(self.allocate(lane, limbs))).unwrap_or(0);
        Buffer { address, limbs, room: room(), lane, fork, pool: Arc::clone(self) }
    }

    fn rooms(&self) -> MutexGuard<'_, [Free; 2]> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Limbs that are free on a lane, and the number of forks so far.
    fn find(&self, lane: usize, limbs: usize) -> (Option<u64>, u64) {
        let free = &mut self.rooms()[room()];
        let own = free.lanes[lane].take(limbs, self.limb_bytes);
        let found = if own.is_some() || lane == 0 { own } else { free.lent.take(limbs, self.limb_bytes) };
        (found, free.forks)
    }

    fn give_back(&self, buffer: &Buffer) {
        let Free { lanes, waiting, chunks, forks, .. } = &mut self.rooms()[buffer.room];
        let lane = lane();
        let is_own = lane == buffer.lane && *forks == buffer.fork;
        let list = if lane == 0 || is_own { &mut lanes[lane] } else { waiting };
        list.give(buffer.address, buffer.limbs, self.limb_bytes, chunks);
    }

    /// Begins a fork: `fork` makes the other lanes wait for lane 0, and what was free there before is then free on them.
    pub(crate) fn lend<T>(&self, fork: impl FnOnce() -> T) -> T {
        let lent = std::mem::take(&mut self.rooms()[room()].lanes[0]);
        let out = fork();
        let Free { lent: place, chunks, forks, .. } = &mut self.rooms()[room()];
        *forks += 1;
        self.pour(lent, place, chunks);
        out
    }

    /// Ends a fork: `join` makes lane 0 wait for the others, and what was free on them before is then free on it.
    pub(crate) fn settle<T>(&self, join: impl FnOnce() -> T) -> T {
        // Before: what comes back later may be in use by work that this join does not wait for.
        let back = {
            let Free { lanes: [_, first, second], lent, waiting, .. } = &mut self.rooms()[room()];
            [first, second, lent, waiting].map(std::mem::take)
        };
        let out = join();
        let Free { lanes: [place, ..], chunks, .. } = &mut self.rooms()[room()];
        back.into_iter().for_each(|ranges| self.pour(ranges, place, chunks));
        out
    }

    fn pour(&self, from: Ranges, to: &mut Ranges, chunks: &BTreeMap<u64, usize>) {
        if to.places.is_empty() {
            *to = from;
            return;
        }
        from.places.into_iter().for_each(|(address, limbs)| to.give(address, limbs, self.limb_bytes, chunks));
    }

    /// The first limbs of a new chunk; of one that has no more, where there is no room for a whole one.
    fn allocate(&self, lane: usize, limbs: usize) -> Result<u64> {
        self.health.check()?;
        let borrowed = self.borrow(limbs);
        let (address, size) = borrowed.map_or_else(|| self.ask(limbs), Ok)?;
        let Free { lanes, chunks, .. } = &mut self.rooms()[room()];
        chunks.insert(address, size);
        if size > limbs {
            lanes[lane].give(address + (limbs * self.limb_bytes) as u64, size - limbs, self.limb_bytes, chunks);
        }
        Ok(address)
    }

    /// A new chunk of the device.
    fn ask(&self, limbs: usize) -> Result<(u64, usize)> {
        let ask = |limbs: usize| self.device.allocate(limbs * self.limb_bytes).map(|address| (address, limbs));
        let (address, size) = ask(limbs.max(CHUNK)).or_else(|_| {
            // Perhaps there is room in chunks that are free.
            self.trim();
            ask(limbs)
        })?;
        let bytes = size * self.limb_bytes;
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(held, Ordering::Relaxed);
        Ok((address, size))
    }

    /// A free chunk of the other room.
    fn borrow(&self, limbs: usize) -> Option<(u64, usize)> {
        let other = &mut self.rooms()[WORK + RECORDINGS - room()];
        let found = other.chunks.iter().filter(|&(&address, &size)| size >= limbs && other.is_free(address, size));
        let (address, size) = found.map(|(&a, &s)| (a, s)).min_by_key(|&(_, size)| size)?;
        other.remove(address);
        Some((address, size))
    }

    /// The chunks of the recordings' room: where they are, and their limbs.
    pub(crate) fn recorded_chunks(&self) -> Vec<(u64, usize)> {
        self.rooms()[RECORDINGS].chunks.iter().map(|(&address, &size)| (address, size)).collect()
    }

    /// Brings chunks back to the recordings' room, if all of them are free.
    pub(crate) fn recall(&self, chunks: &[(u64, usize)]) -> bool {
        let [work, recordings] = &mut *self.rooms();
        if !chunks.iter().all(|&(address, size)| [&work, &recordings].iter().any(|room| room.is_free(address, size))) {
            return false;
        }
        for &(address, _) in chunks {
            if let Some(size) = work.remove(address) {
                recordings.chunks.insert(address, size);
                recordings.lanes[0].insert(address, size);
            }
        }
        true
    }

    /// Gives chunks that are free back to the device.
    pub(crate) fn trim(&self) {
        let rooms = &mut *self.rooms();
        // What was queued may still use what is free; what comes back later waits for the lock.
        if self.device.synchronize().is_err() {
            return;
        }
        for Free { lanes, lent, chunks, .. } in rooms {
            chunks.retain(|&address, &mut limbs| {
                let mut all = lanes.iter_mut().chain([&mut *lent]);
                let Some(ranges) = all.find(|ranges| ranges.places.get(&address) == Some(&limbs)) else { return true };
                ranges.remove(address, limbs);
                self.device.free(address);
                self.held.fetch_sub(limbs * self.limb_bytes, Ordering::Relaxed);
                false
            });
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let chunks = self.rooms().each_mut().map(|room| std::mem::take(&mut room.chunks));
        chunks.into_iter().flat_map(BTreeMap::into_keys).for_each(|address| self.device.free(address));
    }
}

/// Limbs of device memory. Returns to its pool when dropped.
pub(crate) struct Buffer {
    address: u64,
    limbs: usize,
    /// Where it was taken, and after how many forks.
    room: usize,
    lane: usize,
    fork: u64,
    pool: Arc<Pool>,
}

impl Buffer {
    /// Where it is.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Whether only this lane can have queued work on it: what another may still read must not be written.
    pub(crate) fn is_of_this_lane(&self) -> bool {
        let lane = lane();
        lane == 0 || (lane == self.lane && self.pool.rooms()[self.room].forks == self.fork)
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
    fn neighbours_become_one_range_but_not_across_chunks() {
        let chunks = BTreeMap::from([(1000, 8), (1080, 8)]);
        let mut ranges = Ranges::default();
        for (address, limbs) in [(1000, 2), (1050, 3), (1080, 8), (1020, 3)] {
            ranges.give(address, limbs, 10, &chunks);
        }
        assert_eq!(ranges.places, BTreeMap::from([(1000, 8), (1080, 8)]));
        // The smallest that is large enough, from its start.
        ranges.remove(1080, 8);
        ranges.give(1110, 5, 10, &chunks);
        assert_eq!(ranges.take(4, 10), Some(1110));
        assert_eq!(ranges.take(6, 10), Some(1000));
        assert_eq!(ranges.take(6, 10), None);
        assert_eq!(ranges.places, BTreeMap::from([(1060, 2), (1150, 1)]));
        assert_eq!(ranges.sizes, BTreeSet::from([(2, 1060), (1, 1150)]));
    }
}
