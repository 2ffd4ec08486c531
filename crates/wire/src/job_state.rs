//! What jobs do, as both ends know it.

use crate::v1;

/// What a job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// In the queue.
    Queued,
    /// Computed by a worker.
    Running,
    /// Waiting for a verdict.
    Waiting,
    /// Done.
    Finished,
    /// Ended with an error.
    Failed,
    /// Ended by its owner.
    Cancelled,
}

impl JobState {
    /// Whether nothing more will happen.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Cancelled)
    }

    /// The state a message names, if it names one.
    pub fn parse(message: v1::JobState) -> Option<Self> {
        Some(match message {
            v1::JobState::Unspecified => return None,
            v1::JobState::Queued => Self::Queued,
            v1::JobState::Running => Self::Running,
            v1::JobState::Waiting => Self::Waiting,
            v1::JobState::Finished => Self::Finished,
            v1::JobState::Failed => Self::Failed,
            v1::JobState::Cancelled => Self::Cancelled,
        })
    }
}

impl From<JobState> for v1::JobState {
    fn from(state: JobState) -> Self {
        match state {
            JobState::Queued => Self::Queued,
            JobState::Running => Self::Running,
            JobState::Waiting => Self::Waiting,
            JobState::Finished => Self::Finished,
            JobState::Failed => Self::Failed,
            JobState::Cancelled => Self::Cancelled,
        }
    }
}
