//! Devices, and the execution of a job's operations on them.

pub mod ckks;
pub mod device;
pub mod executor;
pub mod lifted_rows;
pub mod memory_estimate;
pub mod param_registry;
