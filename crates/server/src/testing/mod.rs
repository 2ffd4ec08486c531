//! Test support: fuzz targets, shared test suites of traits, and a fault simulation.

pub mod fuzz_targets;
#[cfg(test)]
mod simulation;
#[cfg(test)]
pub(crate) mod suites;
