//! Device memory: buffers of whole limbs that are used again, tables that stay, and the first
//! error, which is kept.

use crate::device::{Device, LANES, is_recording, lane};
use crate::ffi::arguments::{Pod, bytes_of};
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;

/// The first error of a backend. Operations cannot return one, so it is kept, and everything after
/// it does nothing. What fails in a recording is not done yet: it has a place of its own, and ends
/// only recordings.
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

    /// Notes an error of work, also while something is recorded.
    pub(crate) fn refuse(&self, error: Error) {
        _ = self.work.set(error);
    }

    /// Ends all recordings.
    pub(crate) fn end_recordings(&self, error: Error) {
        _ = self.recordings.set(error);
    }
}

/// Limbs that are asked of the device at once.
pub(crate) const CHUNK: usize = 256;

/// Memory that the device gave at once: its address and its length in limbs.
pub(crate) type Chunk = (u64, usize);

/// Buffers of a device, cut from chunks.
pub(crate) struct DevicePool {
    device: Arc<dyn Device>,
    health: Arc<Health>,
    limb_bytes: usize,
    arenas: Mutex<Arenas>,
    /// Told when the recordings' arena is open again.
    opened: Condvar,
    held: AtomicUsize,
    peak: AtomicUsize,
}

/// Two arenas: one for ordinary work, one for what recordings write when they are replayed.
///
/// Recordings are replayed one after the other, so all of them share one arena. Between replays,
/// its free chunks are lent to ordinary work if the GPU has no more memory.
#[derive(Default)]
struct Arenas {
    free: [Free; 2],
    /// The thread that records or replays something. A replay also uses memory that is marked as
    /// free, so no chunk leaves the recordings' arena meanwhile.
    reserved_by: Option<ThreadId>,
    /// How often that began or ended.
    reserved: u64,
}

const WORK: usize = 0;
const RECORDINGS: usize = 1;

/// The arena of this thread.
fn arena() -> usize {
    if is_recording() { RECORDINGS } else { WORK }
}

/// What is free on each lane.
///
/// Work on one lane runs in the order in which it was queued. So a buffer goes back to the lane it
/// was taken on: its next owner there queues work after that of the last one.
///
/// There is one fork at a time. A fork begins after everything on lane 0, and lends the free
/// buffers of lane 0 to the other lanes. At its end lane 0 waits for them and takes all free
/// buffers back. A lane may return a buffer that it did not take in this fork. Another lane may
/// still use that buffer, so it is free only after the fork. The same holds for a buffer that
/// another thread returns on lane 0 during the fork.
#[derive(Default)]
struct Free {
    lanes: [Ranges; LANES],
    lent: Ranges,
    waiting: Ranges,
    /// Every chunk's address and limbs.
    chunks: BTreeMap<u64, usize>,
    /// How many forks there were.
    forks: u64,
    /// Whether the other lanes are in use.
    is_forked: bool,
    /// [`Arenas::reserved`] when the last fork began.
    reserved_at_fork: u64,
}

impl Free {
    /// Whether a chunk is of this arena and all of it is free outside of forks.
    fn is_free(&self, chunk: u64, size: usize) -> bool {
        [self.chunks.get(&chunk), self.lanes[0].places.get(&chunk)] == [Some(&size); 2]
    }

    /// Takes a free chunk out of the arena.
    fn remove(&mut self, chunk: u64) -> Option<usize> {
        let size = self.chunks.remove(&chunk)?;
        self.lanes[0].remove(chunk, size);
        Some(size)
    }
}

/// Ranges of free limbs: by address, and by size. Neighbours are one range, as long as a chunk does
/// not end between them.
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

impl DevicePool {
    pub(crate) fn new(device: Arc<dyn Device>, health: Arc<Health>, limb_bytes: usize) -> Self {
        let (held, peak) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { device, health, limb_bytes, arenas: Mutex::default(), opened: Condvar::new(), held, peak }
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
        let nowhere = || Buffer { address: 0, limbs, arena: arena(), lane: lane(), fork: 0, pool: Arc::clone(self) };
        self.health.note(self.try_take(limbs)).unwrap_or_else(nowhere)
    }

    /// A buffer with arbitrary contents, for those who can do without it.
    pub(crate) fn try_take(self: &Arc<Self>, limbs: usize) -> Result<Buffer> {
        let lane = lane();
        let (found, fork) = self.find(lane, limbs);
        let address = found.map_or_else(|| self.allocate(lane, limbs), Ok)?;
        Ok(Buffer { address, limbs, arena: arena(), lane, fork, pool: Arc::clone(self) })
    }

