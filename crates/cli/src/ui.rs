//! The user interface: progress, formats, output.

pub mod format;
pub mod interrupt;
pub mod output;
pub mod progress;
