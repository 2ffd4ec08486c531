//! Requests that upload blobs.

use super::{Handler, Service};
use crate::jobs::validate::blob_name;
use crate::store::state::{BlobKind, Upload};
use crate::store::uploads::{Resumed, UploadProgress};
use crate::tenants::Tenant;
use crate::tenants::audit::AuditSubject;
use crate::{Error, Result};
use hetal_ckks::bytes::{HEADER_LEN, Header, ObjectKind};
use hetal_wire::{MESSAGE_PART_BYTES, v1};
use std::time::Instant;
use tonic::{Code, Status, Streaming};

/// The least number of bytes that an upload must bring in `idle_seconds`.
const MIN_BYTES: usize = 64 << 10;

impl Handler {
    /// Receives the parts of an upload. Received bytes stay, even if the stream breaks off.
    pub(super) async fn receive(
        &self,
        tenant: Tenant,
        subject: &AuditSubject,
        mut stream: Streaming<v1::UploadPart>,
    ) -> std::result::Result<v1::UploadState, Status> {
        let first = self.part(&mut stream).await?;
        let first = first.ok_or_else(|| Status::invalid_argument("the first part of an upload must carry its name"))?;
        let name = blob_name(&first.name)?;
        subject.set(name);
        let resumed =
            self.run(&tenant, move |service, tenant| service.uploads.resume(tenant, name, first.offset)).await?;
        let mut writer = match resumed {
            Resumed::Complete(upload) => return Ok(v1::UploadState { held: upload.size, complete: true }),
            Resumed::Partial(writer) => writer,
        };
        let (mut since, mut came) = (Instant::now(), 0);
        let mut part = Some(first);
        while let Some(v1::UploadPart { data, .. }) = part {
            if data.len() > MESSAGE_PART_BYTES {
                return Err(Error::invalid(format!("a part has more than {MESSAGE_PART_BYTES} bytes")).into());
            }
            self.0.core.metrics.received_bytes.inc_by(data.len() as u64);
            came += data.len();
            let add = move |service: &Service, _: &Tenant| service.uploads.add(&mut writer, &data).map(|()| writer);
            writer = self.run(&tenant, add).await?;
            if came >= MIN_BYTES {
                (since, came) = (Instant::now(), 0);
            } else if since.elapsed() > self.0.idle() && !writer.is_whole() {
                return Err(Status::deadline_exceeded("the upload is too slow: send the rest in larger parts"));
            }
            part = if writer.is_whole() { None } else { self.part(&mut stream).await? };
        }
        let held = writer.held();
        if !writer.is_whole() {
            return Ok(v1::UploadState { held, complete: false });
        }
        let finish = move |service: &Service, tenant: &Tenant| {
            service.uploads.finish(tenant, writer, |upload, start| service.inspect(upload, start))
        };
        self.run(&tenant, finish).await?;
        self.0.core.metrics.upload_sizes.observe(tenant.as_str(), held as f64);
        Ok(v1::UploadState { held, complete: true })
    }

    /// The next part of an upload, with a time limit.
    async fn part(
        &self,
        stream: &mut Streaming<v1::UploadPart>,
    ) -> std::result::Result<Option<v1::UploadPart>, Status> {
        match tokio::time::timeout(self.0.idle(), stream.message()).await {
            // The transport failed: the client is gone and will not see this status.
            Ok(Err(status)) if status.code() == Code::Unknown => Err(Status::cancelled("the upload broke off")),
            Ok(part) => part,
            Err(_) => {
                Err(Status::deadline_exceeded("timed out waiting for the next part of the upload: send the rest"))
            }
        }
    }
}

impl Service {
    pub(super) fn begin_upload(&self, tenant: &Tenant, message: &v1::BeginUploadRequest) -> Result<v1::UploadState> {
        let kind = match message.kind() {
            v1::BlobKind::Keys => BlobKind::Keys,
            v1::BlobKind::Batch => BlobKind::Batch,
            v1::BlobKind::Features => BlobKind::Features,
            v1::BlobKind::WeightedBatch => BlobKind::WeightedBatch,
            v1::BlobKind::Unspecified => return Err(Error::invalid("the request has no blob kind")),
        };
        let wanted = Upload { name: blob_name(&message.name)?, kind, size: message.size, complete: false };
        let UploadProgress { received, complete } = self.uploads.begin(tenant, &wanted, &self.quota())?;
        Ok(v1::UploadState { held: received, complete })
    }

    pub(super) fn list_uploads(&self, tenant: &Tenant) -> Result<v1::UploadList> {
        let list = self.core.state.uploads(tenant)?;
        let describe = |(upload, jobs): (Upload, u64)| v1::UploadInfo {
            name: upload.name.to_vec().into(),
            kind: match upload.kind {
                BlobKind::Keys => v1::BlobKind::Keys,
                BlobKind::Batch => v1::BlobKind::Batch,
                BlobKind::Features => v1::BlobKind::Features,
                BlobKind::WeightedBatch => v1::BlobKind::WeightedBatch,
            }
            .into(),
            size: upload.size,
            complete: upload.complete,
            jobs: u32::try_from(jobs).unwrap_or(u32::MAX),
        };
        let quota = self.quota();
        let uploads = list.uploads.into_iter().map(describe).collect();
        Ok(v1::UploadList { uploads, bytes: list.bytes, bytes_most: quota.bytes, uploads_most: quota.uploads })
    }

    /// Checks the header of an upload: its kind and its parameter set. Rows may have either form;
    /// the job names the one.
    fn inspect(&self, upload: &Upload, start: &[u8; HEADER_LEN]) -> Result<()> {
        let parse = |kind| Header::parse(start, kind);
        let header = match upload.kind {
            BlobKind::Keys => parse(ObjectKind::KeySet),
            BlobKind::Batch | BlobKind::Features | BlobKind::WeightedBatch => {
                parse(ObjectKind::RoundedCiphertext).or_else(|_| parse(ObjectKind::SeededCiphertext))
            }
        };
        let header = header.map_err(Error::invalid)?;
        self.core.param_sets.by_id(&header.params).map(|_| ())
    }
}
