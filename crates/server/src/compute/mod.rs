//! What computes: devices, and the operations of a job on them.

pub mod ckks;
pub mod device;
pub mod executor;
pub mod memory_estimate;
pub mod param_registry;
