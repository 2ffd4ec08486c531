//! Errors of keys, encryption and releases.

use hetal_ckks::bytes::FormatError;
use std::path::PathBuf;

/// The result of an operation with keys.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of keys, encryption or releases. The message says what to do about it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system reported an error.
    #[error("{operation} {}: {message}", .path.display())]
    Io {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The kind of error.
        kind: std::io::ErrorKind,
        /// The message of the operating system.
        message: String,
    },
    /// The file exists already.
    #[error("{} exists, and a secret key is never overwritten: move it away or choose another name", .path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Others than the owner may read or write the file.
    #[error("others may use the secret key in {} (its mode is {mode:03o}): run chmod 600 on it", .path.display())]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Something other than a file.
    #[error("{} is not a file", .path.display())]
    NotAFile {
        /// What it is.
        path: PathBuf,
    },
    /// Bytes that are no secret key of the parameter set.
    #[error("{}: {error}", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with its bytes.
        error: FormatError,
    },
    /// A protection of the key that this program does not know.
    #[error("the secret key in {} is protected in way {kind}, which this program does not know: use a newer one", .path.display())]
    Protection {
        /// The file.
        path: PathBuf,
        /// The number of the protection.
        kind: u16,
    },
    /// The file is locked and no passphrase was given.
    #[error("{} is locked with a passphrase: give --passphrase-file FILE, set HETAL_PASSPHRASE, or type it in a terminal", .path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The passphrase is not the one that locked the file.
    #[error("this is not the passphrase of {}", .path.display())]
    Passphrase {
        /// The file.
        path: PathBuf,
    },
    /// The passphrase is empty.
    #[error("the passphrase is empty: an empty one protects nothing")]
    EmptyPassphrase,
    /// There is not enough memory to derive a key from the passphrase.
    #[error("a passphrase takes {mebibytes} MiB of memory, which the system does not give: close other programs")]
    PassphraseMemory {
        /// What it takes.
        mebibytes: u32,
    },
    /// The cipher failed.
    #[error("the file could not be locked")]
    NotLocked,
    /// Coefficients that no secret of the set has.
    #[error("{} holds no secret of weight {weight}", .path.display())]
    NotASecret {
        /// The file.
        path: PathBuf,
        /// The weight of the set's secrets.
        weight: usize,
    },
    /// A policy of releases that cannot be kept.
    #[error("release policy: {0}")]
    Policy(&'static str),
    /// Values that would be released with less precision than is wanted.
    #[error(
        "released values would have a standard error of {error:e}, more than {wanted:e}: release fewer numbers, lower the noise (bootstrap with a second iteration) or ask for less security"
    )]
    TooImprecise {
        /// The error that the flooding noise would make.
        error: f64,
        /// The largest that the policy allows.
        wanted: f64,
    },
    /// More numbers than the policy was made for.
    #[error("{wanted} numbers are to be released where {left} are left: a larger policy needs a new secret key")]
    Exhausted {
        /// Numbers to be released now.
        wanted: u64,
        /// Numbers left.
        left: u64,
    },
    /// A value that is not finite, or too large to be rounded exactly.
    #[error("the value at {index} is not finite or too large to be released")]
    NotReleasable {
        /// Where.
        index: usize,
    },
    /// A public key for fewer primes than a message has, or a message over special primes.
    #[error("the message has {needs} primes, the public key {has} of the chain: encode the message over fewer")]
    PublicKey {
        /// Primes of the message.
        needs: usize,
        /// Primes of the key.
        has: usize,
    },
    /// Decrypted values that are not numbers, or not as many as the exact ones.
    #[error("{got} decrypted values, {expected} exact ones, all finite: nothing can be said about the noise otherwise")]
    NoEstimate {
        /// Decrypted values.
        got: usize,
        /// Exact ones.
        expected: usize,
    },
    /// Keys to the ephemeral sparse secret without keys from it, or the reverse.
    #[error(
        "keys to and from the sparse secret are made together: ask for both kinds, because the ephemeral secret is not kept"
    )]
    LoneSparseKey,
    /// An error of the scheme.
    #[error(transparent)]
    Scheme(#[from] hetal_ckks::Error),
}
