//! The share of matrix products in the time of iterations.

use crate::{Error, Result};
use hetal_learn::trainer::Stage;
use std::time::Instant;

/// Measures iterations, and the stages of them that are matrix products.
pub(super) struct StageClock {
    start: Instant,
    last: Instant,
    matrices: f64,
    failed: Option<Error>,
}

/// Seconds of all stages.
pub(super) struct StageTimes {
    /// All stages.
    pub(super) total: f64,
    /// The matrix products among them.
    matrices: f64,
}

impl StageTimes {
    /// The share of matrix products.
    pub(super) fn matrix_share(&self) -> f64 {
        self.matrices / self.total
    }
}

impl StageClock {
    pub(super) fn start() -> Self {
        Self { start: Instant::now(), last: Instant::now(), matrices: 0.0, failed: None }
    }

    /// Ends a stage. `synchronized` is the result of waiting for its queued work.
    pub(super) fn end_stage(&mut self, stage: Stage, synchronized: Result<()>) {
        self.failed = self.failed.take().or(synchronized.err());
        if stage.is_matrix_product() {
            self.matrices += self.last.elapsed().as_secs_f64();
        }
        self.last = Instant::now();
    }

    /// The times so far, or the first failure of a stage.
    pub(super) fn stop(self) -> Result<StageTimes> {
        let times = StageTimes { total: self.start.elapsed().as_secs_f64(), matrices: self.matrices };
        self.failed.map_or(Ok(times), Err)
    }
}
