//! Test support: fuzz targets, shared test suites of traits, a fault simulation, and an S3 server.

pub mod fuzz_targets;
#[cfg(feature = "s3-tests")]
pub mod s3_server;
#[cfg(test)]
mod simulation;
#[cfg(test)]
pub(crate) mod suites;
