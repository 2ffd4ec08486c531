//! The file system of the machine, with a size, and with something that happens in between.
#![allow(clippy::unwrap_used)]

use crate::store::disk::{AppendFile, Disk, OsDisk};
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What happens once, before a call for a path that contains a text.
type Hook = (&'static str, &'static str, Box<dyn FnOnce() + Send>);

/// A disk.
pub struct HookedDisk {
    /// The bytes that fit below a folder.
    capacity: AtomicU64,
    /// Whether a write finds it full.
    is_full: AtomicBool,
    hook: Mutex<Option<Hook>>,
}

/// Bytes of all files below a folder.
pub fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { bytes_below(&path) } else { path.metadata().map_or(0, |m| m.len()) }).sum()
}

impl HookedDisk {
    pub fn new() -> Self {
        Self { capacity: AtomicU64::new(1 << 40), is_full: false.into(), hook: Mutex::default() }
    }

    pub fn set_capacity(&self, bytes: u64) {
        self.capacity.store(bytes, Ordering::Relaxed);
    }

    pub fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    /// Does something before the next `call` (`rename` or `remove`) for a path that contains
    /// `part`.
    pub fn before(&self, call: &'static str, part: &'static str, act: impl FnOnce() + Send + 'static) {
        *self.hook.lock().unwrap() = Some((call, part, Box::new(act)));
    }

    fn meet(&self, call: &str, path: &Path) {
        let is_due = |hook: &mut Hook| call == hook.0 && path.display().to_string().contains(hook.1);
        let due = self.hook.lock().unwrap().take_if(is_due);
        if let Some((_, _, act)) = due {
            act();
        }
    }
}

impl Disk for HookedDisk {
    fn append(&self, path: &Path) -> io::Result<Box<dyn AppendFile>> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(ErrorKind::StorageFull.into());
        }
        OsDisk.append(path)
    }
    fn read(&self, path: &Path, offset: u64) -> io::Result<Option<Box<dyn Read + Send>>> {
        OsDisk.read(path, offset)
    }
    fn len(&self, path: &Path) -> io::Result<Option<u64>> {
        OsDisk.len(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.meet("rename", to);
        OsDisk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.meet("remove", path);
        OsDisk.remove(path)
    }
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        OsDisk.make_folder(path)
    }
    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        OsDisk.remove_folder(path)
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        OsDisk.sync_folder(path)
    }
    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        OsDisk.names(folder)
    }
    fn free(&self, path: &Path) -> io::Result<u64> {
        Ok(self.capacity.load(Ordering::Relaxed).saturating_sub(bytes_below(path)))
    }
}
