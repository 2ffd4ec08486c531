//! How attempts at jobs end, and what that means for the jobs.

use crate::store::state::{Change, JobState, MAX_BACKOFF, Millis};
use crate::{Error, Result};
use hetal_wire::v1;
use hetal_wire::v1::event::What;

/// How long a job rests after its card failed; after the next failure twice as long, and so on.
const DEVICE_BACKOFF: Millis = 30_000;
/// The same after a fault of the disk, the database or the bucket.
const STORAGE_BACKOFF: Millis = 2_000;

/// How an attempt at a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The job has ended.
    Ended,
    /// Its owner wants it to end.
    Cancelled,
    /// It waits for a verdict, without a worker.
    Waiting,
    /// This server stops; the job goes back to the queue.
    Released,
}

/// What is known of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct AttemptHistory {
    /// Attempts since the last checkpoint that count, this one included.
    pub attempts: u32,
    /// The most there may be.
    pub max_attempts: u32,
    /// Rests since the last checkpoint.
    pub backoffs: u32,
    /// Whether it had room on its card and began.
    pub started: bool,
    /// Whether the job's owner wants it to end.
    pub cancelled: bool,
}

/// What becomes of a job after an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum NextState {
    /// It has ended, or is another's.
    Unchanged,
    /// It goes back to where it waits.
    Requeue(Change),
    /// It rests until its card works again, which those who watch it are told.
    BackOff(Change),
    /// It ends.
    End(Change),
}

/// What the end of an attempt means for its job.
pub fn next_state(outcome: &Result<AttemptOutcome>, history: &AttemptHistory) -> NextState {
    let release = Change { release: true, ..Change::default() };
    match outcome {
        Ok(AttemptOutcome::Ended) | Err(Error::Fenced) => NextState::Unchanged,
        // Stopping a server is not the job's doing.
        Ok(AttemptOutcome::Released) => NextState::Requeue(Change { uncounted: true, ..release }),
        Ok(AttemptOutcome::Waiting) => NextState::Requeue(Change { state: Some(JobState::Waiting), ..release }),
        Ok(AttemptOutcome::Cancelled) => cancelled(),
        // An owner who wants the job to end does not wait for the machine.
        Err(error) if error.is_transient() && history.cancelled => cancelled(),
        // A job does not end because a card did: it rests at its checkpoint until there is one again. What lacks memory before it begins
        // is not the job's doing; what does so later may be, and a card that works otherwise and breaks at every attempt is.
        Err(error @ Error::Device { is_full, .. }) => {
            let uncounted = *is_full && !history.started;
            if !uncounted && history.attempts >= history.max_attempts {
                return failed(error);
            }
            let (backoff, out_of_memory) =
                (backoff_after(DEVICE_BACKOFF, history.backoffs), *is_full && history.started);
            NextState::BackOff(Change { backoff, uncounted, out_of_memory, ..release })
        }
        // Nor does one because a disk is full or a bucket cannot be reached, however long that takes.
        Err(error) if error.is_transient() => NextState::Requeue(Change {
            backoff: backoff_after(STORAGE_BACKOFF, history.backoffs),
            uncounted: true,
            ..release
        }),
        Err(error) => failed(error),
    }
}

/// The first rest, doubled for each that was before.
fn backoff_after(first: Millis, backoffs: u32) -> Option<Millis> {
    Some(first.saturating_mul(1 << backoffs.min(16)).min(MAX_BACKOFF))
}

fn cancelled() -> NextState {
    let event = Some(What::Cancelled(v1::Cancelled {}));
    NextState::End(Change { state: Some(JobState::Cancelled), event, release: true, ..Change::default() })
}

fn failed(error: &Error) -> NextState {
    let reason = error.client_message();
    let event = Some(What::Failed(v1::Failed { reason: reason.clone() }));
    let (state, reason) = (Some(JobState::Failed), Some(reason));
    NextState::End(Change { state, reason, event, release: true, ..Change::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: AttemptHistory =
        AttemptHistory { attempts: 1, max_attempts: 25, backoffs: 0, started: true, cancelled: false };

    fn device(is_full: bool) -> Error {
        Error::Device { reason: "it says so".to_owned(), is_full }
    }

    fn storage() -> [Error; 4] {
        let (key, what, reason) = ("a blob".to_owned(), "a file".to_owned(), "no space left".to_owned());
        let message = "no room for keys".to_owned();
        [
            Error::Blobs { key, reason: reason.clone() },
            Error::System { what, reason: reason.clone() },
            Error::State { reason },
            Error::Busy { message },
        ]
    }

    #[test]
    fn what_is_not_the_jobs_doing_does_not_count() {
        let last = AttemptHistory { attempts: 25, ..FIRST };
        let back = |change| NextState::Requeue(Change { release: true, ..change });
        for attempt in [FIRST, last] {
            let released = back(Change { uncounted: true, ..Change::default() });
            assert_eq!(next_state(&Ok(AttemptOutcome::Released), &attempt), released);
            let waiting = back(Change { state: Some(JobState::Waiting), ..Change::default() });
            assert_eq!(next_state(&Ok(AttemptOutcome::Waiting), &attempt), waiting);
            for (backoffs, backoff) in [(0, 2_000), (1, 4_000), (5, 64_000), (6, 120_000), (u32::MAX, 120_000)] {
                let tried = back(Change { uncounted: true, backoff: Some(backoff), ..Change::default() });
                for error in storage() {
                    assert_eq!(next_state(&Err(error), &AttemptHistory { backoffs, ..attempt }), tried);
                }
            }
        }
    }

    #[test]
    fn a_card_costs_time_until_it_is_the_jobs_doing() {
        let backs_off = |backoff, uncounted, out_of_memory| {
            NextState::BackOff(Change {
                release: true,
                backoff: Some(backoff),
                uncounted,
                out_of_memory,
                ..Change::default()
            })
        };
        for (before, backoff) in [(0, 30_000), (1, 60_000), (2, 120_000), (40, 120_000)] {
            let attempt = AttemptHistory { backoffs: before, ..FIRST };
            assert_eq!(next_state(&Err(device(false)), &attempt), backs_off(backoff, false, false));
            assert_eq!(next_state(&Err(device(true)), &attempt), backs_off(backoff, false, true));
            let early = AttemptHistory { started: false, attempts: 99, ..attempt };
            assert_eq!(next_state(&Err(device(true)), &early), backs_off(backoff, true, false));
        }
        let last = AttemptHistory { attempts: 25, ..FIRST };
        for is_full in [false, true] {
            assert_eq!(next_state(&Err(device(is_full)), &last), failed(&device(is_full)));
        }
    }

    #[test]
    fn ends_are_ends() {
        for outcome in [Ok(AttemptOutcome::Ended), Err(Error::Fenced)] {
            assert_eq!(next_state(&outcome, &FIRST), NextState::Unchanged);
        }
        let wrong = || Error::failed("the keys are wrong");
        assert_eq!(next_state(&Err(wrong()), &FIRST), failed(&wrong()));
        assert_eq!(next_state(&Ok(AttemptOutcome::Cancelled), &FIRST), cancelled());
        // Whoever wants an end has it; that of the computation came first.
        let unwanted = AttemptHistory { cancelled: true, ..FIRST };
        for error in storage().into_iter().chain([device(true), device(false)]) {
            assert_eq!(next_state(&Err(error), &unwanted), cancelled());
        }
        assert_eq!(next_state(&Err(wrong()), &unwanted), failed(&wrong()));
    }
}
