//! The manifest with the preprocessing of this crate's networks.

use crate::model::Preprocessing;

pub use hetal_extract_api::manifest::Skipped;

/// What `manifest.json` holds.
pub type Manifest = hetal_extract_api::ManifestOf<Preprocessing>;

/// Which network made features: enough to find it again and to refuse another.
pub type NetworkIdentity = hetal_extract_api::manifest::IdentityOf<Preprocessing>;
