//! Calls that are tried again when the connection breaks.

use super::error::{self, Error, Result};
use std::future::Future;
use std::time::{Duration, Instant};
use tonic::{Code, Status};

/// Whether it may pass when it is tried again. A certificate that is not the server's stays so.
pub(super) fn is_broken(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Aborted | Code::DeadlineExceeded)
        && !error::is_of_certificate(status)
}

/// The first pause, and the one that shows that something more than a moment was lost: 3 s after the break.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(super) const LONG_PAUSE: Duration = FIRST_PAUSE.saturating_mul(32);

/// Waits between attempts, longer each time.
pub(super) struct Backoff {
    retry_timeout: Duration,
    /// When to give up: known once something broke.
    until: Option<Instant>,
    pub(super) pause: Duration,
}

impl Backoff {
    pub(super) fn new(retry_timeout: Duration) -> Self {
        Self { retry_timeout, until: None, pause: FIRST_PAUSE }
    }

    /// Sleeps before the next attempt, or gives the error that ends them.
    pub(super) fn wait(&mut self, server: &str, status: Status) -> Result<()> {
        let until = *self.until.get_or_insert_with(|| Instant::now() + self.retry_timeout);
        if !is_broken(&status) || Instant::now() + self.pause > until {
            return Err(Error::of(server, status));
        }
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(Duration::from_secs(5));
        Ok(())
    }

    /// Something was achieved: the next break is a new one.
    pub(super) fn renew(&mut self) {
        *self = Self::new(self.retry_timeout);
    }
}

/// Nothing came for so long: said by this end of the connection, not by the other.
pub(super) struct TimedOut(pub(super) Duration);

impl From<TimedOut> for Status {
    fn from(TimedOut(limit): TimedOut) -> Self {
        Self::deadline_exceeded(format!("nothing came for {limit:?}"))
    }
}

/// What is awaited, unless nothing comes for too long.
pub(super) async fn with_timeout<T>(
    limit: Duration,
    awaited: impl Future<Output = T>,
) -> std::result::Result<T, TimedOut> {
    tokio::time::timeout(limit, awaited).await.map_err(|_| TimedOut(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_counts_from_the_break() {
        let broken = || Status::unavailable("broken");
        let mut backoff = Backoff::new(Duration::from_millis(120));
        // A call may take long before anything breaks.
        std::thread::sleep(Duration::from_millis(200));
        assert!(backoff.wait("here", broken()).is_ok());
        assert!(backoff.wait("here", broken()).is_err(), "50 ms and 100 ms are more than 120");
        backoff.renew();
        assert!(backoff.wait("here", broken()).is_ok());
        assert!(backoff.wait("here", Status::not_found("no")).is_err());
    }
}