    fn arenas(&self) -> MutexGuard<'_, Arenas> {
        self.arenas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Limbs that are free on a lane, and the number of forks so far.
    fn find(&self, lane: usize, limbs: usize) -> (Option<u64>, u64) {
        let free = &mut self.arenas().free[arena()];
        let own = free.lanes[lane].take(limbs, self.limb_bytes);
        let found = if own.is_some() || lane == 0 { own } else { free.lent.take(limbs, self.limb_bytes) };
        (found, free.forks)
    }

    fn give_back(&self, buffer: &Buffer) {
        let Free { lanes, waiting, chunks, forks, is_forked, .. } = &mut self.arenas().free[buffer.arena];
        let lane = lane();
        let is_own = lane == buffer.lane && *forks == buffer.fork;
        let is_free = if lane == 0 { !*is_forked } else { is_own };
        let list = if is_free { &mut lanes[lane] } else { waiting };
        list.give(buffer.address, buffer.limbs, self.limb_bytes, chunks);
    }

    /// Begins a fork: `fork` makes the other lanes wait for lane 0, and what was free there before
    /// is then free on them.
    pub(crate) fn begin_fork<T>(&self, fork: impl FnOnce() -> T) -> T {
        let lent = {
            let Arenas { free, reserved, .. } = &mut *self.arenas();
            let Free { lanes: [first, ..], is_forked, reserved_at_fork, .. } = &mut free[arena()];
            // Before the fork: what is queued on lane 0 while this is not yet so comes before the
            // other lanes.
            *is_forked = true;
            *reserved_at_fork = *reserved;
            std::mem::take(first)
        };
        let out = fork();
        let Free { lent: place, chunks, forks, .. } = &mut self.arenas().free[arena()];
        *forks += 1;
        self.merge(lent, place, chunks);
        out
    }

    /// Ends a fork: `join` makes lane 0 wait for the others, and what was free on them before is
    /// then free on it.
    pub(crate) fn end_fork<T>(&self, join: impl FnOnce() -> T) -> T {
        // Before: what comes back later may be in use by work that this join does not wait for.
        let back = {
            let Free { lanes: [_, sides @ ..], lent, waiting, .. } = &mut self.arenas().free[arena()];
            sides.iter_mut().chain([lent, waiting]).map(std::mem::take).collect::<Vec<_>>()
        };
        let out = join();
        let Free { lanes: [place, ..], waiting, chunks, is_forked, .. } = &mut self.arenas().free[arena()];
        *is_forked = false;
        // What another thread gave back meanwhile was read by nothing that was queued since.
        let back = back.into_iter().chain([std::mem::take(waiting)]);
        back.for_each(|ranges| self.merge(ranges, place, chunks));
        out
    }

    fn merge(&self, from: Ranges, to: &mut Ranges, chunks: &BTreeMap<u64, usize>) {
        if to.places.is_empty() {
            *to = from;
            return;
        }
        from.places.into_iter().for_each(|(address, limbs)| to.give(address, limbs, self.limb_bytes, chunks));
    }

    /// The first limbs of a chunk that is new to the arena; of one that has no more, where the
    /// card has no memory for a whole one.
    fn allocate(&self, lane: usize, limbs: usize) -> Result<u64> {
        self.health.check()?;
        let chunk = || self.allocate_chunk(limbs.max(CHUNK)).ok();
        // What stays for long in the recordings' arena ends their replays: work asks the GPU
        // first.
        let found =
            if is_recording() { self.borrow(limbs).or_else(chunk) } else { chunk().or_else(|| self.borrow(limbs)) };
        let last = || {
            // Perhaps there is space in chunks that are free, or will be once another thread has
            // queued its replay.
            self.wait_until_open();
            self.borrow(limbs).map_or_else(
                || {
                    self.trim(&[]);
                    self.allocate_chunk(limbs)
                },
                Ok,
            )
        };
        let (address, size) = found.map_or_else(last, Ok)?;
        let Free { lanes, chunks, .. } = &mut self.arenas().free[arena()];
        chunks.insert(address, size);
        if size > limbs {
            lanes[lane].give(address + (limbs * self.limb_bytes) as u64, size - limbs, self.limb_bytes, chunks);
        }
        Ok(address)
    }

    /// A new chunk of the device.
    fn allocate_chunk(&self, limbs: usize) -> Result<(u64, usize)> {
        let bytes = limbs * self.limb_bytes;
        let address = self.device.allocate(bytes)?;
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(held, Ordering::Relaxed);
        Ok((address, limbs))
    }

