//! The server and the credentials of a command: what it was given, or what the project stores.

use crate::project::ServerSettings;
use crate::rpc::{Address, Credentials, Remote};
use crate::{Cancellation, Error, Project, Result, predict};
use std::path::{Path, PathBuf};
use std::time::Duration;
use zeroize::Zeroizing;

/// How long a broken connection is retried. A server may restart within this time.
const RETRY_TIMEOUT: Duration = Duration::from_secs(300);
/// The environment variable for a token.
pub const TOKEN: &str = "HETAL_TOKEN";

/// A server and the credentials for it. What is missing comes from the project.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// `host:port`.
    pub server: Option<String>,
    /// A file with the certificate authority (PEM) that issued the server's certificate.
    pub authority: Option<PathBuf>,
    /// A file whose first line is a token.
    pub token_file: Option<PathBuf>,
    /// Files with a certificate and its key (PEM).
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl Connection {
    /// Connects to the server that the settings name.
    pub fn open(&self, settings: &ServerSettings, cancellation: Cancellation) -> Result<Remote> {
        let address = Address {
            server: settings.address.clone(),
            authorities: read(&settings.authority)?,
            credentials: self.credentials(settings, std::env::var(TOKEN).ok().map(Zeroizing::new))?,
            retry_timeout: RETRY_TIMEOUT,
        };
        Ok(Remote::connect_until(&address, cancellation)?)
    }

    /// Stores the settings of a server that was reached, and deletes what interrupted queries left
    /// there.
    pub fn remember(project: &mut Project, remote: &Remote, settings: ServerSettings) -> Result<()> {
        if project.settings().server.as_ref() != Some(&settings) {
            match project.update(|s| s.server = Some(settings)) {
                // Another process is working in the project, and this command only reads it.
                Err(Error::InUse { .. }) => {}
                updated => updated?,
            }
        }
        predict::remote::delete_leftovers(project, remote);
        Ok(())
    }

    /// The server and the files of credentials: those given, then those of an earlier command.
    pub fn settings(&self, before: Option<&ServerSettings>) -> Result<ServerSettings> {
        let before = before.cloned().unwrap_or_default();
        let address = self.server.clone().or(Some(before.address.clone()).filter(|a| !a.is_empty()));
        let address = address.ok_or(Error::NoServer)?;
        // Credentials of one server are not sent to another.
        let before = if address == before.address { before } else { ServerSettings::default() };
        let authority = self.authority.clone().or(Some(before.authority).filter(|p| !p.as_os_str().is_empty()));
        let (token_file, certificate) = match (&self.token_file, &self.certificate) {
            (None, None) => (before.token_file, before.certificate),
            (token, certificate) => (token.clone(), certificate.clone()),
        };
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        Ok(ServerSettings {
            address,
            authority: absolute(authority.ok_or(Error::NoAuthority)?),
            token_file: token_file.map(absolute),
            certificate: certificate.map(|(chain, key)| (absolute(chain), absolute(key))),
        })
    }

    /// The credentials: those given, then the environment, then the project.
    fn credentials(&self, settings: &ServerSettings, environment: Option<Zeroizing<String>>) -> Result<Credentials> {
        let given = self.token_file.is_some() || self.certificate.is_some();
        if let Some(token) = environment.filter(|token| !given && !token.trim().is_empty()) {
            return Ok(Credentials::Token(Zeroizing::new(token.trim().to_owned())));
        }
        if let Some((chain, key)) = &settings.certificate {
            return Ok(Credentials::Certificate { chain: read(chain)?, key: Zeroizing::new(read(key)?) });
        }
        let file = settings.token_file.as_ref().ok_or(Error::NoCredentials)?;
        let text = Zeroizing::new(read(file)?);
        let no_token = || Error::Damaged { path: file.clone(), reason: "it contains no token".to_owned() };
        let text = std::str::from_utf8(&text).map_err(|_| no_token())?;
        // `hetal-server token` prints the operator's part below the token.
        let first = text.trim().lines().next().ok_or_else(no_token)?;
        Ok(Credentials::Token(Zeroizing::new(first.trim().to_owned())))
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| Error::Io { operation: "reading", path: path.to_owned(), message: e.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> ServerSettings {
        ServerSettings {
            address: "a:1".to_owned(),
            authority: "/a.pem".into(),
            token_file: Some("/a.token".into()),
            certificate: None,
        }
    }

    #[test]
    fn what_one_operator_gave_is_not_shown_to_another() {
        let same = Connection { server: Some("a:1".to_owned()), ..Connection::default() };
        assert_eq!(same.settings(Some(&known())).unwrap(), known());
        let other =
            Connection { server: Some("b:1".to_owned()), authority: Some("/b.pem".into()), ..Connection::default() };
        let settings = other.settings(Some(&known())).unwrap();
        assert_eq!((settings.token_file, settings.authority), (None, PathBuf::from("/b.pem")));
        let trusting = Connection { server: Some("b:1".to_owned()), ..Connection::default() };
        assert!(matches!(trusting.settings(Some(&known())), Err(Error::NoAuthority)));
    }

    #[test]
    fn the_environment_comes_before_what_was_said_last_time() {
        let token = |text: &str| Some(Zeroizing::new(text.to_owned()));
        let read = |connection: &Connection, settings: &ServerSettings, environment| match connection
            .credentials(settings, environment)
        {
            Ok(Credentials::Token(token)) => Some(token.to_string()),
            _ => None,
        };
        let folder = hetal_testkit::TempDir::new();
        let path = folder.path().join("token");
        std::fs::write(&path, "from the file\n[[tenants]]\nname = \"ann\"\n").unwrap();
        let settings = ServerSettings { token_file: Some(path.clone()), ..known() };
        let silent = Connection::default();
        assert_eq!(read(&silent, &settings, token("from the environment")).unwrap(), "from the environment");
        assert_eq!(read(&silent, &settings, None).unwrap(), "from the file");
        let said = Connection { token_file: Some(path), ..Connection::default() };
        assert_eq!(read(&said, &settings, token("from the environment")).unwrap(), "from the file");
    }
}
