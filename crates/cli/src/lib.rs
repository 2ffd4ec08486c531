//! What the `hetal` program does, as a library: the program itself only reads its arguments.

pub mod error;
pub mod machine;
pub mod ops;
pub mod params;
pub mod progress;

pub use error::{Error, Result};
