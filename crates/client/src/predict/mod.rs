//! Predictions on a server that sees neither rows nor weights, and their evaluation.

pub mod evaluation;
pub mod remote;

pub use evaluation::{ClassEvaluation, Evaluation};
