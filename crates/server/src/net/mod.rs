//! Network: connections, TLS, certificates, and the metrics endpoint.

pub mod certificates;
pub mod connections;
pub mod expiry;
pub mod metrics_http;
pub mod tls;
