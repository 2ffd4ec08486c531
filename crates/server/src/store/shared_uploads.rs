//! Uploads that any of several servers continues.
//!
//! Whole parts go to the blob store, and the state records them. The tail, less than a part, is in
//! the staging folder of the server that receives it, and only this server knows it: if the upload
//! goes on at another server, the client sends that tail again.

use crate::store::blobs::{BlobKey, Blobs, Namespace, PartStore};
use crate::store::disk::AppendFile;
use crate::store::parts::{StoredPart, hash_of_part, name_of_parts, next_part_bytes};
use crate::store::staging::{Staged, Staging};
use crate::store::state::shared::UploadHold;
use crate::store::state::{Database, SharedState, Upload};
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_ckks::bytes::HEADER_LEN;
use hetal_wire::BlobName;
use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// What uploads of a shared database need.
pub struct SharedUploads {
    database: Arc<dyn Database>,
    blobs: Arc<dyn Blobs>,
    /// The name of this server.
    server: String,
    /// Where the staged tail of an upload begins.
    tails: Mutex<HashMap<(Tenant, BlobName), u64>>,
    in_memory: PartsInMemory,
}

/// Limits how many parts are in memory at once.
#[derive(Default)]
struct PartsInMemory {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// Parts in memory at once.
const PARTS_IN_MEMORY: usize = 8;

impl PartsInMemory {
    /// Waits for a slot, which is free again when the result is dropped.
    fn take(&self) -> impl Drop + '_ {
        struct Slot<'a>(&'a PartsInMemory);
        impl Drop for Slot<'_> {
            fn drop(&mut self) {
                *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
                self.0.freed.notify_one();
            }
        }
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = self.freed.wait_while(taken, |taken| *taken >= PARTS_IN_MEMORY);
        *taken.unwrap_or_else(PoisonError::into_inner) += 1;
        Slot(self)
    }
}

/// An upload in parts, while one stream writes it.
pub struct PartWriter {
    hold: UploadHold,
    size: u64,
    /// Staged bytes behind the parts.
    staged: u64,
}

impl SharedUploads {
    /// Uploads to a shared database and its blobs, through the server of this name. `None` if the
    /// database is not shared.
    pub fn new(database: &Arc<dyn Database>, blobs: &Arc<dyn Blobs>, server: &str) -> Option<Self> {
        database.shared().and(blobs.parts())?;
        let (database, blobs) = (Arc::clone(database), Arc::clone(blobs));
        let (server, tails, in_memory) = (server.to_owned(), Mutex::default(), PartsInMemory::default());
        Some(Self { database, blobs, server, tails, in_memory })
    }

    fn state(&self) -> Result<&dyn SharedState> {
        self.database.shared().ok_or_else(|| Error::State { reason: "the database is not shared".to_owned() })
    }

    fn parts(&self) -> Result<&dyn PartStore> {
        self.blobs.parts().ok_or_else(|| Error::State { reason: "the blob store receives no parts".to_owned() })
    }

