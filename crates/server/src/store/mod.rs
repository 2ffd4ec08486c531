//! Persistent storage: the state database, blobs, and uploads in progress.

pub mod blobs;
pub mod disk;
pub mod duties;
pub mod folder;
pub mod gc;
pub mod migrate;
pub mod ownership;
pub mod parts;
pub mod shared_gc;
pub mod shared_uploads;
pub mod staging;
pub mod state;
pub mod uploads;
