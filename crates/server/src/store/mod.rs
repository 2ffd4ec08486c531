//! What a server keeps: the database of its state, blobs, and uploads on their way.

pub mod blobs;
pub mod disk;
pub mod folder;
pub mod gc;
pub mod ownership;
pub mod staging;
pub mod state;
pub mod uploads;
