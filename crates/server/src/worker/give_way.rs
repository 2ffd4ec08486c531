//! Which of the jobs that wait for verdicts gives its worker up for a queued job.

use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// Lets one worker at a time give way. The next one may only do so after the first has looked for a
/// job: one queued job then costs one waiting job its worker, not all of them.
#[derive(Default)]
pub struct GiveWay(Mutex<Option<ThreadId>>);

impl GiveWay {
    /// Whether the worker of this thread may give way. If so, no other worker may until
    /// [`GiveWay::end`].
    pub fn begin(&self) -> bool {
        let mut giver = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *giver.get_or_insert(thread::current().id()) == thread::current().id()
    }

    /// The worker of this thread has looked for a job, or does not give way after all.
    pub fn end(&self) {
        let mut giver = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        giver.take_if(|giver| *giver == thread::current().id());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn one_worker_at_a_time_gives_way() {
        let give_way = GiveWay::default();
        let elsewhere = |work: fn(&GiveWay) -> bool| thread::scope(|scope| scope.spawn(|| work(&give_way)).join());
        let begins = || elsewhere(GiveWay::begin).unwrap();
        assert!(give_way.begin() && give_way.begin(), "a worker may ask twice");
        assert!(!begins());
        let ends = |give_way: &GiveWay| {
            give_way.end();
            true
        };
        elsewhere(ends).unwrap();
        assert!(!begins(), "only the worker that gives way ends that");
        give_way.end();
        assert!(begins());
    }
}
