//! Limits on what is done at the same time.

pub mod admission;
pub mod concurrency;
