//! Retry policy: what happens to a job after an attempt.

use crate::store::state::{Change, JobState, MAX_BACKOFF, Millis};
use crate::{Error, Result};
use hetal_wire::v1;
use hetal_wire::v1::event::What;

/// The first backoff after a failure of the device. It doubles with each further failure.
const DEVICE_BACKOFF: Millis = 30_000;
/// The first backoff after a failure of the disk, the database or the bucket.
const STORAGE_BACKOFF: Millis = 2_000;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The job has ended.
    Ended,
    /// The owner cancelled the job.
    Cancelled,
    /// The job waits for a verdict and gives up its worker.
    Waiting,
    /// The server stops, and the job returns to the queue.
    Released,
}

/// The history of a job that decides about a retry.
#[derive(Clone, Copy, Debug)]
pub struct AttemptHistory {
    /// Counted attempts since the last checkpoint, this one included.
    pub attempts: u32,
    /// The limit of counted attempts.
    pub max_attempts: u32,
    /// Backoffs since the last checkpoint.
    pub backoffs: u32,
    /// Whether the attempt fitted on the device and began to compute.
    pub started: bool,
    /// Whether the owner asked to cancel the job.
    pub cancelled: bool,
}

/// What happens to a job after an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum NextState {
    /// Nothing: the job has ended, or another worker has it.
    Unchanged,
    /// The job returns to the queue, or waits for its verdict.
    Requeue(Change),
    /// The job backs off until the device works again. Watchers are told.
    BackOff(Change),
    /// The job ends.
    End(Change),
}

/// Decides what happens to a job after an attempt.
pub fn next_state(outcome: &Result<AttemptOutcome>, history: &AttemptHistory) -> NextState {
    let release = Change { release: true, ..Change::default() };
    match outcome {
        Ok(AttemptOutcome::Ended) | Err(Error::Fenced) => NextState::Unchanged,
        // A stop of the server does not count against the job.
        Ok(AttemptOutcome::Released) => NextState::Requeue(Change { uncounted: true, ..release }),
        Ok(AttemptOutcome::Waiting) => NextState::Requeue(Change { state: Some(JobState::Waiting), ..release }),
        Ok(AttemptOutcome::Cancelled) => cancelled(),
        // A cancelled job does not wait for the machine to recover.
        Err(error) if error.is_transient() && history.cancelled => cancelled(),
        // A failed GPU does not fail the job: it backs off at its checkpoint. Lack of memory before
        // the start does not count against the job. Lack of memory later counts, and so does a GPU
        // that fails at every attempt.
        Err(error @ Error::Device { is_full, .. }) => {
            let uncounted = *is_full && !history.started;
            if !uncounted && history.attempts >= history.max_attempts {
                return failed(error);
            }
            let (backoff, out_of_memory) =
                (backoff_after(DEVICE_BACKOFF, history.backoffs), *is_full && history.started);
            NextState::BackOff(Change { backoff, uncounted, out_of_memory, ..release })
        }
        // A full disk or an unreachable bucket never fails the job.
        Err(error) if error.is_transient() => NextState::Requeue(Change {
            backoff: backoff_after(STORAGE_BACKOFF, history.backoffs),
            uncounted: true,
            ..release
        }),
        Err(error) => failed(error),
    }
}

/// The first backoff, doubled for each earlier one.
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
    let damaged_upload = match error {
        Error::DamagedUpload { name } => Some(*name),
        _ => None,
    };
    NextState::End(Change { state, reason, event, damaged_upload, release: true, ..Change::default() })
}

#[cfg(test)]
#[allow(clippy::panic)]
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
        // Cancellation wins over transient errors, but not over a failure of the computation.
        let unwanted = AttemptHistory { cancelled: true, ..FIRST };
        for error in storage().into_iter().chain([device(true), device(false)]) {
            assert_eq!(next_state(&Err(error), &unwanted), cancelled());
        }
        assert_eq!(next_state(&Err(wrong()), &unwanted), failed(&wrong()));
        // The failure of a job for a damaged upload marks the upload.
        let name = hetal_wire::BlobName([7; 32]);
        let NextState::End(change) = next_state(&Err(Error::DamagedUpload { name }), &FIRST) else {
            panic!("a job goes on without its upload");
        };
        assert_eq!(change.damaged_upload, Some(name));
        assert!(change.reason.is_some_and(|reason| reason.contains(&name.to_string())));
    }
}
