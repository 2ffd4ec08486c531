//! The server and the credentials: arguments, or the values stored in the project.

use crate::Result;
use crate::terminal::output::{warn_if_others_enter, warn_if_others_read};
use crate::terminal::progress;
use hetal_client::rpc::Remote;
use hetal_client::{Cancellation, Project, connection};
use std::path::PathBuf;

/// The server and the credentials. The project stores them for the next command.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ConnectionArguments {
    /// The server, as host:port; several gateways of one server are separated by commas.
    #[arg(long, value_name = "HOST:PORT", help_heading = "Server (default: as stored in the project)")]
    pub server: Option<String>,
    /// A file with the certificate authority (PEM) that issued the server's certificate.
    #[arg(long, value_name = "FILE", help_heading = "Server (default: as stored in the project)")]
    pub authority: Option<PathBuf>,
    /// A file whose first line is your token from the server's operator (or set the environment
    /// variable HETAL_TOKEN).
    #[arg(long, value_name = "FILE", help_heading = "Server (default: as stored in the project)")]
    pub token_file: Option<PathBuf>,
    /// A file with your certificate (PEM), instead of a token.
    #[arg(
        long,
        requires = "certificate_key",
        value_name = "FILE",
        help_heading = "Server (default: as stored in the project)"
    )]
    pub certificate: Option<PathBuf>,
    /// A file with the key of the certificate (PEM).
    #[arg(
        long,
        requires = "certificate",
        value_name = "FILE",
        help_heading = "Server (default: as stored in the project)"
    )]
    pub certificate_key: Option<PathBuf>,
}

impl ConnectionArguments {
    /// Connects to the server and stores its settings in the project.
    pub fn connect(&self, project: &mut Project) -> Result<Remote> {
        warn_if_others_enter(project.root());
        let given = connection::Connection {
            server: self.server.clone(),
            authority: self.authority.clone(),
            token_file: self.token_file.clone(),
            certificate: self.certificate.clone().zip(self.certificate_key.clone()),
        };
        let settings = given.settings(project.settings().server.as_ref())?;
        match &settings.certificate {
            Some((_, key)) => warn_if_others_read("certificate's key", key),
            None => settings.token_file.iter().for_each(|file| warn_if_others_read("token", file)),
        }
        let spinner = progress::spinner(format!("connecting to {}", settings.address));
        let remote = given.open(&settings, Cancellation::default());
        spinner.finish_and_clear();
        let mut remote = remote?;
        let server = settings.address.clone();
        remote.on_break(move |reason| eprintln!("{server} cannot be reached or fails ({reason}): retrying"));
        connection::Connection::remember(project, &remote, settings)?;
        Ok(remote)
    }
}
