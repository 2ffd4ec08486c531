//! What can go wrong on the data owner's side.

use crate::files::Problem;
use std::path::PathBuf;

/// The result of an operation of the data owner.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong on the data owner's side, and what would help.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of features or labels that cannot be used.
    #[error("{}: {problem}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: Problem,
    },
    /// The scheme refused.
    #[error(transparent)]
    Scheme(#[from] hetal_ckks::Error),
    /// The secret key is missing, damaged or unsafe.
    #[error(transparent)]
    Keys(#[from] hetal_keys::Error),
    /// Training refused.
    #[error(transparent)]
    Learn(#[from] hetal_learn::Error),
}
