//! `hetal ui`: pages about trainings in a browser on this machine, while they go on.

use crate::args::PROJECT_FOLDER;
use crate::args::passphrase::PassphraseSource;
use crate::page_server::{PageServer, Pages};
use crate::terminal::interrupt::explain_interrupt;
use crate::terminal::output::print;
use crate::{Error, Result};
use hetal_client::{Project, training};
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `hetal ui`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// A project folder. May be given several times.
    #[arg(long, default_value = PROJECT_FOLDER)]
    pub dir: Vec<PathBuf>,
    /// The port on the loopback; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// The source of the passphrase of locked projects. Without it, locked models are only named.
    #[command(flatten)]
    pub passphrase: PassphraseSource,
    /// Print the address as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command until it is interrupted.
pub fn run(arguments: &Arguments) -> Result<()> {
    for folder in &arguments.dir {
        Project::open_without_lock(folder)?;
    }
    let pages = Pages::new(arguments.dir.clone(), arguments.passphrase.given()?);
    // Of 128 random bits.
    let token = training::random_label()? + &training::random_label()?;
    let place = || format!("127.0.0.1:{}", arguments.port);
    let failed = |e: std::io::Error| Error::File { path: place(), reason: format!("{e}: choose another --port") };
    let watch = PageServer::new(arguments.port, token, pages).map_err(failed)?;
    explain_interrupt("hetal ui has ended; trainings go on");
    let text = format!(
        "open in a browser on this machine: {}\nThe address lets whoever has it read accuracies and losses. Ctrl-C ends.",
        watch.url()
    );
    print(arguments.json, &json!({ "url": watch.url() }), &text);
    watch.serve()
}
