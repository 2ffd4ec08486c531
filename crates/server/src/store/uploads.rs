//! Uploads, from the first byte to a blob.
//!
//! The order of the steps makes them safe: bytes are synced before their hash is verified, the blob
//! is durable before the state records it, and only then is the client told. After a crash between
//! two steps, the next process finds the bytes.

use crate::store::blobs::{BlobKey, Blobs, Namespace};
use crate::store::disk::AppendFile;
use crate::store::gc::collect_staged;
use crate::store::parts::STORED_PART_BYTES;
use crate::store::shared_uploads::{PartWriter, SharedUploads};
use crate::store::staging::{Staged, Staging};
use crate::store::state::{Quota, State, Upload};
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_ckks::bytes::HEADER_LEN;
use hetal_wire::BlobName;
use std::io::Read;
use std::sync::Arc;

/// The uploads of a server.
pub struct Uploads {
    /// The state database.
    pub state: Arc<dyn State>,
    /// The blob store, which receives complete uploads.
    pub blobs: Arc<dyn Blobs>,
    /// Files of incomplete uploads.
    pub staging: Staging,
    /// The largest size of an upload.
    pub max_bytes: u64,
    /// Bytes of disk space that uploads leave free.
    pub reserve_bytes: u64,
    /// How other servers continue uploads, if there are others.
    pub shared: Option<SharedUploads>,
}

/// The progress of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadProgress {
    /// Bytes received.
    pub received: u64,
    /// Whether the upload is complete, verified and durable.
    pub complete: bool,
}

/// An upload that a stream resumes.
pub enum Resumed {
    /// Nothing is left to send.
    Complete(Upload),
    /// More bytes are needed.
    Partial(UploadWriter),
}

/// The file of an upload while one stream writes it.
pub struct UploadWriter {
    upload: Upload,
    staged: Staged,
    file: Box<dyn AppendFile>,
    held: u64,
    /// The upload in parts, if others may continue it.
    parts: Option<Box<PartWriter>>,
}

impl UploadWriter {
    /// Appends bytes. They stay even if the stream breaks off.
    fn add(&mut self, data: &[u8]) -> Result<()> {
        let held = self.held.saturating_add(data.len() as u64);
        if held > self.upload.size {
            return Err(Error::invalid(format!("too many bytes: the blob has {} bytes", self.upload.size)));
        }
        self.file.write_all(data).map_err(|e| Error::file(self.staged.path(), e))?;
        self.held = held;
        Ok(())
    }

    /// Its progress.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Whether all bytes are received.
    pub fn is_whole(&self) -> bool {
        self.held == self.upload.size
    }
}

impl Uploads {
    /// Begins an upload, or finds the progress of an existing one.
    pub fn begin(&self, tenant: &Tenant, wanted: &Upload, quota: &Quota) -> Result<UploadProgress> {
        let (name, size) = (wanted.name, wanted.size);
        if size < HEADER_LEN as u64 || size > self.max_bytes {
            let reason = format!("a blob must have {HEADER_LEN} to {} bytes, not {size}", self.max_bytes);
            return Err(Error::invalid(reason));
        }
        if self.state.upload(tenant, name)?.is_none() {
            self.require_space_for(size, size)?;
        }
        let upload = self.state.begin_upload(tenant, wanted, quota)?;
        // The blob was verified before the state recorded it. Whoever finds it missing or damaged
        // later marks the upload as incomplete.
        if upload.complete && self.blobs.is_remote() {
            return Ok(UploadProgress { received: size, complete: true });
        }
        let key = BlobKey::new(tenant, Namespace::Uploads, name);
        let stored = self.blobs.len(&key)?;
        if upload.complete {
            if stored == Some(size) {
                return Ok(UploadProgress { received: size, complete: true });
            }
            tracing::error!(%key, ?stored, size, "the blob of an upload is missing or has another size: it is asked for again");
            self.state.distrust_upload(tenant, name)?;
        }
        if stored.is_some() {
            // A crash may have come between storing the blob and recording that. The lock excludes
            // a concurrent deletion.
            let _alone = self.staging.lock(tenant, name)?;
            if self.blobs.confirm(&key, size)? {
                self.state.complete_upload(tenant, name)?;
                return Ok(UploadProgress { received: size, complete: true });
            }
            // Another server may be about to replace it.
            if self.shared.is_none() {
                self.blobs.delete(&key)?;
            }
        }
        let received = match &self.shared {
            Some(shared) => shared.received(tenant, name, &self.staging)?,
            None => self.staging.received(tenant, name)?,
        };
        Ok(UploadProgress { received, complete: false })
    }

