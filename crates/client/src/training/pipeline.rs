//! What a client does beside judging: it receives events and downloads logits, and it sends
//! verdicts when they are due.
//!
//! Both have a thread of their own, so that nothing that a server sees of them depends on how long
//! the judging in between takes, nor on its result. Logits are downloaded when they are announced,
//! also those that a verdict has thrown away meanwhile: the server may not know that verdict yet.
//!
//! ```text
//! server ── events ──> receive ── logits ──> judge (follow) ── verdicts ──> send ──> server
//! ```

use crate::ciphertexts::download_logits;
use crate::rpc::{Event, EventKind, JobId, Remote, Validation, Watch};
use crate::{Cancellation, Error, Layout, Result};
use hetal_learn::Verdict;
use hetal_learn::session::MOST_OPEN;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the threads share: the verdicts that were decided, and how many of them were sent.
pub(super) struct DecidedVerdicts {
    state: Mutex<State>,
    /// The verdicts of earlier runs of the client.
    pub known: usize,
}

#[derive(Default)]
struct State {
    verdicts: Vec<Verdict>,
    sent: usize,
}

impl DecidedVerdicts {
    /// The verdicts of earlier runs. A server may have all of them.
    pub fn new(verdicts: Vec<Verdict>) -> Self {
        let known = verdicts.len();
        Self { state: Mutex::new(State { verdicts, sent: known }), known }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn decide(&self, verdict: Verdict) {
        self.state().verdicts.push(verdict);
    }
}

/// Follows the numbers of announced logits.
#[derive(Default)]
struct Announcements {
    last: usize,
    repeats: usize,
}

impl Announcements {
    /// Checks that an announcement is the next one. Usually its round follows the last announced
    /// round. After a verdict that goes back, it follows the round of that verdict, and the verdict
    /// was sent.
    fn follow(&mut self, validation: &Validation, decided: &DecidedVerdicts) -> Result<()> {
        let (round, repeats) = (validation.round as usize, validation.repeats);
        let State { verdicts, sent } = &*decided.state();
        let most = sent + MOST_OPEN;
        if round > most {
            return Err(Error::hostile(format!("round {round} before the verdict on round {}", round - MOST_OPEN)));
        }
        let before = &verdicts[..verdicts.len().min(round - 1).min(*sent)];
        let went_back = before.len() == round - 1 && before.last().copied().is_some_and(goes_back);
        let follows = match repeats == self.repeats {
            true => round == self.last + 1,
            false => went_back && before.iter().filter(|verdict| goes_back(**verdict)).count() == repeats,
        };
        if !follows {
            let (last, known) = (self.last, self.repeats);
            return Err(Error::hostile(format!(
                "round {round} after {repeats} repeats follows round {last} after {known}"
            )));
        }
        (self.last, self.repeats) = (round, repeats);
        Ok(())
    }
}

/// Whether a training goes back to the last accepted check.
pub(super) fn goes_back(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::LowerRate | Verdict::WidenRange)
}

/// What arrived for the thread that judges.
pub(super) enum Arrival {
    Event(EventKind),
    /// Announced logits, and their files.
    Logits(Validation, Result<Vec<PathBuf>>),
    /// The connection failed for good, or a verdict could not be sent.
    Failed(Error),
}

/// What the receiving thread needs.
pub(super) struct EventReceiver<'a> {
    pub remote: &'a Remote,
    pub job: JobId,
    pub layout: &'a Layout,
    pub folder: &'a Path,
    /// The number of validation row blobs.
    pub blobs: usize,
    pub decided: &'a DecidedVerdicts,
    /// Ends the thread.
    pub stop: &'a Cancellation,
}

impl EventReceiver<'_> {
    /// Receives events until the job ends, or nobody listens.
    pub fn run(self, arrivals: &Sender<Arrival>) {
        let mut watch = self.remote.watch(self.job, 0).until(self.stop.clone());
        let mut announced = Announcements::default();
        loop {
            let arrival = match self.next(&mut watch, &mut announced) {
                Ok(Some(arrival)) => arrival,
                Ok(None) => return,
                Err(error) => Arrival::Failed(error),
            };
            let is_last = matches!(arrival, Arrival::Failed(_));
            if arrivals.send(arrival).is_err() || is_last {
                return;
            }
        }
    }

    fn next(&self, watch: &mut Watch<'_>, announced: &mut Announcements) -> Result<Option<Arrival>> {
        let Some(Event { sequence, kind }) = watch.next_event()? else { return Ok(None) };
        let EventKind::Validation(validation) = kind else { return Ok(Some(Arrival::Event(kind))) };
        let mut files = announced.follow(&validation, self.decided).map(|()| Vec::new());
        if files.is_ok() && validation.round as usize > self.decided.known {
            // A file that was interrupted continues under the number of its event.
            let (name, logits) = (format!("logits-{sequence:06}"), &validation.logits);
            files = download_logits(self.remote, self.job, logits, self.blobs, self.layout, self.folder, &name);
        }
        Ok(Some(Arrival::Logits(validation, files)))
    }
}

