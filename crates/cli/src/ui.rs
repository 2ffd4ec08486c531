//! The user interface: progress, formats, output.

pub mod events;
pub mod format;
pub mod interrupt;
pub mod live;
pub mod output;
pub mod progress;
