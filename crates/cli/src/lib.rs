#![doc = include_str!("../README.md")]

pub mod args;
pub mod commands;
pub mod error;
mod page_server;
mod program;
pub mod terminal;

pub use error::{Error, Result};
pub use program::main;
pub use terminal::output::write_public;
