//! Support for tests: entry points of the fuzzer, test suites of traits, and a simulation with faults.

pub mod fuzz_targets;
#[cfg(test)]
mod simulation;
#[cfg(test)]
pub(crate) mod suites;
