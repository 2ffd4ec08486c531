//! The structs that kernels take, as the sources in `kernels/` declare them.

use crate::source::{MAX_CONSTANTS, MAX_DIGITS, MAX_LIMBS, MAX_LINEAR, MAX_ROWS, MAX_SOURCES, MAX_STEPS, MAX_TERMS};
use std::ffi::c_void;

/// A device address.
pub(crate) type DeviceAddress = u64;

/// A number modulo a prime, as the kernels' arithmetic reads it: see `Arithmetic::word`.
pub(crate) type Word = u64;

/// The one argument of a kernel.
///
/// # Safety
///
/// The type is `repr(C)` and has the layout of the struct the kernel declares.
pub(crate) unsafe trait KernelArguments {
    /// Where it is.
    fn pointer(&self) -> *const c_void {
        std::ptr::from_ref(self).cast()
    }

    /// Its bytes.
    #[cfg(any(test, feature = "emulator"))]
    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// Bytes that older drivers and compilers take as a kernel's arguments.
const MAX_ARGUMENTS: usize = 4096;

/// An element of a table in device memory.
///
/// # Safety
///
/// The type has no padding, and the layout of the struct that kernels read.
pub(crate) unsafe trait Pod: Copy {}

/// The bytes of a table.
pub(crate) fn bytes_of<T: Pod>(elements: &[T]) -> &[u8] {
    // SAFETY: `Pod` types have no padding, so all bytes are initialised; any byte may be read as
    // u8.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

macro_rules! pod_structs {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $ty:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $ty,)* }

        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$ty>())*, "padding");
        const _: () = assert!(size_of::<$name>() <= MAX_ARGUMENTS, "more than a kernel's arguments may be");
        // SAFETY: repr(C), fields as in the sources, and no padding by the assertion above.
        unsafe impl Pod for $name {}
        // SAFETY: as above.
        unsafe impl KernelArguments for $name {}
    )*};
}

// SAFETY: numbers have no padding.
unsafe impl Pod for u64 {}
// SAFETY: as above.
unsafe impl Pod for i64 {}
// SAFETY: as above.
unsafe impl Pod for f64 {}

pod_structs! {
    /// A prime of the ring.
    struct Prime { q: Word, inverse: Word, value: u64, size_class: u32, shift: u32, }
    /// One transform of a batch.
    struct Job { prime: u32, group: u32, from: u32, to: u32, scale: Word, scaled_root: Word, }
    /// The source primes of a conversion.
    struct Group {
        sources: u32, from: u32, first_target: u32, targets: u32,
        inverses: [f64; MAX_SOURCES],
    }
    /// A target prime of a conversion.
    struct ConversionTarget {
        q: Word, inverse: Word, hats: [Word; MAX_SOURCES], minus_product: Word,
        to: u32, shift: u32,
    }

    struct NttArgs {
        primes: DeviceAddress, roots: DeviceAddress, jobs: DeviceAddress, work: DeviceAddress,
        input: [DeviceAddress; 2], output: [DeviceAddress; 2],
        inverse: u32, unused: u32,
    }
    struct ConvertArgs { groups: DeviceAddress, targets: DeviceAddress, y: DeviceAddress, out: DeviceAddress, }
    struct BinaryArgs {
        primes: DeviceAddress, out: DeviceAddress, a: DeviceAddress, b: DeviceAddress,
        q: u32, full_q: u32, a_q: u32, b_q: u32,
    }
    struct MulAddArgs { operands: BinaryArgs, accumulator: DeviceAddress, }
    struct HalvesArgs {
        primes: DeviceAddress, out: DeviceAddress, a: DeviceAddress, accumulator: DeviceAddress,
        q: u32, full_q: u32, a_q: u32, unused: u32,
        constants: [[Word; 2]; MAX_LIMBS],
    }
    struct LinearArgs {
        primes: DeviceAddress, out: [DeviceAddress; 2], start: [DeviceAddress; 2],
        q: u32, full_q: u32, count: u32, has_constant: u32, limbs: u32, unused: u32,
        terms: [[DeviceAddress; 2]; MAX_LINEAR], chain: [u32; MAX_LINEAR],
        constants: [[Word; 2]; MAX_CONSTANTS],
    }
    struct AutomorphismArgs { out: DeviceAddress, a: DeviceAddress, galois: u32, unused: u32, }
    struct PauseArgs { cycles: u64, }
    struct LiftArgs { primes: DeviceAddress, coefficients: DeviceAddress, out: DeviceAddress, factor: f64, q: u32, full_q: u32, }
    struct TensorTerm { factors: [DeviceAddress; 4], chain: [u32; 4], }
    struct TensorArgs {
        primes: DeviceAddress, out: [DeviceAddress; 3],
        q: u32, full_q: u32, count: u32, accumulate: u32,
        terms: [TensorTerm; MAX_TERMS],
    }
    struct PlainTerm { factors: [DeviceAddress; 3], chain: [u32; 3], unused: u32, }
    struct PlainArgs {
        primes: DeviceAddress, out: [DeviceAddress; 2],
        q: u32, full_q: u32, count: u32, accumulate: u32,
        terms: [PlainTerm; MAX_TERMS],
    }
    struct DigitsArgs {
        source: DeviceAddress, extended: DeviceAddress, count: u32, limbs: u32,
        starts: [u32; MAX_DIGITS + 1], unused: u32,
    }
    struct KeyArgs { halves: [[DeviceAddress; 2]; MAX_DIGITS], }
    struct InnerProductArgs {
        primes: DeviceAddress, out: [DeviceAddress; 2], accumulator: [DeviceAddress; 2], lifted: [DeviceAddress; 2],
        plain: DeviceAddress, special_product: DeviceAddress,
        q: u32, full_q: u32, key_q: u32, plain_q: u32, inverse: u32, unused: u32,
        digits: DigitsArgs, key: KeyArgs,
    }
    struct StepArgs { key: KeyArgs, inverse: u32, key_q: u32, is_identity: u32, unused: u32, }
    struct RotatedArgs {
        primes: DeviceAddress, c0: DeviceAddress, special_product: DeviceAddress, rotated: DeviceAddress,
        q: u32, full_q: u32, first: u32, steps_count: u32,
        digits: DigitsArgs, steps: [StepArgs; MAX_STEPS],
    }
    struct WeighArgs {
        primes: DeviceAddress, rotated: DeviceAddress, out: [[DeviceAddress; 2]; MAX_ROWS],
        q: u32, full_q: u32, first: u32, steps_count: u32, rows: u32, accumulate: u32,
        weights: [[DeviceAddress; MAX_ROWS]; MAX_STEPS], weight_q: [[u32; MAX_ROWS]; MAX_STEPS],
    }
}
