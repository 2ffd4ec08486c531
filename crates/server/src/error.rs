//! Errors of the server, and how they are reported to clients.

use hetal_wire::{BlobName, JobId};
use std::path::Path;
use tonic::Status;

/// The result of a server operation.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the server.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The client uses an unsupported protocol version.
    #[error("{message}")]
    Version {
        /// The message for the client.
        message: String,
    },
    /// No tenant has these credentials.
    #[error("the credentials are unknown or expired")]
    Credentials,
    /// The request is malformed or asks for something that is not allowed.
    #[error("{message}")]
    Invalid {
        /// What is wrong.
        message: String,
    },
    /// The tenant has no such blob.
    #[error("blob {name} not found: upload it")]
    NoBlob {
        /// Its name.
        name: BlobName,
    },
    /// The job has no such output.
    #[error("output {name} not found in that job")]
    NoOutput {
        /// Its name.
        name: BlobName,
    },
    /// The tenant has no such job.
    #[error("job {id} not found")]
    NoJob {
        /// Its name.
        id: JobId,
    },
    /// The request is valid but the current state does not allow it.
    #[error("{message}")]
    Precondition {
        /// Why not.
        message: String,
    },
    /// Another request holds the resource. Retry later.
    #[error("{message}")]
    Busy {
        /// Which resource.
        message: String,
    },
    /// A limit is reached.
    #[error("{message}")]
    Limit {
        /// Which limit, and what to do.
        message: String,
    },
    /// Stored bytes do not match their hash.
    #[error("{what} is damaged: its content does not match its hash")]
    Damaged {
        /// Which object.
        what: String,
    },
    /// The stored bytes of an upload are damaged or missing.
    #[error("upload {name} is damaged or missing on the server: send it again, then repeat the request")]
    DamagedUpload {
        /// Its name.
        name: BlobName,
    },
    /// The worker lost its lease, and another worker may have the job.
    #[error("the lease was lost")]
    Fenced,
    /// The blob store failed.
    #[error("blob {key}: {reason}")]
    Blobs {
        /// The blob.
        key: String,
        /// The store's message.
        reason: String,
    },
    /// The state database failed.
    #[error("state database: {reason}")]
    State {
        /// The device's or database's message.
        reason: String,
    },
    /// A file or a system call failed.
    #[error("{what}: {reason}")]
    System {
        /// The file or the operation.
        what: String,
        /// The system's message.
        reason: String,
    },
    /// The GPU failed or is out of memory. Jobs wait until it works again.
    #[error("GPU: {reason}")]
    Device {
        /// The device's or database's message.
        reason: String,
        /// Whether the GPU works but lacks free memory.
        is_full: bool,
    },
    /// The configuration is invalid.
    #[error("configuration: {reason}")]
    Config {
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The job failed.
    #[error("{reason}")]
    Failed {
        /// Why.
        reason: String,
    },
}

impl Error {
    /// Builds an error for an invalid request.
    pub fn invalid(message: impl ToString) -> Self {
        Self::Invalid { message: message.to_string() }
    }

    /// Builds an error for a failed file operation.
    pub fn file(path: &Path, error: impl ToString) -> Self {
        Self::System { what: path.display().to_string(), reason: error.to_string() }
    }

    /// Builds an error for a failed job.
    pub fn failed(reason: impl ToString) -> Self {
        Self::Failed { reason: reason.to_string() }
    }

    /// Builds an error for a GPU that cannot be used.
    pub fn gpu(error: &hetal_cuda::Error) -> Self {
        Self::Device { reason: error.to_string(), is_full: error.lacks_memory() }
    }

    /// Whether a later retry may succeed: the cause is the machine, not the request.
    pub fn is_transient(&self) -> bool {
        use Error::{Blobs, Busy, Device, State, System};
        matches!(self, Blobs { .. } | State { .. } | System { .. } | Device { .. } | Busy { .. })
    }

    /// Whether the disk, the database or the bucket failed.
    pub fn is_storage_fault(&self) -> bool {
        matches!(self, Self::Blobs { .. } | Self::State { .. } | Self::System { .. })
    }

    /// The message for clients. Faults of the server stay in its log, because they may name files.
    pub fn client_message(&self) -> String {
        match self {
            Self::Blobs { .. }
            | Self::State { .. }
            | Self::System { .. }
            | Self::Device { .. }
            | Self::Config { .. } => {
                "internal server error: the operator finds the details in the server's log".to_owned()
            }
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
            Error::Damaged { .. } | Error::DamagedUpload { .. } => Status::data_loss(message),
            Error::Blobs { .. }
            | Error::State { .. }
            | Error::System { .. }
            | Error::Device { .. }
            | Error::Config { .. } => {
                tracing::error!(fault = %error, "request failed");
                Status::internal(message)
            }
            Error::Failed { .. } => Status::internal(message),
        }
    }
}
