//! Predictions: on a server that sees neither rows nor weights, and how good they are.

pub mod evaluation;
pub mod remote;

pub use evaluation::{ClassEvaluation, Evaluation};
