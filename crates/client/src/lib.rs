#![doc = include_str!("../README.md")]

mod error;
pub mod files;

pub use error::{Error, Result};
