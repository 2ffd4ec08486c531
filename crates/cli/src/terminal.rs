//! Output to the terminal: progress, formats, messages.

pub mod events;
pub mod format;
pub mod interrupt;
pub mod live;
pub mod output;
pub mod progress;
