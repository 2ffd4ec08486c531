//! Timeouts, and repeated attempts when a connection breaks.

use super::error::{self, Error, Result};
use crate::Cancellation;
use std::future::Future;
use std::time::{Duration, Instant};
use tonic::{Code, Status};

/// Returns whether another attempt may succeed: the connection broke, or the server has a fault of
/// its own (`Internal`), for example a full disk or a locked database. A wrong certificate stays
/// wrong.
pub(super) fn is_passing(status: &Status) -> bool {
    let passing = [Code::Unavailable, Code::Unknown, Code::Aborted, Code::DeadlineExceeded, Code::Internal];
    passing.contains(&status.code()) && !error::is_of_certificate(status)
}

/// The pause before the second attempt. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The pause from which on an interruption is reported: about 3 s after the connection broke.
pub(super) const LONG_PAUSE: Duration = FIRST_PAUSE.saturating_mul(32);

/// Waits between attempts, twice as long each time.
pub(super) struct Backoff {
    retry_timeout: Duration,
    /// The time of the last attempt, set when the connection breaks first.
    until: Option<Instant>,
    pub(super) pause: Duration,
}

impl Backoff {
    pub(super) fn new(retry_timeout: Duration) -> Self {
        Self { retry_timeout, until: None, pause: FIRST_PAUSE }
    }

    /// Sleeps before the next attempt, or returns the error that ends the attempts.
    pub(super) fn wait(&mut self, server: &str, status: Status, cancellation: &Cancellation) -> Result<()> {
        let until = *self.until.get_or_insert_with(|| Instant::now() + self.retry_timeout);
        if !is_passing(&status) || Instant::now() + self.pause > until {
            return Err(Error::of(server, status));
        }
        cancellation.sleep(self.pause);
        self.pause = (self.pause * 2).min(Duration::from_secs(5));
        Ok(())
    }

    /// Starts over, because an attempt made progress.
    pub(super) fn renew(&mut self) {
        *self = Self::new(self.retry_timeout);
    }
}

/// The client's own timeout, as opposed to one that the server reports.
pub(super) struct TimedOut(pub(super) Duration);

impl From<TimedOut> for Status {
    fn from(TimedOut(limit): TimedOut) -> Self {
        Self::deadline_exceeded(format!("nothing received for {limit:?}"))
    }
}

/// Awaits a future for at most `limit`.
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
        let (broken, wanted) = (|| Status::unavailable("broken"), Cancellation::default());
        let mut backoff = Backoff::new(Duration::from_millis(120));
        // The time before the connection breaks does not count.
        std::thread::sleep(Duration::from_millis(200));
        assert!(backoff.wait("here", broken(), &wanted).is_ok());
        assert!(backoff.wait("here", broken(), &wanted).is_err(), "50 ms and 100 ms together exceed 120 ms");
        backoff.renew();
        assert!(backoff.wait("here", broken(), &wanted).is_ok());
        assert!(Backoff::new(Duration::from_secs(1)).wait("here", Status::internal("a full disk"), &wanted).is_ok());
        assert!(backoff.wait("here", Status::not_found("no"), &wanted).is_err());
    }
}
