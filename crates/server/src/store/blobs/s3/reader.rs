//! Reading objects.

use super::PART;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use std::io::Read;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// Reads an object in ranges.
pub struct RangeReader {
    pub store: Arc<dyn ObjectStore>,
    pub runtime: Arc<Runtime>,
    pub path: ObjectPath,
    pub offset: u64,
    pub len: u64,
    pub buffer: Vec<u8>,
    pub used: usize,
}

impl Read for RangeReader {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.used == self.buffer.len() && self.offset < self.len {
            let end = self.len.min(self.offset + PART as u64);
            let bytes = self.runtime.block_on(self.store.get_range(&self.path, self.offset..end));
            self.buffer = bytes.map_err(std::io::Error::other)?.to_vec();
            if self.buffer.len() as u64 != end - self.offset {
                // The bytes behind a gap would pass for those in it.
                let (found, expected) = (self.buffer.len(), end - self.offset);
                self.buffer.clear();
                self.used = 0;
                return Err(std::io::Error::other(format!("the store sent {found} of {expected} bytes")));
            }
            (self.used, self.offset) = (0, end);
        }
        let count = (&self.buffer[self.used..]).read(out)?;
        self.used += count;
        Ok(count)
    }
}
