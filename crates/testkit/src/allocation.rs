//! An allocator that counts, for test programs that measure what something costs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counted:
/// `#[global_allocator] static ALLOCATOR: CountingAllocator = CountingAllocator;`
pub struct CountingAllocator;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is the system allocator's; the counters do not touch the memory.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(NOW.fetch_add(layout.size(), Ordering::SeqCst) + layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's promise about the layout is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the pointer came from the system allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The most memory in use while `f` ran, beyond what was before: of the whole program, so that
/// nothing else may run meanwhile.
pub fn peak_of(f: impl FnOnce()) -> usize {
    let before = NOW.load(Ordering::SeqCst);
    PEAK.store(before, Ordering::SeqCst);
    f();
    PEAK.load(Ordering::SeqCst).saturating_sub(before)
}
