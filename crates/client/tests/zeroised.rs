//! Files of decrypted values leave no copy in freed memory: an allocator looks at every block.
#![allow(clippy::unwrap_used)]

use hetal_client::Model;
use hetal_keys::Passphrase;
use hetal_testkit::TempDir;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A weight like no other, and how JSON writes it.
const WEIGHT: f64 = 1234.567890123;
const TEXT: &[u8] = b"1234.567890123";

/// Frees through the system's allocator, after a look.
struct Watching;

static ARMED: AtomicBool = AtomicBool::new(false);
static LEAKS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed on to the system's allocator as it is; blocks are only read, while
// they are still owned.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those of this call.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if ARMED.load(Ordering::Relaxed) {
            // SAFETY: the block is whole and initialised (alloc zeroes it), and no one else has it
            // any more.
            let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
            if bytes.windows(TEXT.len()).any(|window| window == TEXT) {
                LEAKS.fetch_add(1, Ordering::Relaxed);
            }
        }
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

#[test]
fn freed_memory_holds_no_decrypted_value() {
    let folder = TempDir::new();
    let mut model: Model = serde_json::from_slice(include_bytes!("samples/model.json")).unwrap();
    model.weights.iter_mut().flatten().for_each(|weight| *weight = WEIGHT);
    let passphrase = Passphrase::new("words".to_owned().into()).unwrap();
    for passphrase in [None, Some(&passphrase)] {
        let path = folder.path().join("model.json");
        ARMED.store(true, Ordering::Relaxed);
        model.save(&path, passphrase).unwrap();
        let again = Model::open(&path, passphrase).unwrap();
        ARMED.store(false, Ordering::Relaxed);
        assert_eq!(again.weights, model.weights);
        assert_eq!(LEAKS.load(Ordering::Relaxed), 0, "locked: {}", passphrase.is_some());
    }
    // The watch is awake.
    ARMED.store(true, Ordering::Relaxed);
    drop(std::hint::black_box(TEXT.to_vec()));
    ARMED.store(false, Ordering::Relaxed);
    assert_eq!(LEAKS.load(Ordering::Relaxed), 1);
}
