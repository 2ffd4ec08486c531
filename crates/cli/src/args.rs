//! Arguments that several commands share.

pub mod connection;
pub mod data;
pub mod hyper_parameters;
pub mod inputs;
pub mod key_plan;
pub mod passphrase;
pub mod preparation;
pub mod row_form;
pub mod table;
pub mod weights;

/// The default project folder.
pub const PROJECT_FOLDER: &str = "hetal-project";
