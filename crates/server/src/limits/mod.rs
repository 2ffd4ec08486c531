//! Limits on concurrent work.

pub mod admission;
pub mod caller;
pub mod concurrency;
pub mod rate;
