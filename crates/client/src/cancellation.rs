//! A request to end the work of another thread.

use crate::{Error, Result};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Notify;

/// Ends the work of a thread at its next step. Clones share the request.
///
/// Whatever is on disk stays there, as if the process had been killed: the same command continues.
#[derive(Clone, Debug, Default)]
pub struct Cancellation(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    requested: AtomicBool,
    /// Wakes network calls.
    network: Notify,
    /// Wakes sleeping threads.
    sleepers: (Mutex<()>, Condvar),
}

impl Cancellation {
    /// Requests the end of the work. It cannot be taken back.
    pub fn cancel(&self) {
        self.0.requested.store(true, Ordering::SeqCst);
        self.0.network.notify_waiters();
        let _guard = self.0.sleepers.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.sleepers.1.notify_all();
    }

    /// Returns whether the end was requested.
    pub fn is_requested(&self) -> bool {
        self.0.requested.load(Ordering::SeqCst)
    }

    /// An error if the end was requested.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_requested() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Sleeps, at most until the end is requested.
    pub(crate) fn sleep(&self, time: Duration) {
        let (lock, condition) = &self.0.sleepers;
        let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let _woken = condition.wait_timeout_while(guard, time, |()| !self.is_requested());
    }

    /// Awaits a future; `None` if the end is requested before it is ready.
    pub(crate) async fn unless_requested<T>(&self, awaited: impl Future<Output = T>) -> Option<T> {
        let requested = self.0.network.notified();
        tokio::pin!(requested, awaited);
        // From here on a request is not missed.
        requested.as_mut().enable();
        if self.is_requested() {
            return None;
        }
        let either = |context: &mut Context<'_>| match requested.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => awaited.as_mut().poll(context).map(Some),
        };
        std::future::poll_fn(either).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_request_ends_sleeps_and_calls() {
        let cancellation = Cancellation::default();
        assert!(cancellation.check().is_ok());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        assert_eq!(runtime.block_on(cancellation.unless_requested(async { 7 })), Some(7));
        let forever = || runtime.block_on(cancellation.unless_requested(std::future::pending::<()>()));
        let start = Instant::now();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| cancellation.sleep(Duration::from_secs(60)));
            let other = cancellation.clone();
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                other.cancel();
            });
            assert_eq!(forever(), None);
            sleeper.join().unwrap();
        });
        assert!(start.elapsed() < Duration::from_secs(60));
        assert_eq!(forever(), None, "also after the request");
        assert!(matches!(cancellation.check(), Err(Error::Cancelled)));
    }
}
