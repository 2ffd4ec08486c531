//! What the `hetal` program does, as a library: the program itself only reads its arguments.

pub mod commands;
pub mod error;
pub mod extract;
pub mod machine;
mod private_folder;

pub use error::{Error, Result};
pub use hetal_experiments::report::progress;
