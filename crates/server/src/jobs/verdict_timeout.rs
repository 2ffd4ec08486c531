//! Fails jobs whose owners do not give a verdict in time.

use crate::jobs::lifecycle::clear_ended;
use crate::store::state::Database;
use crate::worker::pool::WorkerContext;
use hetal_wire::JobId;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Tracks how long each job has waited. Only time that a server observed counts, so clock changes
/// and downtime do not fail a job. A database that several servers share keeps the deadlines; else
/// this process does.
pub struct VerdictTimeouts {
    limit: Duration,
    seen: HashMap<(JobId, u32), Instant>,
    /// The database, which keeps deadlines if several servers share it.
    database: Option<Arc<dyn Database>>,
}

impl VerdictTimeouts {
    /// Creates timeouts of `seconds` for each verdict.
    pub(crate) fn new(seconds: u64, database: Option<Arc<dyn Database>>) -> Self {
        Self { limit: Duration::from_secs(seconds), seen: HashMap::new(), database }
    }

    /// The pause between two looks.
    fn pause(&self) -> Duration {
        (self.limit / 4).clamp(Duration::from_millis(100), Duration::from_secs(30))
    }

    /// Fails overdue jobs until the server stops.
    pub fn watch(mut self, worker: &WorkerContext) {
        let pause = self.pause();
        let mut next = Instant::now();
        while !worker.draining.load(Ordering::Relaxed) {
            if Instant::now() < next {
                // The notifier wakes this thread more often, so that it stops at once with the
                // server.
                worker.core.notifier.wait(worker.core.notifier.version(), pause.min(Duration::from_secs(1)));
                continue;
            }
            next = Instant::now() + pause;
            if let Err(error) = self.expire_overdue(worker) {
                tracing::warn!(%error, "could not check for overdue verdicts");
            }
        }
    }

    /// Fails jobs whose verdict is overdue. If this fails for one job, the others are still
    /// checked.
    pub(crate) fn expire_overdue(&mut self, worker: &WorkerContext) -> crate::Result<()> {
        let reason = format!("no verdict within {} seconds", self.limit.as_secs());
        let now = (worker.core.clock)();
        let until = worker.lease_until(now);
        let limit = self.limit.as_millis() as u64;
        let overdue = match self.database.as_ref().and_then(|database| database.shared()) {
            Some(shared) => shared.advance_deadlines(limit, self.pause().as_millis() as u64, until - now)?,
            None => self.overdue(&worker.core.state.waiting(now, until)?, Instant::now()),
        };
        for (id, round) in overdue {
            match worker.core.state.expire(id, round, &reason, now, until) {
                Ok(Some(tenant)) => {
                    tracing::info!(job = %id, round, "job failed: no verdict in time");
                    worker.core.notifier.notify_of(id);
                    clear_ended(&*worker.core.state, &*worker.core.blobs, &tenant, id);
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(job = %id, round, %error, "could not fail a job whose verdict is overdue")
                }
            }
        }
        Ok(())
    }

    /// The jobs whose verdict is overdue.
    fn overdue(&mut self, waiting: &[(JobId, u32)], now: Instant) -> Vec<(JobId, u32)> {
        self.seen.retain(|key, _| waiting.contains(key));
        let late = |key: &(JobId, u32), seen: &mut HashMap<_, Instant>| {
            now.duration_since(*seen.entry(*key).or_insert(now)) >= self.limit
        };
        waiting.iter().filter(|key| late(key, &mut self.seen)).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_that_a_question_was_open_counts() {
        let (mut timeouts, start) = (VerdictTimeouts::new(10, None), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let (first, second) = ((JobId([1; 16]), 1), (JobId([2; 16]), 1));
        assert!(timeouts.overdue(&[first], start).is_empty());
        assert!(timeouts.overdue(&[first, second], after(9)).is_empty());
        assert_eq!(timeouts.overdue(&[first, second], after(10)), [first]);
        // The owner answered, and a new round began.
        assert!(timeouts.overdue(&[second], after(11)).is_empty());
        assert!(timeouts.overdue(&[(first.0, 2)], after(12)).is_empty());
        assert!(timeouts.overdue(&[(first.0, 2), second], after(21)).is_empty());
    }
}
