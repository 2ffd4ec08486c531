//! Wakes threads and tasks after changes of the state.

use hetal_wire::JobId;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Notifies waiting threads after every change of the state, and tasks after changes of the job
/// that they watch.
#[derive(Default)]
pub struct ChangeNotifier {
    watchers: Mutex<HashMap<JobId, watch::Sender<()>>>,
    version: Mutex<u64>,
    threads: Condvar,
}

impl ChangeNotifier {
    /// Wakes all waiting threads and tasks, because anything may have changed.
    pub fn notify(&self) {
        self.wake_threads();
        let watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.values().for_each(|watched| watched.send_replace(()));
    }

    /// Wakes all waiting threads, and the tasks that watch a job.
    pub fn notify_of(&self, job: JobId) {
        self.wake_threads();
        let watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.get(&job).into_iter().for_each(|watched| watched.send_replace(()));
    }

    fn wake_threads(&self) {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.threads.notify_all();
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

    /// A receiver for asynchronous tasks that watch a job.
    pub fn subscribe(&self, job: JobId) -> watch::Receiver<()> {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        // Of whom nobody watches any more.
        watchers.retain(|_, watched| watched.receiver_count() > 0);
        watchers.entry(job).or_insert_with(|| watch::Sender::new(())).subscribe()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_job_wakes_those_who_watch_it() {
        let notifier = ChangeNotifier::default();
        let [first, second] = [JobId([1; 16]), JobId([2; 16])];
        let mut watchers = [first, first, second].map(|job| notifier.subscribe(job));
        let mut woken = || {
            let woken = watchers.each_ref().map(|watcher| watcher.has_changed().unwrap());
            watchers.iter_mut().for_each(watch::Receiver::mark_unchanged);
            (notifier.version(), woken)
        };
        assert_eq!(woken(), (0, [false; 3]));
        notifier.notify_of(first);
        assert_eq!(woken(), (1, [true, true, false]));
        notifier.notify_of(JobId([3; 16]));
        assert_eq!(woken(), (2, [false; 3]));
        notifier.notify();
        assert_eq!(woken(), (3, [true; 3]));
        drop(watchers);
        let _third = notifier.subscribe(second);
        assert_eq!(notifier.watchers.lock().unwrap().len(), 1, "who is gone is forgotten");
    }
}
