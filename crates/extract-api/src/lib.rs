#![doc = include_str!("../README.md")]

pub mod arguments;
pub mod catalogue;
pub mod extractor;
mod input;
pub mod manifest;
mod private_folder;
pub mod protocol;
mod sanitize;

pub use input::{open_regular, read_at_most, read_line, read_regular};
pub use manifest::{Manifest, ManifestOf};
pub use private_folder::PrivateFolder;
pub use sanitize::{escape_json, sanitize_lines, sanitize_terminal, shorten};

/// The version of both programs.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The command that builds the extractor.
pub const BUILD_COMMAND: &str = "cargo build --release --bin hetal-extract";
