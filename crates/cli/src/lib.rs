//! The commands of the `hetal` program as a library.
//!
//! - `commands`: one module for each command
//! - `args`: arguments that several commands share
//! - `ui`: progress, formats, output
//! - `watch`: the server of `hetal ui`

pub mod args;
pub mod commands;
pub mod error;
mod program;
pub mod ui;
mod watch;

pub use error::{Error, Result};
pub use program::main;
pub use ui::output::write_public;
