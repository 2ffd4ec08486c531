//! An allocator that wipes memory when it is freed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{Ordering, compiler_fence};

/// The system's allocator, which wipes every block before it is freed. Dropped values stay nowhere
/// in memory, whatever type held them. For programs of the data owner: `#[global_allocator] static
/// MEMORY: ZeroingAllocator = ZeroingAllocator;`
///
/// A block that grows moves, so its old memory is wiped too.
pub struct ZeroingAllocator;

impl ZeroingAllocator {
    /// Returns memory that is free to the operating system, which the system's allocator keeps
    /// otherwise. For programs that go on with other work, or with work of another kind. Takes
    /// milliseconds.
    pub fn return_free_memory() {
        // SAFETY: it changes nothing but pages that no block is in, under the allocator's locks.
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        unsafe {
            libc::malloc_trim(0);
        }
    }
}

// SAFETY: blocks come from the system's allocator and return to it with the layouts of the caller;
// they are written within their size before they are freed.
unsafe impl GlobalAlloc for ZeroingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's; the block has the layout's size and nobody else uses it.
        unsafe {
            block.write_bytes(0, layout.size());
            // The barrier keeps the write, although nobody reads the bytes again.
            let block = std::hint::black_box(block);
            compiler_fence(Ordering::SeqCst);
            System.dealloc(block, layout);
        }
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn resident_pages() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn free_memory_returns_to_the_system() {
        // Blocks that are too small for mappings of their own, with one behind them that stays.
        let mut blocks: Vec<Vec<u8>> = (0..1000).map(|_| vec![1; 100_000]).collect();
        let last = blocks.pop();
        drop(blocks);
        let before = resident_pages();
        ZeroingAllocator::return_free_memory();
        let returned = before.saturating_sub(resident_pages()) * 4096;
        assert!(returned > 50_000_000, "{returned} bytes");
        drop(last);
    }
}
