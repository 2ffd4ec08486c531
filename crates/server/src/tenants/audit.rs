//! The audit log: one JSON object a line for every request, granted or refused. Those of strangers are in a log of their own: however
//! often they ask, what tenants did stays.

use crate::tenants::Tenant;
use crate::{Error, Result, clock};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tonic::Code;

/// Older files that are kept beside the one that is written.
const KEPT: usize = 8;
/// The same for the log of strangers.
const KEPT_OF_STRANGERS: usize = 1;

/// A line.
#[derive(Serialize)]
pub struct AuditEntry<'a> {
    /// Milliseconds since 1970.
    pub time: u64,
    /// Who asked, if he is known.
    pub tenant: Option<&'a str>,
    /// From where.
    pub peer: Option<SocketAddr>,
    /// What was asked for.
    pub request: &'a str,
    /// The job or blob it was about.
    pub object: Option<String>,
    /// How it ended; for what is told in a stream, how that began.
    pub outcome: &'a str,
    /// Milliseconds it took.
    pub millis: u64,
}

/// What a request turns out to be about: filled in by whoever reads its message.
#[derive(Clone, Default)]
pub struct AuditSubject(Arc<Mutex<Option<String>>>);

impl AuditSubject {
    /// Says what it is about.
    pub fn set(&self, object: impl ToString) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(object.to_string());
    }

    /// What was said.
    pub fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The two logs of a server's folder.
pub struct AuditLog {
    tenants: RotatingLog,
    strangers: RotatingLog,
}

impl AuditLog {
    /// The logs in a folder, in files of at most so many bytes.
    pub fn open(folder: &Path, max_bytes: u64) -> Result<Self> {
        Ok(Self {
            tenants: RotatingLog::open(folder.join("audit.log"), max_bytes, KEPT)?,
            strangers: RotatingLog::open(folder.join("strangers.log"), max_bytes, KEPT_OF_STRANGERS)?,
        })
    }

    /// Writes a line. A line that cannot be written is in the ordinary log, and the request goes on.
    pub fn write(&self, entry: &AuditEntry<'_>) {
        let log = if entry.tenant.is_some() { &self.tenants } else { &self.strangers };
        if let Err(error) = log.write(entry) {
            tracing::error!(%error, request = entry.request, tenant = entry.tenant, "the audit log cannot be written");
        }
    }

    /// Notes something that an operator did.
    pub fn operator(&self, request: &str, tenant: &Tenant, outcome: &str) {
        let (tenant, time) = (Some(tenant.as_str()), clock::millis());
        self.write(&AuditEntry { time, tenant, peer: None, request, object: None, outcome, millis: 0 });
    }
}

/// A log's file. When it is full it gets a number and a new one is begun; of the old ones a few are kept.
struct RotatingLog {
    path: PathBuf,
    max_bytes: u64,
    kept: usize,
    file: Mutex<(File, u64)>,
}

impl RotatingLog {
    fn open(path: PathBuf, max_bytes: u64, kept: usize) -> Result<Self> {
        let file = Mutex::new(open(&path)?);
        Ok(Self { path, max_bytes, kept, file })
    }

    fn write(&self, entry: &AuditEntry<'_>) -> Result<()> {
        let mut line = serde_json::to_vec(entry).map_err(Error::failed)?;
        line.push(b'\n');
        let mut guard = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, len) = &mut *guard;
        if *len + line.len() as u64 > self.max_bytes && *len > 0 {
            // Not there: the last time it could be moved, but no new one begun.
            if self.path.exists() {
                for old in (1..self.kept).rev() {
                    // The first ones are not there yet.
                    let _ = std::fs::rename(self.rotated_path(old), self.rotated_path(old + 1));
                }
                std::fs::rename(&self.path, self.rotated_path(1)).map_err(|e| Error::file(&self.path, e))?;
            }
            (*file, *len) = open(&self.path)?;
        }
        if let Err(error) = file.write_all(&line) {
            // No half line, to which the next would be glued.
            let _ = file.set_len(*len);
            return Err(Error::file(&self.path, error));
        }
        *len += line.len() as u64;
        Ok(())
    }

    fn rotated_path(&self, number: usize) -> PathBuf {
        self.path.with_extension(format!("{number}.log"))
    }
}

fn open(path: &Path) -> Result<(File, u64)> {
    let file = File::options().create(true).append(true).mode(0o600).open(path).map_err(|e| Error::file(path, e))?;
    let len = file.metadata().map_err(|e| Error::file(path, e))?.len();
    Ok((file, len))
}

/// The word for a code.
pub fn outcome_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "ok",
        Code::InvalidArgument => "invalid",
        Code::DeadlineExceeded => "too slow",
        Code::NotFound => "not found",
        Code::ResourceExhausted => "limit",
        Code::FailedPrecondition => "not now",
        Code::Aborted => "busy",
        Code::DataLoss => "damaged",
        Code::Unauthenticated => "unknown credentials",
        Code::Unimplemented => "no such request",
        Code::Cancelled => "broken off",
        _ => "failed",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hetal_testkit::TempDir;

    fn request(tenant: Option<&str>, request: &str, audit: &AuditLog) {
        audit.write(&AuditEntry { time: 1, tenant, peer: None, request, object: None, outcome: "ok", millis: 0 });
    }

    #[test]
    fn a_full_log_gets_a_number() {
        let dir = TempDir::new();
        let audit = AuditLog::open(dir.path(), 200).unwrap();
        for n in 0..40 {
            request(Some("ann"), &format!("request {n}"), &audit);
        }
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert!(read("audit.log").contains("request 39") && read("audit.1.log").len() <= 200);
        // No more than the newest and eight older ones, and the strangers'.
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1 + KEPT + 1);
        for line in read("audit.8.log").lines() {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!((value["tenant"].as_str(), value["outcome"].as_str()), (Some("ann"), Some("ok")));
        }
    }

    #[test]
    fn strangers_push_nothing_out() {
        let dir = TempDir::new();
        let audit = AuditLog::open(dir.path(), 200).unwrap();
        request(Some("ann"), "her only request", &audit);
        for n in 0..1000 {
            request(None, &format!("request {n}"), &audit);
        }
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert!(read("audit.log").contains("her only request") && read("strangers.log").contains("request 999"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
