//! Tests that would hang fail instead.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

/// Ends the process with a failure, unless it is dropped within a time limit.
pub struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    /// Starts the clock. `most` is the time limit.
    #[must_use]
    pub fn new(most: Duration) -> Self {
        let (alive, heard) = mpsc::channel::<()>();
        let name = std::thread::current().name().unwrap_or("a test").to_owned();
        std::thread::spawn(move || {
            if heard.recv_timeout(most) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{name} hangs: it did not end within {} seconds", most.as_secs());
                std::process::exit(101);
            }
        });
        Self { _alive: alive }
    }
}

/// Sets a flag when it is dropped, also by a panic. Threads that run until the flag is set then
/// end.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
