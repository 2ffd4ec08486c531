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
}

impl PartStore for S3Blobs {
    fn begin(&self, key: &BlobKey) -> Result<String> {
        self.runtime.block_on(self.bucket.create_multipart(&self.full_path(key))).map_err(|e| failed(key, e))
    }

    fn put_part(&self, key: &BlobKey, id: &str, number: usize, bytes: Vec<u8>) -> Result<String> {
        let (path, id) = (self.full_path(key), id.to_owned());
        let put = self.runtime.block_on(self.bucket.put_part(&path, &id, number, bytes.into()));
        put.map(|part| part.content_id).map_err(|e| failed(key, e))
    }

    fn join(&self, key: &BlobKey, id: &str, parts: &[StoredPart]) -> Result<bool> {
        let (path, id) = (self.full_path(key), id.to_owned());
        let receipts = parts.iter().map(|part| PartId { content_id: part.receipt.clone() }).collect();
        match self.runtime.block_on(self.bucket.complete_multipart(&path, &id, receipts)) {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            // The store has other parts than the receipts say. Some stores say so with 400.
            Err(e) if ["InvalidPart", "NoSuchUpload"].iter().any(|code| e.to_string().contains(code)) => Ok(false),
            Err(e) => Err(failed(key, e)),
        }
    }

    fn discard(&self, key: &BlobKey, id: &str) -> Result<()> {
        let (path, id) = (self.full_path(key), id.to_owned());
        match self.runtime.block_on(self.bucket.abort_multipart(&path, &id)) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(e) if e.to_string().contains("NoSuchUpload") => Ok(()),
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
