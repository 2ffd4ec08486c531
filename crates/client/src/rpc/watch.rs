//! The event stream of a job.

use super::retry::{Backoff, TimedOut, with_timeout};
use super::{Error, Event, EventKind, JobId, JobState, Remote, Result};
use crate::Cancellation;
use hetal_wire::v1;
use tonic::Streaming;

/// The most timeouts in a row of a running job: an hour, with a retry timeout of five minutes.
const MAX_TIMEOUTS: usize = 11;

/// The events of one job, in order. A broken stream is opened again after the last event that was
/// received.
pub struct Watch<'a> {
    remote: &'a Remote,
    job: JobId,
    after: u64,
    ended: bool,
    /// Ends the wait for the next event.
    stop: Cancellation,
    stream: Option<Streaming<v1::Event>>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(remote: &'a Remote, job: JobId, after: u64) -> Self {
        Self { remote, job, after, ended: false, stop: Cancellation::default(), stream: None }
    }

    /// Ends the wait for the next event with [`Error::Cancelled`] when the caller asks for it.
    #[must_use]
    pub fn until(self, stop: Cancellation) -> Self {
        Self { stop, ..self }
    }

    /// Waits for the next event. Returns `None` after the last event of the job.
    pub fn next_event(&mut self) -> Result<Option<Event>> {
        if self.ended {
            return Ok(None);
        }
        let mut backoff = Backoff::new(self.remote.retry_timeout);
        let mut timeouts = 0;
        loop {
            let limit = self.remote.retry_timeout;
            let next = message(self.remote, self.job, self.after, &mut self.stream);
            let next = self.remote.unless_cancelled(with_timeout(limit, next));
            let next = match self.remote.runtime.block_on(self.stop.unless_requested(next)) {
                Some(Ok(next)) => next,
                Some(Err(_)) | None => return Err(Error::Cancelled),
            };
            match next {
                Ok(Ok(Some(event))) => return self.accept(Event::parse(event)?).map(Some),
                // A queued job has no events; a running job reports its progress.
                Err(TimedOut(_)) => {
                    self.stream = None;
                    timeouts += 1;
                    let queued = self.remote.job(self.job)?.state == JobState::Queued;
                    if !queued && timeouts > MAX_TIMEOUTS {
                        return Err(Error::Silent { server: self.remote.server.clone(), job: self.job });
                    }
                }
                Ok(Ok(None)) => {
                    self.stream = None;
                    self.remote.wait(&mut backoff, tonic::Status::unavailable("the server ended the stream"))?;
                }
                Ok(Err(status)) => {
                    self.stream = None;
                    self.remote.wait(&mut backoff, status)?;
                }
            }
        }
    }

    fn accept(&mut self, event: Event) -> Result<Event> {
        let progress = matches!(event.kind, EventKind::Progress(_));
        if event.sequence != self.after + u64::from(!progress) {
            return Err(Error::protocol(format!("event {} after event {}", event.sequence, self.after)));
        }
        self.after = event.sequence;
        self.ended = event.kind.is_last();
        Ok(event)
    }
}

async fn message(
    remote: &Remote,
    job: JobId,
    after: u64,
    stream: &mut Option<Streaming<v1::Event>>,
) -> std::result::Result<Option<v1::Event>, tonic::Status> {
    let open = match stream {
        Some(open) => open,
        None => {
            let request = v1::WatchRequest { job: job.to_vec().into(), after };
            stream.insert(remote.rpc().watch(request).await?.into_inner())
        }
    };
    open.message().await
}