    /// Waits while another thread has the recordings' arena; not in a fork, which that thread may
    /// be waiting for.
    fn wait_until_open(&self) {
        if lane() != 0 {
            return;
        }
        let me = std::thread::current().id();
        let is_closed = |arenas: &mut Arenas| arenas.reserved_by.is_some_and(|thread| thread != me);
        drop(self.opened.wait_while(self.arenas(), is_closed).unwrap_or_else(PoisonError::into_inner));
    }

    /// A free chunk of the other arena. A side of a fork gets none once something was replayed
    /// since the fork, which it does not wait for.
    fn borrow(&self, limbs: usize) -> Option<(u64, usize)> {
        let Arenas { free, reserved_by, reserved } = &mut *self.arenas();
        if arena() == WORK && (reserved_by.is_some() || (lane() != 0 && free[WORK].reserved_at_fork != *reserved)) {
            return None;
        }
        let other = &mut free[WORK + RECORDINGS - arena()];
        let found = other.chunks.iter().filter(|&(&address, &size)| size >= limbs && other.is_free(address, size));
        let (address, size) = found.map(|(&a, &s)| (a, s)).min_by_key(|&(_, size)| size)?;
        other.remove(address);
        Some((address, size))
    }

    /// Whether other lanes than the first are in use.
    pub(crate) fn is_forked(&self) -> bool {
        self.arenas().free[arena()].is_forked
    }

    /// The chunks of the recordings' arena.
    pub(crate) fn recorded_chunks(&self) -> Vec<Chunk> {
        self.arenas().free[RECORDINGS].chunks.iter().map(|(&address, &size)| (address, size)).collect()
    }

    /// Whether there still is a chunk, in either arena.
    pub(crate) fn has(&self, &(address, size): &Chunk) -> bool {
        self.arenas().free.iter().any(|arena| arena.chunks.get(&address) == Some(&size))
    }

    /// Brings chunks back to the recordings' arena, if all of them are free, and closes it to other
    /// work.
    pub(crate) fn reserve(&self, chunks: &[Chunk]) -> Option<Reserved<'_>> {
        let Arenas { free: [work, recordings], reserved_by, reserved } = &mut *self.arenas();
        let is_free = |&(address, size): &Chunk| [&work, &recordings].iter().any(|arena| arena.is_free(address, size));
        if reserved_by.is_some() || !chunks.iter().all(is_free) {
            return None;
        }
        for &(address, _) in chunks {
            if let Some(size) = work.remove(address) {
                recordings.chunks.insert(address, size);
                recordings.lanes[0].insert(address, size);
            }
        }
        *reserved_by = Some(std::thread::current().id());
        *reserved += 1;
        Some(Reserved(self))
    }

    /// Gives chunks that are free back to the device, but for some.
    pub(crate) fn trim(&self, kept: &[Chunk]) {
        let Arenas { free, reserved_by, .. } = &mut *self.arenas();
        // What was queued may still use what is free; what comes back later waits for the lock.
        if self.device.synchronize().is_err() {
            return;
        }
        let last = if reserved_by.is_some() { WORK } else { RECORDINGS };
        for Free { lanes, lent, chunks, .. } in &mut free[..=last] {
            chunks.retain(|&address, &mut limbs| {
                let mut all = lanes.iter_mut().chain([&mut *lent]);
                let Some(ranges) = all.find(|ranges| ranges.places.get(&address) == Some(&limbs)) else { return true };
                if kept.contains(&(address, limbs)) {
                    return true;
                }
                ranges.remove(address, limbs);
                self.release(address, limbs);
                self.held.fetch_sub(limbs * self.limb_bytes, Ordering::Relaxed);
                false
            });
        }
    }
}

impl DevicePool {
    /// Gives a chunk back to the GPU, whose memory goes to whoever asks next: what was one
    /// tenant's is no other's. A GPU that failed keeps it.
    fn release(&self, address: u64, limbs: usize) {
        _ = self.device.zero(address, limbs * self.limb_bytes);
        self.device.free(address);
    }
}

impl Drop for DevicePool {
    fn drop(&mut self) {
        let chunks = self.arenas().free.each_mut().map(|arena| std::mem::take(&mut arena.chunks));
        for (address, limbs) in chunks.into_iter().flatten() {
            self.release(address, limbs);
        }
    }
}

/// The recordings' arena while something is recorded or replayed in it. It is open to other work
/// again when this is dropped.
pub(crate) struct Reserved<'a>(&'a DevicePool);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut arenas = self.0.arenas();
        arenas.reserved_by = None;
        // What it queued may come after a fork that began meanwhile.
        arenas.reserved += 1;
        drop(arenas);
        self.0.opened.notify_all();
    }
}

