//! Worker threads that run jobs, and the supervisor of worker processes.

pub mod attempt;
pub mod checkpoint;
pub mod classify;
pub mod give_way;
pub mod pool;
pub mod retry;
pub mod shutdown;
pub mod storable_ciphertext;
pub mod supervisor;
pub mod training;
