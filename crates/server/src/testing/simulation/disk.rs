//! A simulated disk. A power cut loses or tears what was not synced, and bits can flip.

use super::fault_injector::{FaultInjector, Injected};
use crate::store::disk::{AppendFile, Disk};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Cursor, Error, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

pub struct SimDisk {
    faults: Arc<FaultInjector>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    files: Vec<File>,
    /// What processes see.
    now: Tree,
    /// What a power cut certainly leaves.
    lasting: Tree,
    /// The changes from `lasting` to `now`.
    pending: Vec<Change>,
}

#[derive(Default)]
struct File {
    data: Vec<u8>,
    /// The number of durable bytes.
    synced: usize,
    /// Whether a sync failed. The system then considers the bytes as written although they are not.
    sync_failed: bool,
}

#[derive(Clone, Default)]
struct Tree {
    files: BTreeMap<PathBuf, usize>,
    folders: BTreeSet<PathBuf>,
}

#[derive(Clone)]
enum Change {
    File(PathBuf, usize),
    NoFile(PathBuf),
    Rename(PathBuf, PathBuf, usize),
    Folder(PathBuf),
    NoFolder(PathBuf),
}

impl Change {
    fn is_in(&self, folder: &Path) -> bool {
        let path = match self {
            Self::File(path, _) | Self::NoFile(path) | Self::Rename(_, path, _) => path,
            Self::Folder(path) | Self::NoFolder(path) => path,
        };
        path.parent() == Some(folder)
    }
}

impl Tree {
    fn apply(&mut self, change: &Change) {
        match change.clone() {
            Change::File(path, file) => drop(self.files.insert(path, file)),
            Change::NoFile(path) => drop(self.files.remove(&path)),
            Change::Rename(from, to, file) => {
                self.files.remove(&from);
                self.files.insert(to, file);
            }
            Change::Folder(path) => drop(self.folders.insert(path)),
            Change::NoFolder(path) => drop(self.folders.remove(&path)),
        }
    }

    /// Drops entries whose parent folder does not exist.
    fn prune(&mut self) {
        let all = self.folders.clone();
        let stands = |path: &Path| path.ancestors().skip(1).all(|p| p.as_os_str().is_empty() || all.contains(p));
        self.folders.retain(|path| stands(path));
        let all = self.folders.clone();
        self.files.retain(|path, _| path.ancestors().skip(1).all(|p| p.as_os_str().is_empty() || all.contains(p)));
    }
}

impl Inner {
    fn change(&mut self, change: Change) {
        self.now.apply(&change);
        self.pending.push(change);
    }
}

fn broken() -> Error {
    Error::other("the simulated disk failed")
}

impl SimDisk {
    /// Creates an empty disk with one folder.
    pub fn new(faults: &Arc<FaultInjector>, root: &Path) -> Self {
        let mut inner = Inner::default();
        inner.now.folders.insert(root.to_owned());
        inner.lasting = inner.now.clone();
        Self { faults: Arc::clone(faults), inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// Runs an operation, with an injected fault if one is due.
    fn operate<T>(&self, writes: bool, work: impl FnOnce(&mut Inner) -> io::Result<T>) -> io::Result<T> {
        match self.faults.next_fault(writes) {
            Injected::Success => work(&mut self.lock()),
            Injected::Crash { applied: true } => work(&mut self.lock()).and(Err(broken())),
            Injected::Failure | Injected::Crash { applied: false } => Err(broken()),
        }
    }

    /// Simulates a power cut. What was not synced survives completely, in part, or not at all.
    pub fn cut_power(&self) {
        let faults = &self.faults;
        let mut inner = self.lock();
        let Inner { files, now, lasting, pending } = &mut *inner;
        for change in pending.drain(..) {
            if faults.chance(500) {
                lasting.apply(&change);
            }
        }
        lasting.prune();
        *now = lasting.clone();
        for file in files.iter_mut() {
            let kept = file.synced + faults.below(file.data.len() - file.synced + 1);
            file.data.truncate(kept);
            if faults.chance(300) {
                // Allocated blocks that were never written.
                file.data[file.synced..].fill(0);
            }
            (file.synced, file.sync_failed) = (kept, false);
        }
    }

    /// Flips a random bit of a file below a folder, and returns the file.
    pub fn corrupt_bit(&self, folder: &Path) -> Option<PathBuf> {
        let mut inner = self.lock();
        let paths: Vec<_> = inner.now.files.keys().filter(|path| path.starts_with(folder)).cloned().collect();
        let path = paths.get(self.faults.below(paths.len()))?.clone();
        let file = inner.now.files[&path];
        let data = &mut inner.files[file].data;
        let bit = self.faults.below(8 * data.len());
        *data.get_mut(bit / 8)? ^= 1 << (bit % 8);
        Some(path)
    }

    /// The content of a file, without faults, for checks.
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        let inner = self.lock();
        inner.now.files.get(path).map(|&file| inner.files[file].data.clone())
    }

    /// All files.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.lock().now.files.keys().cloned().collect()
    }
}

