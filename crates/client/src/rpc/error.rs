//! Errors of calls to a server.

use super::{BlobName, JobId};
use crate::sanitize::sanitize_foreign_text;
use std::path::{Path, PathBuf};
use tonic::{Code, Status};

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a call to a server. Text that comes from the server is sanitized.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection cannot be made, or it breaks too often.
    #[error(
        "cannot reach {server}: {reason}. Check that the server is running and that its address and certificate \
         authority are right"
    )]
    Unreachable {
        /// The server.
        server: String,
        /// The message of the operating system or of TLS.
        reason: String,
    },
    /// The server does not answer in time.
    #[error(
        "{server} does not answer: {reason}. Run the command again to continue; if this repeats, check the address \
         or ask the server's operator"
    )]
    Late {
        /// The server.
        server: String,
        /// The timeout, or the server's own message.
        reason: String,
    },
    /// The server does not accept the credentials.
    #[error("{server} does not accept the credentials: ask its operator for a token or a certificate")]
    Credentials {
        /// The server.
        server: String,
    },
    /// A PEM file cannot be used.
    #[error("the {what} cannot be used: {reason}. Check the PEM file")]
    Pem {
        /// What the file should contain.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A token contains invalid characters.
    #[error("invalid token: it may contain only visible ASCII characters. Check the token file")]
    Token,
    /// An address is invalid.
    #[error("invalid address {server:?}: give it as host:port")]
    Address {
        /// The address.
        server: String,
    },
    /// The server refused the request: the protocol versions differ, or the request does not fit
    /// the state of the job.
    #[error("{server} refused the request: {sentence}")]
    Refused {
        /// The server.
        server: String,
        /// The reason that the server gives.
        sentence: String,
    },
    /// The server has no such job or blob of this tenant.
    #[error("not found on {server}: {sentence}")]
    NotFound {
        /// The server.
        server: String,
        /// What was requested.
        sentence: String,
    },
    /// A limit of the server is reached.
    #[error("a limit of {server} is reached: {sentence}")]
    Limit {
        /// The server.
        server: String,
        /// The limit.
        sentence: String,
    },
    /// The server failed.
    #[error("{server} failed: {sentence}")]
    Server {
        /// The server.
        server: String,
        /// The message of the server.
        sentence: String,
    },
    /// The server sent an answer that violates the protocol.
    #[error("the server violated the protocol: {what}")]
    Protocol {
        /// The violation.
        what: String,
    },
    /// The bytes of a blob do not match its name.
    #[error("the bytes of blob {blob} do not match its hash: they were damaged or replaced")]
    Damaged {
        /// The blob.
        blob: BlobName,
    },
    /// The server announced an object of an impossible size.
    #[error("the server announces {announced} bytes for an object of {expected} bytes")]
    Size {
        /// The size that the server announces.
        announced: u64,
        /// The size by the parameters.
        expected: u64,
    },
    /// A local file operation failed.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The message of the operating system.
        reason: String,
    },
    /// A file that the server does not have cannot be sent: it is not what was written once.
    #[error(
        "{} {}, and the server does not have it: run the command again, which makes it again",
        path.display(), if *is_gone { "is missing" } else { "was changed after it was written" }
    )]
    NotAsWritten {
        /// The file.
        path: PathBuf,
        /// Whether there is no file.
        is_gone: bool,
    },
    /// The operating system refused a resource.
    #[error("the operating system refused {what}: {reason}")]
    System {
        /// The resource.
        what: &'static str,
        /// The message of the operating system.
        reason: String,
    },
    /// A running job sends no events.
    #[error(
        "{server} reports that job {job} is running but sends no progress: run the command again to continue, or \
         end the job with `hetal cancel` and use another server"
    )]
    Silent {
        /// The server.
        server: String,
        /// The job.
        job: JobId,
    },
    /// The caller asked for the end of the call.
    #[error("cancelled: the same command continues where it stopped")]
    Cancelled,
    /// The event stream ended before the job did.
    #[error("the event stream of job {job} ended before the job did: run the command again to continue")]
    Cut {
        /// The job.
        job: JobId,
    },
}

impl Error {
    /// Converts a gRPC status.
    pub(crate) fn of(server: &str, status: Status) -> Self {
        let (server, sentence) = (server.to_owned(), sanitize_foreign_text(status.message()));
        match status.code() {
            Code::Unavailable | Code::Unknown => {
                Self::Unreachable { server, reason: sanitize_foreign_text(&innermost(&status)) }
            }
            Code::DeadlineExceeded => Self::Late { server, reason: sentence },
            Code::Unauthenticated | Code::PermissionDenied => Self::Credentials { server },
            Code::NotFound => Self::NotFound { server, sentence },
            Code::ResourceExhausted => Self::Limit { server, sentence },
            Code::Internal | Code::DataLoss => Self::Server { server, sentence },
            _ => Self::Refused { server, sentence },
        }
    }

    /// The reason alone, without the server and the advice.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Unreachable { reason, .. } | Self::Late { reason, .. } => reason.clone(),
            other => other.to_string(),
        }
    }

    pub(super) fn file(path: &Path, error: &std::io::Error) -> Self {
        Self::File { path: path.to_owned(), reason: error.to_string() }
    }

    pub(super) fn protocol(what: impl Into<String>) -> Self {
        Self::Protocol { what: what.into() }
    }
}

/// Returns whether the connection failed because of the server's certificate.
pub(super) fn is_of_certificate(status: &Status) -> bool {
    let of = |cause: &(dyn std::error::Error + 'static)| {
        // The error inside an `io::Error` is not part of its source chain.
        let held = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let tls = held.and_then(|held| held.downcast_ref::<rustls::Error>());
        matches!(tls, Some(rustls::Error::InvalidCertificate(_)))
    };
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(status);
    while let Some(error) = cause {
        if of(error) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The innermost cause of a broken connection, which is more specific than "transport error".
fn innermost(status: &Status) -> String {
    let mut cause: &dyn std::error::Error = status;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    if text.is_empty() { status.message().to_owned() } else { text }
}
