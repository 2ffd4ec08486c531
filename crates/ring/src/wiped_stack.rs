//! Work on secrets whose traces on the stack are wiped.

use std::mem::MaybeUninit;
use zeroize::Zeroize;

/// Words of the stack that are wiped. A transform takes the most: 32 KiB for a strip, and the
/// registers that the compiler keeps beside it.
const WORDS: usize = (64 << 10) / size_of::<u64>();

/// Runs `work` and then overwrites the part of the stack that it used, up to 64 KiB: working memory
/// and values that the compiler moved there from registers.
///
/// Only the stack of this thread is wiped, so `work` hands nothing to other threads.
pub fn with_wiped_stack<R>(work: impl FnOnce() -> R) -> R {
    let result = in_own_frame(work);
    wipe_below();
    result
}

/// The work is not part of the caller's frame, which is not wiped.
#[inline(never)]
fn in_own_frame<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// This frame begins where that of [`in_own_frame`] began.
#[inline(never)]
fn wipe_below() {
    [const { MaybeUninit::<u64>::uninit() }; WORDS].as_mut_slice().zeroize();
}
