//! Connections and certificates: who connects.

pub mod certificates;
pub mod metrics_http;
pub mod preauth;
pub mod tls;
