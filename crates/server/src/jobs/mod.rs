//! Job specs, their validation, and the life cycle of jobs.

pub mod lifecycle;
pub mod required_keys;
pub mod spec;
pub mod validate;
pub mod verdict_timeout;
