//! Moves a stopped server from its folder into PostgreSQL, and its blobs into a bucket or a folder
//! that servers share.
//!
//! Blobs are copied first, and each is verified. What is there already is not copied again. Then
//! one transaction takes over all rows, and the old database gets another name, so that no server
//! starts on it. Whatever interrupts this, repeating the command continues it.

use crate::config::Config;
use crate::store::blobs::{self, BlobKey, Blobs, LocalBlobs};
use crate::store::folder;
use crate::store::parts::{STORED_PART_BYTES, StoredPart, hash_of_part, name_of_parts};
use crate::store::state::{Database, DatabaseIdentity, OwnerMarks, PgState, SqliteState};
use crate::{Error, Result};
use serde::Serialize;
use std::io::Read;
use std::path::Path;

/// The name of a database that was moved.
const MOVED: &str = "state.sqlite.moved";

/// What was moved.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct MoveReport {
    /// Rows of the database; 0 if an interrupted run had moved them.
    pub rows: u64,
    /// Blobs that were copied by this run.
    pub copied: u64,
    /// Blobs that were there.
    pub found: u64,
    /// Blobs that are damaged, and were not copied. Uploads among them are asked for again.
    pub damaged: Vec<String>,
}

/// Moves the server in `folder` to the database and the blobs of a configuration. With
/// `blobs_stay`, the blobs are there already.
pub fn move_to_postgres(config: &Config, from: &Path, blobs_stay: bool) -> Result<MoveReport> {
    let refused = |reason: String| Err(Error::Config { reason });
    let Some(settings) = config.state.settings()? else {
        return refused("`state.url` is not set: name the PostgreSQL database to move to".to_owned());
    };
    let sqlite = from.join("state.sqlite");
    if !sqlite.exists() {
        let hint = if from.join(MOVED).exists() { "it was moved already" } else { "name the folder of a server" };
        return refused(format!("{} does not exist: {hint}", sqlite.display()));
    }
    let _lock = folder::lock(from)?;
    folder::make_private(&config.folder)?;
    let _own = if config.folder == from { None } else { Some(folder::lock(&config.folder)?) };
    let server = folder::worker_name(&config.folder)?;
    let state = SqliteState::open(&sqlite)?;
    let database = PgState::open(settings)?;
    let target = blobs::open(config, Some(&server))?;
    let source = LocalBlobs::open(&from.join("blobs"))?;
    let is_same = blobs_stay || target.location() == source.location();
    let mut report = MoveReport { rows: 0, copied: 0, found: 0, damaged: Vec::new() };
    if !is_same {
        require_unowned(&*target, &state)?;
        copy_blobs(&source, &*target, &mut report)?;
    }
    let OwnerMarks { found, intended } = state.marks()?;
    let (found, intended) = if is_same { (found, intended) } else { Default::default() };
    let id = unhex(&state.identity()?)?;
    // The last connection writes what the log of the database still holds into the database.
    drop(state);
    report.rows = database.import(&sqlite, &DatabaseIdentity { id, found, intended })?.unwrap_or(0);
    std::fs::rename(&sqlite, from.join(MOVED)).map_err(|e| Error::file(&sqlite, e))?;
    Ok(report)
}

/// Refuses a place that another database owns.
fn require_unowned(target: &dyn Blobs, state: &dyn Database) -> Result<()> {
    match target.owner()? {
        Some(owner) if !owner.starts_with(&state.identity()?) => Err(Error::Config {
            reason: format!("{} holds the blobs of another database: choose another place", target.location()),
        }),
        _ => Ok(()),
    }
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    let digit = |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let bytes: Option<_> = (0..text.len()).step_by(2).map(digit).collect();
    bytes.ok_or_else(|| Error::State { reason: "the identity of the database is invalid".to_owned() })
}

fn copy_blobs(source: &LocalBlobs, target: &dyn Blobs, report: &mut MoveReport) -> Result<()> {
    for (tenant, namespace) in source.namespaces()? {
        for name in source.list(&tenant, namespace)? {
            let key = BlobKey::new(&tenant, namespace, name);
            let size = source.len(&key)?.unwrap_or(0);
            // Stores hold a blob whole or not at all.
            if target.len(&key)? == Some(size) {
                report.found += 1;
            } else if copy_blob(source, target, &key, size)? {
                report.copied += 1;
            } else {
                tracing::error!(%key, "a blob is damaged, and stays behind");
                report.damaged.push(key.to_string());
            }
        }
    }
    Ok(())
}

/// Copies a blob in parts. Returns false if it is damaged.
fn copy_blob(source: &LocalBlobs, target: &dyn Blobs, key: &BlobKey, size: u64) -> Result<bool> {
    let missing = || Error::Config { reason: format!("{} receives no parts", target.location()) };
    let parts = target.parts().ok_or_else(missing)?;
    let mut reader = source.open(key, 0)?.ok_or_else(|| key.missing())?;
    let id = parts.begin(key)?;
    let (mut stored, mut offset) = (Vec::new(), 0);
    loop {
        let mut bytes = Vec::new();
        let read = reader.by_ref().take(STORED_PART_BYTES).read_to_end(&mut bytes);
        read.map_err(|e| Error::Blobs { key: key.to_string(), reason: e.to_string() })?;
        if bytes.is_empty() {
            break;
        }
        let (hash, length) = (hash_of_part(&bytes, offset, size), bytes.len() as u64);
        let lost =
            || Error::Blobs { key: key.to_string(), reason: "its parts are gone: repeat the command".to_owned() };
        let receipt = parts.put_part(key, &id, stored.len(), bytes)?.ok_or_else(lost)?;
        stored.push(StoredPart { size: length, hash, receipt, head: Vec::new() });
        offset += length;
    }
    if offset == size && size > 0 && name_of_parts(&stored)? == key.name() {
        return parts.join(key, &id, &stored, &|| Ok(()));
    }
    parts.discard(key, &id)?;
    Ok(false)
}
