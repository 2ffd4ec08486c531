//! Job specs, their validation, and the life cycle of jobs. The queue is in `store::state`.

pub mod lifecycle;
pub mod required_keys;
pub mod spec;
pub mod validate;
pub mod verdict_timeout;