/// An open file.
struct Open {
    disk: Arc<SimDisk>,
    file: usize,
}

impl Write for Open {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let injected = self.disk.faults.next_fault(true);
        let count = match injected {
            Injected::Success | Injected::Crash { applied: true } => bytes.len(),
            // At most a part is written.
            Injected::Failure | Injected::Crash { .. } => self.disk.faults.below(bytes.len() + 1),
        };
        if self.disk.faults.is_alive() || injected != Injected::Failure {
            self.disk.lock().files[self.file].data.extend(&bytes[..count]);
        }
        if injected == Injected::Success { Ok(count) } else { Err(ErrorKind::StorageFull.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AppendFile for Open {
    fn sync(&mut self) -> io::Result<()> {
        let injected = self.disk.faults.next_fault(false);
        let mut inner = self.disk.lock();
        let file = &mut inner.files[self.file];
        match injected {
            Injected::Success | Injected::Crash { applied: true } if !file.sync_failed => file.synced = file.data.len(),
            Injected::Failure if self.disk.faults.is_alive() => file.sync_failed = true,
            _ => {}
        }
        if injected == Injected::Success { Ok(()) } else { Err(broken()) }
    }
}

/// A handle to the disk, shared with open files.
#[derive(Clone)]
pub struct SimDiskHandle(pub Arc<SimDisk>);

impl Disk for SimDiskHandle {
    fn append(&self, path: &Path) -> io::Result<Box<dyn AppendFile>> {
        let file = self.0.operate(true, |inner| {
            if let Some(&file) = inner.now.files.get(path) {
                return Ok(file);
            }
            if !inner.now.folders.contains(path.parent().unwrap_or(path)) {
                return Err(ErrorKind::NotFound.into());
            }
            inner.files.push(File::default());
            let file = inner.files.len() - 1;
            inner.change(Change::File(path.to_owned(), file));
            Ok(file)
        })?;
        Ok(Box::new(Open { disk: Arc::clone(&self.0), file }))
    }

    fn read(&self, path: &Path, offset: u64) -> io::Result<Option<Box<dyn Read + Send>>> {
        self.0.operate(false, |inner| {
            let Some(&file) = inner.now.files.get(path) else { return Ok(None) };
            let mut reader = Cursor::new(inner.files[file].data.clone());
            reader.set_position(offset);
            Ok(Some(Box::new(reader) as Box<dyn Read + Send>))
        })
    }

    fn len(&self, path: &Path) -> io::Result<Option<u64>> {
        self.0.operate(false, |inner| Ok(inner.now.files.get(path).map(|&file| inner.files[file].data.len() as u64)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.operate(false, |inner| {
            let Some(&file) = inner.now.files.get(from) else { return Err(ErrorKind::NotFound.into()) };
            if !inner.now.folders.contains(to.parent().unwrap_or(to)) {
                return Err(ErrorKind::NotFound.into());
            }
            inner.change(Change::Rename(from.to_owned(), to.to_owned(), file));
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.operate(false, |inner| {
            if inner.now.files.contains_key(path) {
                inner.change(Change::NoFile(path.to_owned()));
            }
            Ok(())
        })
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        // An existing folder needs no space.
        let is_new = !self.0.lock().now.folders.contains(path);
        self.0.operate(is_new, |inner| {
            if !inner.now.folders.contains(path) {
                inner.change(Change::Folder(path.to_owned()));
            }
            Ok(())
        })
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.0.operate(false, |inner| {
            if inner.now.files.keys().any(|file| file.starts_with(path)) {
                return Err(ErrorKind::DirectoryNotEmpty.into());
            }
            if inner.now.folders.contains(path) {
                inner.change(Change::NoFolder(path.to_owned()));
            }
            Ok(())
        })
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.0.operate(false, |inner| {
            let (these, others) = inner.pending.drain(..).partition(|change| change.is_in(folder));
            inner.pending = others;
            let these: Vec<Change> = these;
            these.iter().for_each(|change| inner.lasting.apply(change));
            Ok(())
        })
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        self.0.operate(false, |inner| {
            let below = inner.now.files.keys().chain(&inner.now.folders).filter(|path| path.parent() == Some(folder));
            let mut names: Vec<_> = below.map(|p| p.file_name().unwrap().to_str().unwrap().to_owned()).collect();
            names.sort();
            Ok(names)
        })
    }

    fn free(&self, _: &Path) -> io::Result<u64> {
        self.0.operate(false, |_| Ok(if self.0.faults.is_full() { 0 } else { 1 << 40 }))
    }
}
