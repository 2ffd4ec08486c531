//! The commands of the `hetal` program as a library.
//!
//! - `commands`: one module for each command
//! - `args`: arguments that several commands share
//! - `ui`: progress, formats, output
//! - `extractor`: the program `hetal-extract`, which reads pictures, sentences and data sets

pub mod args;
pub mod commands;
pub mod error;
pub mod extractor;
pub mod machine;
mod private_folder;
pub mod ui;

pub use error::{Error, Result};
