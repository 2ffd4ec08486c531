//! What a server does beside requests and jobs: it renews the ownership of blobs and collects
//! garbage.

use crate::Result;
use crate::store::ownership::{self, Ownership};
use crate::store::staging::Staging;
use crate::store::state::shared::Duty;
use crate::store::state::{Database, Millis};
use crate::store::uploads::Uploads;
use crate::store::{blobs::Blobs, gc, shared_gc};
use crate::worker::pool::WorkerContext;
use crate::worker::shutdown::ShutdownReason;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often a server deletes what only it can delete.
const TIDY_INTERVAL: Duration = Duration::from_secs(60);
/// How often a server that has the duty collects garbage.
const COLLECTION_INTERVAL: Duration = Duration::from_secs(3600);
/// How long the duty stays with a server that does not answer.
const COLLECTION_TERM: Millis = 2 * 3_600_000;

/// Deletes what a crash left behind, before a server that is alone serves clients.
pub fn collect_at_start(
    ownership: Ownership,
    take_over: bool,
    state: &dyn Database,
    blobs: &dyn Blobs,
    staging: &Staging,
) {
    if state.is_shared() {
        // Other servers store blobs before they record them.
        return;
    }
    // Repeating the flag gives no further certainty that the blobs belong to this database.
    if ownership == Ownership::New || take_over {
        // An empty store needs no message.
        if !blobs.namespaces().is_ok_and(|namespaces| namespaces.is_empty()) {
            let location = blobs.location();
            tracing::info!(
                place = location,
                "took ownership of the blobs: the next start deletes blobs that the database does not reference"
            );
        }
        return;
    }
    report_collected(gc::collect_garbage(state, blobs, staging));
}

fn report_collected(collected: Result<usize>) {
    match collected {
        Ok(0) => {}
        Ok(removed) => tracing::info!(removed, "deleted files that nobody needs any more"),
        // The files only waste space.
        Err(error) => tracing::warn!(%error, "could not delete files that nobody needs any more"),
    }
}

/// Does something every `pause`, until the server stops or it returns false.
fn repeat(worker: &WorkerContext, pause: Duration, mut act: impl FnMut() -> bool) {
    let mut next = Instant::now() + pause;
    while !worker.draining.load(Ordering::Relaxed) {
        if Instant::now() < next {
            // The notifier wakes this thread more often, so that it stops at once with the server.
            worker.core.notifier.wait(worker.core.notifier.version(), pause.min(Duration::from_secs(1)));
            continue;
        }
        next = Instant::now() + pause;
        if !act() {
            return;
        }
    }
}

/// Renews the ownership mark until the server stops or another server owns the blobs.
pub fn renew_ownership(worker: &WorkerContext, database: &dyn Database, pause: Duration) {
    repeat(worker, pause, || match ownership::renew(&*worker.core.blobs, database) {
        Ok(true) => true,
        Ok(false) => {
            tracing::error!(
                place = worker.core.blobs.location(),
                "another server has taken over the blobs: this server ends"
            );
            worker.shutdown.trigger(ShutdownReason::BlobsTaken);
            false
        }
        Err(error) => {
            worker.core.metrics.count_fault(&error);
            tracing::warn!(%error, "could not renew the ownership of the blobs");
            true
        }
    });
}

/// Deletes what is left on this server's disk of uploads that other servers received to the end or
/// deleted: staged bytes and copies of key sets. No other server can.
pub fn tidy(uploads: &Uploads, database: &dyn Database) {
    if database.is_shared() {
        report_collected(uploads.collect_staged());
        report_collected(uploads.blobs.drop_copies(&|tenant, name| Ok(database.upload(tenant, name)?.is_some())));
    }
}

/// Tidies this server's disk, and collects garbage of a shared database, if no other server does.
pub fn run_garbage_duty(worker: &WorkerContext, uploads: &Uploads, database: &dyn Database) {
    let mut collected_at = Instant::now();
    repeat(worker, TIDY_INTERVAL, || {
        let Some(shared) = database.shared() else { return false };
        tidy(uploads, database);
        if !worker.core.config.role.serves() || collected_at.elapsed() < COLLECTION_INTERVAL {
            return true;
        }
        collected_at = Instant::now();
        let collected = match shared.take_duty(Duty::CollectGarbage, &worker.name, COLLECTION_TERM) {
            Ok(true) => shared_gc::collect(database, &*worker.core.blobs, shared_gc::GRACE),
            Ok(false) => Ok(0),
            Err(error) => Err(error),
        };
        report_collected(collected);
        true
    });
}
