//! The commands of the `hetal` program as a library.
//!
//! - `commands`: one module for each command
//! - `args`: arguments that several commands share
//! - `ui`: progress, formats, output

pub mod args;
pub mod commands;
pub mod error;
mod program;
pub mod ui;

pub use error::{Error, Result};
pub use program::main;
pub use ui::output::write_public;
