//! How files of features and labels are read.

use hetal_client::data::tables::{Encoding, Options};

const HEADING: &str = "Tables";

/// How tables are read. What is not given is guessed, and every guess is printed.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct TableArguments {
    /// Whether the first row of a CSV or TSV file names the columns.
    #[arg(long, value_enum, value_name = "ANSWER", help_heading = HEADING)]
    pub header: Option<YesOrNo>,
    /// What separates the fields of a CSV file: one character, or the word tab or space.
    #[arg(long, value_name = "CHARACTER", value_parser = delimiter, help_heading = HEADING)]
    pub delimiter: Option<u8>,
    /// What decimals have: a point, or a comma.
    #[arg(long, value_enum, default_value = ".", value_name = "MARK", help_heading = HEADING)]
    pub decimal: DecimalMark,
    /// The encoding of text: utf-8, latin1, windows-1252 or utf-16.
    #[arg(long, value_name = "NAME", default_value = "utf-8", value_parser = encoding, help_heading = HEADING)]
    pub encoding: Encoding,
    /// Columns to leave out, by name or by number (the first is 1), separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = HEADING)]
    pub drop: Vec<String>,
}

/// Yes or no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum YesOrNo {
    /// Yes.
    Yes,
    /// No.
    No,
}

/// The mark of decimals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DecimalMark {
    /// A point.
    #[default]
    #[value(name = ".")]
    Point,
    /// A comma.
    #[value(name = ",")]
    Comma,
}

fn delimiter(text: &str) -> Result<u8, String> {
    Options::delimiter_named(text).map_err(|problem| problem.to_string())
}

fn encoding(text: &str) -> Result<Encoding, String> {
    Encoding::named(text).ok_or_else(|| format!("unknown encoding: give one of {}", Encoding::NAMES.join(", ")))
}

impl TableArguments {
    /// The options for a table with this label column, if any, and these columns, or all.
    pub fn options(&self, label: Option<&str>, columns: &[String]) -> Options {
        Options {
            encoding: self.encoding,
            header: self.header.map(|answer| answer == YesOrNo::Yes),
            delimiter: self.delimiter,
            decimal_comma: self.decimal == DecimalMark::Comma,
            columns: columns.to_vec(),
            drop: self.drop.clone(),
            label: label.map(str::to_owned),
            ..Options::default()
        }
    }

    /// The options for a file of labels. Whether it has a heading follows from the number of rows.
    pub fn label_options(&self) -> Options {
        Options { encoding: self.encoding, ..Options::default() }
    }
}
