//! The time.

use crate::store::state::Millis;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub fn millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Where the time of day comes from. It may jump: nothing but what people read, and when credentials expire, depends on it.
pub type Clock = Arc<dyn Fn() -> Millis + Send + Sync>;

/// The machine's clock.
pub fn system() -> Clock {
    Arc::new(millis)
}
