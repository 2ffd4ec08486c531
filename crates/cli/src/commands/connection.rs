//! Where the server is, on the command line or as it was last time.

use crate::{Error, Result};
use hetal_client::Project;
use hetal_client::project::ServerSettings;
use hetal_client::remote::{Address, Credentials, Remote};
use std::path::{Path, PathBuf};
use std::time::Duration;
use zeroize::Zeroizing;

/// How long a broken connection is tried again: a server that is started again within this is not missed.
const PERSISTENCE: Duration = Duration::from_secs(300);
/// The environment variable that may hold a token.
const TOKEN: &str = "HETAL_TOKEN";

/// The server and the credentials for it. What is left out is as it was the last time in this project.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Connection {
    /// The server, as host:port.
    #[arg(long)]
    pub server: Option<String>,
    /// A file with the certificate authority (PEM) that the server's certificate comes from.
    #[arg(long)]
    pub authority: Option<PathBuf>,
    /// A file with the token that the server's operator gave you (or the environment variable HETAL_TOKEN).
    #[arg(long)]
    pub token_file: Option<PathBuf>,
    /// A file with your certificate (PEM), instead of a token.
    #[arg(long, requires = "certificate_key")]
    pub certificate: Option<PathBuf>,
    /// A file with its key (PEM).
    #[arg(long, requires = "certificate")]
    pub certificate_key: Option<PathBuf>,
}

impl Connection {
    /// Connects, and remembers where.
    pub fn connect(&self, project: &mut Project) -> Result<Remote> {
        let settings = self.settings(project.settings().server.as_ref())?;
        let remote = Remote::connect(&address(&settings)?).map_err(hetal_client::Error::from)?;
        if project.settings().server.as_ref() != Some(&settings) {
            project.update(|s| s.server = Some(settings))?;
        }
        Ok(remote)
    }

    fn settings(&self, before: Option<&ServerSettings>) -> Result<ServerSettings> {
        let before = before.cloned().unwrap_or_default();
        let address = self.server.clone().or(Some(before.address).filter(|a| !a.is_empty())).ok_or(Error::NoServer)?;
        let authority = self.authority.clone().or(Some(before.authority).filter(|p| !p.as_os_str().is_empty()));
        let given = self.certificate.clone().zip(self.certificate_key.clone());
        let (token_file, certificate) = match (&self.token_file, given) {
            (None, None) => (before.token_file, before.certificate),
            (token, certificate) => (token.clone(), certificate),
        };
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        Ok(ServerSettings {
            address,
            authority: absolute(authority.ok_or(Error::NoAuthority)?),
            token_file: token_file.map(absolute),
            certificate: certificate.map(|(chain, key)| (absolute(chain), absolute(key))),
        })
    }
}

/// The address of settings, with the secrets read from their files.
pub fn address(settings: &ServerSettings) -> Result<Address> {
    let credentials = match (&settings.certificate, &settings.token_file, std::env::var(TOKEN)) {
        (Some((chain, key)), _, _) => Credentials::Certificate { chain: read(chain)?, key: Zeroizing::new(read(key)?) },
        (None, Some(file), _) => {
            let text = Zeroizing::new(read(file)?);
            let text = std::str::from_utf8(&text).map_err(|_| bad(file, "holds no token".to_owned()))?;
            Credentials::Token(Zeroizing::new(text.trim().to_owned()))
        }
        (None, None, Ok(token)) => Credentials::Token(Zeroizing::new(token)),
        (None, None, Err(_)) => return Err(Error::NoCredentials),
    };
    let (server, authorities) = (settings.address.clone(), read(&settings.authority)?);
    Ok(Address { server, authorities, credentials, persistence: PERSISTENCE })
}

fn bad(path: &Path, reason: String) -> Error {
    Error::File { path: path.display().to_string(), reason }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| bad(path, e.to_string()))
}
