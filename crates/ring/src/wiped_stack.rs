//! Work on secrets whose traces on the stack are wiped.

use std::mem::MaybeUninit;
use zeroize::Zeroize;

/// Words of the stack that are wiped. A transform takes the most: 32 KiB for a strip, and the
/// registers that the compiler keeps beside it.
const WORDS: usize = (64 << 10) / size_of::<u64>();

/// Runs `work` and then, also if it panics, overwrites the part of the stack that it used, up to 64
/// KiB: working memory and values that the compiler moved there from registers.
///
/// Only the stack of this thread is wiped, so `work` hands nothing to other threads.
pub(crate) fn with_wiped_stack(work: impl FnOnce()) {
    let _wipe = WipeOnDrop;
    in_own_frame(work);
}

struct WipeOnDrop;

impl Drop for WipeOnDrop {
    #[inline(always)]
    fn drop(&mut self) {
        wipe_below();
    }
}

/// The work is not part of the caller's frame, which is not wiped.
#[inline(never)]
fn in_own_frame(work: impl FnOnce()) {
    work();
}

/// This frame begins where that of [`in_own_frame`] began.
#[inline(never)]
fn wipe_below() {
    [const { MaybeUninit::<u64>::uninit() }; WORDS].as_mut_slice().zeroize();
}
