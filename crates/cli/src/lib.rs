//! What the `hetal` program does, as a library: the program itself only reads its arguments.

pub mod bench;
pub mod error;
pub mod lab;
pub mod machine;
pub mod noise;
pub mod npy;
pub mod ops;
pub mod owner;
pub mod params;
pub mod plan;
pub mod progress;
pub mod reproduce;
pub mod svg;
pub mod table;
pub mod train;

pub use error::{Error, Result};
