//! Network: connections, TLS, certificates, and the metrics endpoint.

pub mod certificates;
pub mod metrics_http;
pub mod preauth;
pub mod tls;
