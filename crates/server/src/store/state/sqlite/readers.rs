//! Connections that only read, and checks before the database is opened.

use crate::{Error, Result};
use rusqlite::Connection;
use rustix::fs::{Access, access};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Concurrent readers.
const READERS: usize = 4;
/// Bytes that must be free for the shared memory file and the first transaction.
const PROBE_BYTES: usize = 256 << 10;

/// The version of the database whose migration copies large values.
const LARGE_VALUES_MOVED: i64 = 7;
/// Bytes that a migration needs beside copies of the database.
const MIGRATION_MARGIN: u64 = 16 << 20;

/// A few connections that only read. A request that finds none free waits for one.
#[derive(Default)]
pub struct ReaderPool {
    size: usize,
    free: Mutex<Vec<Connection>>,
    returned: Condvar,
}

impl ReaderPool {
    /// Opens connections to a database file.
    pub fn open(path: &Path) -> Result<Self> {
        let open = |_| {
            let connection = Connection::open(path)?;
            connection.busy_timeout(Duration::from_secs(10))?;
            connection.pragma_update(None, "query_only", true)?;
            Ok::<_, Error>(connection)
        };
        let free: Vec<_> = (0..READERS).map(open).collect::<Result<_>>()?;
        Ok(Self { size: free.len(), free: Mutex::new(free), returned: Condvar::new() })
    }

    /// Whether the pool has no connections at all.
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// Takes a free connection, or waits for one.
    pub fn take(&self) -> ReadConnection<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.returned.wait_while(free, |free| free.is_empty());
        let connection = free.unwrap_or_else(PoisonError::into_inner).pop();
        ReadConnection { pool: self, connection }
    }
}

/// A connection of the pool, returned when this is dropped.
pub struct ReadConnection<'a> {
    pool: &'a ReaderPool,
    connection: Option<Connection>,
}

impl ReadConnection<'_> {
    /// The connection.
    pub fn connection(&mut self) -> Result<&mut Connection> {
        let missing = || Error::State { reason: "no connection for reading".to_owned() };
        self.connection.as_mut().ok_or_else(missing)
    }
}

impl Drop for ReadConnection<'_> {
    fn drop(&mut self) {
        self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).extend(self.connection.take());
        self.pool.returned.notify_one();
    }
}

/// Checks that the files of the database can be written. SQLite maps `-shm` into memory, and a
/// mapped page that the disk cannot store ends the process without a message.
pub fn check_writable(path: &Path) -> Result<()> {
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    for file in [path.to_owned(), beside("-shm"), beside("-wal")] {
        // The files are not opened: closing them would end the locks of other connections.
        match std::fs::metadata(&file) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::file(&file, e)),
            Ok(metadata) if !metadata.is_file() => return Err(Error::file(&file, "not a regular file")),
            Ok(_) => access(&file, Access::WRITE_OK).map_err(|e| Error::file(&file, std::io::Error::from(e)))?,
        }
    }
    let probe = beside("-probe");
    let write = || {
        let mut file = File::create(&probe)?;
        file.write_all(&[0xA5; PROBE_BYTES])?;
        file.sync_all()
    };
    let written = write().map_err(|e| Error::file(&probe, e));
    // Also after a failure: a full disk needs the space.
    let removed = std::fs::remove_file(&probe);
    written?;
    removed.map_err(|e| Error::file(&probe, e))
}

/// Checks that there is room to migrate an older database. The migration to version 7 copies large
/// values: the write-ahead log grows to twice the size of the database, and the database to twice
/// its size.
pub fn check_migration_space(
    database: &Connection,
    path: &Path,
    free: impl FnOnce(&Path) -> std::io::Result<u64>,
) -> Result<()> {
    let number = |name: &str| database.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let version = number("user_version")?;
    if !(1..LARGE_VALUES_MOVED).contains(&version) {
        return Ok(());
    }
    let size = (number("page_count")? as u64).saturating_mul(number("page_size")? as u64);
    let needed = size.saturating_mul(3).saturating_add(size / 8).saturating_add(MIGRATION_MARGIN);
    let free = free(path).map_err(|e| Error::file(path, e))?;
    if free >= needed {
        return Ok(());
    }
    let [needed, free] = [needed.div_ceil(1 << 20), free >> 20];
    let reason = format!(
        "{} has version {version}, and its migration needs {needed} MiB of free disk space, but {free} MiB are free: \
         free some space and start again. The database is unchanged",
        path.display()
    );
    Err(Error::Config { reason })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::state::{SqliteState, State};
    use hetal_testkit::TempDir;
    use std::sync::mpsc;

    /// A transaction that takes long, for example because the disk is slow, delays no reader.
    #[test]
    fn readers_do_not_wait_for_the_writer() {
        let dir = TempDir::new();
        let state = SqliteState::open(&dir.path().join("state.sqlite")).unwrap();
        let (begun, begins) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        let read = std::thread::scope(|scope| {
            let state = &state;
            scope.spawn(move || {
                state.write(|_| {
                    begun.send(()).unwrap();
                    let _ = ends.recv();
                    Ok(())
                })
            });
            begins.recv().unwrap();
            let (done, read) = mpsc::channel();
            scope.spawn(move || {
                let ann = "ann".to_owned().try_into().unwrap();
                done.send(state.jobs(&ann).unwrap().len()).unwrap();
                assert!(state.claim("worker", 1, 2).unwrap().is_none());
                done.send(0).unwrap();
            });
            let waits = Duration::from_secs(60);
            let read = [read.recv_timeout(waits), read.recv_timeout(waits)];
            drop(end);
            read
        });
        assert_eq!(read, [Ok(0), Ok(0)], "a reader waits for the writer");
    }

    /// A start is refused with the name of the file if a file of the database cannot be written.
    #[test]
    fn files_that_cannot_be_written_are_named() {
        for name in ["state.sqlite-shm", "state.sqlite-wal", "state.sqlite-probe"] {
            let dir = TempDir::new();
            drop(SqliteState::open(&dir.path().join("state.sqlite")).unwrap());
            // A folder cannot be opened for writing, whoever runs the test.
            std::fs::create_dir(dir.path().join(name)).unwrap();
            let refused = SqliteState::open(&dir.path().join("state.sqlite")).err().unwrap();
            assert!(refused.to_string().contains(name), "{refused}");
        }
    }
}
