//! Work of a GPU that is recorded as graphs.

use super::{Driver, failed};
use crate::Result;
use crate::device::LANES;
use cudarc::driver::{result, sys};
use std::sync::{MutexGuard, PoisonError};

/// What is being recorded: graphs that are launched one after the other. A graph of a thousand
/// kernels is brought to the GPU for a millisecond before its first one runs; while a short one
/// runs, the next and longer one is brought.
#[derive(Default)]
pub(super) struct GraphRecording {
    pub(super) is_forked: bool,
    pub(super) kernels: usize,
    /// Kernels before the part that is being recorded.
    first_of_part: usize,
    is_open: bool,
    pub(super) parts: Vec<sys::CUgraphExec>,
}

/// Kernels of the first graph of a recording; each later one has as many as all before it.
const FIRST_PART: usize = 32;

impl Driver {
    pub(super) fn recorded(&self) -> MutexGuard<'_, GraphRecording> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin_part(&self) -> Result<()> {
        // What other threads ask of the driver meanwhile is not the recording's.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive, and nothing else uses it.
        unsafe { result::stream::begin_capture(self.streams[LANES], mode) }.map_err(failed("recording"))?;
        self.recorded().is_open = true;
        Ok(())
    }

    pub(super) fn end_part(&self) -> Result<()> {
        let mut recorded = self.recorded();
        if !std::mem::take(&mut recorded.is_open) {
            return Ok(());
        }
        // SAFETY: begun by `begin_part`. The graph is valid, and needed no more once it is ready to
        // be launched.
        let part = unsafe {
            let graph = result::stream::end_capture(self.streams[LANES]).map_err(failed("recording"))?;
            let part = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            _ = result::graph::destroy(graph);
            part.map_err(failed("preparing a graph"))?
        };
        recorded.parts.push(part);
        recorded.first_of_part = recorded.kernels;
        Ok(())
    }

    /// Counts a kernel, and begins another part where the last one is long enough and nothing is
    /// beside it.
    pub(super) fn count_kernel(&self) -> Result<()> {
        let mut recorded = self.recorded();
        recorded.kernels += 1;
        let length = recorded.kernels - recorded.first_of_part;
        if recorded.is_forked || length < recorded.first_of_part.max(FIRST_PART) {
            return Ok(());
        }
        drop(recorded);
        self.end_part()?;
        self.begin_part()
    }

    /// Ends what is being recorded and keeps nothing of it.
    pub(super) fn abandon(&self) {
        let recorded = std::mem::take(&mut *self.recorded());
        if recorded.is_open {
            // SAFETY: begun by `begin_part`; the graph is used no more.
            unsafe {
                if let Ok(graph) = result::stream::end_capture(self.streams[LANES]) {
                    _ = result::graph::destroy(graph);
                }
            }
        }
        recorded.parts.into_iter().for_each(destroy);
    }
}

/// Gives a graph up. The driver keeps it until what was launched of it is done.
pub(super) fn destroy(graph: sys::CUgraphExec) {
    // SAFETY: made by `end_part`, listed nowhere any more. Nothing can be done about an error.
    _ = unsafe { result::graph::exec_destroy(graph) };
}
