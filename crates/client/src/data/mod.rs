//! Rows, from files to training data.
//!
//! ```text
//! files ──> Table ──> Labelled ──> TrainingData
//!           Labels ──────┘          split, shuffled, normalised
//! ```
//!
//! The crate `hetal-tables` reads the files.

mod labels;
mod prepare;

pub use hetal_tables as tables;
pub use hetal_tables::{LabelType, Labels, Table};
pub use labels::class_numbers;
pub use prepare::{Labelled, ROW_NORM, Split, TrainingData, VALIDATION_SHARE, matrix};
