//! Presentation of results: standard output, tables, plots, progress bars.

pub mod output;
pub mod plot;
pub mod progress;
pub mod table;
