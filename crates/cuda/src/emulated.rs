//! An emulated GPU in place of this machine's, for tests of programs that use this crate.

pub use crate::ffi::emulator::is_present;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of memory, and the number of launches after which the GPU is lost (`usize::MAX`: never).
type Card = (usize, Arc<AtomicUsize>);

static CARD: Mutex<Option<Card>> = Mutex::new(None);

/// Gives this process one emulated GPU with `bytes` bytes of memory, in place of all others.
/// Returns the number of launches until the GPU is lost, which the caller may change at any time.
pub fn install(bytes: usize) -> Arc<AtomicUsize> {
    let launches = Arc::new(AtomicUsize::new(usize::MAX));
    *CARD.lock().unwrap_or_else(PoisonError::into_inner) = Some((bytes, Arc::clone(&launches)));
    launches
}

/// The installed GPU, if there is one.
pub(crate) fn card() -> Option<Card> {
    CARD.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
