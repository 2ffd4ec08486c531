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
    /// The system failed.
    #[error("{operation} {}: {message}", .path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's words.
        message: String,
    },
    /// A folder that another program works in.
    #[error("another hetal works in {}: wait for it or stop it, or choose another --dir", .folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder that is no project.
    #[error("{} is no project folder: give the --dir of an earlier command, or train first", .folder.display())]
    NoProject {
        /// The folder.
        folder: PathBuf,
    },
    /// A project of another parameter set.
    #[error("the project in {} has parameter set {has}, not {asked}: choose another --dir", .folder.display())]
    OtherSet {
        /// The folder.
        folder: PathBuf,
        /// Its set.
        has: String,
        /// The set asked for.
        asked: String,
    },
    /// A file of a newer program.
    #[error("{} has version {found}, this program knows {known}: use a newer one", .path.display())]
    NewerFile {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest known.
        known: u32,
    },
    /// A state file that cannot be understood.
    #[error("{} is damaged: {reason}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A name that is none.
    #[error("{name:?} is no name: take letters, digits, - and _, at most 64")]
    Name {
        /// What was given.
        name: String,
    },
    /// A key to or from the ephemeral secret without its partner.
    #[error("the keys to and from the sparse secret are made together")]
    LoneSparseKey,
    /// A thread ended before its work did.
    #[error("the work was interrupted")]
    Interrupted,
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
