#![doc = include_str!("../README.md")]

pub mod clear;
pub mod engine;
mod error;
pub mod polynomial;

pub use clear::Clear;
pub use engine::{Diagonal, Engine, Multiplication};
pub use error::{Error, Result};
pub use num_complex::Complex64;
