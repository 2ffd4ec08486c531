//! Memory that is wiped when it is given back.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{Ordering, compiler_fence};

/// The system's allocator, with every block wiped before it is given back: what a program dropped is in none of its memory, whatever
/// type held it. For programs of the data owner: `#[global_allocator] static MEMORY: ZeroingAllocator = ZeroingAllocator;`
///
/// A block that grows moves, so that its old place is wiped too.
pub struct ZeroingAllocator;

// SAFETY: blocks are the system's, asked for and given back with the layouts of the caller; they are written to within their size, while
// they are still ours.
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
            // Bytes that nobody reads again are written nevertheless.
            let block = std::hint::black_box(block);
            compiler_fence(Ordering::SeqCst);
            System.dealloc(block, layout);
        }
    }
}
