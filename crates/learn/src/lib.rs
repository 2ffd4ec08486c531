#![doc = include_str!("../README.md")]

mod error;
pub mod geometry;
pub mod ledger;
mod matrix;
pub mod nesterov;
pub mod packing;
pub mod products;
pub mod softmax;
pub mod trainer;
pub mod twin;

pub use error::{Error, Result};
pub use geometry::Geometry;
pub use ledger::Ledger;
pub use matrix::Matrix;
