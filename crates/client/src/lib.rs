#![doc = include_str!("../README.md")]

mod error;
pub mod files;
mod owner;
pub mod project;
pub mod remote;

pub use error::{Error, Result};
pub use owner::{Owner, ring_of};
pub use project::Project;
