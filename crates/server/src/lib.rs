#![doc = include_str!("../README.md")]

mod clock;
mod compute;
pub mod config;
mod context;
mod duties;
mod error;
mod histograms;
mod jobs;
mod limits;
mod metrics;
mod migrate;
mod net;
mod notify;
mod probe;
mod rpc;
mod server;
mod store;
mod supervisor;
pub mod tenants;
#[doc(hidden)]
pub mod testing;
mod usage;
mod worker;

pub use compute::memory_estimate;
pub use config::Config;
pub use error::{Error, Result};
pub use jobs::spec as job_spec;
pub use migrate::{MoveReport, move_to_postgres};
pub use net::certificates::{authority_path, certificate_warnings};
pub use server::{Server, start};
pub use store::{blobs, state};
pub use supervisor::{Supervisor, become_gateway, follow_supervisor, supervised_cards};
pub use tenants::erasure::{ErasureReport, forget_tenant};
pub use worker::shutdown::ShutdownReason;
