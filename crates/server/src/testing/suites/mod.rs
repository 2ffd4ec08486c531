//! What every implementation of a trait must do.

pub mod blobs;
pub mod state;
