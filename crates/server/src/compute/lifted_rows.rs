//! Lifted rows in host memory.
//!
//! Rows in coefficient form are lifted when they are first read. A batch whose row-shifted versions
//! do not stay prepared is read once an epoch, and lifting it each time would take longer than all
//! its gradient steps.

use hetal_wire::BlobName;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Row blobs after their lift, as bytes, up to a number of bytes in all. Later ones are lifted each
/// time.
pub struct LiftedRows {
    most: u64,
    rows: Mutex<BTreeMap<BlobName, Arc<Vec<u8>>>>,
}

impl LiftedRows {
    /// Room for `most` bytes.
    pub fn new(most: u64) -> Self {
        Self { most, rows: Mutex::default() }
    }

    fn rows(&self) -> MutexGuard<'_, BTreeMap<BlobName, Arc<Vec<u8>>>> {
        // An entry is whole or absent, whatever panicked.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lifted row blob.
    pub fn get(&self, name: BlobName) -> Option<Arc<Vec<u8>>> {
        self.rows().get(&name).cloned()
    }

    /// Whether there is room for another row blob.
    pub fn has_room(&self, size: u64) -> bool {
        let held: u64 = self.rows().values().map(|bytes| bytes.len() as u64).sum();
        held.saturating_add(size) <= self.most
    }

    /// Keeps a row blob.
    pub fn insert(&self, name: BlobName, bytes: Vec<u8>) {
        self.rows().insert(name, Arc::new(bytes));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_kept_while_there_is_room() {
        let rows = LiftedRows::new(10);
        assert!(rows.has_room(10) && !rows.has_room(11) && !rows.has_room(u64::MAX));
        rows.insert(BlobName([1; 32]), vec![7; 6]);
        assert!(rows.has_room(4) && !rows.has_room(5));
        assert_eq!(rows.get(BlobName([1; 32])).unwrap().len(), 6);
        assert!(rows.get(BlobName([2; 32])).is_none());
    }
}
