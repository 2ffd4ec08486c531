//! Uploads from their first byte to a blob: begun, grown by streams that may break off, checked, taken over, remembered.
//!
//! The order is what makes them safe. Bytes are synced before they are compared with their name, they are a blob that stays before the
//! state says so, and only then is the client told. A process that ends in between leaves bytes that the next one finds.

use crate::store::blobs::{Blobs, Key, Shelf};
use crate::store::disk::Growing;
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
    pub most: u64,
    /// Bytes of the disk that uploads leave free.
    pub spare: u64,
}

/// How far an upload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes that are here.
    pub held: u64,
    /// Whether that is all, checked and lasting.
    pub complete: bool,
}

/// An upload that a stream goes on with.
pub enum Begun {
    /// There is nothing left to send.
    Complete(Upload),
    /// There is.
    Partial(Intake),
}

/// An upload's file while one stream writes it.
pub struct Intake {
    upload: Upload,
    staged: Staged,
    file: Box<dyn Growing>,
    held: u64,
}

impl Intake {
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
    pub fn begin(&self, tenant: &Tenant, wanted: &Upload, quota: &Quota) -> Result<Extent> {
        let (name, size) = (wanted.name, wanted.size);
        if size < HEADER_LEN as u64 || size > self.most {
            let reason = format!("a blob of {size} bytes: {HEADER_LEN} to {} are allowed", self.most);
            return Err(Error::invalid(reason));
        }
        if self.state.upload(tenant, name)?.is_none() {
            self.require_room(size)?;
        }
        let upload = self.state.begin_upload(tenant, wanted, quota)?;
        if upload.complete {
            return Ok(Extent { held: size, complete: true });
        }
        let key = Key::new(tenant, Shelf::Uploads, name);
        if self.blobs.len(&key)?.is_some() {
            // A server that ended between taking the blob over and remembering that it did. Nobody may be deleting it meanwhile.
            let _alone = self.staging.enter(tenant, name)?;
            if self.blobs.confirm(&key, size)? {
                self.state.complete_upload(tenant, name)?;
                return Ok(Extent { held: size, complete: true });
            }
            self.blobs.delete(&key)?;
        }
        Ok(Extent { held: self.staging.held(tenant, name)?, complete: false })
    }

    /// Writes bytes at the end of an upload. There may be less room by now than when it began: others send too.
    pub fn add(&self, intake: &mut Intake, data: &[u8]) -> Result<()> {
        self.require_room(data.len() as u64)?;
        intake.add(data)
    }

    /// Refuses what would not fit on the disk.
    fn require_room(&self, bytes: u64) -> Result<()> {
        let free = self.staging.free()?;
        if bytes.saturating_add(self.spare) <= free {
            return Ok(());
        }
        tracing::warn!(bytes, free, "an upload is refused: the disk is nearly full");
        Err(Error::Limit { sentence: format!("the server has no room for {bytes} bytes now: try later") })
    }

    /// The file of a begun upload, whose bytes so far end at `offset`.
    pub fn resume(&self, tenant: &Tenant, name: BlobName, offset: u64) -> Result<Begun> {
        let staged = self.staging.enter(tenant, name)?;
        let upload = self.state.upload(tenant, name)?.ok_or(Error::NoBlob { name })?;
        if upload.complete {
            return Ok(Begun::Complete(upload));
        }
        let (file, held) = staged.append()?;
        if held > upload.size {
            // Never written by us: what a power cut left of a file can have any length.
            staged.discard()?;
            return Err(Error::Damaged { what: format!("upload {name}") });
        }
        if held != offset {
            let sentence = format!("{held} bytes are here, the upload goes on at {offset}: begin it again");
            return Err(Error::Busy { sentence });
        }
        self.require_room(upload.size - held)?;
        Ok(Begun::Partial(Intake { upload, staged, file, held }))
    }

    /// Checks a whole upload and takes it over; `inspect` looks at how it begins.
    pub fn finish(
        &self,
        tenant: &Tenant,
        intake: Intake,
        inspect: impl FnOnce(&Upload, &[u8; HEADER_LEN]) -> Result<()>,
    ) -> Result<()> {
        let Intake { upload, staged, mut file, .. } = intake;
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
        self.blobs.adopt(&Key::new(tenant, Shelf::Uploads, upload.name), staged.path())?;
        self.state.complete_upload(tenant, upload.name)
    }

    /// Forgets an upload that no job uses.
    pub fn delete(&self, tenant: &Tenant, name: BlobName) -> Result<()> {
        let staged = self.staging.enter(tenant, name)?;
        self.state.delete_upload(tenant, name)?;
        staged.discard()?;
        self.blobs.delete(&Key::new(tenant, Shelf::Uploads, name))
    }
}
