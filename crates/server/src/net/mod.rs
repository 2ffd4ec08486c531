//! Connections and certificates: who connects.

pub mod preauth;
pub mod tls;
