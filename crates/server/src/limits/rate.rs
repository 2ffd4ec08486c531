//! A limit on the rate of requests of each tenant. Requests above the rate wait.

use crate::tenants::Tenant;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time whose requests may come at once.
const BURST: Duration = Duration::from_secs(10);

/// The rate of requests that each tenant may make.
pub struct RateLimit {
    interval: Duration,
    max_delay: Duration,
    /// When the requests that each tenant has made so far would be over at the limited rate.
    paid_until: Mutex<HashMap<Tenant, Instant>>,
}

impl RateLimit {
    /// Allows `per_second` requests a second. A request that would wait longer than `max_delay` is
    /// refused.
    pub fn new(per_second: u32, max_delay: Duration) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self { interval, max_delay, paid_until: Mutex::default() }
    }

    /// Counts a request at the time `now`. Returns how long it must wait, or `None` if it is
    /// refused.
    pub fn reserve(&self, tenant: &Tenant, now: Instant) -> Option<Duration> {
        let mut paid_until = self.paid_until.lock().unwrap_or_else(PoisonError::into_inner);
        let paid = paid_until.entry(tenant.clone()).or_insert(now);
        let next = (*paid).max(now) + self.interval;
        let delay = (next - now).saturating_sub(BURST);
        if delay > self.max_delay {
            return None;
        }
        *paid = next;
        Some(delay)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A tenant who asks too often waits and is refused in the end. Other tenants do not notice.
    #[test]
    fn who_asks_too_often_waits() {
        let [ann, bob] = ["ann", "bob"].map(|name| Tenant::try_from(name.to_owned()).unwrap());
        let (limit, start) = (RateLimit::new(10, Duration::from_secs(2)), Instant::now());
        let delays: Vec<_> = (0..130).map(|_| limit.reserve(&ann, start)).collect();
        assert!(delays[..100].iter().all(|delay| *delay == Some(Duration::ZERO)));
        assert_eq!((delays[100], delays[119]), (Some(Duration::from_millis(100)), Some(Duration::from_secs(2))));
        assert!(delays[120..].iter().all(Option::is_none));
        assert_eq!(limit.reserve(&bob, start), Some(Duration::ZERO));
        // At the limited rate requests wait no longer than before. A pause makes up for a burst.
        assert_eq!(limit.reserve(&ann, start + Duration::from_secs(1)), Some(Duration::from_millis(1100)));
        assert_eq!(limit.reserve(&ann, start + Duration::from_secs(60)), Some(Duration::ZERO));
    }
}
