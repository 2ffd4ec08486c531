//! Network: connections, TLS, certificates, and the metrics endpoint.

pub mod certificates;
mod expiry;
pub mod metrics_http;
pub mod preauth;
pub mod tls;
