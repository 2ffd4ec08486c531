//! Why a server ends that nobody stopped, and whoever waits for that.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Why a server ends that nobody stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShutdownReason {
    /// Another server has taken the blobs. What this one did now would destroy the other's: end the process without stopping it.
    BlobsTaken,
    /// A GPU failed, and this process cannot open it again. Another may: stop the server and start it anew.
    GpuLost {
        /// What the GPU said.
        reason: String,
    },
    /// A GPU does not answer. Whoever waits for it does so for ever: end the process without stopping the server.
    GpuHung {
        /// For how long.
        seconds: u64,
    },
}

/// Why a server has to end: told once, to one who waits.
#[derive(Default)]
pub struct ShutdownSignal {
    reason: OnceLock<ShutdownReason>,
    triggered: Notify,
    gpu_hung: AtomicBool,
}

impl ShutdownSignal {
    /// Makes it known. The first reason stays.
    pub fn trigger(&self, reason: ShutdownReason) {
        self.gpu_hung.fetch_or(matches!(reason, ShutdownReason::GpuHung { .. }), Ordering::Relaxed);
        // Another reason is there already: the server ends all the same.
        let _ = self.reason.set(reason);
        self.triggered.notify_one();
    }

    /// Whether some thread waits for a card for ever.
    pub fn gpu_hung(&self) -> bool {
        self.gpu_hung.load(Ordering::Relaxed)
    }

    /// The reason, if there is one.
    pub fn reason(&self) -> Option<&ShutdownReason> {
        self.reason.get()
    }

    /// The reason, once there is one.
    pub async fn wait(&self) -> ShutdownReason {
        loop {
            if let Some(reason) = self.reason.get() {
                return reason.clone();
            }
            self.triggered.notified().await;
        }
    }
}
