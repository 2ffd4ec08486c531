//! The arguments of `hetal extract`, which are those of `hetal-extract` too.

use crate::catalogue;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Arguments of `hetal extract`.
#[derive(Debug, clap::Args)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true, after_help = catalogue::help())]
pub struct ExtractArguments {
    /// What else to do.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The network: a short name (see below), a folder with config.json and model.safetensors, an
    /// .onnx file, or a name on the hub (owner/name).
    #[arg(long, required = true)]
    pub model: Option<String>,
    /// The data set: a folder, a table or an archive.
    #[arg(long, required = true)]
    pub data: Option<PathBuf>,
    /// The folder the features go to; an interrupted extraction goes on where it was.
    #[arg(long, required = true)]
    pub out: Option<PathBuf>,
    /// The form of the data set.
    #[arg(long, value_enum, default_value = "auto")]
    pub format: DatasetFormatArgument,
    /// The column of texts of a table.
    #[arg(long, default_value = "text")]
    pub text_column: String,
    /// The column of pictures' files of a table, instead of texts.
    #[arg(long)]
    pub path_column: Option<String>,
    /// The column of class names of a table.
    #[arg(long, default_value = "label")]
    pub label_column: String,
    /// Whether the first row of a CSV or TSV table names its columns. Without names, columns are
    /// given by number; the first is 1.
    #[arg(long, value_enum, value_name = "ANSWER", default_value = "yes")]
    pub header: HeaderArgument,
    /// What separates the fields of a CSV table: one character, or the word tab or space. Found
    /// out by default.
    #[arg(long, value_name = "CHARACTER")]
    pub delimiter: Option<String>,
    /// The encoding of a table's text.
    #[arg(long, value_name = "NAME", default_value = "utf-8", value_parser = ENCODINGS)]
    pub encoding: String,
    /// Decides the split where the data set has none.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// What to do with a damaged picture or an empty text.
    #[arg(long, value_enum, default_value = "refuse")]
    pub bad: BadArgument,
    /// The form of the features.
    #[arg(long, value_enum, default_value = "npy")]
    pub output: OutputArgument,
    /// With a name on the hub: the commit of the model.
    #[arg(long)]
    pub revision: Option<String>,
    /// With a name on the hub: the SHA-256 of its model.safetensors.
    #[arg(long)]
    pub sha256: Option<String>,
    /// Where downloaded models are kept.
    #[arg(long, env = "HETAL_MODELS")]
    pub models: Option<PathBuf>,
    /// Where the network runs.
    #[arg(long, value_enum, default_value = "auto")]
    pub device: DeviceArgument,
    /// The most memory that reading may take, in GiB. Without it, three quarters of the machine's.
    #[arg(long, value_name = "GIB", value_parser = positive)]
    pub memory_gib: Option<f64>,
    /// The extraction ends with an error after so many seconds without progress.
    #[arg(long, value_name = "SECONDS", default_value_t = STALL_SECONDS, value_parser = clap::value_parser!(u64).range(1..))]
    pub stall_seconds: u64,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// The encodings of text.
pub const ENCODINGS: [&str; 4] = ["utf-8", "latin1", "windows-1252", "utf-16"];

/// Seconds without progress after which an extraction ends, unless told otherwise.
pub const STALL_SECONDS: u64 = 600;

/// What else `hetal extract` does.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the networks that have a short name: kind, columns, size, licence, pinned revision and
    /// SHA-256.
    Models {
        /// Print an array of JSON objects.
        #[arg(long)]
        json: bool,
    },
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("must be a number above 0".to_owned()),
    }
}

/// Where networks run.
#[derive(Clone, Copy, Debug, clap::ValueEnum, Serialize, Deserialize)]
pub enum DeviceArgument {
    /// On the CPU.
    Cpu,
    /// On an NVIDIA GPU; needs a hetal-extract that was built with the feature cuda.
    Cuda,
    /// On a GPU if the program and the machine have one, else on the CPU.
    Auto,
}

/// The forms of data sets.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum DatasetFormatArgument {
    /// Found out from the files.
    Auto,
    /// A folder for each class.
    Folders,
    /// CSV, TSV, JSON lines, Parquet or Arrow.
    Table,
    /// MNIST's idx files.
    Mnist,
    /// CIFAR-10's binary batches.
    Cifar10,
    /// Face Mask Detection with its boxes.
    Facemask,
    /// An .npz file of MedMNIST, DermaMNIST for example.
    Medmnist,
    /// SNIPS' intents.
    Snips,
}

/// Whether the first row of a table names its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum HeaderArgument {
    /// It does.
    Yes,
    /// It is a row like the others.
    No,
}

/// What happens to samples that cannot be used.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum BadArgument {
    /// Stop and name it.
    Refuse,
    /// Leave it out and list it.
    Skip,
}

/// The forms of features.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum OutputArgument {
    /// features_*.npy and labels_*.npy.
    Npy,
    /// train.safetensors, val.safetensors, test.safetensors.
    Safetensors,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        arguments: ExtractArguments,
    }

    #[test]
    fn the_help_names_the_networks() {
        let help = Program::command().render_long_help().to_string();
        for network in &catalogue::NETWORKS {
            assert!(help.contains(network.name), "{}", network.name);
        }
    }

    #[test]
    fn required_arguments_are_not_needed_to_list_networks() {
        let parse = |text: &str| Program::try_parse_from(text.split(' ')).map(|program| program.arguments);
        let given = parse("x --model m --data d --out o").unwrap();
        assert_eq!((given.model.as_deref(), given.stall_seconds), (Some("m"), STALL_SECONDS));
        for missing in ["x --data d --out o", "x --model m --out o", "x --model m --data d"] {
            assert!(parse(missing).unwrap_err().to_string().contains("required"), "{missing}");
        }
        assert!(matches!(parse("x models --json").unwrap().command, Some(Command::Models { json: true })));
        for bad in ["--memory-gib 0", "--memory-gib x", "--stall-seconds 0"] {
            assert!(parse(&format!("x --model m --data d --out o {bad}")).is_err(), "{bad}");
        }
    }
}
