//! `hetal report`: the page that reports on a training.

use crate::args::PROJECT_FOLDER;
use crate::args::passphrase::PassphraseSource;
use crate::terminal::output::{print, write_private};
use crate::{Error, Result};
use hetal_client::{Model, Project, report};

use std::path::PathBuf;

/// Arguments of `hetal report`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The name of the training and its model.
    #[arg(default_value = "model")]
    pub name: String,
    /// The project folder.
    #[arg(long, default_value = PROJECT_FOLDER)]
    pub dir: PathBuf,
    /// The page to write, instead of reports/NAME.html in the project folder.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// The source of the passphrase of a locked model.
    #[command(flatten)]
    pub passphrase: PassphraseSource,
    /// Print the record as one JSON object, and write no page unless --out names one. Every number
    /// of the page is a number of the record.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut project = Project::open_without_lock(&arguments.dir)?;
    let path = project.model(&arguments.name)?;
    project.set_passphrase(arguments.passphrase.for_model(&path)?);
    let model = Model::open(&path, project.passphrase())?;
    let record = report::of(&project, &model)?;
    let page = match &arguments.out {
        Some(out) => {
            write_private(out, report::page(&record).as_bytes())?;
            Some(out.clone())
        }
        None if arguments.json => None,
        None => Some(report::write_page(&project, &record)?),
    };
    if page.is_some() && Model::is_locked(&path) {
        eprintln!("note: a passphrase locks the model, but not this page");
    }
    let failed = |e: serde_json::Error| Error::File { path: arguments.name.clone(), reason: e.to_string() };
    let value = serde_json::to_value(&record).map_err(failed)?;
    let text = page.map_or_else(String::new, |page| format!("{} (private, open it in a browser)", page.display()));
    print(arguments.json, &value, &text);
    Ok(())
}
