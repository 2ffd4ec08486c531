//! The time of day.

use crate::store::state::Millis;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub fn millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Source of the time of day. The clock may jump. Only displayed times and the expiry of
/// credentials depend on it.
pub type Clock = Arc<dyn Fn() -> Millis + Send + Sync>;

/// The system clock.
pub fn system() -> Clock {
    Arc::new(millis)
}
