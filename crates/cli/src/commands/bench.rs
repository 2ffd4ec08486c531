//! `hetal bench`: the benchmarks of hetal-experiments.

use crate::Result;
use hetal_experiments::bench;

/// Benchmarks.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Time and precision of the operations of one parameter set, bootstrapping included.
    Ops(bench::ops::Arguments),
    /// Trainings of real features to early stopping, exactly and with the errors of encryption.
    Accuracy(bench::accuracy::Arguments),
    /// The paper's comparison of encrypted matrix products: operations and seconds.
    Matmul(bench::matmul::Arguments),
    /// The paper's table of softmax errors, measured again, and our softmax beside it.
    Softmax(bench::softmax::Arguments),
    /// Encrypted training beside exact training, on random features of a benchmark's shape or on real ones.
    Train(bench::train::Arguments),
}

/// Runs a benchmark.
pub fn run(command: &Command) -> Result<()> {
    match command {
        Command::Ops(arguments) => bench::ops::run(arguments)?,
        Command::Accuracy(arguments) => bench::accuracy::run(arguments)?,
        Command::Matmul(arguments) => bench::matmul::run(arguments)?,
        Command::Softmax(arguments) => bench::softmax::run(arguments)?,
        Command::Train(arguments) => bench::train::run(arguments)?,
    }
    Ok(())
}
