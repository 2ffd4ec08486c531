//! Pooled, aligned memory for one limb of a polynomial.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes requested from the system at a time: chunks of huge-page size reduce TLB misses and page
/// faults.
const CHUNK_BYTES: usize = 32 << 20;
/// Chunks start on a 2 MiB boundary, so that the kernel can back them with huge pages.
const CHUNK_ALIGN: usize = 2 << 20;

/// Bytes between one limb and the next. Limbs a power of two apart would share a few cache sets,
/// and kernels that read many limbs at once would evict each other's data.
const STAGGER: usize = 5 * 64;

/// A pool of buffers of `n` 64-bit words. Buffers come back to it when they are dropped.
pub struct Pool {
    n: usize,
    inner: Mutex<PoolInner>,
}

#[derive(Default)]
struct PoolInner {
    free: Vec<NonNull<u64>>,
    chunks: Vec<(NonNull<u8>, std::alloc::Layout)>,
}

// SAFETY: the pointers are owned by the pool and only handed out one owner at a time, under the
// mutex.
unsafe impl Send for PoolInner {}

impl Pool {
    /// An empty pool of buffers of `n` words; `n` is a multiple of 8, so that each starts on a
    /// 64-byte boundary.
    pub fn new(n: usize) -> Arc<Self> {
        assert!(n >= 8 && n.is_multiple_of(8), "limbs are whole cache lines");
        Arc::new(Self { n, inner: Mutex::default() })
    }

    /// A buffer with arbitrary contents.
    pub fn take(self: &Arc<Self>) -> Limb {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.free.is_empty() {
            self.grow(&mut inner);
        }
        #[allow(clippy::expect_used)]
        let ptr = inner.free.pop().expect("grow adds buffers");
        drop(inner);
        Limb { ptr, pool: Arc::clone(self) }
    }

    /// A buffer of zeros.
    pub fn take_zeroed(self: &Arc<Self>) -> Limb {
        let mut limb = self.take();
        limb.fill(0);
        limb
    }

    /// Bytes this pool holds from the system, in use or free.
    pub fn bytes(&self) -> usize {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.chunks.iter().map(|(_, layout)| layout.size()).sum()
    }

    fn grow(&self, inner: &mut PoolInner) {
        let count = (CHUNK_BYTES / (self.n * 8)).max(1);
        let limb_bytes = self.n * 8 + STAGGER;
        #[allow(clippy::expect_used)]
        let layout = std::alloc::Layout::from_size_align(count * limb_bytes, CHUNK_ALIGN).expect("a small multiple");
        // SAFETY: the layout has a nonzero size.
        let start = unsafe { std::alloc::alloc(layout) };
        let Some(start) = NonNull::new(start) else { std::alloc::handle_alloc_error(layout) };
        #[cfg(target_os = "linux")]
        // SAFETY: the range was just allocated; the advice does not change its contents.
        unsafe {
            libc::madvise(start.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE);
        }
        // Touched only now: pages that exist before the advice stay small.
        unsafe { start.as_ptr().write_bytes(0, layout.size()) };
        inner.chunks.push((start, layout));
        // Popped from the end: hand out low addresses first.
        for i in (0..count).rev() {
            // SAFETY: i * limb_bytes is inside the chunk.
            inner.free.push(unsafe { start.add(i * limb_bytes) }.cast());
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (start, layout) in inner.chunks.drain(..) {
            // SAFETY: allocated in `grow` with this layout; every limb holds an Arc of the pool, so
            // none is alive.
            unsafe { std::alloc::dealloc(start.as_ptr(), layout) };
        }
    }
}

/// One limb: `n` residues modulo one prime, 64-byte aligned, from a [`Pool`].
pub struct Limb {
    ptr: NonNull<u64>,
    pool: Arc<Pool>,
}

// SAFETY: a limb is the only owner of its words.
unsafe impl Send for Limb {}
// SAFETY: shared access only reads.
unsafe impl Sync for Limb {}

impl Deref for Limb {
    type Target = [u64];
    fn deref(&self) -> &[u64] {
        // SAFETY: the pool hands out n initialised words.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.pool.n) }
    }
}

impl DerefMut for Limb {
    fn deref_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.pool.n) }
    }
}

impl Clone for Limb {
    fn clone(&self) -> Self {
        let mut copy = self.pool.take();
        copy.copy_from_slice(self);
        copy
    }
}

impl Drop for Limb {
    fn drop(&mut self) {
        self.pool.inner.lock().unwrap_or_else(PoisonError::into_inner).free.push(self.ptr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_reused() {
        let pool = Pool::new(1024);
        let first = pool.take_zeroed();
        assert_eq!(first.as_ptr() as usize % 64, 0);
        let address = first.as_ptr();
        let bytes = pool.bytes();
        drop(first);
        let again = pool.take();
        assert_eq!(again.as_ptr(), address);
        assert_eq!(pool.bytes(), bytes);
        let copy = again.clone();
        assert_ne!(copy.as_ptr(), again.as_ptr());
        assert_eq!(&copy[..], &again[..]);
    }

    #[test]
    fn limbs_outlive_the_handle_of_their_pool() {
        let pool = Pool::new(64);
        let mut limb = pool.take_zeroed();
        drop(pool);
        limb[63] = 7;
        assert_eq!(limb.iter().sum::<u64>(), 7);
    }
}
