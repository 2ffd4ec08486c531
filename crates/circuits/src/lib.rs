#![doc = include_str!("../README.md")]

pub mod bootstrap;
mod encrypted;
pub mod engine;
mod error;

pub use bootstrap::Bootstrapper;
pub use encrypted::{Encoded, EncodedMatrix, Encrypted, Sealed};
pub use engine::{Diagonal, Engine, Multiplication};
pub use error::{Error, Result};
pub use num_complex::Complex64;
