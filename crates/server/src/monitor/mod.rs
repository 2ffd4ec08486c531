//! What an operator sees: counters, histograms, health, and the use of each tenant.

pub mod histograms;
pub mod metrics;
pub mod probe;
pub mod usage;
