#![doc = include_str!("../README.md")]

pub mod bootstrap;
pub mod clear;
pub mod encrypted;
pub mod engine;
mod error;
mod key_list;
mod key_plan;
pub mod polynomial;

pub use bootstrap::Bootstrapper;
pub use clear::Clear;
pub use encrypted::{EncodedMatrix, EncodedVector, Encrypted, LeveledCiphertext, UnliftedCiphertext};
pub use engine::{Diagonal, Engine, Multiplication};
pub use error::{Error, Result};
pub use hetal_ckks::LiftForm;
pub use key_plan::KeyPlan;
pub use num_complex::Complex64;
