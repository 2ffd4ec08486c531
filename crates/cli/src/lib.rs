//! What the `hetal` program does, as a library: the program itself only reads its arguments.

pub mod args;
pub mod commands;
pub mod error;
pub mod extractor;
pub mod machine;
mod private_folder;
pub mod ui;

pub use error::{Error, Result};
