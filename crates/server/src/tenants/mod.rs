//! Who may use a server, what they did, and how one of them is removed.

pub(crate) mod audit;
pub(crate) mod erasure;
mod registry;

pub use registry::{Fingerprint, Tenant, TenantConfig, Tenants};
