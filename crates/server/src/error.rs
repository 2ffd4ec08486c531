//! What can go wrong in a server, and what its clients are told of it.

use hetal_wire::{BlobName, JobId};
use std::path::Path;
use tonic::Status;

/// The result of something a server does.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The client speaks another version. The sentence is for the client.
    #[error("{message}")]
    Version {
        /// What the client is told.
        message: String,
    },
    /// No tenant has these credentials.
    #[error("the credentials are not known here, or no longer")]
    Credentials,
    /// A request that makes no sense or asks for what is not allowed.
    #[error("{message}")]
    Invalid {
        /// What is wrong with it.
        message: String,
    },
    /// The tenant has no such blob.
    #[error("there is no blob {name}: upload it")]
    NoBlob {
        /// Its name.
        name: BlobName,
    },
    /// A job of the tenant made no such blob, or it is gone.
    #[error("there is no output {name} of that job")]
    NoOutput {
        /// Its name.
        name: BlobName,
    },
    /// The tenant has no such job.
    #[error("there is no job {id}")]
    NoJob {
        /// Its name.
        id: JobId,
    },
    /// Right in itself, but not now.
    #[error("{message}")]
    Precondition {
        /// Why not.
        message: String,
    },
    /// Someone else is doing the same: try again.
    #[error("{message}")]
    Busy {
        /// Who.
        message: String,
    },
    /// A limit is reached.
    #[error("{message}")]
    Limit {
        /// Which, and what would help.
        message: String,
    },
    /// Bytes are not those they are named after.
    #[error("the bytes of {what} are not those they are named after: they were damaged")]
    Damaged {
        /// Which.
        what: String,
    },
    /// A worker lost its lease: another one has the job.
    #[error("the lease was lost")]
    Fenced,
    /// The blob store failed.
    #[error("blob {key}: {reason}")]
    Blobs {
        /// Which blob.
        key: String,
        /// What the store said.
        reason: String,
    },
    /// The database failed.
    #[error("the state: {reason}")]
    State {
        /// What it said.
        reason: String,
    },
    /// A file or the system failed.
    #[error("{what}: {reason}")]
    System {
        /// Which file, or what was attempted.
        what: String,
        /// What the system said.
        reason: String,
    },
    /// What computes failed, or has no room. Jobs wait for it to work again.
    #[error("the GPU: {reason}")]
    Device {
        /// What it said.
        reason: String,
        /// Whether it works, and only lacks memory that others hold.
        is_full: bool,
    },
    /// The configuration cannot be used.
    #[error("configuration: {reason}")]
    Config {
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The computation failed.
    #[error("{reason}")]
    Failed {
        /// Why.
        reason: String,
    },
}

impl Error {
    /// A request that makes no sense.
    pub fn invalid(message: impl ToString) -> Self {
        Self::Invalid { message: message.to_string() }
    }

    /// A file that failed.
    pub fn file(path: &Path, error: impl ToString) -> Self {
        Self::System { what: path.display().to_string(), reason: error.to_string() }
    }

    /// A computation that failed.
    pub fn failed(reason: impl ToString) -> Self {
        Self::Failed { reason: reason.to_string() }
    }

    /// A GPU that cannot be opened.
    pub fn gpu(error: &hetal_cuda::Error) -> Self {
        Self::Device { reason: error.to_string(), is_full: error.lacks_memory() }
    }

    /// Whether trying again later may help: the fault is the machine's, not the request's.
    pub fn is_transient(&self) -> bool {
        use Error::{Blobs, Busy, Device, State, System};
        matches!(self, Blobs { .. } | State { .. } | System { .. } | Device { .. } | Busy { .. })
    }

    /// What a client is told of it. Faults of the machine stay in the log: they may name files.
    pub fn client_message(&self) -> String {
        match self {
            Self::Blobs { .. }
            | Self::State { .. }
            | Self::System { .. }
            | Self::Device { .. }
            | Self::Config { .. } => "the server has a fault of its own; its operator finds it in the log".to_owned(),
            other => other.to_string(),
        }
    }
}

impl From<hetal_learn::Error> for Error {
    fn from(error: hetal_learn::Error) -> Self {
        Self::failed(error)
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let message = error.client_message();
        match error {
            Error::Version { .. } | Error::Precondition { .. } => Status::failed_precondition(message),
            Error::Credentials => Status::unauthenticated(message),
            Error::Invalid { .. } => Status::invalid_argument(message),
            Error::NoBlob { .. } | Error::NoOutput { .. } | Error::NoJob { .. } => Status::not_found(message),
            Error::Busy { .. } | Error::Fenced => Status::aborted(message),
            Error::Limit { .. } => Status::resource_exhausted(message),
            Error::Damaged { .. } => Status::data_loss(message),
            Error::Blobs { .. }
            | Error::State { .. }
            | Error::System { .. }
            | Error::Device { .. }
            | Error::Config { .. } => {
                tracing::error!(fault = %error, "a request failed");
                Status::internal(message)
            }
            Error::Failed { .. } => Status::internal(message),
        }
    }
}
