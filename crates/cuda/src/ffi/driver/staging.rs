//! Host memory that the GPU reads directly.

use super::failed;
use crate::Result;
use cudarc::driver::{result, sys};
use std::ffi::c_void;

/// Bytes that are staged at once.
pub(super) const STAGED: usize = 1 << 20;

/// Memory of the host that the GPU reads on its own: what is uploaded is copied here first, so
/// that it may change at once whatever the driver does with ordinary memory. One half is filled
/// while the other is read.
#[derive(Default)]
pub(super) struct PinnedStaging {
    halves: Vec<(*mut c_void, sys::CUevent)>,
    next: usize,
}

impl PinnedStaging {
    pub(super) fn new() -> Result<Self> {
        let mut staging = Self::default();
        for _ in 0..2 {
            match Self::half() {
                Ok(half) => staging.halves.push(half),
                Err(error) => {
                    staging.free();
                    return Err(error);
                }
            }
        }
        Ok(staging)
    }

    fn half() -> Result<(*mut c_void, sys::CUevent)> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        let event = event.map_err(failed("making an event"))?;
        // SAFETY: a context is current; the memory is written before it is read.
        let memory = unsafe { result::malloc_host(STAGED, 0) }.map_err(|error| {
            // SAFETY: made above, used by nothing.
            _ = unsafe { result::event::destroy(event) };
            failed("staging memory")(error)
        })?;
        Ok((memory, event))
    }

    /// Queues a copy of at most [`STAGED`] bytes.
    pub(super) fn send(&mut self, to: u64, bytes: &[u8], stream: sys::CUstream) -> Result<()> {
        assert!(bytes.len() <= STAGED);
        let (memory, read) = self.halves[self.next];
        self.next = (self.next + 1) % self.halves.len();
        // SAFETY: the half has room for the bytes, and the GPU has read what was in it before;
        // `to` has as many, by the caller. The event and the stream are alive.
        unsafe {
            result::event::synchronize(read).map_err(failed("waiting for the card"))?;
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.cast(), bytes.len());
            let staged = std::slice::from_raw_parts(memory.cast::<u8>(), bytes.len());
            result::memcpy_htod_async(to, staged, stream).map_err(failed("copying to the card"))?;
            result::event::record(read, stream).map_err(failed("recording an event"))
        }
    }

    pub(super) fn free(&mut self) {
        for (memory, event) in self.halves.drain(..) {
            // SAFETY: made by `new`, used no more: the streams were waited for.
            unsafe {
                _ = result::event::destroy(event);
                _ = result::free_host(memory);
            }
        }
    }
}
