//! What jobs are to do, and rules for their lives.

pub mod key_requirements;
pub mod lifecycle;
pub mod spec;
pub mod validate;
pub mod verdict_timeout;
