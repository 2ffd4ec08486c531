//! Rows, from files to training data.
//!
//! ```text
//! files ──> Table ──> Labelled ──> TrainingData
//!           Labels ──────┘          split, shuffled, normalised
//! ```
//!
//! The crate `hetal-tables` reads the files.

mod labels;
mod preparation;
mod training_data;
mod weights;

pub use hetal_tables as tables;
pub use hetal_tables::{LabelType, Labels, Table};
pub use labels::class_numbers;
pub use preparation::{Preparation, PreparationReport, ROW_NORM};
pub use training_data::{Labelled, Split, TrainingData, matrix, validation_rows};
pub use weights::{ClassWeight, WeightError};
