//! An allocator that wipes memory when it is freed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{Ordering, compiler_fence};

/// The system's allocator, which wipes every block before it is freed. Dropped values stay nowhere
/// in memory, whatever type held them. For programs of the data owner: `#[global_allocator] static
/// MEMORY: ZeroingAllocator = ZeroingAllocator;`
///
/// A block that grows moves, so its old memory is wiped too.
pub struct ZeroingAllocator;

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