    fn tail_begins(&self, tenant: &Tenant, name: BlobName) -> Option<u64> {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner).get(&(tenant.clone(), name)).copied()
    }

    fn set_tail(&self, tenant: &Tenant, name: BlobName, begins: Option<u64>) {
        let (mut tails, key) = (self.tails.lock().unwrap_or_else(PoisonError::into_inner), (tenant.clone(), name));
        match begins {
            Some(offset) => tails.insert(key, offset),
            None => tails.remove(&key),
        };
    }

    /// Free space in the store, if it knows.
    pub fn free(&self) -> Result<Option<u64>> {
        self.parts()?.free()
    }

    /// The number of bytes received so far, as this server knows.
    pub fn received(&self, tenant: &Tenant, name: BlobName, staging: &Staging) -> Result<u64> {
        let in_parts = self.state()?.bytes_in_parts(tenant, name)?;
        let tail_follows_parts = self.tail_begins(tenant, name) == Some(in_parts);
        Ok(in_parts + if tail_follows_parts { staging.received(tenant, name)? } else { 0 })
    }

    /// Whether this server is the last that received the upload and knows where its staged tail
    /// begins. Otherwise the tail is of no use.
    fn keeps_tail(&self, tenant: &Tenant, name: BlobName) -> Result<bool> {
        let is_known = self.tail_begins(tenant, name).is_some();
        Ok(is_known && self.state()?.is_received_by(tenant, name, &self.server)?)
    }

    /// Deletes staged tails of uploads that are complete or gone, or that went on elsewhere.
    /// Returns their number.
    pub fn collect_staged(&self, staging: &Staging) -> Result<usize> {
        let (files, mut removed) = (staging.files()?, 0);
        let mut tails: BTreeSet<_> = files.iter().cloned().collect();
        tails.extend(self.tails.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned());
        for (tenant, name) in tails {
            if self.keeps_tail(&tenant, name)? {
                continue;
            }
            // Whoever receives it now decides.
            let Ok(staged) = staging.lock(&tenant, name) else { continue };
            if !self.keeps_tail(&tenant, name)? {
                staged.discard()?;
                self.set_tail(&tenant, name, None);
                removed += usize::from(files.contains(&(tenant, name)));
            }
        }
        staging.remove_empty()?;
        Ok(removed)
    }

    /// Takes the right to add to an upload. A staged tail that belongs elsewhere is deleted.
    pub fn resume(&self, tenant: &Tenant, upload: &Upload, staged: &Staged) -> Result<PartWriter> {
        let hold = self.state()?.hold_upload(tenant, upload.name, &self.server)?;
        let in_parts = hold.bytes();
        if self.tail_begins(tenant, upload.name) != Some(in_parts) {
            staged.discard()?;
            self.set_tail(tenant, upload.name, Some(in_parts));
        }
        Ok(PartWriter { hold, size: upload.size, staged: 0 })
    }

    /// Stores a full part, or the last one, and empties the staged file.
    fn store_part(&self, writer: &mut PartWriter, staged: &Staged) -> Result<Box<dyn AppendFile>> {
        let _slot = self.in_memory.take();
        let PartWriter { hold, size, .. } = writer;
        let key = BlobKey::new(&hold.tenant, Namespace::Uploads, hold.name);
        let store_id = match &hold.store_id {
            Some(id) => id.clone(),
            None => {
                let id = self.parts()?.begin(&key)?;
                self.state()?.begin_parts(hold, &id)?;
                hold.store_id.insert(id).clone()
            }
        };
        let (offset, number) = (hold.bytes(), hold.parts.len());
        let mut bytes = Vec::new();
        staged.read()?.read_to_end(&mut bytes).map_err(|e| Error::file(staged.path(), e))?;
        if bytes.len() as u64 != next_part_bytes(offset, *size) {
            staged.discard()?;
            return Err(Error::Damaged { what: format!("the staged tail of upload {}", hold.name) });
        }
        let head = if number == 0 { bytes.iter().take(HEADER_LEN).copied().collect() } else { Vec::new() };
        let (hash, length) = (hash_of_part(&bytes, offset, *size), bytes.len() as u64);
        let Some(receipt) = self.parts()?.put_part(&key, &store_id, number, bytes)? else {
            tracing::warn!(%key, "the store no longer has the parts of an upload: it is asked for again");
            self.discard(writer, staged)?;
            return Err(Error::Damaged { what: format!("upload {}", writer.hold.name) });
        };
        let part = StoredPart { size: length, hash, receipt, head };
        self.state()?.add_part(hold, &part)?;
        hold.parts.push(part);
        staged.discard()?;
        self.set_tail(&hold.tenant, hold.name, Some(hold.bytes()));
        writer.staged = 0;
        Ok(staged.append()?.0)
    }

    /// Verifies the hash of an upload whose parts are all stored. Deletes them if it is wrong.
    pub fn verify(&self, writer: &PartWriter, staged: &Staged) -> Result<()> {
        let hold = &writer.hold;
        if name_of_parts(&hold.parts)? == hold.name {
            return Ok(());
        }
        self.discard(writer, staged)?;
        Err(Error::Damaged { what: format!("upload {}", hold.name) })
    }

    /// Makes a blob of the parts.
    pub fn finish(&self, writer: &PartWriter, staged: &Staged) -> Result<()> {
        let hold = &writer.hold;
        let key = BlobKey::new(&hold.tenant, Namespace::Uploads, hold.name);
        let (id, state) = (hold.store_id.as_deref().unwrap_or_default(), self.state()?);
        if !self.parts()?.join(&key, id, &hold.parts, &|| state.confirm_hold(hold))? {
            self.discard(writer, staged)?;
            return Err(Error::Damaged { what: format!("upload {}", hold.name) });
        }
        self.set_tail(&hold.tenant, hold.name, None);
        let finished = state.finish_upload(hold);
        if finished.is_err() {
            // Another server may have deleted the upload before the blob was in its place.
            self.delete_unknown(&hold.tenant, hold.name);
        }
        finished
    }

    /// Deletes an upload that no job uses: its bytes first. Whoever still receives it then finds
    /// that it is gone, and a job never finds it complete without its blob.
    pub fn delete(&self, tenant: &Tenant, name: BlobName, staged: &Staged) -> Result<()> {
        let key = BlobKey::new(tenant, Namespace::Uploads, name);
        let id = self.state()?.revoke_upload(tenant, name)?;
        self.set_tail(tenant, name, None);
        self.parts()?.discard(&key, id.as_deref().unwrap_or_default())?;
        self.blobs.delete(&key)?;
        staged.discard()?;
        self.database.delete_upload(tenant, name)?;
        // Another server may have made a blob of the parts meanwhile.
        self.delete_unknown(tenant, name);
        Ok(())
    }

    /// Deletes the blob of an upload that does not exist. A new upload of the same bytes waits.
    fn delete_unknown(&self, tenant: &Tenant, name: BlobName) {
        let key = BlobKey::new(tenant, Namespace::Uploads, name);
        let mut delete = || self.blobs.delete(&key);
        let deleted = self.state().and_then(|state| state.delete_unneeded(tenant, name, |_| true, &mut delete));
        if let Err(error) = deleted {
            tracing::warn!(%key, %error, "could not delete a blob of no upload: garbage collection does");
        }
    }

    /// Deletes all bytes of an upload.
    pub fn discard(&self, writer: &PartWriter, staged: &Staged) -> Result<()> {
        let (hold, key) = (&writer.hold, BlobKey::new(&writer.hold.tenant, Namespace::Uploads, writer.hold.name));
        staged.discard()?;
        self.set_tail(&hold.tenant, hold.name, None);
        self.state()?.drop_parts(hold)?;
        self.parts()?.discard(&key, hold.store_id.as_deref().unwrap_or_default())
    }

    /// Stores what is full. Returns the file for the next bytes if it is another one.
    pub fn flush(&self, writer: &mut PartWriter, staged: &Staged) -> Result<Option<Box<dyn AppendFile>>> {
        if writer.room() > 0 { Ok(None) } else { self.store_part(writer, staged).map(Some) }
    }
}

#[cfg(test)]
impl SharedUploads {
    /// How many tails this server knows.
    pub fn tails(&self) -> usize {
        self.tails.lock().unwrap().len()
    }
}

impl PartWriter {
    /// Bytes in parts.
    pub fn bytes(&self) -> u64 {
        self.hold.bytes()
    }

    /// Bytes that the current part still takes. A part of nothing is never full.
    pub fn room(&self) -> u64 {
        let size = next_part_bytes(self.hold.bytes(), self.size);
        if size == 0 { u64::MAX } else { size - self.staged.min(size) }
    }

    /// Counts staged bytes.
    pub fn count(&mut self, bytes: u64) {
        self.staged += bytes;
    }

    /// The header of the blob.
    pub fn head(&self) -> Result<[u8; HEADER_LEN]> {
        let head = self.hold.parts.first().map_or(&[][..], |part| &part.head);
        head.try_into().map_err(|_| Error::Damaged { what: format!("upload {}", self.hold.name) })
    }
}
