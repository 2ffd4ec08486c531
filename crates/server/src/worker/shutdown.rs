//! Why a server ends that nobody stopped, and whoever waits for that.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Why a server ends that nobody stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Another server has taken the blobs. What this one did now would destroy the other's: end the process without stopping it.
    BlobsTaken,
    /// A GPU failed, and this process cannot open it again. Another may: stop the server and start it anew.
    CardLost {
        /// What the GPU said.
        reason: String,
    },
    /// A GPU does not answer. Whoever waits for it does so for ever: end the process without stopping the server.
    Hung {
        /// For how long.
        seconds: u64,
    },
}

/// Why a server has to end: told once, to one who waits.
#[derive(Default)]
pub struct Fate {
    end: OnceLock<End>,
    told: Notify,
    hangs: AtomicBool,
}

impl Fate {
    /// Makes it known. The first reason stays.
    pub fn seal(&self, end: End) {
        self.hangs.fetch_or(matches!(end, End::Hung { .. }), Ordering::Relaxed);
        // Another reason is there already: the server ends all the same.
        let _ = self.end.set(end);
        self.told.notify_one();
    }

    /// Whether some thread waits for a card for ever.
    pub fn hangs(&self) -> bool {
        self.hangs.load(Ordering::Relaxed)
    }

    /// The reason, if there is one.
    pub fn known(&self) -> Option<&End> {
        self.end.get()
    }

    /// The reason, once there is one.
    pub async fn wait(&self) -> End {
        loop {
            if let Some(end) = self.end.get() {
                return end.clone();
            }
            self.told.notified().await;
        }
    }
}
