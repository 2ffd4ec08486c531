#![doc = include_str!("../README.md")]

pub mod automorphism;
pub mod base_conversion;
pub mod buffer;
mod isa;
pub mod kernels;
mod modulus;
pub mod ntt;
pub mod packed;
pub mod prime;
pub mod rns;
pub mod sampler;
mod simd;
mod wiped_stack;

pub use isa::Isa;
pub use modulus::{MAX_BITS, Modulus};
pub use rns::{Basis, Digits, PackedPoly, Poly, RnsRing, digit_ranges};
