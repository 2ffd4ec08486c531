//! Blobs that arrive in parts, as multipart uploads that any server continues.

use super::super::{BlobKey, PartStore};
use super::{S3Blobs, failed, path};
use crate::Result;
use crate::store::parts::StoredPart;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as ObjectPath;

impl S3Blobs {
    /// The name of an object with the prefix, which multipart uploads do not add.
    fn full_path(&self, key: &BlobKey) -> ObjectPath {
        self.prefix.parts().chain(path(key).parts()).collect()
    }

    /// Whether an error says that the store has no such multipart upload, or not with these parts.
    fn is_gone(&self, key: &BlobKey, error: &object_store::Error) -> bool {
        match error {
            object_store::Error::NotFound { .. } => true,
            // Some stores say so with 403. So they do to a server that may not write at all, which
            // shows when it begins another one.
            object_store::Error::PermissionDenied { .. } => self.begin(key).is_ok_and(|id| {
                let _ = self.runtime.block_on(self.bucket.abort_multipart(&self.full_path(key), &id));
                true
            }),
            // Some say so with 400.
            error => ["InvalidPart", "NoSuchUpload"].iter().any(|code| error.to_string().contains(code)),
        }
    }
}

impl PartStore for S3Blobs {
    fn begin(&self, key: &BlobKey) -> Result<String> {
        self.runtime.block_on(self.bucket.create_multipart(&self.full_path(key))).map_err(|e| failed(key, e))
    }

    fn put_part(&self, key: &BlobKey, id: &str, number: usize, bytes: Vec<u8>) -> Result<Option<String>> {
        let (path, id) = (self.full_path(key), id.to_owned());
        match self.runtime.block_on(self.bucket.put_part(&path, &id, number, bytes.into())) {
            Ok(part) => Ok(Some(part.content_id)),
            Err(e) if self.is_gone(key, &e) => Ok(None),
            Err(e) => Err(failed(key, e)),
        }
    }

    fn join(&self, key: &BlobKey, id: &str, parts: &[StoredPart], confirm: &dyn Fn() -> Result<()>) -> Result<bool> {
        let (path, id) = (self.full_path(key), id.to_owned());
        let receipts = parts.iter().map(|part| PartId { content_id: part.receipt.clone() }).collect();
        confirm()?;
        match self.runtime.block_on(self.bucket.complete_multipart(&path, &id, receipts)) {
            Ok(_) => Ok(true),
            Err(e) if self.is_gone(key, &e) => Ok(false),
            Err(e) => Err(failed(key, e)),
        }
    }

    fn discard(&self, key: &BlobKey, id: &str) -> Result<()> {
        if id.is_empty() {
            return Ok(());
        }
        let (path, id) = (self.full_path(key), id.to_owned());
        match self.runtime.block_on(self.bucket.abort_multipart(&path, &id)) {
            Ok(()) => Ok(()),
            Err(e) if self.is_gone(key, &e) => Ok(()),
            Err(e) => Err(failed(key, e)),
        }
    }

    /// The store lists no parts: a rule of the bucket removes those that nobody knows.
    fn unfinished(&self) -> Result<Vec<BlobKey>> {
        Ok(Vec::new())
    }

    fn free(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}
