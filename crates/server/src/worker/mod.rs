//! Workers: threads that run jobs.

pub mod pool;
pub mod retry;
pub mod shutdown;
pub mod training;
