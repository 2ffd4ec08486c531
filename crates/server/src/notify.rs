//! Tells whoever waits that something changed.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Rung after every change of the state; heard by threads and by tasks.
pub struct Bell {
    tasks: watch::Sender<u64>,
    count: Mutex<u64>,
    threads: Condvar,
}

impl Default for Bell {
    fn default() -> Self {
        Self { tasks: watch::Sender::new(0), count: Mutex::new(0), threads: Condvar::new() }
    }
}

impl Bell {
    /// Wakes everyone.
    pub fn ring(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.threads.notify_all();
        self.tasks.send_modify(|count| *count += 1);
    }

    /// How often it rang.
    pub fn count(&self) -> u64 {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks a thread until the bell has rung more often than `heard`, or a while has passed: the state may be shared with other
    /// machines, whose bells are not heard here.
    pub fn wait(&self, heard: u64, most: Duration) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.threads.wait_timeout_while(count, most, |count| *count == heard);
    }

    /// For tasks.
    pub fn listen(&self) -> watch::Receiver<u64> {
        self.tasks.subscribe()
    }
}
