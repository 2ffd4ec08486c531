//! The rows a data owner brings, from files to what is trained on.

pub mod files;
mod labels;
mod prepare;

pub use files::Table;
pub use labels::{Labels, numbers};
pub use prepare::{Labelled, ROW_NORM, Task, VALIDATION_SHARE};
