//! What can go wrong between a client and its server.

use super::sanitize::sanitize_server_text;
use super::{BlobName, JobId};
use std::path::{Path, PathBuf};
use tonic::{Code, Status};

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong, and what would help.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No connection, or one that broke too often.
    #[error(
        "cannot reach {server}: {reason}. Is the server running, and are its address and authority the right ones?"
    )]
    Unreachable {
        /// The server.
        server: String,
        /// What the system or TLS said.
        reason: String,
    },
    /// A server that does not answer.
    #[error(
        "{server} does not answer: {reason}. Run the command again to go on; if it happens again, look at the address, or ask the server's \
         operator"
    )]
    Late {
        /// The server.
        server: String,
        /// How long it was waited for, or what it said itself.
        reason: String,
    },
    /// The server does not know us.
    #[error("{server} does not accept the credentials: ask its operator for a token or a certificate")]
    Credentials {
        /// The server.
        server: String,
    },
    /// A certificate, key or authority that is none.
    #[error("the {what} cannot be used: {reason}")]
    Pem {
        /// Which.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A token with characters that no token has.
    #[error("the token has characters other than visible ASCII ones")]
    Token,
    /// An address that is none.
    #[error("{server:?} is no address: it should be host:port")]
    Address {
        /// What was given.
        server: String,
    },
    /// The two ends speak different versions, or the request came too early or too late. The server's sentence.
    #[error("{server} refuses: {sentence}")]
    Refused {
        /// The server.
        server: String,
        /// Why.
        sentence: String,
    },
    /// No such job or blob of ours.
    #[error("{server} has no such thing: {sentence}")]
    NotFound {
        /// The server.
        server: String,
        /// What was asked for.
        sentence: String,
    },
    /// A limit of the server is reached.
    #[error("{server} has no room: {sentence}")]
    Limit {
        /// The server.
        server: String,
        /// Which limit.
        sentence: String,
    },
    /// The server failed.
    #[error("{server} failed: {sentence}")]
    Server {
        /// The server.
        server: String,
        /// What it says.
        sentence: String,
    },
    /// An answer that no honest server of this version gives.
    #[error("the server broke the protocol: {what}")]
    Protocol {
        /// How.
        what: String,
    },
    /// Other bytes came than those that were named.
    #[error("the bytes of blob {blob} are not those it is named after: they were damaged or replaced")]
    Damaged {
        /// The blob.
        blob: BlobName,
    },
    /// The server announced an object of a size that it cannot have.
    #[error("the server announces {announced} bytes where an object of {expected} belongs")]
    Size {
        /// What it says.
        announced: u64,
        /// What the parameters give.
        expected: u64,
    },
    /// A local file failed.
    #[error("{}: {reason}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The operating system refused.
    #[error("{what} could not be had: {reason}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What the system said.
        reason: String,
    },
    /// A running job of which nothing is heard.
    #[error(
        "{server} says that job {job} runs, and nothing more: run the command again to go on, or `hetal cancel` it and use another server"
    )]
    Silent {
        /// The server.
        server: String,
        /// The job.
        job: JobId,
    },
    /// The stream of events ended before the job did.
    #[error("the events of job {job} ended before the job did")]
    Cut {
        /// The job.
        job: JobId,
    },
}

impl Error {
    /// The error a status stands for.
    pub(super) fn of(server: &str, status: Status) -> Self {
        let (server, sentence) = (server.to_owned(), sanitize_server_text(status.message()));
        match status.code() {
            Code::Unavailable | Code::Unknown => {
                Self::Unreachable { server, reason: sanitize_server_text(&innermost(&status)) }
            }
            Code::DeadlineExceeded => Self::Late { server, reason: sentence },
            Code::Unauthenticated | Code::PermissionDenied => Self::Credentials { server },
            Code::NotFound => Self::NotFound { server, sentence },
            Code::ResourceExhausted => Self::Limit { server, sentence },
            Code::Internal | Code::DataLoss => Self::Server { server, sentence },
            _ => Self::Refused { server, sentence },
        }
    }

    /// What happened, without where and what to do.
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

/// Whether a connection did not come up because of the server's certificate.
pub(super) fn is_of_certificate(status: &Status) -> bool {
    let of = |cause: &(dyn std::error::Error + 'static)| {
        // What an error of the system holds is not among its sources.
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

/// The cause at the bottom of a broken connection, which says more than "transport error".
fn innermost(status: &Status) -> String {
    let mut cause: &dyn std::error::Error = status;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    if text.is_empty() { status.message().to_owned() } else { text }
}
