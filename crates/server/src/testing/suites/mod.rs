//! Shared test suites: what every implementation of a trait must satisfy.

pub mod blobs;
mod database;
mod failover;
mod figures;
pub mod hooked_disk;
mod moved;
mod postgres;
pub mod shared;
mod shared_races;
pub mod state;