    /// Appends bytes to an upload. Other uploads may have used up disk space since it began.
    pub fn add(&self, writer: &mut UploadWriter, mut data: &[u8]) -> Result<()> {
        self.require_space(data.len() as u64)?;
        let Some(shared) = &self.shared else { return writer.add(data) };
        while !data.is_empty() {
            let room = writer.parts.as_deref().map_or(u64::MAX, PartWriter::room);
            let (now, later) = data.split_at(data.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
            writer.add(now)?;
            data = later;
            let Some(parts) = &mut writer.parts else { continue };
            parts.count(now.len() as u64);
            if let Some(next) = shared.flush(parts, &writer.staged)? {
                writer.file = next;
            }
        }
        Ok(())
    }

    /// Refuses the rest of an upload that does not fit on the disk. Parts are copied when they are
    /// joined.
    fn require_space_for(&self, rest: u64, size: u64) -> Result<()> {
        self.require_space(rest)?;
        self.shared.as_ref().map_or(Ok(()), |shared| self.require_stored(shared, rest.saturating_add(size)))
    }

    /// Refuses bytes that do not fit into the blob store.
    fn require_stored(&self, shared: &SharedUploads, bytes: u64) -> Result<()> {
        shared.free()?.map_or(Ok(()), |free| self.require_free(free, bytes))
    }

    /// Refuses bytes that do not fit on the disk.
    fn require_space(&self, bytes: u64) -> Result<()> {
        match &self.shared {
            None => self.require_free(self.staging.free()?, bytes),
            // Less than a part of an upload is staged here.
            Some(shared) => {
                self.require_free(self.staging.free()?, bytes.min(STORED_PART_BYTES))?;
                self.require_stored(shared, bytes)
            }
        }
    }

    fn require_free(&self, free: u64, bytes: u64) -> Result<()> {
        if bytes.saturating_add(self.reserve_bytes) <= free {
            return Ok(());
        }
        tracing::warn!(bytes, free, "refused an upload: the disk is nearly full");
        Err(Error::Limit { message: format!("the server has no disk space for {bytes} bytes: try again later") })
    }

    /// Resumes an upload at `offset`, which must be the number of bytes received so far.
    pub fn resume(&self, tenant: &Tenant, name: BlobName, offset: u64) -> Result<Resumed> {
        let staged = self.staging.lock(tenant, name)?;
        let upload = self.state.upload(tenant, name)?.ok_or(Error::NoBlob { name })?;
        if upload.complete {
            return Ok(Resumed::Complete(upload));
        }
        let mut parts = self.shared.as_ref().map(|shared| shared.resume(tenant, &upload, &staged)).transpose()?;
        let (mut file, rest) = staged.append()?;
        let held = rest + parts.as_ref().map_or(0, PartWriter::bytes);
        if let (Some(parts), Some(shared)) = (&mut parts, &self.shared) {
            parts.count(rest);
            // A part that was staged and not stored.
            if let Some(next) = shared.flush(parts, &staged)? {
                file = next;
            }
        }
        if held > upload.size {
            // Not written by this server: after a power cut, a file can have any length.
            staged.discard()?;
            return Err(Error::Damaged { what: format!("upload {name}") });
        }
        if held != offset {
            let message =
                format!("the upload resumes at byte {offset}, but {held} bytes were received: begin it again");
            return Err(Error::Busy { message });
        }
        self.require_space_for(upload.size - held, upload.size)?;
        Ok(Resumed::Partial(UploadWriter { upload, staged, file, held, parts: parts.map(Box::new) }))
    }

    /// Verifies a complete upload and moves it to the blob store. `inspect` checks its header.
    pub fn finish(
        &self,
        tenant: &Tenant,
        writer: UploadWriter,
        inspect: impl FnOnce(&Upload, &[u8; HEADER_LEN]) -> Result<()>,
    ) -> Result<()> {
        let UploadWriter { upload, staged, mut file, parts, .. } = writer;
        if let (Some(shared), Some(parts)) = (&self.shared, &parts) {
            return self.finish_parts(shared, tenant, &upload, (&staged, &**parts), inspect);
        }
        staged.sync(&mut *file)?;
        staged.verify()?;
        let mut start = [0; HEADER_LEN];
        staged.read()?.read_exact(&mut start).map_err(|e| Error::file(staged.path(), e))?;
        if let Err(error) = inspect(&upload, &start) {
            // The hash is right but the content is not: the bytes are useless.
            staged.discard()?;
            self.state.delete_upload(tenant, upload.name)?;
            return Err(error);
        }
        self.blobs.adopt(&BlobKey::new(tenant, Namespace::Uploads, upload.name), staged.path())?;
        self.state.complete_upload(tenant, upload.name)
    }

    /// As [`Uploads::finish`], for an upload in parts.
    fn finish_parts(
        &self,
        shared: &SharedUploads,
        tenant: &Tenant,
        upload: &Upload,
        (staged, parts): (&Staged, &PartWriter),
        inspect: impl FnOnce(&Upload, &[u8; HEADER_LEN]) -> Result<()>,
    ) -> Result<()> {
        shared.verify(parts, staged)?;
        if let Err(error) = inspect(upload, &parts.head()?) {
            // The hash is right but the content is not: the bytes are useless.
            shared.discard(parts, staged)?;
            self.state.delete_upload(tenant, upload.name)?;
            return Err(error);
        }
        self.require_stored(shared, upload.size)?;
        shared.finish(parts, staged)
    }

    /// Marks an upload whose blob was found damaged or missing, so that the client can send it
    /// again. Returns the error for the client.
    pub fn distrust(&self, tenant: &Tenant, name: BlobName) -> Error {
        tracing::error!(%tenant, upload = %name, "the blob of an upload is damaged or missing: it is asked for again");
        match self.state.distrust_upload(tenant, name) {
            Ok(()) => Error::DamagedUpload { name },
            Err(error) => error,
        }
    }

    /// Deletes staged bytes that nobody goes on with here. Returns the number of deleted files.
    pub fn collect_staged(&self) -> Result<usize> {
        match &self.shared {
            Some(shared) => shared.collect_staged(&self.staging),
            None => collect_staged(&*self.state, &self.staging),
        }
    }

    /// Deletes an upload that no job uses.
    pub fn delete(&self, tenant: &Tenant, name: BlobName) -> Result<()> {
        let staged = self.staging.lock(tenant, name)?;
        if let Some(shared) = &self.shared {
            return shared.delete(tenant, name, &staged);
        }
        self.state.delete_upload(tenant, name)?;
        staged.discard()?;
        self.blobs.delete(&BlobKey::new(tenant, Namespace::Uploads, name))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::blobs::LocalFile;
    use crate::store::disk::OsDisk;
    use crate::store::state::{BlobKind, MemoryState};
    use hetal_testkit::TempDir;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// A bucket that cannot be reached.
    struct LostBucket;

    fn unreachable<T>() -> Result<T> {
        Err(Error::Blobs { key: "the bucket".to_owned(), reason: "no route to host".to_owned() })
    }

    impl Blobs for LostBucket {
        fn put(&self, _: &BlobKey, _: &[u8]) -> Result<()> {
            unreachable()
        }
        fn adopt(&self, _: &BlobKey, _: &Path) -> Result<()> {
            unreachable()
        }
        fn confirm(&self, _: &BlobKey, _: u64) -> Result<bool> {
            unreachable()
        }
        fn open(&self, _: &BlobKey, _: u64) -> Result<Option<Box<dyn Read + Send>>> {
            unreachable()
        }
        fn len(&self, _: &BlobKey) -> Result<Option<u64>> {
            unreachable()
        }
        fn local(&self, _: &BlobKey) -> Result<Option<LocalFile>> {
            unreachable()
        }
        fn delete(&self, _: &BlobKey) -> Result<()> {
            unreachable()
        }
        fn list(&self, _: &Tenant, _: Namespace) -> Result<Vec<BlobName>> {
            unreachable()
        }
        fn clear(&self, _: &Tenant, _: Namespace) -> Result<()> {
            unreachable()
        }
        fn namespaces(&self) -> Result<Vec<(Tenant, Namespace)>> {
            unreachable()
        }
        fn tenants(&self) -> Result<BTreeSet<Tenant>> {
            unreachable()
        }
        fn owner(&self) -> Result<Option<String>> {
            unreachable()
        }
        fn set_owner(&self, _: Option<&str>, _: &str) -> Result<bool> {
            unreachable()
        }
        fn location(&self) -> String {
            "a bucket".to_owned()
        }
        fn is_remote(&self) -> bool {
            true
        }
    }

    /// A client learns what the server has while the bucket is down. An upload that was found
    /// damaged is not among it.
    #[test]
    fn complete_uploads_are_known_without_the_bucket() {
        let (dir, ann) = (TempDir::new(), Tenant::try_from("ann".to_owned()).unwrap());
        let state = Arc::new(MemoryState::default());
        let uploads = Uploads {
            state: Arc::<MemoryState>::clone(&state),
            blobs: Arc::new(LostBucket),
            staging: Staging::open(Arc::new(OsDisk), &dir.path().join("staging"), 1).unwrap(),
            max_bytes: 1 << 20,
            reserve_bytes: 0,
            shared: None,
        };
        let quota = Quota { bytes: 1 << 20, uploads: 9, jobs: 9, kept_jobs: 9 };
        let wanted = Upload { name: BlobName([7; 32]), kind: BlobKind::Keys, size: 1000, complete: false };
        let begin = || uploads.begin(&ann, &wanted, &quota);
        state.begin_upload(&ann, &wanted, &quota).unwrap();
        state.complete_upload(&ann, wanted.name).unwrap();
        assert_eq!(begin(), Ok(UploadProgress { received: 1000, complete: true }));
        let other_size = Upload { size: 999, ..wanted.clone() };
        assert!(matches!(uploads.begin(&ann, &other_size, &quota), Err(Error::Invalid { .. })));
        state.distrust_upload(&ann, wanted.name).unwrap();
        assert!(matches!(begin(), Err(Error::Blobs { .. })));
    }
}
