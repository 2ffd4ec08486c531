//! An emulated card in the place of this machine's, for tests of what stands above.

pub use crate::ffi::emulator::is_present;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of memory, and launches until it is lost (all there can be: never).
type Card = (usize, Arc<AtomicUsize>);

static CARD: Mutex<Option<Card>> = Mutex::new(None);

/// From now on this process has one card: an emulated one of so many bytes, in place of any before.
/// Returns the launches until it is lost, to be changed at will.
pub fn install(bytes: usize) -> Arc<AtomicUsize> {
    let launches = Arc::new(AtomicUsize::new(usize::MAX));
    *CARD.lock().unwrap_or_else(PoisonError::into_inner) = Some((bytes, Arc::clone(&launches)));
    launches
}

/// The card that was put in, if one was.
pub(crate) fn card() -> Option<Card> {
    CARD.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
