//! What an operator sees: counters, gauges, histograms, health, and the use of each tenant.

pub mod gauges;
pub mod histograms;
pub mod metrics;
pub mod probe;
pub mod usage;
