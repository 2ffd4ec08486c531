//! Uploads from their first byte to a blob: begun, grown by streams that may break off, checked, taken over, remembered.
//!
//! The order is what makes them safe. Bytes are synced before they are compared with their name, they are a blob that stays before the
//! state says so, and only then is the client told. A process that ends in between leaves bytes that the next one finds.

use crate::store::blobs::{Blobs, Key, Namespace};
use crate::store::disk::AppendFile;
use crate::store::staging::{Staged, Staging};
use crate::store::state::{Quota, State, Upload};
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_ckks::bytes::HEADER_LEN;
use hetal_wire::BlobName;
use std::io::Read;
use std::sync::Arc;

/// All uploads of a server.
pub struct Uploads {
    /// What is remembered.
    pub state: Arc<dyn State>,
    /// Where bytes end up.
    pub blobs: Arc<dyn Blobs>,
    /// Where bytes come first.
    pub staging: Staging,
    /// The most bytes of one.
    pub max_bytes: u64,
    /// Bytes of the disk that uploads leave free.
    pub reserve_bytes: u64,
}

/// How far an upload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadProgress {
    /// Bytes that are here.
    pub held: u64,
    /// Whether that is all, checked and lasting.
    pub complete: bool,
}

/// An upload that a stream goes on with.
pub enum Resumed {
    /// There is nothing left to send.
    Complete(Upload),
    /// There is.
    Partial(UploadWriter),
}

/// An upload's file while one stream writes it.
pub struct UploadWriter {
    upload: Upload,
    staged: Staged,
    file: Box<dyn AppendFile>,
    held: u64,
}

impl UploadWriter {
    /// Writes bytes at the end. Those that came stay, whatever ends the stream.
    fn add(&mut self, data: &[u8]) -> Result<()> {
        let held = self.held.saturating_add(data.len() as u64);
        if held > self.upload.size {
            return Err(Error::invalid(format!("a part too long: {} bytes belong to the blob", self.upload.size)));
        }
        self.file.write_all(data).map_err(|e| Error::file(self.staged.path(), e))?;
        self.held = held;
        Ok(())
    }

    /// How far it is.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Whether all bytes are there.
    pub fn is_whole(&self) -> bool {
        self.held == self.upload.size
    }
}

impl Uploads {
    /// Begins an upload, or finds how far the one of that name is.
    pub fn begin(&self, tenant: &Tenant, wanted: &Upload, quota: &Quota) -> Result<UploadProgress> {
        let (name, size) = (wanted.name, wanted.size);
        if size < HEADER_LEN as u64 || size > self.max_bytes {
            let reason = format!("a blob of {size} bytes: {HEADER_LEN} to {} are allowed", self.max_bytes);
            return Err(Error::invalid(reason));
        }
        if self.state.upload(tenant, name)?.is_none() {
            self.require_space(size)?;
        }
        let upload = self.state.begin_upload(tenant, wanted, quota)?;
        if upload.complete {
            return Ok(UploadProgress { held: size, complete: true });
        }
        let key = Key::new(tenant, Namespace::Uploads, name);
        if self.blobs.len(&key)?.is_some() {
            // A server that ended between taking the blob over and remembering that it did. Nobody may be deleting it meanwhile.
            let _alone = self.staging.lock(tenant, name)?;
            if self.blobs.confirm(&key, size)? {
                self.state.complete_upload(tenant, name)?;
                return Ok(UploadProgress { held: size, complete: true });
            }
            self.blobs.delete(&key)?;
        }
        Ok(UploadProgress { held: self.staging.received(tenant, name)?, complete: false })
    }

    /// Writes bytes at the end of an upload. There may be less room by now than when it began: others send too.
    pub fn add(&self, writer: &mut UploadWriter, data: &[u8]) -> Result<()> {
        self.require_space(data.len() as u64)?;
        writer.add(data)
    }

    /// Refuses what would not fit on the disk.
    fn require_space(&self, bytes: u64) -> Result<()> {
        let free = self.staging.free()?;
        if bytes.saturating_add(self.reserve_bytes) <= free {
            return Ok(());
        }
        tracing::warn!(bytes, free, "an upload is refused: the disk is nearly full");
        Err(Error::Limit { message: format!("the server has no room for {bytes} bytes now: try later") })
    }

    /// The file of a begun upload, whose bytes so far end at `offset`.
    pub fn resume(&self, tenant: &Tenant, name: BlobName, offset: u64) -> Result<Resumed> {
        let staged = self.staging.lock(tenant, name)?;
        let upload = self.state.upload(tenant, name)?.ok_or(Error::NoBlob { name })?;
        if upload.complete {
            return Ok(Resumed::Complete(upload));
        }
        let (file, held) = staged.append()?;
        if held > upload.size {
            // Never written by us: what a power cut left of a file can have any length.
            staged.discard()?;
            return Err(Error::Damaged { what: format!("upload {name}") });
        }
        if held != offset {
            let message = format!("{held} bytes are here, the upload goes on at {offset}: begin it again");
            return Err(Error::Busy { message });
        }
        self.require_space(upload.size - held)?;
        Ok(Resumed::Partial(UploadWriter { upload, staged, file, held }))
    }

    /// Checks a whole upload and takes it over; `inspect` looks at how it begins.
    pub fn finish(
        &self,
        tenant: &Tenant,
        writer: UploadWriter,
        inspect: impl FnOnce(&Upload, &[u8; HEADER_LEN]) -> Result<()>,
    ) -> Result<()> {
        let UploadWriter { upload, staged, mut file, .. } = writer;
        staged.sync(&mut *file)?;
        staged.verify()?;
        let mut start = [0; HEADER_LEN];
        staged.read()?.read_exact(&mut start).map_err(|e| Error::file(staged.path(), e))?;
        if let Err(error) = inspect(&upload, &start) {
            // The right bytes of the wrong thing: nothing will make them useful.
            staged.discard()?;
            self.state.delete_upload(tenant, upload.name)?;
            return Err(error);
        }
        self.blobs.adopt(&Key::new(tenant, Namespace::Uploads, upload.name), staged.path())?;
        self.state.complete_upload(tenant, upload.name)
    }

    /// Forgets an upload that no job uses.
    pub fn delete(&self, tenant: &Tenant, name: BlobName) -> Result<()> {
        let staged = self.staging.lock(tenant, name)?;
        self.state.delete_upload(tenant, name)?;
        staged.discard()?;
        self.blobs.delete(&Key::new(tenant, Namespace::Uploads, name))
    }
}