/// A verdict that waits until it is due.
pub(super) struct DueVerdict {
    pub validation: Validation,
    pub verdict: Verdict,
    pub at: Instant,
}

/// What the thread that sends verdicts is told.
pub(super) enum Dispatch {
    Verdict(DueVerdict),
    /// The server has taken the verdict on a round, so it need not be sent again.
    Taken(usize),
}

/// A verdict is due `delay` after its logits arrived, or a whole multiple of `delay` if judging
/// took longer.
pub(super) fn due(validation: Validation, verdict: Verdict, delay: Duration) -> DueVerdict {
    let at = Instant::now() + crate::rpc::rest_of_period(validation.received.elapsed(), delay);
    DueVerdict { validation, verdict, at }
}

/// Sends verdicts in order, each when it is due, until no more can come.
pub(super) fn send_verdicts(
    remote: &Remote,
    job: JobId,
    decided: &DecidedVerdicts,
    dispatches: &Receiver<Dispatch>,
    arrivals: &Sender<Arrival>,
) {
    let mut queue: VecDeque<DueVerdict> = VecDeque::new();
    loop {
        let wait = queue.front().map(|due| due.at.saturating_duration_since(Instant::now()));
        let dispatch = match wait {
            Some(wait) => dispatches.recv_timeout(wait),
            None => dispatches.recv().map_err(RecvTimeoutError::from),
        };
        match dispatch {
            Ok(Dispatch::Verdict(due)) => queue.push_back(due),
            Ok(Dispatch::Taken(round)) => queue.retain(|due| due.validation.round as usize > round),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let Some(DueVerdict { validation, verdict, .. }) = queue.pop_front() else { continue };
                let round = validation.round as usize;
                {
                    let mut state = decided.state();
                    state.sent = state.sent.max(round);
                }
                if let Err(error) = remote.judge(job, validation.round, verdict) {
                    // Nobody listens if the training ended otherwise.
                    let _ = arrivals.send(Arrival::Failed(error.into()));
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use Verdict::{Continue, LowerRate, Stop, WidenRange};

    fn announced(round: usize, repeats: usize) -> Validation {
        Validation { round: round as u32, repeats, ..Validation::for_tests() }
    }

    /// Follows announcements under the verdicts that were sent before each of them.
    fn follow(steps: &[(usize, usize, &[Verdict])]) -> Vec<bool> {
        let mut announcements = Announcements::default();
        let follow = |&(round, repeats, verdicts): &(usize, usize, &[Verdict])| {
            announcements.follow(&announced(round, repeats), &DecidedVerdicts::new(verdicts.to_vec())).is_ok()
        };
        steps.iter().map(follow).collect()
    }

    #[test]
    fn announcements_follow_each_other() {
        let both = [Continue, LowerRate];
        assert_eq!(
            follow(&[(1, 0, &[]), (2, 0, &[]), (3, 0, &[Continue]), (4, 0, &both), (3, 1, &both), (4, 1, &both)]),
            [true; 6]
        );
        // Repeated, skipped, and of a repeat that nobody asked for.
        assert_eq!(follow(&[(1, 0, &[]), (1, 0, &[]), (3, 0, &[]), (2, 1, &[Continue])]), [true, false, false, false]);
        // Two repeats for one, a repeat from elsewhere, and one back in time.
        assert_eq!(follow(&[(1, 0, &[]), (2, 2, &[WidenRange])]), [true, false]);
        assert_eq!(follow(&[(1, 0, &[]), (2, 0, &both), (2, 1, &both)]), [true, true, false]);
        assert_eq!(follow(&[(1, 0, &[]), (2, 1, &[LowerRate]), (2, 0, &[LowerRate])]), [true, true, false]);
    }

    #[test]
    fn a_server_runs_ahead_as_far_as_agreed() {
        let mut steps: Vec<(usize, usize, &[Verdict])> = (1..=MOST_OPEN).map(|round| (round, 0, &[][..])).collect();
        steps.push((MOST_OPEN + 1, 0, &[]));
        assert_eq!(follow(&steps).iter().filter(|ok| !**ok).count(), 1);
        steps[MOST_OPEN] = (MOST_OPEN + 1, 0, &[Stop]);
        assert!(follow(&steps).iter().all(|ok| *ok), "it may not know yet that it was told to stop");
    }
}
