//! Streams to clients: events of jobs, and downloads.

use super::{Handler, Service};
use crate::jobs::validate::{blob_name, job_id};
use crate::limits::concurrency::Permit;
use crate::store::blobs::{BlobKey, Namespace};
use crate::store::state::{EventLimit, JobState};
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_wire::{JobId, MESSAGE_PART_BYTES, v1};
use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::Status;

/// How often watchers poll for changes by other machines.
const POLL: Duration = Duration::from_secs(1);

impl Handler {
    /// Sends a blob in parts until the client stops reading.
    pub(super) async fn send_parts(
        &self,
        tenant: &Tenant,
        mut reader: Box<dyn Read + Send>,
        out: &mpsc::Sender<std::result::Result<v1::DownloadPart, Status>>,
    ) -> std::result::Result<(), Status> {
        loop {
            let read = self.run(tenant, move |_, _| {
                let mut data = Vec::with_capacity(MESSAGE_PART_BYTES);
                let count = reader.by_ref().take(MESSAGE_PART_BYTES as u64).read_to_end(&mut data);
                count.map_err(|e| Error::System { what: "a blob".to_owned(), reason: e.to_string() })?;
                Ok((reader, data))
            });
            let data;
            (reader, data) = read.await?;
            if data.is_empty() {
                return Ok(());
            }
            self.0.core.metrics.sent_bytes.inc_by(data.len() as u64);
            if out.send_timeout(Ok(v1::DownloadPart { data: data.into() }), self.0.idle()).await.is_err() {
                // The client is gone or too slow.
                return Ok(());
            }
        }
    }

    /// Sends the events after a sequence number, and progress updates, until the job ends or the
    /// client leaves.
    pub(super) async fn send_events(
        &self,
        tenant: &Tenant,
        id: JobId,
        mut after: u64,
        out: &mpsc::Sender<std::result::Result<v1::Event, Status>>,
    ) -> std::result::Result<(), Status> {
        let mut notifier = self.0.core.notifier.subscribe(id);
        let mut last_sent = None;
        loop {
            notifier.mark_unchanged();
            let update = self.run(tenant, move |service, tenant| {
                let job = service.core.state.summary(tenant, id)?;
                // Most jobs have nothing new.
                let is_new = job.sequence > after;
                let events =
                    if is_new { service.core.state.events(tenant, id, after, EventLimit::PAGE)? } else { Vec::new() };
                Ok((job, events))
            });
            let (job, events) = update.await?;
            let came = !events.is_empty();
            for event in events {
                after = event.sequence;
                if out.send_timeout(Ok(event), self.0.idle()).await.is_err() {
                    return Ok(());
                }
            }
            // More than one page, or an event that came meanwhile.
            if came && after != job.sequence && !self.0.closing.load(Ordering::Relaxed) {
                continue;
            }
            // The client resumes the stream at the next server.
            if job.state.has_ended() && after >= job.sequence || self.0.closing.load(Ordering::Relaxed) {
                return Ok(());
            }
            // A job that backs off is queued. The last progress of a running job may still say that
            // it backs off.
            let reporting_state =
                if job.progress.is_some_and(|p| p.resting) { JobState::Queued } else { JobState::Running };
            if job.progress != last_sent && job.state == reporting_state && after == job.sequence {
                last_sent = job.progress;
                let what = last_sent.map(v1::event::What::Progress);
                if out.send_timeout(Ok(v1::Event { sequence: after, what }), self.0.idle()).await.is_err() {
                    return Ok(());
                }
            }
            tokio::select! {
                _ = tokio::time::timeout(POLL, notifier.changed()) => {}
                () = out.closed() => return Ok(()),
            }
        }
    }
}

impl Service {
    /// Takes a permit for a stream.
    pub(super) fn stream(&self, tenant: &Tenant) -> Result<Permit<Tenant>> {
        let max_streams = self.core.config.bounds.streams;
        let message =
            || format!("too many streams: at most {max_streams} jobs watched and blobs downloaded at once are allowed");
        self.streams.try_acquire(tenant).ok_or_else(|| Error::Limit { message: message() })
    }

    pub(super) fn open_output(&self, tenant: &Tenant, message: &v1::DownloadRequest) -> Result<Box<dyn Read + Send>> {
        let (id, name) = (job_id(&message.job)?, blob_name(&message.blob)?);
        self.core.state.summary(tenant, id)?;
        let (key, offset) = (BlobKey::new(tenant, Namespace::Job(id), name), message.offset);
        let size = self.core.blobs.len(&key)?.ok_or_else(|| key.missing())?;
        if offset > size {
            return Err(Error::invalid(format!(
                "offset {offset} is beyond the end of output {name}, which has {size} bytes"
            )));
        }
        self.core.blobs.open(&key, offset)?.ok_or_else(|| key.missing())
    }
}
