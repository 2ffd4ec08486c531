//! What a training with a server on the same machine needs.

use crate::{Error, machine};
use hetal_client::layout::server_bytes;
use hetal_client::{Layout, RowForm, TrainingData};
use std::path::Path;

/// The most memory that a server in the process of the owner uses: more prepared batches would make
/// small trainings no faster.
pub const MEMORY_GIB: f64 = 13.0;
const GIB: f64 = (1u64 << 30) as f64;

/// The memory and disk space of a training, owner and server together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Needs {
    /// GiB of memory without prepared batches.
    pub memory_gib: f64,
    /// Bytes on disk.
    pub disk_bytes: u64,
}

impl Needs {
    /// The needs of a training.
    pub fn new(layout: &Layout, rows: &TrainingData) -> Result<Self, Error> {
        let [sent, working] = layout.accepted_keys()?;
        let batches = layout.pieces(rows.training.rows()).len() as u64;
        let validation = rows.validation.rows().div_ceil(layout.geometry().rows()) as u64;
        let [features, whole] = [false, true].map(|labels| layout.row_bytes(RowForm::Slots, labels));
        let row_bytes = batches * whole + validation * features;
        Ok(Self {
            memory_gib: server_bytes(&layout.params, &working) as f64 / GIB,
            // Both parties store keys and rows, and need some space for work in progress.
            disk_bytes: 2 * (layout.key_bytes(&sent)? + row_bytes) + (1 << 30),
        })
    }

    /// Checks the space on the disk of a folder, which may hold part of the files already.
    pub fn check_disk(&self, folder: &Path) -> Result<(), Error> {
        let needs = self.disk_bytes.saturating_sub(folder_bytes(folder));
        let free = machine::free_disk_bytes(folder).unwrap_or(u64::MAX);
        if needs <= free {
            return Ok(());
        }
        let shown = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
        Err(Error::Disk { folder: folder.to_owned(), needs: shown(needs), free: shown(free) })
    }

    /// GiB of memory that are available; as many as are used at most if the system does not say.
    pub fn available_gib() -> f64 {
        machine::available_memory_bytes().map_or(MEMORY_GIB, |bytes| bytes as f64 / GIB)
    }

    /// Checks the memory, and returns the GiB of prepared batches that the server may keep.
    pub fn check_memory(&self, available_gib: f64) -> Result<f64, Error> {
        if available_gib < self.memory_gib {
            return Err(Error::Memory { needs: self.memory_gib, available: available_gib });
        }
        Ok(self.prepared_gib(available_gib))
    }

    /// The GiB of prepared batches that the server may keep.
    pub fn prepared_gib(&self, available_gib: f64) -> f64 {
        (available_gib.min(MEMORY_GIB) - self.memory_gib).max(0.0)
    }
}

fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_is_said_before_anything_starts() {
        let needs = Needs { memory_gib: 11.5, disk_bytes: 0 };
        let error = needs.check_memory(8.0).unwrap_err().to_string();
        assert!(error.contains("11.5 GiB") && error.contains("8.0 GiB") && error.contains("--server"), "{error}");
        assert_eq!(needs.check_memory(12.0).unwrap(), 0.5);
        assert_eq!(needs.check_memory(64.0).unwrap(), 1.5);
    }

    #[test]
    fn a_full_disk_is_said_before_anything_starts() {
        let folder = hetal_testkit::TempDir::new();
        let needs = Needs { memory_gib: 0.0, disk_bytes: 1 << 60 };
        let error = needs.check_disk(folder.path()).unwrap_err().to_string();
        assert!(error.contains("of disk space"), "{error}");
        std::fs::write(folder.path().join("there"), [0; 100]).unwrap();
        assert!(Needs { memory_gib: 0.0, disk_bytes: 100 }.check_disk(folder.path()).is_ok());
    }
}
