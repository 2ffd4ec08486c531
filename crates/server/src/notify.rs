//! Wakes threads and tasks after changes of the state.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Notifies waiting threads and tasks after every change of the state.
pub struct ChangeNotifier {
    tasks: watch::Sender<u64>,
    version: Mutex<u64>,
    threads: Condvar,
}

impl Default for ChangeNotifier {
    fn default() -> Self {
        Self { tasks: watch::Sender::new(0), version: Mutex::new(0), threads: Condvar::new() }
    }
}

impl ChangeNotifier {
    /// Wakes all waiting threads and tasks.
    pub fn notify(&self) {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.threads.notify_all();
        self.tasks.send_modify(|version| *version += 1);
    }

    /// The number of notifications so far.
    pub fn version(&self) -> u64 {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until there are more notifications than `seen`, or until the timeout. Other machines
    /// may change a shared state without a notification here, so callers poll as well.
    pub fn wait(&self, seen: u64, timeout: Duration) {
        let version = self.version.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.threads.wait_timeout_while(version, timeout, |version| *version == seen);
    }

    /// A receiver for asynchronous tasks.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.tasks.subscribe()
    }
}
