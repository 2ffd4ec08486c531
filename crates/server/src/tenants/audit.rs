//! The audit log: a JSON object on a line for every request, granted or refused. Unauthenticated
//! requests go to a separate log, so that they cannot displace the entries of tenants.

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

/// Rotated files of the tenants' log.
const KEPT: usize = 8;
/// Rotated files of the log of unauthenticated requests.
const KEPT_UNAUTHENTICATED: usize = 1;

/// An entry of the log.
#[derive(Serialize)]
pub struct AuditEntry<'a> {
    /// Milliseconds since 1970.
    pub time: u64,
    /// The tenant, if authenticated.
    pub tenant: Option<&'a str>,
    /// The client's address.
    pub peer: Option<SocketAddr>,
    /// The method.
    pub request: &'a str,
    /// The job or blob that the request names.
    pub object: Option<String>,
    /// The result; for a stream, the result of opening it.
    pub outcome: &'a str,
    /// Duration in milliseconds.
    pub millis: u64,
}

/// The job or blob that a request names. The handler sets it after reading the message.
#[derive(Clone, Default)]
pub struct AuditSubject(Arc<Mutex<Option<String>>>);

impl AuditSubject {
    /// Sets the subject.
    pub fn set(&self, object: impl ToString) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(object.to_string());
    }

    /// Takes the subject.
    pub fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The two audit logs of a server.
pub struct AuditLog {
    tenants: RotatingLog,
    unauthenticated: RotatingLog,
}

impl AuditLog {
    /// Opens the logs in a folder, with files of at most `max_bytes` bytes.
    pub fn open(folder: &Path, max_bytes: u64) -> Result<Self> {
        Ok(Self {
            tenants: RotatingLog::open(folder.join("audit.log"), max_bytes, KEPT)?,
            unauthenticated: RotatingLog::open(folder.join("strangers.log"), max_bytes, KEPT_UNAUTHENTICATED)?,
        })
    }

    /// Writes an entry. If this fails, the error goes to the ordinary log and the request
    /// continues.
    pub fn write(&self, entry: &AuditEntry<'_>) {
        let log = if entry.tenant.is_some() { &self.tenants } else { &self.unauthenticated };
        if let Err(error) = log.write(entry) {
            tracing::error!(%error, request = entry.request, tenant = entry.tenant, "could not write the audit log");
        }
    }

    /// Logs an action of the operator.
    pub fn operator(&self, request: &str, tenant: &Tenant, outcome: &str) {
        let (tenant, time) = (Some(tenant.as_str()), clock::millis());
        self.write(&AuditEntry { time, tenant, peer: None, request, object: None, outcome, millis: 0 });
    }
}

/// A log file with rotation.
struct RotatingLog {
    path: PathBuf,
    max_bytes: u64,
    kept: usize,
    file: Mutex<LogFile>,
}

/// An open log file and its length.
struct LogFile {
    file: File,
    len: u64,
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
        let LogFile { file, len } = &mut *guard;
        if *len + line.len() as u64 > self.max_bytes && *len > 0 {
            // The file is missing if an earlier rotation moved it but could not create a new one.
            if self.path.exists() {
                for old in (1..self.kept).rev() {
                    // The first rotations have fewer files.
                    let _ = std::fs::rename(self.rotated_path(old), self.rotated_path(old + 1));
                }
                std::fs::rename(&self.path, self.rotated_path(1)).map_err(|e| Error::file(&self.path, e))?;
            }
            let fresh = open(&self.path)?;
            (*file, *len) = (fresh.file, fresh.len);
        }
        if let Err(error) = file.write_all(&line) {
            // Remove an incomplete line, so that the next entry starts a new one.
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

fn open(path: &Path) -> Result<LogFile> {
    let file = File::options().create(true).append(true).mode(0o600).open(path).map_err(|e| Error::file(path, e))?;
    let len = file.metadata().map_err(|e| Error::file(path, e))?.len();
    Ok(LogFile { file, len })
}

/// The name of a result.
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
        // The current file, eight rotated ones, and the log of unauthenticated requests.
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
