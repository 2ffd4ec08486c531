//! `hetal bench`: the benchmarks of hetal-experiments.

use crate::Result;
use hetal_experiments::bench;

/// Benchmarks.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Measure time and precision of the operations of one parameter set, including bootstraps.
    Ops(bench::ops::Arguments),
    /// Train on real features to early stopping, with and without the errors of encryption.
    Accuracy(bench::accuracy::Arguments),
    /// Count and time the encrypted matrix products that the paper compares.
    Matmul(bench::matmul::Arguments),
    /// Estimate the noise of trained weights, and what publishing a model costs.
    Releases(bench::releases::Arguments),
    /// Measure the softmax errors of the paper's table and of our softmax.
    Softmax(bench::softmax::Arguments),
    /// Compare the accuracy of default settings on small tables with that of scikit-learn.
    Tables(bench::tables::Arguments),
    /// Compare encrypted training with plain training, on random or real features.
    Train(bench::train::Arguments),
    /// Bytes of encrypted rows in both forms, and lifts a second.
    Upload(bench::upload::Arguments),
}

/// Runs a benchmark.
pub fn run(command: &Command) -> Result<()> {
    match command {
        Command::Ops(arguments) => bench::ops::run(arguments)?,
        Command::Accuracy(arguments) => bench::accuracy::run(arguments)?,
        Command::Matmul(arguments) => bench::matmul::run(arguments)?,
        Command::Releases(arguments) => bench::releases::run(arguments)?,
        Command::Softmax(arguments) => bench::softmax::run(arguments)?,
        Command::Tables(arguments) => bench::tables::run(arguments)?,
        Command::Train(arguments) => bench::train::run(arguments)?,
        Command::Upload(arguments) => bench::upload::run(arguments)?,
    }
    Ok(())
}
