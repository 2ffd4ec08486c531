//! Fatal conditions that shut the server down.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Why a server must end although nobody stopped it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShutdownReason {
    /// Another server owns the blobs. End the process without a clean stop, which would write to
    /// them.
    BlobsTaken,
    /// A GPU failed, and this process cannot open it again. Stop the server and start a new
    /// process.
    GpuLost {
        /// The driver's message.
        reason: String,
    },
    /// A GPU does not respond, and a thread waits for it for ever. End the process without a clean
    /// stop.
    GpuHung {
        /// How long it has been silent.
        seconds: u64,
    },
}

/// Signals a fatal condition to the thread that waits for it.
#[derive(Default)]
pub struct ShutdownSignal {
    reason: OnceLock<ShutdownReason>,
    triggered: Notify,
    gpu_hung: AtomicBool,
}

impl ShutdownSignal {
    /// Signals a fatal condition. The first one is kept.
    pub fn trigger(&self, reason: ShutdownReason) {
        self.gpu_hung.fetch_or(matches!(reason, ShutdownReason::GpuHung { .. }), Ordering::Relaxed);
        // An earlier reason stays; the server ends in any case.
        let _ = self.reason.set(reason);
        self.triggered.notify_one();
    }

    /// Whether a thread waits for a hung GPU.
    pub fn gpu_hung(&self) -> bool {
        self.gpu_hung.load(Ordering::Relaxed)
    }

    /// The reason, if there is one.
    pub fn reason(&self) -> Option<&ShutdownReason> {
        self.reason.get()
    }

    /// Waits for a reason.
    pub async fn wait(&self) -> ShutdownReason {
        loop {
            if let Some(reason) = self.reason.get() {
                return reason.clone();
            }
            self.triggered.notified().await;
        }
    }
}
