//! `hetal params`: the table of parameter sets.

use crate::Result;
use crate::terminal::output::print;
use hetal_experiments::params;
use serde_json::Value;

/// Arguments of `hetal params`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// Print an array of JSON objects.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let table = params::table()?;
    print(arguments.json, &Value::from(&table[..]), &params::text(&table));
    Ok(())
}
