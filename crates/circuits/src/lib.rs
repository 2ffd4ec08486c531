#![doc = include_str!("../README.md")]

pub mod bootstrap;
pub mod engine;
mod error;

pub use bootstrap::Bootstrapper;
pub use engine::{Diagonal, Engine, Multiplication};
pub use error::{Error, Result};
pub use num_complex::Complex64;
