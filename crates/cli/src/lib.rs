#![doc = include_str!("../README.md")]

pub mod args;
pub mod commands;
pub mod error;
mod program;
pub mod ui;
mod watch;

pub use error::{Error, Result};
pub use program::main;
pub use ui::output::write_public;
