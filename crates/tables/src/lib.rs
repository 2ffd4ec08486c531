#![doc = include_str!("../README.md")]

mod array;
mod cells;
pub mod column_file;
pub mod columnar;
mod columns;
mod delimiter;
mod encoding;
mod files;
mod heading;
mod labels;
mod missing;
pub mod npy;
pub mod npz;
mod options;
mod problem;
mod report;
pub mod safetensors;
mod sanitize;
mod sheet;
mod table;
mod texts;

pub use array::{Array, Values};
pub use columns::Column;
pub use files::{FileFormat, parse, parse_labels, parse_weights, read, read_labels, read_weights, split_name};
pub use labels::{LabelType, Labels};
pub use missing::Missing;
pub use options::{Encoding, Options};
pub use problem::{Error, FileProblem, Parsed};
pub use report::{ClassCount, Report, Scales};
pub use table::{Note, Table};
pub use texts::{Texts, parse_texts, read_texts};

/// Larger files are refused before they are read.
pub const MAX_FILE_BYTES: u64 = 16 << 30;
/// The most columns of a text table, those that are left out included.
pub const MAX_COLUMNS: usize = 16_384;
/// The most feature columns.
pub const MAX_FEATURES: usize = 2048;
/// The most classes.
pub const MAX_CLASSES: usize = 128;
/// The largest magnitude of a value to train with.
pub const MAX_VALUE: f64 = 1e12;
/// The most columns, classes or places that a message names.
const MAX_NAMED: usize = 8;

#[cfg(test)]
mod tests;