/// Limbs of device memory. Returns to its pool when dropped.
pub(crate) struct Buffer {
    address: u64,
    limbs: usize,
    /// Where it was taken, and after how many forks.
    arena: usize,
    lane: usize,
    fork: u64,
    pool: Arc<DevicePool>,
}

impl Buffer {
    /// Where it is.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Whether only this lane can have queued work on it: what another may still read must not be
    /// written.
    pub(crate) fn is_of_this_lane(&self) -> bool {
        let (lane, free) = (lane(), &self.pool.arenas().free[self.arena]);
        // On lane 0 within a fork is another thread than the one that forked, whose sides may have
        // read it.
        if lane == 0 { !free.is_forked } else { lane == self.lane && free.forks == self.fork }
    }

    /// Limbs that there is memory for.
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
pub(crate) struct DeviceTable {
    address: u64,
    len: usize,
    device: Arc<dyn Device>,
}

impl DeviceTable {
    pub(crate) fn new<T: Pod>(device: &Arc<dyn Device>, elements: &[T]) -> Result<Self> {
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

impl Drop for DeviceTable {
    fn drop(&mut self) {
        self.device.free(self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{in_lane, recording};
    use crate::ffi::emulator::{Emulator, is_present};
    use crate::source::Arithmetic;

    /// Other threads may work while one records or replays.
    #[test]
    fn no_chunk_leaves_the_recordings_arena_while_it_is_reserved() {
        if !is_present() {
            return;
        }
        let launches = Arc::new(AtomicUsize::new(usize::MAX));
        let card = Emulator::with(10, Arithmetic::Fp64, 3 * CHUNK * 8, launches).unwrap();
        let pool = Arc::new(DevicePool::new(Arc::new(card), Arc::default(), 8));
        let place = recording(|| pool.take(CHUNK).address());
        let chunks = pool.recorded_chunks();
        assert_eq!(chunks, [(place, CHUNK)]);
        let reserved = pool.reserve(&chunks).unwrap();
        // It is neither lent nor given back, even where it is all that is free.
        let others = [0, 1].map(|_| pool.try_take(CHUNK).unwrap());
        assert!(pool.try_take(1).is_err());
        assert_eq!(pool.recorded_chunks(), chunks);
        assert_eq!(recording(|| pool.take(1).address()), place, "who reserved it may use it");
        // Another thread waits until it can be lent.
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| pool.try_take(1).map(|buffer| buffer.address()));
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!taken.is_finished());
            drop(reserved);
            assert_eq!(taken.join().unwrap().unwrap(), place);
        });
        assert_eq!(pool.try_take(1).unwrap().address(), place);
        assert!(pool.reserve(&chunks).is_some(), "what was lent and is free again is called back");
        drop(others);
        pool.trim(&chunks);
        assert_eq!(pool.held(), CHUNK * 8);
        pool.trim(&[]);
        assert!(pool.held() == 0 && !pool.has(&chunks[0]) && pool.reserve(&chunks).is_none());
    }

    /// What a replay works in is not a side's while the replay may come after its fork.
    #[test]
    fn a_side_borrows_nothing_that_was_replayed_since_its_fork() {
        if !is_present() {
            return;
        }
        let launches = Arc::new(AtomicUsize::new(usize::MAX));
        let card = Emulator::with(10, Arithmetic::Fp64, 2 * CHUNK * 8, launches).unwrap();
        let pool = Arc::new(DevicePool::new(Arc::new(card), Arc::default(), 8));
        let place = recording(|| pool.take(CHUNK).address());
        let chunks = pool.recorded_chunks();
        // The GPU has no more: only the recordings' chunk is free.
        let _rest = pool.try_take(CHUNK).unwrap();
        let borrowed = || in_lane(1, || pool.borrow(1).map(|(address, _)| address));
        let reserved = pool.reserve(&chunks).unwrap();
        pool.begin_fork(|| ());
        assert_eq!(borrowed(), None, "it is being replayed in");
        drop(reserved);
        assert_eq!(borrowed(), None, "what was queued since comes after the fork");
        pool.end_fork(|| ());
        pool.begin_fork(|| drop(pool.reserve(&chunks)));
        assert_eq!(borrowed(), None, "a replay between the fork and its note");
        pool.end_fork(|| ());
        pool.begin_fork(|| ());
        assert_eq!(borrowed(), Some(place));
    }

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
