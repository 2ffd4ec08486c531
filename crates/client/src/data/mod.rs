//! Rows, from files to training data.
//!
//! ```text
//! files ──> Table ──> Labelled ──> TrainingData
//!           Labels ──────┘          split, shuffled, normalised
//! ```

pub mod files;
mod labels;
mod prepare;

pub use files::Table;
pub use labels::{Labels, class_numbers};
pub use prepare::{Labelled, ROW_NORM, TrainingData, VALIDATION_SHARE};
