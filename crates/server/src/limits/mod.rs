//! Limits on concurrent work.

pub mod admission;
pub mod concurrency;
pub mod rate;
