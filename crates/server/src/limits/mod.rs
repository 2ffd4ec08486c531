//! Limits on the concurrency and the rate of requests. Quotas are in `store::state`.

pub mod admission;
pub mod caller;
pub mod concurrency;
pub mod rate;
