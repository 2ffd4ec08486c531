//! The rows a data owner brings, from files to what is trained on.

pub mod files;
mod labels;
mod prepare;

pub use files::Table;
pub use labels::{Labels, class_numbers};
pub use prepare::{Labelled, ROW_NORM, TrainingData, VALIDATION_SHARE};
