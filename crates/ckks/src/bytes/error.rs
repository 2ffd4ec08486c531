//! Errors of reading and writing objects.

use super::ObjectKind;
use crate::KeyId;

/// The result of reading or writing bytes.
pub type Result<T> = std::result::Result<T, FormatError>;

/// An error of reading or writing an object.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The operating system reported an error.
    #[error("input or output failed: {message}")]
    Io {
        /// Its kind of failure.
        kind: std::io::ErrorKind,
        /// The message of the operating system.
        message: String,
    },
    /// The device that holds the object failed.
    #[error(transparent)]
    Backend(#[from] crate::backend::Failure),
    /// The input ends inside an object.
    #[error("the input ends inside {part}: it was cut short")]
    Truncated {
        /// What was being read.
        part: &'static str,
    },
    /// The bytes are no object of hetal.
    #[error("no hetal object begins with {found:02x?}")]
    Magic {
        /// The first bytes.
        found: [u8; 8],
    },
    /// A version this program does not know.
    #[error("format version {found}; this program reads version {known}: use a newer one")]
    Version {
        /// The version found.
        found: u16,
        /// The version known.
        known: u16,
    },
    /// An object of another kind than the one asked for.
    #[error("the object is of kind {found}, not a {expected}")]
    ObjectKind {
        /// The number found.
        found: u16,
        /// The kind asked for.
        expected: ObjectKind,
    },
    /// An object of another parameter set.
    #[error("the object belongs to parameter set {}, not to {}", short(.found), short(.expected))]
    Params {
        /// The id found.
        found: [u8; 32],
        /// The id of the set in use.
        expected: [u8; 32],
    },
    /// A length that the parameters do not allow.
    #[error("{declared} bytes are declared where {expected} belong")]
    Length {
        /// What the object says.
        declared: u64,
        /// What its parameters give.
        expected: u64,
    },
    /// Bytes after the object.
    #[error("{extra} bytes follow the object")]
    TrailingBytes {
        /// How many.
        extra: usize,
    },
    /// Bytes that must be zero are not.
    #[error("reserved bytes of {part} are not zero")]
    Reserved {
        /// Where.
        part: &'static str,
    },
    /// The checksum does not match: the bytes were changed.
    #[error("the checksum of {part} does not match: the bytes were damaged")]
    Checksum {
        /// Of what.
        part: &'static str,
    },
    /// A residue that is not below its prime.
    #[error("residue {index} of limb {limb} is not below its prime {prime}")]
    Residue {
        /// Which limb of its polynomial.
        limb: usize,
        /// Where in the limb.
        index: usize,
        /// The prime.
        prime: u64,
    },
    /// A scale outside the range of messages.
    #[error("a scale of {scale:e} is not between 1 and 2^{log_limit:.1}")]
    Scale {
        /// The scale found.
        scale: f64,
        /// log2 of the largest that fits its primes.
        log_limit: f64,
    },
    /// A number of primes that the set does not have.
    #[error("{found} {what}, where {least} to {most} are possible")]
    Primes {
        /// Of the chain, or special ones.
        what: &'static str,
        /// The number found.
        found: u32,
        /// The least possible.
        least: usize,
        /// The most possible.
        most: usize,
    },
    /// A number in front of a rounded ciphertext that none has.
    #[error("{found} as {what} of a rounded ciphertext, where {least} to {most} are possible")]
    Rounded {
        /// Which number.
        what: &'static str,
        /// The number found.
        found: u32,
        /// The least possible.
        least: u32,
        /// The most possible.
        most: u32,
    },
    /// A purpose no switching key has.
    #[error("no switching key has purpose {purpose} with X -> X^{galois}")]
    Purpose {
        /// The number of the purpose.
        purpose: u8,
        /// The automorphism.
        galois: u64,
    },
    /// A number of digits that the parameters do not give.
    #[error("{key} with {found} digits, where the parameters give {expected}")]
    Digits {
        /// The key.
        key: KeyId,
        /// Its digits.
        found: usize,
        /// Those it should have.
        expected: usize,
    },
    /// A derived key, which has no seed to write.
    #[error("the {key} was derived: such keys are not written")]
    Derived {
        /// The key.
        key: KeyId,
    },
    /// More entries than a list may have.
    #[error("{found} {what} are more than {most}")]
    Count {
        /// Entries of what.
        what: &'static str,
        /// The number found.
        found: u64,
        /// The most allowed.
        most: usize,
    },
    /// A key twice in one set, or one that is not next in its table.
    #[error("the {key} for {limbs} limbs is out of place in its key set")]
    KeyOrder {
        /// The key.
        key: KeyId,
        /// Its size.
        limbs: usize,
    },
    /// Text that is not valid UTF-8.
    #[error("the name of the parameter set is not text")]
    Text,
    /// A parameter set that cannot work.
    #[error("{reason}")]
    InvalidParams {
        /// What is wrong with it.
        reason: String,
    },
}

impl From<std::io::Error> for FormatError {
    fn from(error: std::io::Error) -> Self {
        Self::Io { kind: error.kind(), message: error.to_string() }
    }
}

/// The first bytes of an id: enough to tell sets apart in a message.
fn short(id: &[u8; 32]) -> String {
    id[..4].iter().map(|b| format!("{b:02x}")).collect()
}
