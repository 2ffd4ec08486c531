//! Shared test suites: what every implementation of a trait must satisfy.

pub mod blobs;
mod database;
mod failover;
mod figures;
mod moved;
mod postgres;
pub mod shared;
pub mod state;
