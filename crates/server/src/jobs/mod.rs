//! Job specs, their validation, and the life cycle of jobs.

pub mod key_requirements;
pub mod lifecycle;
pub mod spec;
pub mod validate;
pub mod verdict_timeout;
