//! The table `[state]`: SQLite in the folder, or PostgreSQL.

use crate::store::state::PgSettings;
use crate::{Error, Result};
use serde::Deserialize;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where the state is: in `folder/state.sqlite`, unless a URL names a PostgreSQL database.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StateConfig {
    /// The URL of a PostgreSQL database. In the file it has no password.
    pub url: Option<String>,
    /// A file with the password.
    pub password_file: Option<PathBuf>,
    /// Authorities of the database's certificate (PEM). Needed if it is on another machine.
    pub authorities: Option<PathBuf>,
}

impl fmt::Debug for StateConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.url.as_deref().map(without_password);
        f.debug_struct("StateConfig").field("url", &url).field("password_file", &self.password_file).finish()
    }
}

/// The text with whatever stands between `://` and the next `@` left out, in every URL of a
/// database.
pub fn without_password(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("postgres") {
        let (before, url) = rest.split_at(at);
        shown.push_str(before);
        let scheme = ["postgres://", "postgresql://"].into_iter().find(|scheme| url.starts_with(scheme));
        let scheme = scheme.unwrap_or("postgres");
        shown.push_str(scheme);
        rest = &url[scheme.len()..];
        let line = rest.find('\n').unwrap_or(rest.len());
        if let (true, Some(end)) = (scheme.ends_with('/'), rest[..line].rfind('@')) {
            shown.push_str("...");
            rest = &rest[end..];
        }
    }
    shown + rest
}

impl StateConfig {
    /// Refuses a password in the configuration file, which more people read than may know it.
    pub(super) fn check_file(&self) -> Result<()> {
        let Some(url) = &self.url else { return Ok(()) };
        if !PgSettings::names_password(url)? {
            return Ok(());
        }
        let reason = "`state.url` contains a password: move it into a file, and name that in `state.password_file`";
        Err(Error::Config { reason: reason.to_owned() })
    }

    /// How to reach PostgreSQL; `None` if the state is in SQLite.
    pub fn settings(&self) -> Result<Option<PgSettings>> {
        let Some(url) = &self.url else {
            if self.password_file.is_some() || self.authorities.is_some() {
                let reason = "`state.password_file` and `state.authorities` need `state.url`".to_owned();
                return Err(Error::Config { reason });
            }
            return Ok(None);
        };
        let password = self.password_file.as_deref().map(read_password).transpose()?;
        PgSettings::new(url, password.as_deref(), self.authorities.as_deref()).map(Some)
    }
}

/// Reads a password. A file that everybody may read is refused.
fn read_password(path: &Path) -> Result<String> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = std::fs::metadata(path).map_err(|e| Error::file(path, e))?;
    if metadata.permissions().mode() & 0o007 != 0 {
        return Err(Error::file(path, "everybody may read this password: run `chmod o= FILE`"));
    }
    let text = std::fs::read_to_string(path).map_err(|e| Error::file(path, e))?;
    match text.lines().next() {
        Some(password) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(Error::file(path, "no password in the first line")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::Config;
    use hetal_testkit::TempDir;

    /// No message about a configuration repeats a password, wherever it was written by mistake.
    #[test]
    fn a_misplaced_password_is_not_repeated() {
        let dir = TempDir::new();
        let path = dir.path().join("server.toml");
        let url = "postgres://ann:hunter2@localhost/hetal";
        for text in [
            format!("[state]\nurl = \"{url}\""),
            format!("[state]\nurl = \"{url}"),
            format!("[state]\nurl = {url}"),
            format!("[state]\nurll = \"{url}\""),
            format!("address = \"{url}\""),
            format!("[state]\nurl = \"{}\"", url.replace("hunter2", "p@hunter2@/x")),
        ] {
            std::fs::write(&path, &text).unwrap();
            let refused = Config::read(&path).unwrap_err().to_string();
            assert!(!refused.contains("hunter2"), "{refused}");
        }
        let state = StateConfig { url: Some(url.to_owned()), ..StateConfig::default() };
        let shown = format!("{:?}", Config { state, ..Config::default() });
        assert!(shown.contains("postgres://...@localhost/hetal") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn a_password_comes_from_a_private_file() {
        use std::os::unix::fs::PermissionsExt;
        let dir = TempDir::new();
        let file = dir.path().join("password");
        let state = StateConfig {
            url: Some("postgres://ann@localhost/hetal".to_owned()),
            password_file: Some(file.clone()),
            authorities: None,
        };
        let refused = || state.settings().err().unwrap().to_string();
        assert!(refused().contains("password"), "there is no file");
        for (content, mode, word) in [("hunter2\n", 0o644, "everybody"), ("\n", 0o640, "first line")] {
            std::fs::write(&file, content).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            assert!(refused().contains(word) && !refused().contains("hunter2"), "{}", refused());
        }
        std::fs::write(&file, "hunter2\n").unwrap();
        assert!(state.settings().unwrap().is_some());
        let lonely = StateConfig { url: None, ..state };
        assert!(lonely.settings().err().unwrap().to_string().contains("state.url"));
    }
}
