//! The states of a job.

use crate::v1;

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It waits in the queue.
    Queued,
    /// A worker computes it.
    Running,
    /// It waits for a verdict.
    Waiting,
    /// It ended well.
    Finished,
    /// It ended with an error.
    Failed,
    /// Its owner cancelled it.
    Cancelled,
}

impl JobState {
    /// Returns whether the job has ended.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Cancelled)
    }

    /// Converts the state in a message; `None` if it is unspecified.
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
