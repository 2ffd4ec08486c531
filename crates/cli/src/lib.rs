//! What the `hetal` program does, as a library: the program itself only reads its arguments.

pub mod error;
pub mod extract;
pub mod machine;
pub mod npy;
pub mod ops;
pub mod owner;
pub mod params;
pub mod progress;
pub mod train;

pub use error::{Error, Result};
