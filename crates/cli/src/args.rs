//! Arguments that several commands share.

pub mod connection;
pub mod data;
pub mod hyper_parameters;
pub mod inputs;
pub mod passphrase;

/// Where the data owner's files are, unless told otherwise.
pub const FOLDER: &str = "hetal-project";
