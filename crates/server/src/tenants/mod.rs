//! Tenants: registry, audit log, and erasure.

pub(crate) mod audit;
pub(crate) mod erasure;
mod registry;

pub use registry::{AuthenticatedTenant, Fingerprint, Tenant, TenantConfig, Tenants};
