//! Probes of things that may hang, such as a disk. Whoever asks waits for a bounded time only.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A probe that runs in a thread of its own, one at a time. Its last result stands for a while.
pub struct Probe<T> {
    state: Mutex<ProbeState<T>>,
    ended: Condvar,
    /// How long a result stands for later questions.
    lifetime: Duration,
    /// How long a probe may run before it counts as hanging.
    timeout: Duration,
}

struct ProbeState<T> {
    last: Option<(Instant, T)>,
    running_since: Option<Instant>,
}

impl<T: Clone + Send + 'static> Probe<T> {
    /// A probe whose results stand for `lifetime`, and that hangs if it runs longer than
    /// `timeout`.
    pub fn new(lifetime: Duration, timeout: Duration) -> Arc<Self> {
        let state = Mutex::new(ProbeState { last: None, running_since: None });
        Arc::new(Self { state, ended: Condvar::new(), lifetime, timeout })
    }

    fn lock(&self) -> MutexGuard<'_, ProbeState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last result, or that of `run` if the last one is too old. `None` if the probe hangs or
    /// panicked. A probe that hangs is not started a second time.
    pub fn result(self: &Arc<Self>, run: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let mut state = self.lock();
        if let Some((when, result)) = &state.last
            && state.running_since.is_none()
            && when.elapsed() < self.lifetime
        {
            return Some(result.clone());
        }
        let since = match state.running_since {
            Some(since) => since,
            None => {
                if let Err(error) = self.start(run) {
                    tracing::error!(%error, "could not start a thread for a health check");
                    return None;
                }
                *state.running_since.insert(Instant::now())
            }
        };
        let left = self.timeout.saturating_sub(since.elapsed());
        let running = |state: &mut ProbeState<T>| state.running_since == Some(since);
        let (state, _) = self.ended.wait_timeout_while(state, left, running).unwrap_or_else(PoisonError::into_inner);
        match &state.last {
            Some((_, result)) if state.running_since != Some(since) => Some(result.clone()),
            _ => None,
        }
    }

    /// Starts a thread that runs the probe. It ends after the caller has given up the lock.
    fn start(self: &Arc<Self>, run: impl FnOnce() -> T + Send + 'static) -> std::io::Result<()> {
        let probe = Arc::clone(self);
        let work = move || {
            let mut end = ProbeEnd { probe: &probe, result: None };
            end.result = Some(run());
        };
        std::thread::Builder::new().name("probe".to_owned()).spawn(work).map(|_| ())
    }
}

/// Records the end of a probe when it is dropped, also if the probe panicked.
struct ProbeEnd<'a, T> {
    probe: &'a Probe<T>,
    result: Option<T>,
}

impl<T> Drop for ProbeEnd<'_, T> {
    fn drop(&mut self) {
        let mut state = self.probe.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.last = self.result.take().map(|result| (Instant::now(), result));
        state.running_since = None;
        self.probe.ended.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_result_stands_for_a_while() {
        let (kept, fresh) = (Probe::new(LONG, LONG), Probe::new(Duration::ZERO, LONG));
        assert_eq!([1, 2].map(|n| kept.result(move || n)), [Some(1), Some(1)]);
        assert_eq!([1, 2].map(|n| fresh.result(move || n)), [Some(1), Some(2)]);
    }

    /// While a probe hangs, nobody waits for it and no second one is started.
    #[test]
    fn a_hanging_probe_is_reported_and_not_repeated() {
        let probe = Probe::new(Duration::ZERO, Duration::ZERO);
        let (end, ends) = mpsc::channel::<()>();
        assert_eq!(probe.result(move || ends.recv().map_or(1, |()| 2)), None);
        let (started, starts) = mpsc::channel();
        assert_eq!(probe.result(move || started.send(()).map_or(3, |()| 4)), None);
        assert!(starts.recv().is_err(), "a second probe was started");
        drop(end);
        let mut state = probe.lock();
        while state.running_since.is_some() {
            state = probe.ended.wait(state).unwrap();
        }
        assert!(state.last.is_some_and(|(_, result)| result == 1));
    }

    #[test]
    fn a_probe_that_panics_is_repeated() {
        let probe = Probe::new(LONG, LONG);
        assert_eq!(probe.result(|| panic!("on purpose")), None);
        assert_eq!(probe.result(|| 5), Some(5));
    }
}
