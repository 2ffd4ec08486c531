//! What jobs are to do, and rules for their lives.

pub mod spec;
pub mod verdict_timeout;
