#![doc = include_str!("../README.md")]

mod change_notifier;
mod clock;
mod compute;
pub mod config;
mod error;
mod jobs;
mod limits;
mod monitor;
mod net;
mod rpc;
mod server;
mod server_core;
mod store;
pub mod tenants;
#[doc(hidden)]
pub mod testing;
mod worker;

pub use compute::memory_estimate;
pub use config::Config;
pub use error::{Error, Result};
pub use jobs::spec as job_spec;
pub use net::certificates::{authority_path, certificate_warnings};
pub use server::{Server, start};
pub use store::migrate::{MoveReport, move_to_postgres};
pub use store::{blobs, state};
pub use tenants::erasure::{ErasureReport, forget_tenant};
pub use worker::shutdown::ShutdownReason;
pub use worker::supervisor::{Supervisor, become_gateway, follow_supervisor, supervised_cards};
