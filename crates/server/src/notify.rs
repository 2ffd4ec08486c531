//! Tells whoever waits that something changed.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Rung after every change of the state; heard by threads and by tasks.
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
    /// Wakes everyone.
    pub fn notify(&self) {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.threads.notify_all();
        self.tasks.send_modify(|version| *version += 1);
    }

    /// How often it rang.
    pub fn version(&self) -> u64 {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks a thread until the bell has rung more often than `heard`, or a while has passed: the state may be shared with other
    /// machines, whose bells are not heard here.
    pub fn wait(&self, seen: u64, timeout: Duration) {
        let version = self.version.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.threads.wait_timeout_while(version, timeout, |version| *version == seen);
    }

    /// For tasks.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.tasks.subscribe()
    }
}
